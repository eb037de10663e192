"""A run of a task that cannot be made: what would be refused again fails the step, what passes by is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from broker.errors import StoreUnavailable
from broker.runs import Runs
from broker.settings import Settings
from tests.servers import eventually
from tests.tasks.conftest import PLAN, Person, Says, Working, states

_MAX = 4_096


@pytest.fixture
def task_settings(task_settings: Settings) -> Settings:
    return task_settings.model_copy(update={"item_max_bytes": _MAX})


async def test_a_step_that_is_too_long_for_a_run_fails_until_it_is_edited(
    person: Person, working: Working, says: Says
) -> None:
    async with working():
        await person.makes(steps=[{**PLAN[0], "instruction": "x" * (_MAX + 1)}])
        halted = await person.is_("halted")
        assert halted["halted"]["code"] == "item_too_big"
        error = halted["steps"][0]["error"]
        assert not error["retryable"]
        assert f"{_MAX} are allowed" in error["message"]
        assert not says.asked
        await person.says("retry")
        await person.until(lambda task: task["steps"][0]["tries"] == 2 and task["status"] == "halted")
        await person.says("steps/1/edit", instruction="Less.")
        await person.says("retry")
        done = await person.is_("completed")
    assert done["steps"][0]["result"] == "LESS."
    refused = ["step_started", "step_failed"]
    whats = ["created", *refused, "retried", *refused, "step_edited", "retried", "step_started", "step_completed"]
    assert [entry["what"] for entry in done["history"]] == [*whats, "completed"]


async def test_a_goal_that_is_too_long_for_its_planner_halts_and_is_cancelled(person: Person, working: Working) -> None:
    async with working():
        await person.makes(goal="g" * (_MAX - 100))
        halted = await person.is_("halted")
        assert (halted["halted"]["step"], halted["halted"]["code"]) == (None, "item_too_big")
        await person.says("cancel")
        await person.until(lambda task: task["run_status"] == "cancelled")


@pytest.mark.parametrize(
    ("error", "times", "code"),
    [(StoreUnavailable("away"), 30, None), (ZeroDivisionError("a fault"), 1_000, "internal")],
)
async def test_what_passes_is_waited_for_and_what_stays_is_told(
    person: Person, working: Working, monkeypatch: pytest.MonkeyPatch, error: Exception, times: int, code: str | None
) -> None:
    made, tried = Runs.create, 0

    async def create(self: Runs, *args: Any, **options: Any) -> Any:
        nonlocal tried
        tried += 1
        if tried <= times:
            raise error
        return await made(self, *args, **options)

    monkeypatch.setattr("workers.tasks.children._AGAIN_AFTER", 0.01)
    await person.makes(steps=PLAN[:1])
    monkeypatch.setattr(Runs, "create", create)
    async with working():
        if code is None:
            assert states(await person.is_("completed")) == ["completed"]
            return
        halted = await person.is_("halted")
        assert (halted["halted"]["code"], halted["halted"]["message"]) == (code, "a fault")
        assert halted["steps"][0]["error"]["retryable"]
        monkeypatch.setattr(Runs, "create", made)
        await person.says("retry")
        await person.is_("completed")
    await eventually(lambda: tried == 20)
