"""P4: resident memory per idle viewer at 4,000."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.request import urlopen

from bench import peers
from bench.lab import Lab
from bench.peers import Load, Peer
from bench.processes import Missing, Process
from bench.results import Result, Row
from bench.sink import Sink, Spec

__all__ = ["ROW"]


async def run(lab: Lab) -> Result:
    viewers = lab.size(4_000, 100)
    result = Result()
    gateway = lab.new_gateway()
    lab.tell(f"{viewers} idle viewers: runcast")
    async with lab.run() as publisher:
        ours = await _grown(gateway, lab.path(publisher.run_id), viewers, 5, result)
    gateway.stop()
    result.figures["KB a viewer"] = round(ours / 1024, 1)
    if not lab.short:
        await _peers(lab, viewers, ours, result)
    return result


async def _peers(lab: Lab, viewers: int, ours: float, result: Result) -> None:
    ways: list[tuple[Callable[[], Peer], float]] = [
        (lambda: peers.nchan(lab)[0], 1.3),
        (lambda: peers.python_queues(lab, "sse-starlette"), 0.4),
    ]
    for make, limit in ways:
        try:
            peer = make()
        except Missing as missing:
            result.notes.append(f"left out: {missing}")
            continue
        lab.tell(f"{viewers} idle viewers: {peer.name}")
        async with peer.channel(Load(viewers, 0, 1, 0.0)) as channel:
            theirs = await _grown(peer.process, channel.path, viewers, 5)
        peer.process.stop()
        result.figures[f"KB a viewer, {peer.name}"] = round(theirs / 1024, 1)
        result.at_most(f"memory / {peer.name}", ours / theirs, limit)


async def _grown(server: Process, path: str, viewers: int, first: int, ours: Result | None = None) -> float:
    """Bytes a viewer. A few come and go before, so that what is made once is not counted."""
    async with Sink(Spec(server.port, [path] * first, 1, checked=0)):
        pass
    await asyncio.sleep(0.2)
    before = server.rss()
    async with Sink(Spec(server.port, [path] * viewers, 1, checked=0, timeout=120)):
        await asyncio.sleep(1.0)
        grown = (server.rss() - before) / viewers
        if ours is not None:
            ours.check("all viewers are attached", await asyncio.to_thread(_attached, server) == viewers)
        return grown


def _attached(gateway: Process) -> int:
    """What the gateway says of itself."""
    with urlopen(f"http://127.0.0.1:{gateway.port}/metrics", timeout=10) as answer:
        said = answer.read().decode()
    return int(float(said.partition("\nruncast_viewers ")[2].partition("\n")[0]))


ROW = Row("P4", "memory per idle viewer at 4,000", run)
