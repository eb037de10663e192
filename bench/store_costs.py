"""What lies in Redis, and reads of many streams, measured by themselves."""

from __future__ import annotations

import asyncio

from bench.cost_meter import counts
from bench.lab import TEXT
from bench.p05_many_runs import claimed
from bench.processes import Process
from broker.api import Broker
from broker.connections import pack
from broker.items import MessageDelta
from broker.records import RunRecord
from broker.redis import Link

__all__ = ["item_bytes", "memory_costs", "reading_costs", "stored"]

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


async def reading_costs(broker: Broker, redis: Process) -> dict[str, float]:
    """Microseconds of Redis for a stream that a read asks for, and what more it is where the read has to wait."""
    link = await broker.store.link(b"one")
    spent = {}
    for waits in (False, True):
        few, many = [await _reads(broker, redis, link, streams, waits) for streams in (1, _STREAMS)]
        spent[waits] = (many - few) / (_STREAMS - 1)
    await link.aclose()
    return {"asked": max(spent[False], 0.0), "blocked": max(spent[True] - spent[False], 0.0)}


async def _reads(broker: Broker, redis: Process, link: Link, streams: int, waits: bool) -> float:
    keys = [broker.keys.items(f"bench-{number}") for number in range(streams)]
    add = (b"XADD", keys[0], b"MAXLEN", b"1", b"*", b"t", b"x")
    after = await broker.store.call(*add)
    cpu = redis.cpu()
    for _ in range(_TURNS):
        request = pack([b"XREAD", b"BLOCK", b"5000", b"STREAMS", *keys, after, *[b"0-0"] * (streams - 1)])
        if waits:
            await link.send([request])
            await asyncio.sleep(0.001)
            after = await broker.store.call(*add)
        else:
            after = await broker.store.call(*add)
            await link.send([request])
        await link.read(5.0)
    return (redis.cpu() - cpu) * 1e6 / _TURNS
