"""One run, many viewers: the CPU that a server spends per delivered frame, for us and for the peers (P1, P2)."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from bench import peers, processes
from bench.lab import TEXT, Lab, paced
from bench.peers import Load, Peer
from bench.processes import Missing, Process
from bench.results import Result, paired
from bench.sink import Sink, Spec
from broker.items import MessageDelta

__all__ = ["Cost", "Load", "compare", "ours", "theirs"]

_FRAME = 205
"""Bytes of one frame of ours at ``TEXT``, with its HTTP framing: what the floor writes."""
_EAGER = "runcast, RUNCAST_PACE=0"
_LATE = 1.2
"""A peer that needs so many times as long as its load is said not to have kept the pace."""


class Cost(NamedTuple):
    cpu: float
    frames: int
    complete: int
    disorder: int
    took: float = 0.0
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
            before, began = gateway.cpu(), time.monotonic()
            async for _ in paced(load.rounds, load.pause):
                for _ in range(load.burst):
                    await publisher.publish(MessageDelta(text=TEXT))
            seen = await sink.seen()
            cpu, took = gateway.cpu() - before, time.monotonic() - began
    return Cost(cpu, seen.frames, seen.complete, seen.disorder, took, seen.quantile(0.5), seen.quantile(0.99))


async def theirs(peer: Peer, load: Load) -> Cost:
    async with peer.channel(load) as channel:
        paths = [channel.path] * load.viewers
        spec = Spec(peer.process.port, paths, load.items, checked=0, mark=peer.mark, headers=channel.headers)
        async with Sink(spec) as sink:
            before, began = peer.process.cpu(), time.monotonic()
            async for number in paced(load.rounds, load.pause):
                await channel.send(number * load.burst + 1, load.burst)
            seen = await sink.seen()
            cpu, took = peer.process.cpu() - before, time.monotonic() - began
    return Cost(cpu, seen.frames, seen.complete, 0, took)


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
            began = time.monotonic()
            server.stdin.write(b"\n")
            cpu = int(await server.stdout.readline()) / 1e9
            seen = await sink.seen()
            took = time.monotonic() - began
    finally:
        server.kill()
        await server.wait()
    return Cost(cpu, seen.frames, seen.complete, 0, took)


async def compare(lab: Lab, load: Load, rounds: int) -> tuple[Result, dict[str, float]]:
    """Ours and the peers in turns; → figures and checks, and for each peer the median of ours / peer of one turn.

    Ours is measured without its pace as well, where that matters: with one item at a time.
    """
    result = Result()
    gateway = lab.gateway
    others = {} if lab.short else _peers(lab, load, result)
    if load.burst == 1 and not lab.short:
        eager = lab.new_gateway(pace=0)
        others[_EAGER] = lambda: ours(lab, eager, load)
    costs: dict[str, list[Cost]] = {"runcast": [], **{name: [] for name in others}}
    for turn in range(rounds):
        lab.tell(f"turn {turn + 1} of {rounds}: runcast")
        costs["runcast"].append(await ours(lab, gateway, load))
        for name, measure in others.items():
            lab.tell(f"turn {turn + 1} of {rounds}: {name}")
            costs[name].append(await measure())
    _tell(result, load, costs)
    mine = costs["runcast"]
    result.check("every viewer got every item", all(c.complete == load.viewers for c in mine))
    result.check("in order, each once", all(c.frames == load.frames and not c.disorder for c in mine))
    ratios = {
        name: paired([m.per_frame for m in mine], [p.per_frame for p in measured])
        for name, measured in costs.items()
        if name not in ("runcast", _EAGER)
    }
    return result, ratios


def _tell(result: Result, load: Load, costs: dict[str, list[Cost]]) -> None:
    for name, measured in costs.items():
        result.figures[f"µs a frame, {name}"] = round(statistics.median(c.per_frame for c in measured), 2)
        lost = sum(c.complete < load.viewers for c in measured)
        if lost and name not in ("runcast", _EAGER):
            result.notes.append(f"{name}: not every viewer had every item in time, in {lost} of {len(measured)} turns")
    for name in sorted(costs.keys() & {"runcast", _EAGER}):
        result.figures[f"p50 ms, {name}"] = round(statistics.median(c.p50 for c in costs[name]) * 1e3, 2)
        result.figures[f"p99 ms, {name}"] = round(statistics.median(c.p99 for c in costs[name]) * 1e3, 2)


def _peers(lab: Lab, load: Load, result: Result) -> dict[str, Callable[[], Awaitable[Cost]]]:
    """How each peer that is here is measured, by name."""
    measures: dict[str, Callable[[], Awaitable[Cost]]] = {}
    try:
        processes.compile_floor(lab.directory)
        measures["C floor"] = lambda: floor(lab, load)
    except Missing as missing:
        result.notes.append(f"left out: {missing}")
    for peer in peers.all_of(lab, result.notes.append):
        measures[peer.name] = _paced(peer, load, result)
    return measures


def _paced(peer: Peer, load: Load, result: Result) -> Callable[[], Awaitable[Cost]]:
    given = replace(load, rounds=max(round(load.rounds * peer.share), 1))

    async def measure() -> Cost:
        cost = await theirs(peer, given)
        if cost.took > given.seconds * _LATE + 0.5:
            note = f"{peer.name} does not keep the pace: {cost.took:.1f} s for {given.seconds:.1f} s of items"
            with suppress(StopIteration):
                result.notes.remove(next(n for n in result.notes if n.startswith(f"{peer.name} does not")))
            result.notes.append(note)
        return cost

    return measure
