"""Hermes' API server and nothing else of its gateway. Run by Hermes' own Python; standard library only.

``PYTHON api_listener.py`` reads one JSON line from standard input, ``{"key": "…", "cwd": "…"}``, and writes one to
standard output: ``{"port": n, "asks": bool}`` once it listens on 127.0.0.1, or ``{"unavailable": "why"}``. It ends at
the end of its input and at SIGTERM, and interrupts the runs that are under way.

``hermes gateway run`` would do more than serve: it takes the lock of its ``HERMES_HOME`` (the operator's own gateway
could then not start, or would replace this one), connects every messenger that is configured there, a second time
where the operator's gateway runs, and runs the jobs of his cron. So the server's class is used alone. The key comes
through the input, not the environment, where the agent's tools could read it and approve their own commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
from typing import Any

_PORTS_TRIED = 5
_LAST_WORDS = 3.0
"""Seconds that interrupted runs have to end."""


class Unavailable(Exception):
    """This Hermes has no API server that can be used."""


def prepare(asked: dict[str, Any]) -> None:
    """What has to be so before Hermes is imported."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if not _hides_hermes(os.path.abspath(path or "."), here)]
    # Without this, or with that, dangerous commands would be approved in silence.
    os.environ["HERMES_EXEC_ASK"] = "1"
    os.environ.pop("HERMES_YOLO_MODE", None)
    # A gateway works in the home directory unless it is told otherwise. What config.yaml says still comes first.
    os.environ["TERMINAL_CWD"] = str(asked["cwd"])


def _hides_hermes(path: str, here: str) -> bool:
    """Modules beside this file, and Runcast's own package ``gateway`` where PYTHONPATH leads to it, would be found in
    the place of Hermes'."""
    return path == here or (here.startswith(path + os.sep) and not os.path.isfile(f"{path}/gateway/run.py"))


def server_class() -> tuple[Any, Any]:
    """The class of Hermes' API server, kept from what is the gateway's; and that of its configuration."""
    if importlib.util.find_spec("aiohttp") is None:
        raise Unavailable(f"its environment has no aiohttp. Install it: {sys.executable} -m pip install aiohttp")
    try:
        importlib.import_module("gateway.run")  # loads .env, and makes of config.yaml what the agent reads
        base: Any = importlib.import_module("gateway.platforms.api_server").APIServerAdapter
        config = importlib.import_module("gateway.config").PlatformConfig
    except Exception as error:
        raise Unavailable(f"its API server cannot be loaded: {type(error).__name__}: {error}") from error

    class Listener(base):  # type: ignore[misc]
        def _write_runtime_status_safe(self, *_: Any, **__: Any) -> None:
            """The status file of this home is the operator's gateway's."""

        def _publish_runtime_status(self, *_: Any, **__: Any) -> None:
            """The same, of newer versions."""

        @staticmethod
        def _resolve_max_concurrent_runs() -> int:
            """No limit: the worker has its own."""
            return 0

    return Listener, config


def asks() -> bool:
    """Whether Hermes asks before dangerous commands: its configuration, or its .env, may approve everything."""
    for name in ("tools.approval_context", "tools.approval"):
        with contextlib.suppress(Exception):
            module = importlib.import_module(name)
            mode = getattr(module, "_get_approval_mode", lambda: "")()
            if mode == "off" or getattr(module, "_YOLO_MODE_FROZEN", False):
                return False
    return True


def load_tools() -> None:
    """Plugins, hooks and MCP servers, as a gateway loads them at its start. What is not there is left out."""
    for step in (_load_plugins, _load_hooks, _load_mcp):
        try:
            step()
        except Exception as error:
            print(f"runcast: {step.__name__}: {type(error).__name__}: {error}", file=sys.stderr)


def _load_plugins() -> None:
    importlib.import_module("hermes_cli.plugins").discover_plugins()


def _load_hooks() -> None:
    config = importlib.import_module("hermes_cli.config").load_config()
    importlib.import_module("agent.shell_hooks").register_from_config(config, accept_hooks=False)


def _load_mcp() -> None:
    newer = importlib.util.find_spec("tools.mcp_tool_discovery") is not None
    importlib.import_module("tools.mcp_tool_discovery" if newer else "tools.mcp_tool").discover_mcp_tools()


async def listening(asked: dict[str, Any]) -> tuple[Any, int]:
    listener, config = server_class()
    await asyncio.get_running_loop().run_in_executor(None, load_tools)
    for _ in range(_PORTS_TRIED):
        port = _free_port()
        extra = {"host": "127.0.0.1", "port": port, "key": asked["key"]}
        server = listener(config(enabled=True, extra=extra))
        if await server.connect():
            return server, port
    raise Unavailable("its API server does not start: see its messages")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def serve(asked: dict[str, Any], say: Any) -> None:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    loop.add_reader(0, _heard, loop, ending)
    try:
        server, port = await listening(asked)
    except Unavailable as error:
        say(unavailable=str(error))
        return
    say(port=port, asks=asks())
    await ending.wait()
    await _interrupt(server)


def _heard(loop: asyncio.AbstractEventLoop, ending: asyncio.Event) -> None:
    if not os.read(0, 4096):
        loop.remove_reader(0)
        ending.set()


async def _interrupt(server: Any) -> None:
    """So that the runs write down what they have, and their tools end."""
    agents = dict(getattr(server, "_active_run_agents", {}))
    tasks = [task for task in dict(getattr(server, "_active_run_tasks", {})).values() if not task.done()]
    for agent in agents.values():
        with contextlib.suppress(Exception):
            agent.interrupt("The server stops")
    if tasks:
        await asyncio.wait(tasks, timeout=_LAST_WORDS)


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Hermes prints is no line of ours

    def say(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    line = b""
    while not line.endswith(b"\n"):  # unbuffered: what comes behind it is waited for elsewhere
        if not (piece := os.read(0, 1)):
            return
        line += piece
    asked = json.loads(line)
    prepare(asked)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(serve(asked, say))
    sys.stderr.flush()
    # Threads that are stuck in a tool would be waited for otherwise; the supervisor ends what they left.
    os._exit(0)


if __name__ == "__main__":
    main()
