"""Tasks in the store: decisions that race, and versions, on every kind of store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from broker import api
from broker.api import Broker
from broker.errors import Conflict, Fenced, StepConflict, TaskEnded, TaskNotFound
from broker.records import RunRecord
from broker.settings import Settings
from broker.task_decisions import Approve, Cancel, Edit
from broker.task_model import Change, PlannedStep, Task
from broker.task_plan import TaskRequest
from broker.task_reading import first_of
from broker.task_transitions import apply
from broker.tasks import Ahead

PLAN = [PlannedStep(title=f"T{n}", instruction="do it", risk="high") for n in range(1, 4)]


@pytest.fixture
async def broker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened


async def new(broker: Broker, *, claim: bool = True) -> tuple[RunRecord, Task]:
    record, _ = await broker.tasks.create(TaskRequest(goal="g", steps=PLAN))
    if claim:
        record = await broker.runs.claim(record.run_id, 1, "me")
    return record, first_of(record)


def approve(n: int, by: str = "") -> Change:
    return Approve(by=by).change(n, "", time.time())


async def test_of_many_that_decide_at_once_one_wins(broker: Broker) -> None:
    record, _ = await new(broker)
    deciding = (broker.tasks.decide(record.run_id, approve(2, f"p{n}")) for n in range(8))
    answers = await asyncio.gather(*deciding, return_exceptions=True)
    won = [answer for answer in answers if isinstance(answer, Task)]
    assert len(won) == 1
    assert all(isinstance(answer, (Task, StepConflict)) for answer in answers), answers
    [kept] = await broker.tasks.decisions(record.run_id, "0-0")
    assert kept.by == won[0].steps[1].approved_by


async def test_decisions_about_other_things_are_all_kept(broker: Broker) -> None:
    record, task = await new(broker)
    said = [approve(1), approve(2), Edit(title="x").change(3, "", 1.0)]
    await asyncio.gather(*(broker.tasks.decide(record.run_id, change) for change in said))
    kept = await broker.tasks.decisions(record.run_id, "0-0")
    assert len(kept) == 3
    for change in kept:
        task = apply(task, change)
    assert [step.state for step in task.steps] == ["approved", "approved", "pending"]


async def test_people_come_before_the_worker(broker: Broker) -> None:
    """The worker's own step is refused while there is a decision that it has not seen: it may forbid the step."""
    record, task = await new(broker)
    tasks, created = broker.tasks, Change(what="created", at=1.0)
    await tasks.decide(record.run_id, Cancel().change(None, "", 1.0))
    assert not await tasks.commit(apply(task, created), created, "me")
    [cancel] = await tasks.decisions(record.run_id, task.command)
    assert await tasks.commit(apply(task, cancel), cancel, "me")
    with pytest.raises(TaskEnded):
        await tasks.decide(record.run_id, approve(1))


async def test_a_commit_may_be_repeated_and_belongs_to_the_owner(broker: Broker) -> None:
    record, task = await new(broker)
    tasks, created = broker.tasks, Change(what="created", at=1.0)
    first = apply(task, created)
    assert await tasks.commit(first, created, "me")
    assert await tasks.commit(first, created, "me")
    assert await tasks.stored(record.run_id) == (1, created)
    with pytest.raises(Fenced):
        await tasks.commit(first, created, "another")
    with pytest.raises(Ahead):
        await tasks.commit(first, msgspec.structs.replace(created, at=2.0), "me")
    lost = await broker.runs.get(record.run_id)
    assert await broker.runs.takeover(lost) == "queued"
    with pytest.raises(Fenced):
        await tasks.commit(first, created, "me")


async def test_taken_decisions_are_forgotten_by_the_store_only_behind_a_checkpoint(broker: Broker) -> None:
    record, task = await new(broker)
    tasks = broker.tasks
    for n in (1, 2):
        await tasks.decide(record.run_id, approve(n))
    kept = await tasks.decisions(record.run_id, "0-0")
    task = apply(task, kept[0])
    assert await tasks.commit(task, kept[0], "me")
    assert await tasks.decisions(record.run_id, task.command) == kept[1:]
    with pytest.raises(StepConflict):  # also by the version that is stored
        await tasks.decide(record.run_id, approve(1))


async def test_a_tasks_run_has_any_number_of_attempts(broker: Broker) -> None:
    record, _ = await new(broker, claim=False)
    for attempt in range(1, 3 * broker.settings.max_attempts):
        record = await broker.runs.claim(record.run_id, attempt, f"owner{attempt}")
        assert await broker.runs.takeover(record) == "queued"


async def test_what_is_no_task(broker: Broker) -> None:
    with pytest.raises(TaskNotFound):
        await broker.tasks.view("run_none")
    record, _ = await new(broker, claim=False)
    await broker.runs.cancel(record.run_id)
    with pytest.raises(Conflict, match="cancelled"):
        await broker.tasks.decide(record.run_id, approve(1))
    assert (await broker.tasks.view(record.run_id))["status"] == "cancelled"
