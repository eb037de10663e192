"""One run, many viewers: the CPU that a server spends per delivered frame, for us and for the peers (P1, P2)."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import quote

from bench import processes
from bench.lab import TEXT, Lab, paced
from bench.processes import Missing, Process
from bench.results import Result
from bench.sink import Sink, Spec
from broker.items import MessageDelta

__all__ = ["Load", "compare", "ours"]

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
_FRAME = 205
"""Bytes of one frame of ours at ``TEXT``, with its HTTP framing: what the floor writes."""


class Load(NamedTuple):
    """``rounds`` bursts of ``burst`` items, ``pause`` seconds apart, to ``viewers`` viewers."""

    viewers: int
    rounds: int
    burst: int
    pause: float

    @property
    def items(self) -> int:
        return self.rounds * self.burst

    @property
    def frames(self) -> int:
        return self.items * self.viewers


class Cost(NamedTuple):
    cpu: float
    frames: int
    complete: int
    disorder: int
    p50: float = 0.0
    p99: float = 0.0

    @property
    def per_frame(self) -> float:
        """Microseconds."""
        return self.cpu / max(self.frames, 1) * 1e6


async def ours(lab: Lab, gateway: Process, load: Load) -> Cost:
    async with lab.run() as publisher:
        paths = [lab.path(publisher.run_id)] * load.viewers
        async with Sink(Spec(gateway.port, paths, load.items, checked=10)) as sink:
            before = gateway.cpu()
            async for _ in paced(load.rounds, load.pause):
                for _ in range(load.burst):
                    await publisher.publish(MessageDelta(text=TEXT))
            seen = await sink.seen()
            cpu = gateway.cpu() - before
    return Cost(cpu, seen.frames, seen.complete, seen.disorder, seen.quantile(0.5), seen.quantile(0.99))


def start_nchan(lab: Lab) -> Process:
    config = _NCHAN.format(redis=lab.start(processes.redis(lab.directory)).port)
    return lab.start(processes.nginx(lab.directory, config, nchan=True))


async def nchan(server: Process, store: str, load: Load) -> Cost:
    channel = quote(f"c{time.monotonic_ns()}")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        paths = [f"/{store}/sub?id={channel}"] * load.viewers
        await _post(reader, writer, f"/{store}/pub?id={channel}", 0, 1)
        async with Sink(Spec(server.port, paths, load.items, checked=0)) as sink:
            before = server.cpu()
            async for number in paced(load.rounds, load.pause):
                await _post(reader, writer, f"/{store}/pub?id={channel}", number * load.burst, load.burst)
            seen = await sink.seen()
            cpu = server.cpu() - before
    finally:
        writer.close()
    return Cost(cpu, seen.frames, seen.complete, 0)


async def _post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, seq: int, count: int) -> None:
    """Publish ``count`` messages, pipelined, with what our items hold."""
    for n in range(seq + 1, seq + 1 + count):
        body = (
            f'{{"run_id":"run_01kb8d2rqs6x9v3m5t7w8y0z1a","seq":{n},"ts":{time.time()},"component_id":"agent",'
            f'"round":1,"index":0,"text":"{TEXT}"}}'
        )
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: bench\r\nX-EventSource-Event: message.delta\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
    for _ in range(count):
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))


async def floor(lab: Lab, load: Load) -> Cost:
    program, port = processes.compile_floor(lab.directory), processes.free_port()
    numbers = (port, load.viewers, load.rounds, load.burst, int(load.pause * 1e6), _FRAME)
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(program, *map(str, numbers), stdin=pipe, stdout=pipe)
    assert server.stdin
    assert server.stdout
    try:
        await asyncio.sleep(0.1)
        async with Sink(Spec(port, ["/"] * load.viewers, load.items, checked=0)) as sink:
            await server.stdout.readline()
            server.stdin.write(b"\n")
            cpu = int(await server.stdout.readline()) / 1e9
            seen = await sink.seen()
    finally:
        server.kill()
        await server.wait()
    return Cost(cpu, seen.frames, seen.complete, 0)


async def compare(lab: Lab, load: Load, rounds: int) -> tuple[Result, dict[str, float]]:
    """Ours and the peers in turns; → figures and checks, and for each peer the median of ours / peer of one turn."""
    result = Result()
    gateway = lab.gateway
    peers = {} if lab.short else _peers(lab, load, result)
    costs: dict[str, list[Cost]] = {"runcast": [], **{name: [] for name in peers}}
    for turn in range(rounds):
        lab.tell(f"turn {turn + 1} of {rounds}: runcast")
        costs["runcast"].append(await ours(lab, gateway, load))
        for name, measure in peers.items():
            lab.tell(f"turn {turn + 1} of {rounds}: {name}")
            costs[name].append(await measure())
    for name, measured in costs.items():
        result.figures[f"µs a frame, {name}"] = round(statistics.median(c.per_frame for c in measured), 2)
    mine = costs["runcast"]
    result.figures["p50 ms"] = round(statistics.median(c.p50 for c in mine) * 1e3, 2)
    result.figures["p99 ms"] = round(statistics.median(c.p99 for c in mine) * 1e3, 2)
    result.check("every viewer got every item", all(c.complete == load.viewers for c in mine))
    result.check("in order, each once", all(c.frames == load.frames and not c.disorder for c in mine))
    ratios = {
        name: statistics.median(m.per_frame / p.per_frame for m, p in zip(mine, measured, strict=True))
        for name, measured in costs.items()
        if name != "runcast"
    }
    return result, ratios


def _peers(lab: Lab, load: Load, result: Result) -> dict[str, Callable[[], Awaitable[Cost]]]:
    peers: dict[str, Callable[[], Awaitable[Cost]]] = {}
    try:
        processes.compile_floor(lab.directory)
        peers["C floor"] = lambda: floor(lab, load)
    except Missing as missing:
        result.notes.append(str(missing))
    try:
        server = start_nchan(lab)
        peers["Nchan, memory"] = lambda: nchan(server, "memory", load)
        peers["Nchan, Redis"] = lambda: nchan(server, "redis", load)
    except Missing as missing:
        result.notes.append(str(missing))
    return peers
