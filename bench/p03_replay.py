"""P3: replay of stored runs over HTTP, CPU of the gateway per item, against a loop of XRANGE that throws away what it
read. Each run is replayed once by one viewer, so no read and no rendering is shared."""

from __future__ import annotations

import statistics
import time

import redis.asyncio

from bench.lab import Lab
from bench.results import Result, Row
from bench.sink import Sink, Spec

__all__ = ["ROW"]

_PAGE = 1_000


async def run(lab: Lab) -> Result:
    result = Result()
    runs, items, turns = lab.size(10, 2), lab.size(10_000, 1_500), lab.size(5, 1)
    over_http, through_reader, through_link = [], [], []
    for turn in range(turns):
        lab.tell(f"turn {turn + 1} of {turns}: storing {runs} runs")
        ids = [await lab.stored(items) for _ in range(runs)]
        lab.tell(f"turn {turn + 1} of {turns}: replay")
        total = runs * (items + 1)
        over_http.append(await _replay(lab, ids, items + 1, result) / total * 1e6)
        through_reader.append(await _read_raw(lab, ids) / total * 1e6)
        through_link.append(await _read_link(lab, ids) / total * 1e6)
    result.figures |= {
        "µs an item, HTTP": round(statistics.median(over_http), 2),
        "redis-py's raw reader": round(statistics.median(through_reader), 2),
        "our link": round(statistics.median(through_link), 2),
    }
    ratios = [a / b for a, b in zip(over_http, through_reader, strict=True)]
    result.at_most("CPU per item / XRANGE through the raw reader", statistics.median(ratios), 2.5)
    result.notes.append("the peers langgraph dev, @durable-streams/server and rakaia-streams are not measured here")
    return result


async def _replay(lab: Lab, ids: list[str], frames: int, result: Result) -> float:
    gateway = lab.gateway
    before = gateway.cpu()
    async with Sink(Spec(gateway.port, [lab.path(run_id) for run_id in ids], frames, checked=2)) as sink:
        seen = await sink.seen()
    result.check("everything came", seen.frames == len(ids) * frames)
    result.check("in order, each once", not seen.disorder)
    return gateway.cpu() - before


async def _read_raw(lab: Lab, ids: list[str]) -> float:
    broker = await lab.broker()
    connection = redis.asyncio.Connection(port=lab.redis.port, protocol=2)
    await connection.connect()  # type: ignore[no-untyped-call]
    began = time.process_time()
    for run_id in ids:
        after = 0
        while True:
            start = b"%d-0" % (after + 1)
            await connection.send_command("XRANGE", broker.log.items_key(run_id), start, "+", "COUNT", _PAGE)
            page = await connection.read_response()
            if not page:
                break
            after = int(page[-1][0][:-2])
    spent = time.process_time() - began
    await connection.disconnect()
    return spent


async def _read_link(lab: Lab, ids: list[str]) -> float:
    broker = await lab.broker()
    link = await broker.store.link()
    began = time.process_time()
    for run_id in ids:
        key, after = broker.log.items_key(run_id), 0
        while page := await link.call(b"XRANGE", key, b"%d-0" % (after + 1), b"+", b"COUNT", _PAGE, deadline=5.0):
            after = int(page[-1][0][:-2])
    spent = time.process_time() - began
    await link.aclose()
    return spent


ROW = Row("P3", "replay of stored runs over HTTP, CPU per item", run)
