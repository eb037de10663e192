"""The peers: what people would otherwise use. How each is started, fed, and read.

A peer is one process that measures as ours does, and channels in it: one run, one stream, one topic each.
``RUNCAST_BENCH_PEERS`` names a directory that has what is not in our own environment: a virtual environment with
``langgraph-cli[inmem]``, ``rakaia-streams`` and ``sse-starlette``, and ``@durable-streams/server`` in node_modules.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

from bench import processes
from bench.lab import TEXT, Lab
from bench.peer import Channel, Load, Peer, item
from bench.posting import Poster, Request
from bench.processes import Missing, Process

__all__ = [
    "Channel",
    "Load",
    "Peer",
    "all_of",
    "durable_streams",
    "langgraph_dev",
    "nchan",
    "python_queues",
    "rakaia",
    "that_keep",
    "versions",
]

_NCHAN = """
nchan_shared_memory_size 128M;
upstream store {{ nchan_redis_server redis://127.0.0.1:{redis}; }}
server {{ listen 127.0.0.1:{{port}} backlog=4096;
  location = /memory/pub {{ nchan_publisher; nchan_channel_id $arg_id; nchan_message_buffer_length 5000; }}
  location = /memory/sub {{ nchan_subscriber eventsource; nchan_channel_id $arg_id;
    nchan_subscriber_first_message newest; }}
  location = /redis/pub {{ nchan_publisher; nchan_channel_id $arg_id; nchan_message_buffer_length 5000;
    nchan_redis_pass store; }}
  location = /redis/sub {{ nchan_subscriber eventsource; nchan_channel_id $arg_id;
    nchan_subscriber_first_message newest; nchan_redis_pass store; }}
}}
"""
_DURABLE = """
const {DurableStreamTestServer} = require(process.argv[1]);
const [port, dataDir] = [Number(process.argv[2]), process.argv[3]];
new DurableStreamTestServer({port, host: "127.0.0.1", compression: false, dataDir}).start();
"""
_QUEUES = {
    "StreamingResponse": ("/plain", "fastapi", "fastapi"),
    "sse-starlette": ("/sse", "sse_starlette", "sse-starlette"),
}
"""Ways to read ``bench.peer_sse``: path, module, package."""
_PACKAGES = ["langgraph-api", "langgraph-runtime-inmem", "rakaia-streams", "sse-starlette", "starlette"]
_JSON = ("Content-Type: application/json",)


def nchan(lab: Lab) -> tuple[Peer, Peer]:
    """One nginx, its channels in memory and in Redis."""
    config = _NCHAN.format(redis=lab.start(processes.redis(lab.directory)).port)
    server = lab.start(processes.nginx(lab.directory, config, nchan=True))

    def kept(name: str, place: str) -> Peer:
        async def opened(poster: Poster, _: Load) -> Channel:
            name = uuid4().hex

            async def send(first: int, count: int) -> None:
                path, kind = f"/{place}/pub?id={name}", ("X-EventSource-Event: message.delta",)
                await poster.send([Request("POST", path, item(seq), kind) for seq in range(first, first + count)])

            await send(0, 1)  # a channel without a message is none, and viewers begin behind the newest
            return Channel(f"/{place}/sub?id={name}", send)

        return Peer(name, server, opened)

    return kept("Nchan, memory", "memory"), kept("Nchan, Redis", "redis")


def all_of(lab: Lab, leave_out: Callable[[str], None]) -> list[Peer]:
    """All that are on this machine; ``leave_out`` is told of each that is not."""
    ways: list[Callable[[], Sequence[Peer]]] = [
        lambda: nchan(lab),
        lambda: [python_queues(lab, "StreamingResponse")],
        lambda: [python_queues(lab, "sse-starlette")],
        lambda: [langgraph_dev(lab)],
        lambda: [durable_streams(lab)],
        lambda: [rakaia(lab)],
    ]
    return _found(ways, leave_out)


def that_keep(lab: Lab, leave_out: Callable[[str], None]) -> list[Peer]:
    """Those of which one can read from the start what was sent long ago."""
    ways: list[Callable[[], Sequence[Peer]]] = [
        lambda: [langgraph_dev(lab)],
        lambda: [durable_streams(lab)],
        lambda: [durable_streams(lab, files=True)],
        lambda: [rakaia(lab)],
    ]
    return _found(ways, leave_out)


def _found(ways: Sequence[Callable[[], Sequence[Peer]]], leave_out: Callable[[str], None]) -> list[Peer]:
    found: list[Peer] = []
    for way in ways:
        try:
            found += way()
        except Missing as missing:
            leave_out(f"left out: {missing}")
    return found


def versions() -> dict[str, str]:
    """Of the peers that are here."""
    place, found = _place(), {}
    said = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "libnginx-mod-nchan"], capture_output=True, text=True
    )
    if said.returncode == 0:
        found["nchan"] = said.stdout
    if place is None:
        return found
    asked = f"import json, importlib.metadata as m; print(json.dumps([(n, m.version(n)) for n in {_PACKAGES!r}]))"
    said = subprocess.run([str(place / "bin" / "python"), "-c", asked], capture_output=True, text=True)
    if said.returncode == 0:
        found |= dict(json.loads(said.stdout))
    package = place / "node_modules" / "@durable-streams" / "server" / "package.json"
    if package.exists():
        found["@durable-streams/server"] = json.loads(package.read_text())["version"]
        node = subprocess.run(["node", "--version"], capture_output=True, text=True)
        found["node"] = node.stdout.strip()
    return found


# Peers that want an environment of their own.


def _place() -> Path | None:
    named = os.environ.get("RUNCAST_BENCH_PEERS")
    return Path(named).expanduser() if named else None


def _python(module: str, package: str) -> str:
    """An interpreter that has the module. Raises ``Missing``."""
    place = _place()
    for python in [*([str(place / "bin" / "python")] if place is not None else []), sys.executable]:
        asked = [python, "-c", f"import {module}"]
        if shutil.which(python) and subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return python
    raise Missing(f"{package} is not installed (pip install {package}; RUNCAST_BENCH_PEERS names its environment)")


def _uvicorn(lab: Lab, python: str, app: str) -> Process:
    port = processes.free_port()
    command = [python, "-m", "uvicorn", app, "--port", str(port), "--loop", "uvloop", "--http", "httptools"]
    command += ["--log-level", "warning", "--backlog", "4096"]
    return lab.start(Process(command, port, log=lab.directory / f"peer-{port}.log").ready())


def python_queues(lab: Lab, way: str) -> Peer:
    """A queue for each viewer. ``way``: a key of ``_QUEUES``."""
    path, module, package = _QUEUES[way]
    server = _uvicorn(lab, _python(module, package), "bench.peer_sse:app")

    async def opened(poster: Poster, _: Load) -> Channel:
        async with asyncio.timeout(20):
            while await poster.send([Request("GET", "/viewers")]) != [b"0"]:  # those of the load before  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        async def send(first: int, count: int) -> None:
            await poster.send([Request("POST", f"/pub/{seq}", item(seq)) for seq in range(first, first + count)])

        return Channel(path, send)

    return Peer(way, server, opened)


def _durable(name: str, server: Process, *, whole: bool = False) -> Peer:
    """A server of the Durable Streams protocol, read as events from the start. An append of several items is an array,
    which one of these servers sends on as one event: items are told apart by what is in them."""

    async def opened(poster: Poster, _: Load) -> Channel:
        path = f"/{uuid4().hex}"
        await poster.send([Request("PUT", path, "", _JSON)])

        async def send(first: int, count: int) -> None:
            body = "[" + ",".join(item(seq) for seq in range(first, first + count)) + "]"
            await poster.send([Request("POST", path, body, _JSON)])

        return Channel(f"{path}?offset=-1&live=sse", send, whole=f"{path}?offset=-1" if whole else "")

    return Peer(name, server, opened, mark='"seq":', share=0.2)


def durable_streams(lab: Lab, *, files: bool = False) -> Peer:
    """In memory, or in files."""
    place, node = _place(), shutil.which("node")
    package = place / "node_modules" / "@durable-streams" / "server" if place is not None else None
    if node is None or package is None or not package.is_dir():
        raise Missing(
            "@durable-streams/server is not installed (npm install @durable-streams/server, in the directory that "
            "RUNCAST_BENCH_PEERS names)"
        )
    port = processes.free_port()
    command = [node, "-e", _DURABLE, str(package), str(port)]
    if files:
        command.append(str(lab.directory / f"durable-{port}"))
    server = lab.start(Process(command, port, log=lab.directory / f"peer-{port}.log").ready())
    return _durable("durable-streams, files" if files else "durable-streams, memory", server, whole=True)


def rakaia(lab: Lab) -> Peer:
    return _durable("rakaia", _uvicorn(lab, _python("rakaia", "rakaia-streams"), "rakaia:app"))


def langgraph_dev(lab: Lab) -> Peer:
    """It publishes by itself (``bench.peer_graph``): its figures have the graph's own work in them."""
    python = _python("langgraph_api", "langgraph-cli[inmem]")
    server = lab.start(_langgraph_process(lab.directory / f"langgraph-{uuid4().hex[:8]}", python))

    async def opened(poster: Poster, load: Load) -> Channel:
        go = lab.directory / uuid4().hex
        (answer,) = await poster.send([Request("POST", "/threads", "{}", _JSON)])
        thread = json.loads(answer)["thread_id"]
        told = {"rounds": load.rounds, "burst": load.burst, "pause": load.pause, "text": TEXT, "go": str(go)}
        run = {"assistant_id": "bench", "input": told, "stream_mode": ["custom"], "stream_resumable": True}
        (answer,) = await poster.send([Request("POST", f"/threads/{thread}/runs", json.dumps(run), _JSON)])
        path = f"/threads/{thread}/runs/{json.loads(answer)['run_id']}/stream?stream_mode=custom"

        async def send(first: int, count: int) -> None:
            go.touch()

        return Channel(path, send, headers=["Last-Event-ID: -1"])

    return Peer("langgraph dev", server, opened, mark="event: custom", share=0.1)


def _langgraph_process(place: Path, python: str) -> Process:
    place.mkdir()
    shutil.copy(processes.ROOT / "bench" / "peer_graph.py", place / "graph.py")
    told = {"dependencies": ["."], "graphs": {"bench": "./graph.py:graph"}}
    (place / "langgraph.json").write_text(json.dumps(told))
    port = processes.free_port()
    command = [str(Path(python).parent / "langgraph"), "dev", "--no-browser", "--no-reload"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    env = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1", "LOG_LEVEL": "WARNING"}
    return Process(command, port, env=env, log=place / "log", cwd=place).ready(60)
