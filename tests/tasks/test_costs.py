"""The runs that a task makes count against the caps, like anybody's: one that is reached halts it, nothing is lost."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from broker.admission import make_run
from broker.api import Broker
from broker.errors import CostCapReached, RunExists
from broker.money import nano_of
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.tasks.conftest import PLAN, Person, Says, Working, states

_RESERVATION = Decimal("0.5")
_OPEN = [{**step, "approval": False} for step in PLAN]


@pytest.fixture
def task_settings(task_settings: Settings) -> Settings:
    """What is held back for runs that are never made stays so: a sweep would let go of it after ``requeue_after``."""
    caps = {"cost_cap": Decimal(1), "cost_reservation": _RESERVATION}
    return task_settings.model_copy(update={**caps, "requeue_after": 600.0})


async def books(broker: Broker) -> tuple[int, int, int]:
    """Spent and reserved, in reservations, and how many runs were settled."""
    total = (await broker.ledger.budget()).total
    held = nano_of(_RESERVATION) or 1
    return total.spent // held, total.reserved // held, total.runs


async def hold(broker: Broker, *run_ids: str) -> None:
    for run_id in run_ids:
        await broker.ledger.reserve(run_id, "", "runner says")


def step(task: dict[str, Any], n: int) -> dict[str, Any]:
    found: dict[str, Any] = task["steps"][n - 1]
    return found


async def test_a_cap_halts_a_task_before_the_step_and_a_retry_goes_on(
    person: Person, broker: Broker, working: Working, says: Says
) -> None:
    await person.makes(steps=_OPEN[:2])
    await hold(broker, "run_a", "run_b")
    async with working():
        halted = await person.is_("halted")
        assert (halted["halted"]["step"], halted["halted"]["code"]) == (1, "cost_cap")
        assert step(halted, 1)["error"]["retryable"]
        assert "cost cap" in step(halted, 1)["error"]["message"]
        assert not says.asked
        assert await broker.runs.find(step(halted, 1)["run_id"]) is None
        assert (await books(broker))[1] == 2, "who is refused holds nothing back"
        for run_id in ("run_a", "run_b"):
            await broker.ledger.release(run_id)
        await person.says("retry")
        done = await person.is_("completed")
    assert states(done) == ["completed"] * 2
    assert len(says.asked) == 2


async def test_steps_are_booked_and_the_task_is_not(person: Person, broker: Broker, working: Working) -> None:
    await person.makes(steps=_OPEN[:1])
    async with working():
        await person.is_("completed")
        await person.until(lambda task: task["run_status"] == "completed")
    for run_id in (person.task_id, step(await person.sees(), 1)["run_id"]):
        await broker.ledger.try_settle(run_id)
    # The runner tells no cost, so the step is booked with what it held back.
    assert await books(broker) == (1, 0, 2)


async def test_a_cap_halts_the_planning(person: Person, broker: Broker, working: Working, says: Says) -> None:
    await hold(broker, "run_a", "run_b")
    await person.makes()
    async with working():
        halted = await person.is_("halted")
        assert (halted["halted"]["step"], halted["halted"]["code"]) == (None, "cost_cap")
        await broker.ledger.release("run_a")
        await broker.ledger.release("run_b")
        says.answers.append({"steps": _OPEN[:1]})
        await person.says("retry")
        await person.until(lambda task: task["steps_total"] == 1)


async def test_whoever_comes_second_takes_nothing_from_the_run_that_is_there(broker: Broker) -> None:
    asked = RunRequest(runner="says", input=RunInput(message="hello"))
    await make_run(broker, asked, principal="", run_id="run_once")
    with pytest.raises(RunExists):
        await make_run(broker, asked, principal="", run_id="run_once")
    assert (await books(broker))[1] == 1
    await hold(broker, "run_other")
    with pytest.raises(CostCapReached):
        await make_run(broker, asked, principal="", run_id="run_third")


async def test_whoever_comes_behind_its_end_holds_nothing_back(broker: Broker) -> None:
    asked = RunRequest(runner="says", input=RunInput(message="hello"))
    await make_run(broker, asked, principal="", run_id="run_once")
    await broker.runs.cancel("run_once")
    assert await books(broker) == (0, 0, 1)
    with pytest.raises(RunExists):
        await make_run(broker, asked, principal="", run_id="run_once")
    assert await books(broker) == (0, 0, 1)
