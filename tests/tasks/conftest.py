"""Tasks over a store of the test's own: workers of runs and of tasks in this process, and a gateway before them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from broker import api
from broker.api import Broker
from broker.items import Final, MessageDelta
from broker.settings import Settings
from broker.task_model import Task
from gateway.app import create_app
from tests.gateway.conftest import lifespan_of
from workers.runner import RunContext, RunnerFailed
from workers.scripted import ScriptedRunner
from workers.tasks.checkpoints import Checkpoints
from workers.tasks.runner import task_worker
from workers.worker import Worker

PLAN = [
    {"title": "Look", "instruction": "Look around.", "risk": "low"},
    {"title": "Change", "instruction": "Change it.", "risk": "high"},
    {"title": "Tell", "instruction": "Tell what changed.", "risk": "low"},
]


@pytest.fixture(params=["memory", pytest.param("redis7-cluster", marks=pytest.mark.long)])
def task_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    clustered = request.param == "redis7-cluster"
    return Settings(
        redis_url=request.getfixturevalue("redis7_cluster").url if clustered else f"memory:{uuid4().hex}",
        namespace=f"t{uuid4().hex[:12]}",
        data_dir=tmp_path / "data",
        partitions=4,
        block=0.2,
        beat=0.5,
        lease=2.0,
        sweep=0.3,
        requeue_after=0.5,
        heartbeat=0.2,
        concurrency=4,
    )


@pytest.fixture
async def broker(task_settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=task_settings) as opened:
        yield opened


class Says:
    """A runner whose answers the test gives: the next of ``answers``, else the step's instruction in capitals. An
    exception among them is raised. ``asked``: what it was told, run by run."""

    name = "says"

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[str] = []

    async def run(self, context: RunContext) -> Final:
        self.asked.append(context.request.input.message)
        answer = self.answers.pop(0) if self.answers else context.request.input.message.splitlines()[-1].upper()
        if isinstance(answer, Exception):
            raise answer
        await context.emit(MessageDelta(text=answer if isinstance(answer, str) else json.dumps(answer)))
        return Final()


@pytest.fixture
def says() -> Says:
    return Says()


Working = Callable[..., contextlib.AbstractAsyncContextManager[Worker]]


@pytest.fixture
def working(broker: Broker, says: Says) -> Working:
    """``async with working() as the_task_worker``: both workers of a host, drained at the end."""

    @contextlib.asynccontextmanager
    async def work(**more: Any) -> AsyncIterator[Worker]:
        runs = Worker(broker, runners={"scripted": ScriptedRunner(), "says": says}, sweep=True)
        tasks = task_worker(broker, **more)
        both = [asyncio.create_task(worker.run()) for worker in (runs, tasks)]
        try:
            yield tasks
        finally:
            for worker in (runs, tasks):
                worker.drain()
                worker.drain()
            await asyncio.wait_for(asyncio.gather(*both), 30)

    return work


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    gateway = create_app(broker=broker)
    transport = httpx.ASGITransport(gateway, raise_app_exceptions=False)
    async with (
        lifespan_of(gateway),
        httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=20) as opened,
    ):
        yield opened


class Person:
    """Somebody with a browser: makes one task and decides about it."""

    def __init__(self, client: httpx.AsyncClient, broker: Broker) -> None:
        self.client, self.broker = client, broker
        self.task_id = ""

    async def makes(self, **body: Any) -> str:
        given = {"goal": "Tidy up.", "runner": "says", "planner": "says", **body}
        made = await self.client.post("/v1/tasks", json=given)
        assert made.status_code == 201, made.text
        self.task_id = made.json()["task_id"]
        return self.task_id

    async def sees(self) -> dict[str, Any]:
        answer = await self.client.get(f"/v1/tasks/{self.task_id}")
        assert answer.status_code == 200, answer.text
        seen: dict[str, Any] = answer.json()
        return seen

    async def until(self, true: Callable[[dict[str, Any]], object], timeout: float = 40.0) -> dict[str, Any]:
        """The task, once it is so."""
        end = time.monotonic() + timeout
        while not true(seen := await self.sees()):
            assert time.monotonic() < end, f"not so within {timeout} s: {json.dumps(seen, indent=1)}"
            await asyncio.sleep(0.02)
        return seen

    async def is_(self, status: str, timeout: float = 40.0) -> dict[str, Any]:
        return await self.until(lambda task: task["status"] == status, timeout)

    async def says(self, what: str, expect: int = 200, **body: Any) -> dict[str, Any]:
        """``approve``, or ``steps/2/approve``; → the answer."""
        answer = await self.client.post(f"/v1/tasks/{self.task_id}/{what}", json=body)
        assert answer.status_code == expect, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def checkpoint(self) -> Task:
        kept = Checkpoints(self.broker.settings.tasks_path).read(self.task_id)
        assert kept is not None
        return kept.task

    async def events(self) -> list[dict[str, Any]]:
        """The events of the task's stream so far."""
        record = await self.broker.runs.get(self.task_id)
        entries = await self.broker.log.read(self.task_id, 0, limit=10_000, until=record.last)
        fields = [json.loads(entry.data) for entry in entries if entry.type == b"event"]
        return [event for event in fields if event["name"].startswith("task.")]


@pytest.fixture
def person(client: httpx.AsyncClient, broker: Broker) -> Person:
    return Person(client, broker)


def states(task: dict[str, Any]) -> list[str]:
    return [step["state"] for step in task["steps"]]


__all__ = ["PLAN", "Person", "RunnerFailed", "Says", "Working", "states"]
