"""The model of ``runcast plan`` against real processes, at three sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean

from bench.cost_meter import Meter, calm, counts, metered
from bench.lab import Lab
from bench.processes import Process
from bench.sink import Sink, Spec
from bench.worker_costs import begun, new_worker
from broker.api import Broker
from broker.records import RunRecord
from ops.capacity import gateway_use, redis_use, worker_use
from ops.plan_costs import Costs
from ops.plan_events import redis_events
from ops.plan_load import Load, Setup

__all__ = ["REFERENCE", "SIZES", "Compared", "Reference", "Size", "compare", "measure", "middle", "paired"]


@dataclass(frozen=True)
class Size:
    viewers: int
    runs: int
    rate: float
    gateways: int
    workers: int = 1

    @property
    def concurrency(self) -> int:
        return ceil(self.runs / self.workers)

    def __str__(self) -> str:
        several = [(self.gateways, "gateway"), (self.workers, "worker")]
        carried = ", ".join(f"{number} {name}{'s' * (number > 1)}" for number, name in several)
        return f"{self.viewers} viewers, {self.runs} runs at {self.rate:g} items/s, {carried}"


SIZES = (Size(50, 5, 40, 1), Size(500, 50, 8, 2), Size(2_000, 200, 2, 2, 2))
REFERENCE = Size(160, 20, 10, 1)
"""Of the shape that costs are measured with; it says how dear CPU is at the moment."""
_SECONDS = 12.0
_OVER = 3.7
"""Seconds in which the runs begin: no multiple of the time between two items of one."""


@dataclass(frozen=True)
class Compared:
    """``counted``: it depends on the load alone, not on how busy the machine is."""

    what: str
    predicted: float
    measured: float
    counted: bool = False

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured if self.measured else float("inf")


Reference = dict[str, float]


def paired(compared: Sequence[Compared], costs_then: Reference, *now: Reference) -> list[Compared]:
    """With CPU predicted as dear as the reference was ``now``, against when the costs were measured."""
    return [
        replace(one, predicted=one.predicted * fmean(each[one.what] for each in now) / costs_then[one.what])
        if one.what in costs_then
        else one
        for one in compared
    ]


def middle(rounds: Sequence[Sequence[Compared]]) -> list[Compared]:
    """Of each figure, the round whose ratio is the median's: one that something else disturbed counts for nothing."""
    return [sorted(several, key=lambda one: one.ratio)[len(several) // 2] for several in zip(*rounds, strict=True)]


@dataclass
class Seen:
    """What was measured. ``age``: seconds in which each run made what it has, at its ``rate``; ``items``: of all."""

    meter: Meter
    age: float
    rate: float
    items: int
    item_bytes: float
    gateway_rss: float
    worker_rss: float
    gateway_connections: int
    worker_connections: int
    clients: int
    memory: int


async def measure(
    lab: Lab, size: Size, costs: Costs, *, seconds: float = _SECONDS, settle: bool = True
) -> list[Compared]:
    """Have the load carried for so long, and say what was predicted of it and what it took. ``settle``: wait until all
    have started and rest, as CPU and memory want it; counts do not."""
    broker = await lab.broker()
    workers = [new_worker(lab, size.concurrency) for _ in range(size.workers)]
    gateways = [lab.new_gateway(sweep=Setup().sweep) for _ in range(size.gateways)]
    lab.tell(f"{size}")
    for process in (*workers, *gateways) if settle else ():
        await calm(process)
    tokens = int(size.rate * (seconds + 60))  # a script holds all of its tokens from its start
    records = await begun(broker, size.runs, f"tokens={tokens} rate={size.rate:g}", over=_OVER if settle else 0.37)
    async with AsyncExitStack() as stack:
        sinks = [
            await stack.enter_async_context(Sink(Spec(gateway.port, part, 1 << 30, checked=0, timeout=600)))
            for gateway, part in zip(gateways, _spread(lab, size, records), strict=True)
        ]
        await asyncio.sleep(2.0 if settle else 0.5)
        async with metered(broker, lab.redis, *workers, *gateways) as meter:
            await asyncio.sleep(seconds)
        seen = await _seen(lab, broker, meter, workers, gateways, await _stored(broker, records))
        seen.rate = meter.counts.calls["xadd"] / meter.seconds / size.runs
        seen.age = seen.items / size.runs / seen.rate
        frames = sum([(await sink.seen(now=True)).frames for sink in sinks])
        if frames < 0.8 * size.viewers * seen.items / size.runs:
            raise RuntimeError(f"only {frames} frames came to {size.viewers} viewers of {seen.items} items")
    for worker in workers:
        worker.stop()
    return compare(size, seen, costs)


def _spread(lab: Lab, size: Size, records: Sequence[RunRecord]) -> list[list[str]]:
    """The paths of each gateway's viewers: those of a run go to one gateway after the other."""
    parts: list[list[str]] = [[] for _ in range(size.gateways)]
    each = size.viewers // size.runs
    for number, record in enumerate(records):
        for viewer in range(each):
            parts[(number + viewer) % size.gateways].append(lab.path(record.run_id))
    return parts


async def _stored(broker: Broker, records: Sequence[RunRecord]) -> tuple[int, int]:
    """Items of all runs, and their bytes."""
    found = [await broker.log.state(record.run_id) for record in records]
    return sum(state.last for state in found), sum(state.bytes for state in found)


async def _seen(
    lab: Lab,
    broker: Broker,
    meter: Meter,
    workers: Sequence[Process],
    gateways: Sequence[Process],
    stored: tuple[int, int],
) -> Seen:
    port = lab.redis.port
    last = await counts(broker)
    return Seen(
        meter=meter,
        age=0.0,
        rate=0.0,
        items=stored[0],
        item_bytes=stored[1] / stored[0],
        gateway_rss=fmean(gateway.rss() for gateway in gateways),
        worker_rss=fmean(worker.rss() for worker in workers),
        gateway_connections=max(gateway.connections_to(port) for gateway in gateways),
        worker_connections=max(worker.connections_to(port) for worker in workers),
        clients=last.clients,
        memory=last.memory,
    )


def compare(size: Size, seen: Seen, costs: Costs) -> list[Compared]:
    """What the model says of that load, beside it. No run came or went meanwhile; all were equally old."""
    load = Load(
        viewers=size.viewers,
        runs=size.runs,
        rate=seen.rate,
        item_bytes=seen.item_bytes,
        retention=0,
        run_seconds=2 * seen.age,  # open runs are half done on average: as old as these were
        runs_per_day=0,
    )
    setup = Setup(gateways=size.gateways, workers=size.workers, concurrency=size.concurrency, lag=seen.meter.lag)
    events = redis_events(load, setup, costs)
    gateway, worker, redis = (use(load, setup, costs) for use in (gateway_use, worker_use, redis_use))
    calls, seconds = seen.meter.counts.calls, seen.meter.seconds
    cpu = [spent / seconds / 1e4 for spent in (seen.meter.redis, *seen.meter.processes)]
    net = seen.meter.counts
    mib = 1 << 20
    return [
        Compared("gateway, CPU, % of a core", gateway.cpu * 100, fmean(cpu[1 + size.workers :])),
        Compared("gateway, memory, MiB", gateway.memory / mib, seen.gateway_rss / mib),
        Compared("gateway, connections to Redis", gateway.connections, seen.gateway_connections, True),
        Compared("worker, CPU, % of a core", worker.cpu * 100, fmean(cpu[1 : 1 + size.workers])),
        Compared("worker, memory, MiB", worker.memory / mib, seen.worker_rss / mib),
        Compared("worker, connections to Redis", worker.connections, seen.worker_connections, True),
        Compared("Redis, CPU, % of a core", redis.cpu * 100, cpu[0]),
        Compared("Redis, memory, MiB", redis.memory / mib, seen.memory / mib, True),
        Compared("Redis, scripts/s", events["append"] + events["beat"], calls["evalsha"] / seconds, True),
        Compared("Redis, reads/s", events["read"], calls["xread"] / seconds),
        Compared(
            "Redis, runs looked at by sweeps/s",
            events["swept"],
            calls["zrange"] / setup.partitions * size.runs / seconds,
        ),
        Compared("Redis, connections", redis.connections, seen.clients - 1, False),
        Compared("Redis, MB/s in", redis.net_in / 1e6, net.net_in / seconds / 1e6),
        Compared("given: ms that a process waits for a core", seen.meter.lag * 1e3, seen.meter.lag * 1e3),
        Compared("Redis, MB/s out", redis.net_out / 1e6, net.net_out / seconds / 1e6),
    ]
