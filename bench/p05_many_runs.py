"""P5: 1,000 runs × 5 viewers × 10 items a second on one gateway process."""

from __future__ import annotations

import time

from bench.lab import TEXT, Lab, paced
from bench.results import Result, Row
from bench.sink import Seen, Sink, Spec
from broker.api import Broker
from broker.items import Encoded, MessageDelta, encode
from broker.records import RunRecord
from broker.requests import RunInput, RunRequest
from broker.scripts import SCRIPTS

__all__ = ["ROW", "claimed", "publish_to_all"]

_VIEWERS = 5
_AT_ONCE = 50
_REQUEST = RunRequest(runner="scripted", input=RunInput(message="bench"))


async def run(lab: Lab) -> Result:
    runs, items, pause = lab.size(1_000, 60), lab.size(60, 10), 0.1
    broker = await lab.broker()
    lab.tell(f"making {runs} runs")
    records = [await claimed(broker) for _ in range(runs)]
    gateway = lab.fresh()
    lab.tell(f"{runs} runs × {_VIEWERS} viewers × {1 / pause:.0f} items a second")
    paths = [lab.path(record.run_id) for record in records for _ in range(_VIEWERS)]
    async with Sink(Spec(gateway.port, paths, items, timeout=120)) as sink:
        before, began = gateway.cpu(), time.monotonic()
        await publish_to_all(broker, records, items, pause)
        seen = await sink.seen()
        cpu, took = gateway.cpu() - before, time.monotonic() - began
        connections = gateway.connections_to(lab.redis.port)
    lab.let_go(gateway)
    return _result(seen, runs, items, cpu, took, connections, broker.settings.lanes)


def _result(seen: Seen, runs: int, items: int, cpu: float, took: float, connections: int, lanes: int) -> Result:
    result = Result()
    frames = runs * _VIEWERS * items
    p50, p99 = seen.quantile(0.5), seen.quantile(0.99)
    result.figures |= {
        "frames/s": round(seen.frames / took),
        "µs a frame": round(cpu / max(seen.frames, 1) * 1e6, 2),
        "p50 ms": round(p50 * 1e3, 2),
        "p99 ms": round(p99 * 1e3, 2),
        "connections": connections,
    }
    result.check("all delivered", seen.frames == frames and seen.complete == runs * _VIEWERS)
    result.check("in order", not seen.disorder)
    # Three for commands.
    result.check(f"Redis connections of the gateway ≤ {lanes} lanes + 3", connections <= lanes + 3)
    result.at_most("p99 / p50", p99 / p50 if p50 else 0.0, 5.0)
    return result


async def claimed(broker: Broker) -> RunRecord:
    """A new run that this process owns."""
    record, _ = await broker.runs.create(_REQUEST, enqueue=False)
    return await broker.runs.claim(record.run_id, record.attempt, "bench")


async def publish_to_all(broker: Broker, records: list[RunRecord], items: int, pause: float) -> None:
    """Each item of each run is an append of its own, as a thousand workers would make it; sent many at a time, since
    one process stands for all of them here. The runs' items are spread over the pause, not sent as one burst."""
    await broker.store.everywhere("SCRIPT", "LOAD", SCRIPTS["append"].source)
    groups = [records[i : i + _AT_ONCE] for i in range(0, len(records), _AT_ONCE)]
    async for step in paced(items * len(groups), pause / len(groups)):
        seq, group = step // len(groups) + 1, groups[step % len(groups)]
        item = encode(MessageDelta(text=TEXT), ts=time.time())
        commands = [_append(broker, record, seq, item) for record in group]
        for reply in await broker.store.pipeline(commands):
            assert reply[0] == b"OK", reply


def _append(broker: Broker, record: RunRecord, seq: int, item: Encoded) -> tuple[bytes | str | int, ...]:
    keys, run_id, p = broker.keys, record.run_id, broker.keys.partition(record.run_id)
    names = keys.run(run_id), keys.items(run_id), keys.control(run_id), keys.live(p), keys.bus(p)
    args = run_id, record.owner, record.epoch, seq, item.type, item.data
    return ("EVALSHA", SCRIPTS["append"].sha, len(names), *names, *args)


ROW = Row("P5", "1,000 runs × 5 viewers × 10 items/s on one process", run)
