"""The task's worker dies, or freezes and wakes, between every two of its effects: the outcome is always the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker import api
from broker.api import Broker
from broker.settings import Settings
from broker.task_model import PlannedStep
from broker.task_plan import TaskRequest
from tests.gateways import GatewayProcess, Response, frames_of
from tests.servers import RedisServer, eventually
from tests.tasks.story import (
    OUTCOME,
    HandProcess,
    People,
    begun,
    hands,
    new_task,
    outcome,
    run_after_its_result,
    settings_for,
)
from workers.tasks.checkpoints import CheckpointFile, Checkpoints

APPROVED = "before checkpoint step_approved"
"""An approval that is in the store, and not yet in the checkpoint."""


@pytest.fixture(params=["redis7", pytest.param("redis7_cluster", marks=pytest.mark.long)])
def stage(request: pytest.FixtureRequest, namespace: str, tmp_path: Path) -> Settings:
    return settings_for(request.getfixturevalue(request.param).url, namespace, tmp_path)


def kept(settings: Settings, task_id: str) -> CheckpointFile:
    found = Checkpoints(settings.tasks_path).read(task_id)
    assert found is not None
    return found


async def undisturbed(settings: Settings, directory: Path) -> list[str]:
    """The names of all places of an undisturbed task."""
    process = HandProcess(settings, directory / "undisturbed.log")
    async with api.open(settings=settings) as broker:
        with hands(process):
            task = await People(broker, await new_task(broker)).until_ended()
    assert outcome(task) == OUTCOME
    lines = process.lines
    assert begun(lines) == ["plan", "step:1", "step:2", "step:3", "step:4", "step:4"]
    return [line.split(maxsplit=2)[2] for line in lines if line.startswith("place ")]


async def killed_at(settings: Settings, log: Path, place: str) -> None:
    first = HandProcess(settings, log, "kill", place)
    async with api.open(settings=settings) as broker:
        task_id = await new_task(broker)
        deciding = asyncio.create_task(People(broker, task_id).until_ended(90))
        with hands(first):
            await eventually(lambda: first.popen.poll() is not None or deciding.done(), 60)
            assert first.popen.poll() == -signal.SIGKILL, "it was not killed"
            second = HandProcess(settings, log)
            with hands(second):
                task = await deciding
    story = f"killed at place {place}"
    assert outcome(task) == OUTCOME, story
    assert run_after_its_result(first.lines) == [], story
    file = kept(settings, task_id)
    assert [(s.state, s.result, s.approved_by, s.reason, s.revision) for s in file.task.steps] == OUTCOME, story
    told = [(entry["version"], entry["what"]) for entry in task["history"]]
    assert told == [(entry.version, entry.what) for entry in file.task.history], story


async def test_undisturbed(stage: Settings, tmp_path: Path) -> None:
    assert APPROVED in await undisturbed(stage, tmp_path)


async def test_a_worker_killed_with_an_approval_that_only_the_store_has(stage: Settings, tmp_path: Path) -> None:
    await killed_at(stage, tmp_path / "killed.log", APPROVED)


@pytest.fixture
async def names(redis7: RedisServer, namespace: str, tmp_path: Path) -> list[str]:
    return await undisturbed(settings_for(redis7.url, f"{namespace}u", tmp_path / "u"), tmp_path)


async def at_every_place(
    one: Callable[[Settings, Path, str], Awaitable[object]],
    redis7: RedisServer,
    namespace: str,
    tmp_path: Path,
    count: int,
) -> None:
    """``one`` for each place, with a store's namespace and a directory of its own; two at once."""
    at_once = asyncio.Semaphore(2)

    async def there(place: str) -> None:
        directory = tmp_path / place
        directory.mkdir()
        async with at_once:
            await one(settings_for(redis7.url, f"{namespace}{place}", directory), directory, place)

    await asyncio.gather(*(there(str(place)) for place in range(1, count + 1)))


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_worker_killed_at_every_place(
    redis7: RedisServer, namespace: str, tmp_path: Path, names: list[str]
) -> None:
    async def one(settings: Settings, directory: Path, place: str) -> object:
        return await killed_at(settings, directory / "log", place)

    await at_every_place(one, redis7, namespace, tmp_path, len(names))


async def frozen_at(settings: Settings, directory: Path, place: str) -> list[str]:
    """Two workers, of which the first freezes there and wakes when the second has done it all; → both logs."""
    first = HandProcess(settings, directory / "frozen.log", "freeze", place)
    async with api.open(settings=settings) as broker:
        task_id = await new_task(broker)
        deciding = asyncio.create_task(People(broker, task_id).until_ended(90))
        with hands(first):
            await eventually(lambda: first.frozen or deciding.done(), 60)
            assert first.frozen, "it was not frozen"
            second = HandProcess(settings, directory / "second.log")
            with hands(second):
                task = await deciding
                before = kept(settings, task_id)
                os.kill(first.popen.pid, signal.SIGCONT)
                await eventually(lambda: "awake" in first.lines, 10)
                out = first.log.with_suffix(".out")
                await eventually(lambda: "was taken over" in out.read_text(), 20)
                after = kept(settings, task_id)
    assert outcome(task) == OUTCOME
    assert (after.fence, after.saved_at, after.task) == (before.fence, before.saved_at, before.task)
    assert after.fence == (1 if after.task.version == _version_at(first.lines) else 2)
    assert run_after_its_result([*first.lines[: first.lines.index("awake")], *second.lines]) == []
    assert [line for line in first.lines[first.lines.index("awake") :] if line.startswith("recorded")] == []
    return begun([*first.lines, *second.lines])


def _version_at(lines: list[str]) -> int:
    """The version that the frozen worker had written before it froze: then there may be nothing left to write."""
    asleep = lines[: lines.index("awake")]
    return sum(1 for line in asleep if " before stream task." in line)


async def test_of_two_workers_one_is_frozen_and_woken(stage: Settings, tmp_path: Path) -> None:
    """Between the store and the checkpoint: what is refused is the file's renaming."""
    executed = await frozen_at(stage, tmp_path, APPROVED)
    assert executed == ["plan", "step:1", "step:2", "step:3", "step:4", "step:4"]  # each once; the fourth was retried


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_worker_frozen_at_every_place(
    redis7: RedisServer, namespace: str, tmp_path: Path, names: list[str]
) -> None:
    await at_every_place(frozen_at, redis7, namespace, tmp_path, len(names))


async def said(gateway: GatewayProcess, target: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
    """What it answers; ``None``: it died before."""
    sent = json.dumps(body).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(sent)))]
    try:
        answer = await Response.open(gateway.port, target, method="POST", headers=headers, behind=sent)
        return answer.status, json.loads(await answer.body())
    except (OSError, EOFError):
        return None


@pytest.mark.long
async def test_a_gateway_killed_while_people_decide(stage: Settings, tmp_path: Path) -> None:
    """Whoever was answered 200 is obeyed; who had no answer says it again. A viewer who comes back misses nothing."""
    gateway, worker = GatewayProcess(stage, tmp_path), HandProcess(stage, tmp_path / "log")
    numbers = range(1, 13)
    plan = [PlannedStep(title=f"T{n}", instruction=f"say {n}", risk="high") for n in numbers]
    seqs: list[int] = []
    answered = []
    async with api.open(settings=stage) as broker:
        request = TaskRequest(goal="Count.", steps=plan, runner="hand", planner="hand")
        task_id = (await broker.tasks.create(request))[0].run_id
        with hands(worker):
            for n in numbers:
                gateway.start()
                cursor = [("Last-Event-ID", f"{task_id}:{seqs[-1]}")] if seqs else []
                stream = await Response.open(gateway.port, f"/v1/tasks/{task_id}/stream", headers=cursor)
                target, body = f"/v1/tasks/{task_id}/steps/{n}/approve", {"by": f"p{n}"}
                deciding = asyncio.create_task(said(gateway, target, body))
                await asyncio.sleep(0.002 * n)
                gateway.kill()
                answer = await deciding
                answered.append(answer is not None)
                if answer is None:
                    gateway.start()
                    answer = await said(gateway, target, body)
                    gateway.kill()
                    assert answer is not None
                    assert answer[0] == 200 or (answer[0], answer[1]["code"]) == (409, "step_conflict")
                seqs += await what_came(stream)
            task = await ended(broker, task_id)
    approved = [(entry["step"], entry["by"]) for entry in task["history"] if entry["what"] == "step_approved"]
    assert sorted(approved) == [(n, f"p{n}") for n in numbers]
    assert begun(worker.lines) == [f"step:{n}" for n in numbers]
    assert seqs == list(range(1, len(seqs) + 1))
    assert not all(answered), "it was never killed before its answer"


async def what_came(stream: Response) -> list[int]:
    """The seqs of the whole frames that came before the gateway died."""
    with contextlib.suppress(OSError, EOFError):
        await stream.body()
    frames = frames_of(stream.wire, cut=True)
    return [int(frame.id.rpartition(":")[2]) for frame in frames if frame.id and frame.event != "cursor"]


async def ended(broker: Broker, task_id: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while (task := await broker.tasks.view(task_id))["run_status"] != "completed":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return task


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_dies_the_outcome_is_the_same(
    redis_server: RedisServer, namespace: str, tmp_path: Path, seed: int
) -> None:
    """Workers and Redis, at any moment, one after the other."""
    settings, draw = settings_for(redis_server.url, namespace, tmp_path), random.Random(seed)
    workers = [HandProcess(settings, tmp_path / "log") for _ in range(2)]
    async with api.open(settings=settings) as broker:
        task_id = await new_task(broker)
        deciding = asyncio.create_task(People(broker, task_id).until_ended(150))
        try:
            for _ in range(15):
                await asyncio.sleep(draw.uniform(0.05, 0.8))
                victim = draw.randrange(3)
                if victim == 2:
                    redis_server.kill()
                    await asyncio.sleep(draw.uniform(0.05, 0.5))
                    redis_server.start()
                else:
                    workers[victim].kill()
                    workers[victim] = HandProcess(settings, tmp_path / "log")
            task = await deciding
        finally:
            for worker in workers:
                worker.kill()
    assert outcome(task) == OUTCOME
    assert run_after_its_result(workers[0].lines) == []
    file = kept(settings, task_id)
    assert [(s.state, s.result, s.approved_by, s.reason, s.revision) for s in file.task.steps] == OUTCOME
    told = [(entry["version"], entry["what"]) for entry in task["history"]]
    assert told == [(entry.version, entry.what) for entry in file.task.history]
