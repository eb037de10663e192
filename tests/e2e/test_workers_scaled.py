"""Workers that come and go while runs wait: each run ends once, in the order in which they were asked for."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from broker import api
from broker.api import Broker, StreamEntry
from broker.records import RunRecord
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.e2e.processes import Worker as WorkerProcess
from tests.e2e.processes import environment
from tests.gateways import until
from tests.servers import RedisServer
from workers.scripted import ScriptedRunner
from workers.worker import Worker

Lost = Literal["fail", "retry"]

SLOTS = 2
LOST: dict[str, Any] = {"lease": 3.0, "beat": 0.5, "sweep": 0.5, "requeue_after": 2.0}
TOKENS = 20


async def queue(
    broker: Broker, count: int, rate: int, on_worker_lost: Callable[[int], Lost] = lambda _: "fail"
) -> Runs:
    runs = Runs(broker)
    script = {"script": f"tokens={TOKENS} rate={rate}"}
    for number in range(count):
        lost = on_worker_lost(number)
        request = RunRequest(runner="scripted", input=RunInput(message="x"), metadata=script, on_worker_lost=lost)
        record, _ = await broker.runs.create(request)
        runs.ids.append(record.run_id)
    return runs


class Runs:
    """Those of one test, in the order in which they were queued."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.ids: list[str] = []

    async def records(self) -> list[RunRecord]:
        return [await self._broker.runs.get(run_id) for run_id in self.ids]

    async def count(self, true: Callable[[RunRecord], object]) -> int:
        return sum(bool(true(record)) for record in await self.records())

    async def reached(self, count: int, true: Callable[[RunRecord], object] = lambda r: r.is_ended) -> None:
        """Wait until it is true of so many (default: have ended)."""

        async def there() -> bool:
            return await self.count(true) >= count

        await until(there, 60)

    async def none(self, true: Callable[[RunRecord], object]) -> bool:
        return await self.count(true) == 0

    async def check(self, *, lost: int = 0) -> None:
        """Each has ended once, and said all that it had to. Of ``lost`` runs and no more a worker died."""
        records = await self.records()
        for record in records:
            entries = [entry async for entry in self._broker.stream(record.run_id)]
            assert [entry.seq for entry in entries] == list(range(1, record.last + 1))
            fences = [entry for entry in entries if entry.type in ("final", "failed", "cancelled")]
            assert fences == entries[-1:]
            _check_said(record, entries)
        assert sum(record.attempt > 1 or record.status == "failed" for record in records) == lost
        assert await self._broker.queue.size() == 0

    async def in_order(self, overtaken: int) -> None:
        """They began in the order in which they were queued, but that as many are taken at a time as there are
        workers."""
        began = sorted(await self.records(), key=lambda record: record.started or 0.0)
        places = {record.run_id: place for place, record in enumerate(began)}
        moved = [abs(places[run_id] - place) for place, run_id in enumerate(self.ids)]
        assert max(moved) <= overtaken, moved

    async def by_worker(self) -> Counter[str]:
        return Counter(record.owner.rpartition(".")[0] for record in await self.records())


def _check_said(record: RunRecord, entries: list[StreamEntry]) -> None:
    """Completed with all of its text, once in the attempt that counts; or lost with its worker, as it had asked."""
    restarted = [n for n, e in enumerate(entries) if e.type == "event" and e.fields["name"] == "run.restarted"]
    assert len(restarted) == record.attempt - 1
    said = "".join(e.fields["text"] for e in entries[(restarted or [0])[-1] :] if e.type == "message.delta")
    whole = "".join(f"w{n} " for n in range(1, TOKENS + 1))
    if record.status == "completed":
        assert said == whole
    else:
        assert (record.on_worker_lost, entries[-1].fields["code"]) == ("fail", "worker_lost")
        assert whole.startswith(said)


@contextlib.asynccontextmanager
async def working(broker: Broker) -> AsyncIterator[Callable[[str], Worker]]:
    """``start(name)``: a worker in this process; all are drained and have ended at the end."""
    started: list[tuple[Worker, asyncio.Task[None]]] = []

    def start(name: str) -> Worker:
        worker = Worker(broker, name=name, concurrency=SLOTS, runners={"scripted": ScriptedRunner()}, sweep=not started)
        started.append((worker, asyncio.create_task(worker.run())))
        return worker

    try:
        yield start
    finally:
        for worker, _ in started:
            worker.drain()
        await asyncio.wait_for(asyncio.gather(*(task for _, task in started)), 30)


async def test_one_then_three_then_one(redis7: RedisServer, namespace: str, tmp_path: Path) -> None:
    settings = Settings(redis_url=redis7.url, namespace=namespace, data_dir=tmp_path, block=0.5)
    async with api.open(settings=settings) as broker, working(broker) as start:
        runs = await queue(broker, 40, rate=100)
        start("first")
        await runs.reached(2)
        more = [start(name) for name in ("second", "third")]
        await runs.reached(18)
        for worker in more:
            worker.drain()
        had = await runs.by_worker()
        assert await runs.count(lambda record: record.status == "queued") >= 5
        await runs.reached(40)
        assert all(worker.running == 0 for worker in more)
        await runs.check()
        await runs.in_order(3)
        done = await runs.by_worker()
    assert done.total() == 40
    for name in ("second", "third"):
        assert 3 <= done[name] <= had[name] + 1, "a claim that was under way, and no more"


@pytest.fixture(params=["redis7", "redis7-cluster", "redis7-sentinel"])
def beneath(request: pytest.FixtureRequest) -> str:
    """The URL of what the workers stand on."""
    return str(request.getfixturevalue(request.param.replace("-", "_")).url)


@contextlib.asynccontextmanager
async def workers(
    url: str, namespace: str, directory: Path
) -> AsyncIterator[tuple[Broker, Callable[[], WorkerProcess]]]:
    """A broker, and what starts a worker in a process of its own."""
    started: list[WorkerProcess] = []
    env = environment(url, namespace, data_dir=directory, **LOST)

    def start() -> WorkerProcess:
        log = directory / f"worker{len(started)}.log"
        started.append(WorkerProcess(env, log, concurrency=SLOTS))
        return started[-1]

    async with api.open(url, Settings(namespace=namespace, data_dir=directory, **LOST)) as broker:
        try:
            yield broker, start
        finally:
            for worker in started:
                worker.kill()
    assert all("Traceback" not in worker.output for worker in started)


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_processes_come_and_are_drained(beneath: str, namespace: str, tmp_path: Path) -> None:
    async with workers(beneath, namespace, tmp_path) as (broker, start):
        runs = await queue(broker, 60, rate=20)
        start()
        await runs.reached(2)
        more = [start(), start()]
        await runs.reached(20)
        for worker in more:
            worker.signal(signal.SIGTERM)
        for worker in more:
            assert await worker.ended(30) == 0, worker.output
        waiting = await runs.count(lambda record: record.status == "queued")
        await runs.reached(60)
        await runs.check()
        await runs.in_order(3)
        done = await runs.by_worker()
    assert waiting >= 10, "there was work left for the one that stayed"
    assert len(done) == 3
    assert min(done.values()) >= 3, done


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_one_of_three_processes_is_killed(beneath: str, namespace: str, tmp_path: Path) -> None:
    async with workers(beneath, namespace, tmp_path) as (broker, start):
        runs = await queue(broker, 60, rate=20, on_worker_lost=lambda number: "retry" if number % 2 else "fail")
        three = [start(), start(), start()]
        await runs.reached(12)
        await runs.reached(3 * SLOTS, lambda record: record.status == "running")
        three[1].signal(signal.SIGKILL)
        await three[1].ended()
        owner = f"-{three[1].popen.pid}-"
        lost = [r for r in await runs.records() if r.status == "running" and owner in r.owner]
        assert 1 <= len(lost) <= SLOTS
        limit = LOST["lease"] + LOST["sweep"] + 3
        await until(lambda: runs.none(lambda record: record.status == "running" and owner in record.owner), limit)
        await runs.reached(60)
        await runs.check(lost=len(lost))
        ended = {record.run_id: record for record in await runs.records()}
    for run in lost:
        wanted = ("failed", 1) if run.on_worker_lost == "fail" else ("completed", 2)
        assert (ended[run.run_id].status, ended[run.run_id].attempt) == wanted
