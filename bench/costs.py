"""What one event costs (``ops.plan_costs``): loads that differ in one kind of event each, and what they took.

They are small, and of other shapes than those that the model is held against (``bench.capacity``): a cost that grew
with the load would show there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from bench.cost_meter import Meter, Point, calm, counts, metered
from bench.lab import TEXT, Lab, paced
from bench.p05_many_runs import claimed
from bench.processes import Process
from bench.sink import Sink, Spec
from bench.store_costs import asked_cost, asking_cost, item_bytes, memory_costs, stored
from broker.items import Final, MessageDelta
from broker.records import RunRecord

__all__ = ["Calibration"]

_ACTIVE, _IDLE = 20, 400
_COMING = 200
"""Runs that are made and ended at once; runs that a worker executes at full speed are ``_ACTIVE``."""
_CALM = {"sweep": 3600, "lease": 3600}
"""Of a gateway that only serves: no sweep blurs the rest, and no run is taken from this process."""
_ROUNDS, _PAUSE = 50, 0.1
_WEIGHED, _FILLED, _WINDOW = 1_500, 10, 4_000
"""Viewers that are weighed; runs, and items of each, whose windows are."""


@dataclass(frozen=True)
class _Reading:
    """``viewers`` of each of the active runs; ``idle`` runs that say nothing, with a viewer each. ``blocked``: the part
    of the reads that find nothing and wait."""

    viewers: int
    idle: int = 0
    burst: int = 1
    pause: float = _PAUSE
    blocked: float = 1.0


_READINGS = (
    *(_Reading(1), _Reading(8), _Reading(1, burst=10), _Reading(8, burst=10)),
    *(_Reading(1, pause=_PAUSE / 3), _Reading(8, pause=_PAUSE / 3)),
    *(_Reading(1, idle=_IDLE), _Reading(1, idle=_IDLE, pause=_PAUSE / 5, blocked=0.0)),
)


class Calibration:
    """One turn: ``await run()`` adds points and sizes. It needs a lab of its own."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.gateway: list[Point] = []
        self.redis: list[Point] = []
        self.sizes: dict[str, float] = {}
        self.known: dict[str, float] = {}
        """The cost of ``asked`` at each, which needs no fit."""

    async def run(self) -> None:
        self.broker = await self.lab.broker()
        async with AsyncExitStack() as stack:
            await self._come_and_go(1)  # so that Redis has its scripts
            self.sizes["redis"] = (await counts(self.broker)).memory
            await self._coming(None)
            self.serving = self.lab.new_gateway(**_CALM)
            await self._there()
            await self._coming(self.serving)
            before = await counts(self.broker)
            self.records = [await claimed(self.broker) for _ in range(_ACTIVE + _IDLE)]
            self.sizes["record"] = (await counts(self.broker)).since(before).memory / len(self.records)
            self.publishers = [
                await stack.enter_async_context(self.broker.publisher(record)) for record in self.records[:_ACTIVE]
            ]
            for step in (self._sweeps, self._items, self._store, self._viewers, self._following):
                await step()
            self.serving.stop()
            await self._heartbeats()
            await self._weights()

    def _note(self, meter: Meter, gateway: Mapping[str, float] | None, redis: Mapping[str, float]) -> None:
        """``gateway``: events at the one process that was measured, where there was one."""
        if gateway is not None:
            events = {"second": meter.seconds, "turn": meter.turns[1], **gateway}
            self.gateway.append(Point(events, meter.processes[0]))
        self.redis.append(Point({"second": meter.seconds, "turn": meter.turns[0], **redis}, meter.redis))

    # What is there, and comes and goes.

    async def _there(self) -> None:
        self.lab.tell("a gateway that is idle")
        await calm(self.serving)
        async with metered(self.broker, self.lab.redis, self.serving) as meter:
            await asyncio.sleep(5.0)
        self._note(meter, {}, {})
        self.sizes["gateway"] = self.serving.rss()

    async def _coming(self, gateway: Process | None) -> None:
        """Runs created, claimed and ended, while a gateway hears of it, or none is there."""
        self.lab.tell(f"{_COMING} runs")
        async with metered(self.broker, self.lab.redis, *[gateway] if gateway else []) as meter:
            await self._come_and_go(_COMING)
            await asyncio.sleep(0.5)
        come = {"run": _COMING}
        self._note(meter, come if gateway else None, {**come, "news": _COMING} if gateway else come)

    async def _come_and_go(self, number: int) -> None:
        async for _ in paced(number, 0.02):
            async with self.broker.publisher(await claimed(self.broker)) as publisher:
                await publisher.seal(Final())

    async def _sweeps(self) -> None:
        for runs, namespace in ((len(self.records), self.lab.namespace), (0, f"{self.lab.namespace}e")):
            self.lab.tell(f"sweeps of {runs} runs")
            sweeping = self.lab.new_gateway(**{**_CALM, "sweep": 0.2, "namespace": namespace})
            await asyncio.sleep(4.0)  # until it has started
            async with metered(self.broker, self.lab.redis, sweeping) as meter:
                await asyncio.sleep(4.0)
            sweeping.stop()
            sweeps = meter.counts.calls["zrange"] / self.broker.keys.partitions
            events = {"sweep": sweeps, "swept": sweeps * runs}
            self._note(meter, events, events)
            if runs:
                self.sizes["swept_out"] = meter.counts.net_out / (sweeps * runs)

    # Items that nobody reads.

    async def _publish(self, *, burst: int = 1, pause: float = _PAUSE) -> None:
        """``_ROUNDS`` appends of ``burst`` items to each run, ``pause`` seconds apart, one run after the other."""
        number = len(self.publishers)
        async for step in paced(_ROUNDS * number, pause / number):
            for _ in range(burst):
                await self.publishers[step % number].publish(MessageDelta(text=TEXT))
        await asyncio.gather(*(publisher.flush() for publisher in self.publishers))

    async def _items(self) -> None:
        appends = _ROUNDS * _ACTIVE
        for burst, pause in ((1, _PAUSE), (10, _PAUSE), (1, _PAUSE / 3)):
            self.lab.tell(f"appends of {burst}")
            async with metered(self.broker, self.lab.redis) as meter:
                await self._publish(burst=burst, pause=pause)
            self._note(meter, None, {"append": appends, "item": appends * (burst - 1)})
            if burst == 1:
                self.item_bytes = await item_bytes(self.broker, self.publishers[0].run_id)
                self.sizes["append_in"] = meter.counts.net_in / appends - self.item_bytes
        async with metered(self.broker, self.lab.redis) as meter:
            async for step in paced(appends, _PAUSE / _ACTIVE):
                publisher = self.publishers[step % _ACTIVE]
                await self.broker.runs.beat(publisher.run_id, publisher.owner, publisher.epoch)
        self._note(meter, None, {"beat": appends})

    async def _store(self) -> None:
        self.lab.tell("memory in Redis")
        self.sizes |= await memory_costs(self.broker, self.lab.redis.port)
        self.lab.tell("reads of many streams")
        self.known = {
            "redis": await asked_cost(self.broker, self.lab.redis),
            "gateway": await asking_cost(self.broker),
        }

    # Items that are read.

    def _streams(self, runs: int) -> float:
        """That a read of one lane asks for, about."""
        return (runs + self.broker.keys.partitions) / self.broker.settings.lanes + 1

    def _paths(self, *runs: tuple[Sequence[RunRecord], int]) -> list[str]:
        return [
            self.lab.path(record.run_id, **{"from": "now"})
            for some, each in runs
            for record in some
            for _ in range(each)
        ]

    async def _viewers(self) -> None:
        for number, reading in enumerate((_READINGS[0], *_READINGS)):
            self.lab.tell(str(reading))
            active, idle = self.records[:_ACTIVE], self.records[_ACTIVE : _ACTIVE + reading.idle]
            paths = self._paths((active, reading.viewers), (idle, 1))
            async with Sink(Spec(self.serving.port, paths, 1 << 30, checked=0)) as sink:
                async with metered(self.broker, self.lab.redis, self.serving) as meter:
                    await self._publish(burst=reading.burst, pause=reading.pause)
                    await asyncio.sleep(0.1)
                seen = await sink.seen(now=True)
            if seen.frames < _ROUNDS * _ACTIVE * reading.burst * reading.viewers:
                raise RuntimeError(f"only {seen.frames} frames came: {reading}")
            if number:  # the first one is to warm up
                self._read(reading, meter, seen.bytes / seen.frames)

    def _read(self, reading: _Reading, meter: Meter, frame: float) -> None:
        appends, seconds, reads = _ROUNDS * _ACTIVE, meter.seconds, meter.counts.calls["xread"]
        behind = appends * (reading.burst - 1)
        lane = {"read": reads, "asked": reads * self._streams(_ACTIVE + reading.idle), "delivery": appends}
        viewers = _ACTIVE * reading.viewers + reading.idle
        gateway = {
            **lane,
            "item": behind,
            "write": appends * reading.viewers,
            "frame": behind * reading.viewers,
            "followed": seconds * (_ACTIVE + reading.idle),
            "viewer": seconds * viewers,
            "beat": seconds * reading.idle / 5,
        }
        blocked = reading.blocked * lane["asked"]
        self._note(meter, gateway, {**lane, "blocked": blocked, "append": appends, "item": behind, "entry": behind})
        self._lengths(meter, reading, lane, frame)

    def _lengths(self, meter: Meter, reading: _Reading, lane: Mapping[str, float], frame: float) -> None:
        """What goes over the wires, beside the items' own bytes."""
        if reading.burst > 1 or reading.viewers > 1 or reading.pause < _PAUSE:
            return
        appends = lane["delivery"]
        self.sizes["frame_out"] = frame - self.item_bytes
        self.sizes["entry_out"] = meter.counts.net_out / appends - self.item_bytes
        sent = meter.counts.net_in - appends * (self.item_bytes + self.sizes["append_in"])
        lanes, a_read = self.broker.settings.lanes, sent / lane["read"]
        if not reading.idle:
            self._a_read = a_read
        else:
            asked = max((a_read - self._a_read) / (reading.idle / lanes), 0.0)
            self.sizes["asked_in"] = asked
            buses = self.broker.keys.partitions / lanes
            self.sizes["bus_in"] = max((self._a_read - asked * _ACTIVE / lanes) / buses, 0.0)

    # Viewers.

    async def _following(self) -> None:
        """Viewers of one run, each of a run, and what they cost while nothing happens."""
        number = _IDLE
        for what, records in (("one run", [self.records[_ACTIVE]] * number), ("a run each", self.records[_ACTIVE:])):
            self.lab.tell(f"{number} viewers, {what}")
            paths = self._paths((records, 1))
            async with AsyncExitStack() as stack:
                async with metered(self.broker, self.lab.redis, self.serving) as joining:
                    await stack.enter_async_context(Sink(Spec(self.serving.port, paths, 1, checked=0)))
                    await asyncio.sleep(0.5)
                async with metered(self.broker, self.lab.redis, self.serving) as idle:
                    await asyncio.sleep(5.0)
            runs = len({record.run_id for record in records})
            self._note(joining, {"join": number}, {"join": number})
            kept = {"followed": idle.seconds * runs, "viewer": idle.seconds * number, "beat": idle.seconds * number / 5}
            self._note(idle, kept, {})

    async def _weights(self) -> None:
        """What viewers, the runs that they follow, and items of those weigh in gateways that had none before."""
        one, each = [self.records[_ACTIVE]] * _WEIGHED, self.records[_ACTIVE:]
        viewers, _ = await self._weighed(one, 0)
        self.sizes["viewer"] = max(viewers.grown[0] / _WEIGHED, 0.0)
        runs, items = await self._weighed(each, _WINDOW)
        self.sizes["feed"] = max(runs.grown[0] / len(each) - self.sizes["viewer"], 0.0)
        self.sizes["follow"] = max(runs.counts.memory / len(each), 0.0)
        self.sizes["window_entry"] = max(items.grown[0] / (_FILLED * _WINDOW) - self.item_bytes, 0.0)

    async def _weighed(self, records: Sequence[RunRecord], items: int) -> tuple[Meter, Meter]:
        """Growth of a new gateway by a viewer of each record, and by so many items of some of them."""
        self.lab.tell(f"weight of {len(records)} viewers")
        gateway = self.lab.new_gateway(**_CALM)
        async with Sink(Spec(gateway.port, self._paths((records[:1], 5)), 1, checked=0)):
            await calm(gateway)
        paths = self._paths((records, 1))
        async with AsyncExitStack() as stack:
            async with metered(self.broker, self.lab.redis, gateway) as joining:
                await stack.enter_async_context(Sink(Spec(gateway.port, paths, 1, checked=0)))
                await asyncio.sleep(1.0)
            async with metered(self.broker, self.lab.redis, gateway) as filling:
                for record in records[:_FILLED] if items else ():
                    await stored(self.broker, record, TEXT, items)
                await asyncio.sleep(1.0)
        gateway.stop()
        return joining, filling

    async def _heartbeats(self) -> None:
        self.lab.tell(f"heartbeats of {_IDLE} viewers")
        gateway = self.lab.new_gateway(**_CALM, heartbeat=1)
        async with Sink(Spec(gateway.port, self._paths((self.records[_ACTIVE:], 1)), 1 << 30, checked=0)) as sink:
            await asyncio.sleep(3.0)
            async with metered(self.broker, self.lab.redis, gateway) as meter:
                await asyncio.sleep(5.0)
            await sink.seen(now=True)
        gateway.stop()
        ticks = 2 * meter.seconds * _IDLE  # the ticker looks four times in a heartbeat, and twice a second else
        self._note(meter, {"followed": ticks, "viewer": ticks, "beat": meter.seconds * _IDLE}, {})
