"""A worker dies while it relays; another goes on at the service. Real processes, a real redis-server, real HTTP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker import api
from broker.api import Broker
from broker.requests import RunInput, RunRequest
from tests.gateways import until
from tests.runner_service import RunnerService, ServiceRun, serving
from tests.servers import RedisServer, die_with_parent, eventually
from tests.workers.remote.stage import Stage, store_settings

_ROOT = Path(__file__).parents[3]


class Mortals:
    """Workers in processes of their own."""

    def __init__(self, url: str, namespace: str, service: str, directory: Path) -> None:
        self._where = [url, namespace, service]
        self._log = directory / "workers.log"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, step: str = "never", number: int = 0) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.workers.remote.mortal", *self._where, step, str(number)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, cwd=_ROOT, stdout=log, stderr=log, preexec_fn=die_with_parent)
        self.processes.append(process)
        return process

    async def died(self, process: subprocess.Popen[bytes]) -> None:
        await eventually(lambda: process.poll() is not None, 20)
        assert process.returncode == -9, self._log.read_text()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
async def service() -> AsyncIterator[RunnerService]:
    async with serving() as opened:
        yield opened


@pytest.fixture
async def broker(redis7: RedisServer, tmp_path: Path) -> AsyncIterator[Broker]:
    async with api.open(settings=store_settings(redis7.url, tmp_path)) as opened:
        yield opened


@pytest.fixture
def mortals(broker: Broker, service: RunnerService, redis7: RedisServer, tmp_path: Path) -> Iterator[Mortals]:
    workers = Mortals(redis7.url, broker.settings.namespace, service.url, tmp_path)
    yield workers
    workers.end()


async def _create(broker: Broker, **more: Any) -> str:
    record, _ = await broker.runs.create(RunRequest(runner="remote", input=RunInput(message="hello"), **more))
    return record.run_id


def _play(run: ServiceRun) -> None:
    run.tokens("a", "b", "c")
    run.say("tool", name="terminal", tid="t1", args={})
    run.say("tool_complete", name="terminal", tid="t1", preview="ok")
    run.say("metering", usage={"input_tokens": 5, "output_tokens": 2})
    run.whole("d", "e", "f")


@pytest.mark.parametrize(
    ("step", "number"),
    [("append", 2), ("append-after", 1), ("append-after", 2), ("keep", 2), ("keep-after", 1), ("keep-after", 3)],
)
async def test_nothing_is_missing_and_nothing_comes_twice(
    broker: Broker, service: RunnerService, mortals: Mortals, step: str, number: int
) -> None:
    service.play, service.page = _play, 2
    run_id = await _create(broker)
    await mortals.died(mortals.start(step, number))
    # No `on_worker_lost: retry` was asked for: what goes on is not executed again.
    mortals.start()
    async with asyncio.timeout(30):
        entries = [entry async for entry in broker.stream(run_id)]
    assert len(service.runs) == 1
    assert [entry.fields["source_id"] for entry in entries if entry.type != "message"] == [
        f"event:{n}" for n in range(1, len(service.runs[0].events) + 1)
    ]
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    final = entries[-1]
    assert final.type == "final"
    texts = [block["text"] for block in final.fields["message"]["content"] if block["type"] == "text"]
    assert texts == ["abc", "def"]
    assert final.fields["usage"]["input_tokens"] == 5
    assert (await broker.runs.get(run_id)).attempt == 2


async def test_it_goes_on_with_the_cursor_that_it_had(broker: Broker, service: RunnerService, mortals: Mortals) -> None:
    service.play, service.page = lambda run: run.tokens("a", "b", "c"), 2
    stage = Stage(broker, service, None)
    run_id = await _create(broker)
    first = mortals.start()
    await stage.has(run_id, 3)
    await eventually(lambda: service.cursors()[-1] == "c3")
    first.kill()
    await mortals.died(first)
    asked = len(service.cursors())
    mortals.start()
    await eventually(lambda: len(service.cursors()) > asked, 20)
    assert set(service.cursors()[asked:]) == {"c3"}
    service.runs[0].whole("d")
    async with asyncio.timeout(30):
        texts = [e.fields["text"] async for e in broker.stream(run_id) if e.type == "message.delta"]
    assert texts == ["a", "b", "c", "d"]


async def test_what_was_asked_is_asked_again(broker: Broker, service: RunnerService, mortals: Mortals) -> None:
    stage = Stage(broker, service, None)
    run_id = await _create(broker)
    first = mortals.start()
    run = await stage.started()
    run.say("approval", approval_id="a1", command="ls", description="d")
    (before,) = await stage.asked(run_id)
    await stage.has(run_id, 1)  # an ask is registered ahead of its item
    first.kill()
    await mortals.died(first)
    mortals.start()

    async def anew() -> bool:
        asks = (await broker.runs.get(run_id)).asks
        return bool(asks) and asks[0].request_id != before.request_id

    await until(anew, 20)
    (ask,) = (await broker.runs.get(run_id)).asks
    await broker.runs.answer(run_id, ask.request_id, "once")
    await eventually(lambda: run.answers)
    run.end()
    async with asyncio.timeout(30):
        entries = [entry async for entry in broker.stream(run_id)]
    assert run.answers == [("a1", "once")]
    asked = [entry.fields["source_id"] for entry in entries if entry.fields.get("name") == "approval.requested"]
    assert asked == ["event:1", None]


async def test_a_cancel_while_no_worker_lives_reaches_the_service(
    broker: Broker, service: RunnerService, mortals: Mortals
) -> None:
    stage = Stage(broker, service, None)
    run_id = await _create(broker)
    first = mortals.start()
    run = await stage.started()
    run.tokens("half")
    await stage.has(run_id, 1)
    first.kill()
    await mortals.died(first)
    await broker.runs.cancel(run_id)
    mortals.start()
    await eventually(lambda: run.cancels, 20)
    async with asyncio.timeout(30):
        entries = [entry async for entry in broker.stream(run_id)]
    assert entries[-1].type == "cancelled"
    assert entries[-1].fields["partial"]["content"][0]["text"] == "half"


async def test_a_worker_that_died_before_the_service_answered_executes_nothing_twice(
    broker: Broker, service: RunnerService, mortals: Mortals
) -> None:
    service.play = lambda run: run.whole("a")
    run_id = await _create(broker)
    await mortals.died(mortals.start("keep", 1))
    mortals.start()
    async with asyncio.timeout(30):
        entries = [entry async for entry in broker.stream(run_id)]
    assert (entries[-1].type, entries[-1].fields["code"]) == ("failed", "worker_lost")
    again = await _create(broker, on_worker_lost="retry")
    async with asyncio.timeout(30):
        entries = [entry async for entry in broker.stream(again)]
    assert entries[-1].type == "final"
