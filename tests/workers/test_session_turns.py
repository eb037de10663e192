"""Workers and the turns of a session: nothing of two runs overlaps, those that wait take no slot, whoever dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.errors import StoreUnavailable
from broker.items import Event, Final
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.gateways import until
from tests.servers import RedisServer, die_with_parent
from tests.workers.test_worker import working
from workers.runner import RunContext, RunnerFailed

_FAST = {"beat": 0.1, "sweep": 0.1, "lease": 1.0, "worker_drain": 5.0, "block": 0.5, "requeue_after": 0.3}

_STUCK = """
import asyncio
from broker import api
from broker.items import Final
from broker.settings import Settings
from workers.worker import Worker

class Stuck:
    name = "test"

    async def run(self, context):
        context.defer(lambda: asyncio.sleep(3600))
        return Final(hermes_session_id="h-1")

async def main():
    async with api.open(settings=Settings()) as broker:
        await Worker(broker, runners={"test": Stuck()}, sweep=False).run()

asyncio.run(main())
"""


def settings_of(url: str, directory: Path, **more: Any) -> Settings:
    named = {"redis_url": url, "namespace": f"t{uuid4().hex[:12]}", "data_dir": directory, "partitions": 4}
    return Settings(**{**named, **_FAST, **more})


@pytest.fixture(params=["memory", "redis7"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    url = f"memory:{uuid4().hex}" if request.param == "memory" else request.getfixturevalue("redis7").url
    async with api.open(settings=settings_of(url, tmp_path, session_busy="wait", lease=60.0)) as opened:
        yield opened


async def made(broker: Broker, message: str, session_id: str | None = "s", **fields: Any) -> str:
    asked = RunRequest(runner="test", input=RunInput(message=message), session_id=session_id, **fields)
    return (await broker.runs.create(asked))[0].run_id


async def status(broker: Broker, run_id: str) -> str:
    return (await broker.runs.get(run_id)).status


async def ended(broker: Broker, *run_ids: str) -> None:
    async def are_over() -> bool:
        return all([(await broker.runs.get(run_id)).is_ended for run_id in run_ids])

    await until(are_over, 40)


async def test_nothing_of_two_runs_overlaps_on_two_workers(broker: Broker) -> None:
    """Not even what a run leaves to be cleared up: Hermes writes its session down behind its answer."""
    said: list[str] = []

    async def play(context: RunContext) -> Final:
        message = context.request.input.message
        said.append(f"{message} begins")

        async def clear_up() -> None:
            await asyncio.sleep(0.02)
            said.append(f"{message} is cleared up")

        context.defer(clear_up)
        await context.emit(Event(name="here", payload={}))
        await asyncio.sleep(0.01)
        if message == "m2":
            raise RunnerFailed("no", "no")
        return Final()

    async with working(broker, play, concurrency=4), working(broker, play, concurrency=4):
        ids = [await made(broker, f"m{n}") for n in range(6)]
        await ended(broker, *ids)
        await until(lambda: len(said) == 12)
    assert said == [f"m{n} {what}" for n in range(6) for what in ("begins", "is cleared up")]


async def test_those_that_wait_take_no_slot(broker: Broker) -> None:
    go = asyncio.Event()

    async def play(context: RunContext) -> Final:
        await go.wait()
        return Final()

    async with working(broker, play, concurrency=2) as worker:
        ids = [await made(broker, f"m{n}") for n in range(20)]
        other = await made(broker, "other", session_id="t")

        async def both_run() -> bool:
            return [await status(broker, run_id) for run_id in (ids[0], other)] == ["running", "running"]

        await until(both_run)
        await until(lambda: worker.running == 2)
        assert {await status(broker, run_id) for run_id in ids[1:]} == {"queued"}
        assert await broker.queue.size() == 0
        await broker.runs.cancel(ids[1])
        assert await status(broker, ids[1]) == "cancelled"
        go.set()
        await ended(broker, *ids, other)
    assert [await status(broker, run_id) for run_id in ids[:3]] == ["completed", "cancelled", "completed"]


async def test_each_run_goes_on_where_the_one_before_left_hermes(broker: Broker) -> None:
    resumed: list[str | None] = []

    async def play(context: RunContext) -> Final:
        resumed.append(context.resumes)
        named = context.request.input.message
        if named == "fails":
            raise RunnerFailed("no", "no")
        return Final(hermes_session_id=named)

    async with working(broker, play):
        ids = [await made(broker, named) for named in ("h-1", "h-2", "fails", "h-3")]
        ids.append(await made(broker, "alone", session_id=None))
        await ended(broker, *ids)
        ids.append(await made(broker, "h-4"))
        await ended(broker, *ids)
    assert sorted(resumed, key=str) == sorted([None, "h-1", "h-2", "h-2", None, "h-3"], key=str)
    assert [r for r in resumed if r] == ["h-1", "h-2", "h-2", "h-3"]


async def test_the_session_is_told_at_the_fence_and_without_a_gateway(broker: Broker) -> None:
    go = asyncio.Event()

    async def play(context: RunContext) -> Final:
        context.defer(go.wait)  # type: ignore[arg-type]
        return Final(hermes_session_id="h-1")

    async with working(broker, play):
        await made(broker, "m")

        async def told() -> bool:
            return await broker.store.call("HGET", broker.keys.session("s"), "message_count") == b"1"

        await until(told)
        second = await made(broker, "m2")
        assert (await broker.runs.get(second)).waits, "the first one still clears up"
        go.set()
        await ended(broker, second)


async def test_the_store_is_away_when_a_run_begins(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    resumes, asked = broker.sessions.resumes, 0

    async def flaky(session_id: str) -> str | None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise StoreUnavailable("away")
        return await resumes(session_id)

    async def play(context: RunContext) -> Final:
        return Final(metadata={"resumes": context.resumes})

    monkeypatch.setattr(broker.sessions, "resumes", flaky)
    async with working(broker, play):
        await broker.sessions.adopt("20260806_142233_a1b2c3")
        run_id = await made(broker, "m", session_id="20260806_142233_a1b2c3")
        await ended(broker, run_id)
    outcome = (await broker.runs.get(run_id)).outcome
    assert outcome is not None
    assert outcome["item"]["metadata"]["resumes"] == "20260806_142233_a1b2c3"


def stuck_worker(settings: Settings, *, at_once: bool) -> subprocess.Popen[bytes]:
    """One whose runs never end, or (not ``at_once``) never have cleared up."""
    given = ("redis_url", "namespace", "partitions", *_FAST)
    environment = {f"RUNCAST_{name.upper()}": str(getattr(settings, name)) for name in given}
    code = _STUCK.replace("return Final", "await asyncio.sleep(3600); return Final") if at_once else _STUCK
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, env={**os.environ, **environment}, preexec_fn=die_with_parent)


@pytest.mark.parametrize("at", ["running", "behind the fence"])
async def test_the_worker_that_would_let_the_next_begin_is_killed(redis7: RedisServer, tmp_path: Path, at: str) -> None:
    settings = settings_of(redis7.url, tmp_path, session_busy="wait")
    resumed: list[str | None] = []

    async def play(context: RunContext) -> Final:
        resumed.append(context.resumes)
        return Final()

    async with api.open(settings=settings) as broker:
        ids = [await made(broker, f"m{n}") for n in range(3)]
        process = stuck_worker(settings, at_once=at == "running")
        try:
            await until(lambda: reached(broker, ids[0], "running" if at == "running" else "completed"), 40)
            assert (await broker.runs.get(ids[1])).waits
            process.send_signal(signal.SIGKILL)
            async with working(broker, play, sweep=True):
                await ended(broker, *ids)
            assert await status(broker, ids[0]) == ("failed" if at == "running" else "completed")
        finally:
            process.kill()
            process.wait()
    assert resumed == [None if at == "running" else "h-1"] * 2


async def reached(broker: Broker, run_id: str, wanted: str) -> bool:
    return await status(broker, run_id) == wanted
