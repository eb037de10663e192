"""P15: a run of 100,000 items, read from its start by 100 that join at once, while 500 are live on it.

Each pair is two such runs, one after the other: the first without the late ones. The late ones' own process runs at
the lowest priority: on a machine of two cores it would otherwise measure how viewers disturb each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

from bench.lab import TEXT, Lab, paced
from bench.processes import Process
from bench.results import Result, Row
from bench.sink import Seen, Sink, Spec
from broker.items import MessageDelta
from broker.publisher import Publisher

__all__ = ["ROW"]

_PAUSE = 0.02


async def run(lab: Lab) -> Result:
    result = Result()
    stored, live, late = lab.size(100_000, 2_000), lab.size(500, 20), lab.size(100, 5)
    alone, beside, rates = [], [], []
    gateway = lab.fresh()
    for turn in range(lab.size(3, 1)):
        lab.tell(f"pair {turn + 1}: {live} live ones alone")
        alone.append((await _live(lab, gateway, result, stored, live, 0))[0])
        lab.tell(f"pair {turn + 1}: {late} join late")
        seen, seconds = await _live(lab, gateway, result, stored, live, late)
        beside.append(seen)
        rates.append(stored * late / seconds)
    for q, name in ((0.5, "p50"), (0.99, "p99")):
        result.figures[f"{name} ms alone"] = round(median(seen.quantile(q) for seen in alone) * 1e3, 2)
        result.figures[f"{name} ms beside"] = round(median(seen.quantile(q) for seen in beside) * 1e3, 2)
    lab.let_go(gateway)
    result.figures["frames/s to the late ones"] = round(median(rates))
    ratios = [b.quantile(0.99) / a.quantile(0.99) for a, b in zip(alone, beside, strict=True)]
    result.at_most("live p99 / without the late ones", median(ratios), 1.5)
    return result


async def _live(lab: Lab, gateway: Process, result: Result, stored: int, live: int, late: int) -> tuple[Seen, float]:
    """What the live ones saw, and how long the late ones read."""
    async with AsyncExitStack() as stack:
        async with lab.run() as publisher:
            for _ in range(stored):
                await publisher.publish(MessageDelta(text=TEXT))
            await publisher.flush()
            path = lab.path(publisher.run_id)
            spec = Spec(gateway.port, [f"{path}?from=now"] * live, None, after=stored, timeout=240)
            reading = _read(gateway, result, path, stored, late)
            sink = await stack.enter_async_context(Sink(spec))
            seconds = await _publish_while(publisher, reading, lab.size(300, 10))
            last = publisher.last
        seen = await sink.seen()  # behind the fence
    result.check("every live viewer got every item", (seen.complete, seen.frames) == (live, live * (last + 1 - stored)))
    result.check("in order, each once", not seen.disorder)
    return seen, seconds


async def _publish_while(publisher: Publisher, reading: Coroutine[Any, Any, float], at_least: int) -> float:
    """Items at an even pace until the late ones have read, and so many at least."""
    task = asyncio.create_task(reading)
    async for number in paced(1 << 30, _PAUSE):
        await publisher.publish(MessageDelta(text=TEXT))
        if number >= at_least and task.done():
            break
    await publisher.flush()
    return await task


async def _read(gateway: Process, result: Result, path: str, stored: int, late: int) -> float:
    if not late:
        return 0.0
    async with Sink(Spec(gateway.port, [path] * late, stored, checked=2, timeout=200, nice=19)) as sink:
        began = time.monotonic()
        seen = await sink.seen()
        took = time.monotonic() - began
    result.check("every late viewer got every item", seen.complete == late and not seen.disorder)
    return took


ROW = Row("P15", "100,000 items read by 100 that join late, 500 live", run)
