"""What lies in Redis, and reads of many streams, measured by themselves."""

from __future__ import annotations

import asyncio
import time

from bench.cost_meter import counts
from bench.lab import TEXT
from bench.p05_many_runs import claimed
from bench.processes import Process
from broker.api import Broker
from broker.connections import pack
from broker.items import MessageDelta
from broker.records import RunRecord
from broker.redis import Link
from broker.tail import Tail

__all__ = ["asked_cost", "asking_cost", "item_bytes", "memory_costs", "stored"]

_STREAMS, _TURNS = 400, 400
_RUNS, _ITEMS = 10, 1_000


async def item_bytes(broker: Broker, run_id: str) -> float:
    """Stored bytes of an item of that run."""
    record, _ = await broker.log.bounds(run_id)
    return record.bytes / record.last


async def stored(broker: Broker, record: RunRecord, text: str, count: int) -> None:
    async with broker.publisher(record) as publisher:
        for _ in range(count):
            await publisher.publish(MessageDelta(text=text))
        await publisher.flush()


async def memory_costs(broker: Broker, port: int) -> dict[str, float]:
    """Bytes of a connection in use, of a run that has items, of an item, and of each byte of one (by two lengths)."""
    records = [await claimed(broker) for _ in range(2 * _RUNS)]
    before = await counts(broker)
    first: list[RunRecord] = []
    for record in records:
        await stored(broker, record, TEXT, 1)
        first.append(await broker.runs.claim(record.run_id, record.attempt, "bench"))
    run = (await counts(broker)).since(before).memory / len(records)
    grown = []
    for some, text, count in ((first[:_RUNS], TEXT, 2 * _ITEMS), (first[_RUNS:], TEXT * 50, _ITEMS)):
        before = await counts(broker)
        for record in some:
            await stored(broker, record, text, count)
        grown.append((await counts(broker)).since(before).memory / (_RUNS * count))
    small, large = [await item_bytes(broker, records[n].run_id) for n in (0, -1)]
    per_byte = (grown[1] - grown[0]) / (large - small)
    return {
        "connection": await _connection(broker, port),
        "stored_run": max(run - grown[0], 0.0),
        "stored_item": max(grown[0] - per_byte * small, 0.0),
        "stored_byte": per_byte,
    }


async def _connection(broker: Broker, port: int) -> float:
    number = 100
    before = await counts(broker)
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(number)]
    for reader, writer in opened:
        writer.write(b"PING\r\n")
        await reader.readline()
    held = (await counts(broker)).since(before).memory
    for _, writer in opened:
        writer.close()
    return held / number


async def asked_cost(broker: Broker, redis: Process) -> float:
    """Microseconds of Redis for a stream that a read asks for, where another one of them has something."""
    link = await broker.store.link(b"one")
    few, many = [await _reads(broker, redis, link, streams) for streams in (1, _STREAMS)]
    await link.aclose()
    return max((many - few) / (_STREAMS - 1), 0.0)


async def _reads(broker: Broker, redis: Process, link: Link, streams: int) -> float:
    keys = [broker.keys.items(f"bench-{number}") for number in range(streams)]
    ids = [await broker.store.call(b"XADD", key, b"MAXLEN", b"1", b"*", b"t", b"x") for key in keys]
    cpu = redis.cpu()
    for _ in range(_TURNS):
        newest = await broker.store.call(b"XADD", keys[0], b"MAXLEN", b"1", b"*", b"t", b"x")
        await link.send([pack([b"XREAD", b"BLOCK", b"5000", b"STREAMS", *keys, *ids])])
        await link.read(5.0)
        ids[0] = newest
    return (redis.cpu() - cpu) * 1e6 / _TURNS


async def asking_cost(broker: Broker) -> float:
    """Microseconds of a process for a stream that its lane asks for, where another one has something."""
    few, many = [await _followed(broker, streams) for streams in (1, _STREAMS)]
    return max((many - few) / (_STREAMS - 1), 0.0)


async def _followed(broker: Broker, streams: int) -> float:
    tail = Tail(broker.store, broker.settings.model_copy(update={"lanes": 1}))
    came = asyncio.Event()
    keys = [broker.keys.items(f"bench-{number}") for number in range(streams)]
    for key in keys:
        newest = await broker.store.call(b"XADD", key, b"MAXLEN", b"1", b"*", b"t", b"x")
        tail.subscribe(key, newest, lambda _: came.set())
    await asyncio.sleep(0.5)
    cpu = time.process_time()
    for _ in range(_TURNS):
        came.clear()
        await broker.store.call(b"XADD", keys[0], b"MAXLEN", b"1", b"*", b"t", b"x")
        await came.wait()
        await asyncio.sleep(0.007)  # the lane has paced itself, and reads again
    spent = (time.process_time() - cpu) * 1e6 / _TURNS
    await tail.aclose()
    return spent
