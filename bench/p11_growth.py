"""P11: the cost as work grows: ten times the viewers, ten times the runs, ten times the length of a run."""

from __future__ import annotations

import statistics

from bench.fanout import Load, ours
from bench.lab import Lab
from bench.p05_many_runs import claimed, publish_to_all
from bench.processes import Process
from bench.results import Result, Row, paired
from bench.sink import Sink, Spec

__all__ = ["ROW"]

_LIMIT = 1.3


async def run(lab: Lab) -> Result:
    result = Result()
    turns = lab.size(5, 1)
    await _viewers(lab, result, turns)
    await _runs(lab, result, turns)
    await _length(lab, result, turns)
    return result


async def _viewers(lab: Lab, result: Result, turns: int) -> None:
    few, many = (lab.size(n, n // 10) for n in (50, 500))
    spent: dict[int, list[float]] = {few: [], many: []}
    for _ in range(turns):
        for viewers in spent:
            lab.tell(f"{viewers} viewers")
            cost = await ours(lab, lab.gateway, Load(viewers, lab.size(200, 20), 1, 0.01))
            spent[viewers].append(cost.per_frame)
            result.check("every viewer got every item", cost.complete == viewers and not cost.disorder)
    _compare(result, "CPU per frame, 10 × viewers", spent[many], spent[few])


async def _runs(lab: Lab, result: Result, turns: int) -> None:
    few, many = (lab.size(n, n // 10) for n in (50, 500))
    broker = await lab.broker()
    items = lab.size(30, 10)
    spent: dict[int, list[float]] = {few: [], many: []}
    for _ in range(turns):
        for runs in spent:
            lab.tell(f"{runs} runs")
            records = [await claimed(broker) for _ in range(runs)]
            paths = [lab.path(record.run_id) for record in records for _ in range(5)]
            async with Sink(Spec(lab.gateway.port, paths, items, checked=50)) as sink:
                before = lab.gateway.cpu()
                await publish_to_all(broker, records, items, 0.1)
                seen = await sink.seen()
                spent[runs].append((lab.gateway.cpu() - before) / max(seen.frames, 1) * 1e6)
            result.check("every viewer got every item", seen.complete == len(paths) and not seen.disorder)
    _compare(result, "CPU per frame, 10 × runs", spent[many], spent[few])


async def _length(lab: Lab, result: Result, turns: int) -> None:
    short, long = (lab.size(n, n // 20) for n in (2_000, 20_000))
    spent: dict[int, list[float]] = {short: [], long: []}
    for _ in range(turns):
        for items in spent:
            lab.tell(f"resume of a run of {items} items")
            run_id = await lab.stored(items)
            spent[items].append(await _resume(lab, lab.gateway, run_id, items + 1, result))
    _compare(result, "CPU of a resume near the end, gateway and Redis, 10 × length", spent[long], spent[short])


async def _resume(lab: Lab, gateway: Process, run_id: str, last: int, result: Result) -> float:
    """Microseconds a resume, each at a place of its own, so that none finds what another one read."""
    count = lab.size(1_000, 20)
    before = gateway.cpu() + lab.redis.cpu()
    paths = [lab.path(run_id, cursor=f"{run_id}:{last - 2 - n % 400 % last}") for n in range(count)]
    async with Sink(Spec(gateway.port, paths, None)) as sink:
        seen = await sink.seen()
    result.check("every resume reached the end", seen.complete == count)
    return (gateway.cpu() + lab.redis.cpu() - before) / count * 1e6


def _compare(result: Result, what: str, big: list[float], small: list[float]) -> None:
    result.figures[f"µs, {what}"] = f"{statistics.median(small):.1f} → {statistics.median(big):.1f}"
    result.at_most(what, paired(big, small), _LIMIT)


ROW = Row("P11", "cost as work grows", run)
