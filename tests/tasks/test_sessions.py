"""Steps go on in the session that the task names, one run of it at a time."""

from __future__ import annotations

import asyncio

import pytest

from broker.api import Broker
from broker.records import RunRecord
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.tasks.conftest import PLAN, Person, Says, Working, states


@pytest.fixture
def task_settings(task_settings: Settings) -> Settings:
    return task_settings.model_copy(update={"session_busy": "refuse"})


async def made(broker: Broker, run_id: str) -> RunRecord:
    while True:
        record = await broker.runs.find(run_id)
        if record is not None:
            return record
        await asyncio.sleep(0.02)


async def test_a_step_waits_for_its_session_also_where_others_are_refused(
    person: Person, broker: Broker, working: Working, says: Says
) -> None:
    # Of a runner that nobody here serves: the sweep puts it into its queue, and there it stays.
    before = RunRequest(runner="elsewhere", input=RunInput(message="before"), session_id="shared")
    earlier, _ = await broker.runs.create(before, enqueue=False)
    await person.makes(steps=[{**step, "approval": False} for step in PLAN[:2]], session_id="shared")
    async with working():
        running = await person.until(lambda task: task["steps"] and task["steps"][0]["run_id"])
        run_id = running["steps"][0]["run_id"]
        await person.until(lambda task: task["steps"][0]["state"] == "running")
        async with asyncio.timeout(20):
            record = await made(broker, run_id)
        assert (record.status, record.waits) == ("queued", True)
        await broker.runs.cancel(earlier.run_id)
        done = await person.is_("completed")
    assert states(done) == ["completed"] * 2
    assert done["steps"][0]["run_id"] == run_id
    assert "before" not in says.asked
