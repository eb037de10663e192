"""What a worker costs for each item, runner ``scripted``, and a worker process for the bench."""

from __future__ import annotations

import asyncio
import sys
import time

from bench.cost_meter import Meter, Point, calm, fit, metered
from bench.lab import Lab, paced
from bench.processes import Process, free_port
from broker.api import Broker
from broker.records import RunRecord
from broker.requests import RunInput, RunRequest
from ops.plan_costs import WORKER

__all__ = ["begun", "new_worker", "worker_costs"]

_RUNS = 20


def new_worker(lab: Lab, concurrency: int, **settings: object) -> Process:
    """A worker that takes so many runs at once, ready when it answers."""
    port = free_port()
    known = {
        "redis_url": f"redis://127.0.0.1:{lab.redis.port}/0",
        "namespace": lab.namespace,
        "concurrency": concurrency,
        "worker_metrics_port": port,
        "data_dir": lab.directory,
        **settings,
    }
    env = {f"RUNCAST_{name.upper()}": str(value) for name, value in known.items()}
    command = [sys.executable, "-m", "ops.cli", "worker", "--log-level", "warning"]
    return lab.start(Process(command, port, env=env, log=lab.directory / f"worker-{port}.log").ready())


async def begun(broker: Broker, number: int, script: str, *, over: float = 0.0) -> list[RunRecord]:
    """Runs by that script, once all of them are executed. They begin ``over`` so many seconds: else all would speak at
    nearly the same moments."""
    request = RunRequest(runner="scripted", input=RunInput(message="bench"), metadata={"script": script})
    records = []
    async for _ in paced(number, over / number):
        records.append((await broker.runs.create(request))[0])
    end = time.monotonic() + 60
    while "queued" in [(await broker.runs.get(record.run_id)).status for record in records]:
        if time.monotonic() > end:
            raise RuntimeError("no worker takes the runs")
        await asyncio.sleep(0.05)
    return records


async def _stored(broker: Broker, records: list[RunRecord]) -> int:
    return sum([(await broker.runs.get(record.run_id)).last for record in records])


async def _until_stored(broker: Broker, records: list[RunRecord], items: int) -> None:
    for _ in range(600):
        if await _stored(broker, records) >= items:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError("the runs did not get through")


async def worker_costs(lab: Lab) -> tuple[dict[str, float], dict[str, float]]:
    """Microseconds by event, and bytes by size."""
    broker = await lab.broker()
    worker = new_worker(lab, 2 * _RUNS, sweep=3600)
    await calm(worker)
    points: list[Point] = []
    sizes = {"worker": float(worker.rss())}

    def note(meter: Meter, **events: float) -> None:
        points.append(Point({"second": meter.seconds, "turn": meter.turns[1], **events}, meter.processes[0]))

    lab.tell("a worker that is idle")
    async with metered(broker, lab.redis, worker) as meter:
        await asyncio.sleep(6.0)
    note(meter)
    lab.tell("runs at 10 items a second")
    async with metered(broker, lab.redis, worker) as growth:
        records = await begun(broker, _RUNS, "tokens=1000 rate=10")
    sizes["execution"] = growth.grown[0] / _RUNS
    before = await _stored(broker, records)
    async with metered(broker, lab.redis, worker) as meter:
        await asyncio.sleep(5.0)
    note(meter, append=await _stored(broker, records) - before)
    for record in records:
        await broker.runs.cancel(record.run_id)
    lab.tell("runs at full speed")
    tokens = 2_000
    async with metered(broker, lab.redis, worker) as meter:
        records = await begun(broker, _RUNS, f"tokens={tokens} hang={tokens - 1}")
        await _until_stored(broker, records, _RUNS * (tokens - 1))
    appends = meter.counts.calls["evalsha"] - 2 * _RUNS  # without those that made and claimed the runs
    note(meter, append=appends, item=_RUNS * tokens - appends)
    sizes["kept_item"] = max(meter.grown[0] / (_RUNS * tokens) - 110, 0.0)
    worker.stop()
    return fit(points, WORKER), sizes
