"""P6: publishing from one worker process, against XADD of the same items: in pipelines of 50, and one by one.

What counts is the CPU of the worker process per item, encoding included: the rate that one worker process can reach.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable

import redis.asyncio

from bench.lab import TEXT, Lab
from bench.results import Result, Row
from broker.items import MessageDelta, encode

__all__ = ["ROW"]

_PIPELINE = 50


async def run(lab: Lab) -> Result:
    items, turns = lab.size(20_000, 1_000), lab.size(5, 1)
    result = Result()
    ways: dict[str, tuple[Callable[[Lab, int], Awaitable[None]], int]] = {
        "runcast": (_ours, items),
        "pipelines of XADD": (_pipelines, items),
        "single XADDs": (_singles, items // 5),
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(turns):
        for name, (publish, count) in ways.items():
            lab.tell(f"turn {turn + 1} of {turns}: {name}")
            cpu, began = time.process_time(), time.monotonic()
            await publish(lab, count)
            spent[name].append(((time.process_time() - cpu) / count, (time.monotonic() - began) / count))
    for name, measured in spent.items():
        result.figures[f"µs CPU an item, {name}"] = round(statistics.median(c for c, _ in measured) * 1e6, 2)
        result.figures[f"items/s, {name}"] = round(1 / statistics.median(w for _, w in measured))
    for name, limit in (("pipelines of XADD", 3.0), ("single XADDs", 15.0)):
        pairs = zip(spent[name], spent["runcast"], strict=True)
        result.at_least(f"× {name}, items per CPU second", statistics.median(t[0] / o[0] for t, o in pairs), limit)
    await _check(lab, items, result)
    return result


async def _ours(lab: Lab, count: int) -> None:
    async with lab.run() as publisher:
        for _ in range(count):
            await publisher.publish(MessageDelta(text=TEXT))
        await publisher.flush()


async def _pipelines(lab: Lab, count: int) -> None:
    async with redis.asyncio.Redis(port=lab.redis.port) as client:
        for _ in range(count // _PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for _ in range(_PIPELINE):
                item = encode(MessageDelta(text=TEXT), ts=time.time())
                pipeline.xadd("peer", {"t": item.type, "d": item.data})
            await pipeline.execute()
        await client.delete("peer")


async def _singles(lab: Lab, count: int) -> None:
    async with redis.asyncio.Redis(port=lab.redis.port) as client:
        for _ in range(count):
            item = encode(MessageDelta(text=TEXT), ts=time.time())
            await client.xadd("peer", {"t": item.type, "d": item.data})
        await client.delete("peer")


async def _check(lab: Lab, items: int, result: Result) -> None:
    run_id = await lab.stored(items)
    broker = await lab.broker()
    record, first = await broker.log.bounds(run_id)
    stored = await broker.store.call("XLEN", broker.log.items_key(run_id))
    result.check("every item is stored once", (first, record.last, stored) == (1, items + 1, items + 1))


ROW = Row("P6", "publish, one worker process", run)
