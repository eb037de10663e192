"""What was decided and no worker has obeyed yet: whoever looks sees it, and the stream tells it once it is so."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from broker import metrics
from broker.errors import StoreUnavailable
from broker.task_model import Change
from broker.tasks import Tasks
from tests.servers import eventually
from tests.tasks.conftest import PLAN, Person, Working, states
from tests.tasks.test_flow import told_alike


def decided(task: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(entry["what"], entry["step"], entry["by"], entry["reason"]) for entry in task["decisions"]]


def undone(task: dict[str, Any]) -> list[int]:
    return [step["n"] for step in task["steps"] if step.get("pending")]


async def listed(person: Person) -> dict[str, Any]:
    [task] = (await person.client.get("/v1/tasks")).json()["tasks"]
    assert "decisions" not in task
    shown: dict[str, Any] = task
    return shown


async def test_what_was_decided_is_seen_while_no_worker_is_there(person: Person, working: Working) -> None:
    await person.makes(steps=PLAN)
    assert (await person.sees())["decisions"] == []
    await person.says("steps/2/edit", instruction="Change half of it.", title="Half", by="ann")
    await person.says("steps/2/approve", reason="fine", by="bob", revision=2)
    await person.says("steps/3/reject", reason="not that", then="continue", by="cid")
    seen = await person.sees()
    assert (seen["status"], seen["version"], seen["pending_decisions"]) == ("queued", 0, 3)
    assert decided(seen) == [
        ("step_edited", 2, "ann", None),
        ("step_approved", 2, "bob", "fine"),
        ("step_rejected", 3, "cid", "not that"),
    ]
    assert seen["decisions"][2]["detail"] == {"then": "continue"}
    assert undone(seen) == [2, 3]
    _, second, third = seen["steps"]
    assert (second["title"], second["instruction"], second["revision"]) == ("Half", "Change half of it.", 2)
    assert (second["state"], second["approved_by"], second["reason"]) == ("approved", "bob", "fine")
    assert second["approved_at"].endswith("Z")
    assert (third["state"], third["instruction"]) == ("rejected", PLAN[2]["instruction"])
    assert (await listed(person))["pending_decisions"] == 3
    async with working():
        done = await person.is_("completed")
    assert (done["pending_decisions"], done["decisions"], undone(done)) == (0, [], [])
    assert (await listed(person))["pending_decisions"] == 0
    assert [entry["at"] for entry in done["history"] if entry["by"]] == [entry["at"] for entry in seen["decisions"]]
    await told_alike(person)


async def test_a_decision_answers_with_the_steps_that_it_changed(person: Person) -> None:
    await person.makes(steps=[PLAN[1]] * 3)
    await person.says("steps/2/approve", by="ann")
    told = await person.says("approve", up_to="high", by="bob")
    assert [(step["n"], step["approved_by"]) for step in told["steps"]] == [(1, "bob"), (3, "bob")]
    await person.says("steps/1/reject", reason="not that", by="cid")
    assert [step["n"] for step in (await person.says("cancel"))["steps"]] == [2, 3]


async def test_a_cancel_is_seen_as_asked_for(person: Person, working: Working) -> None:
    async with working():
        await person.makes(steps=PLAN)
        await person.is_("waiting")
    await person.says("approve", up_to="high", by="ann")
    seen = await person.sees()
    assert (decided(seen), undone(seen)) == ([("approved", None, "ann", None)], [2])
    assert seen["decisions"][0]["detail"] == {"up_to": "high"}
    await person.says("cancel", by="ann", reason="enough")
    seen = await person.sees()
    assert (seen["status"], seen["cancel_requested"], states(seen)) == (
        "waiting",
        True,
        ["completed", "cancelled", "cancelled"],
    )
    assert (await listed(person))["cancel_requested"]
    async with working():
        await person.until(lambda task: task["run_status"] == "cancelled")
    assert (await person.sees())["decisions"] == []


async def test_a_decision_that_is_stored_and_not_written_down_is_seen(
    person: Person, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk holds it up behind the store and before the stream."""
    real, tried = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal tried
        tried += 1
        raise OSError(28, "No space left on device")

    async with working():
        await person.makes(steps=PLAN)
        before = await person.is_("waiting")
        monkeypatch.setattr(os, "fsync", full)
        await person.says("steps/2/edit", instruction="Change half of it.", by="ann")
        await eventually(lambda: tried)
        await person.says("steps/2/approve", by="bob")
        seen = await person.sees()
        assert seen["version"] == before["version"]
        assert decided(seen) == [("step_edited", 2, "ann", None), ("step_approved", 2, "bob", None)]
        assert undone(seen) == [2]
        assert (seen["steps"][1]["state"], seen["steps"][1]["instruction"]) == ("approved", "Change half of it.")
        assert seen["steps"][0]["result"]
        assert (await listed(person))["pending_decisions"] == 2
        monkeypatch.setattr(os, "fsync", real)
        await person.is_("completed")
    assert (await person.sees())["decisions"] == []
    await told_alike(person)


async def test_what_the_worker_does_itself_is_no_decision(
    person: Person, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own transition is in the store and not in the stream: nobody decided that."""
    real, held = Tasks.commit, asyncio.Event()

    async def commit(self: Tasks, task: Any, change: Change, owner: str) -> bool:
        done = await real(self, task, change, owner)
        if change.what == "step_waiting":
            held.set()
            raise StoreUnavailable("its reply is lost")
        return done

    monkeypatch.setattr(Tasks, "commit", commit)
    async with working():
        await person.makes(steps=PLAN)
        await asyncio.wait_for(held.wait(), 20)
        seen = await person.sees()
        assert (states(seen), undone(seen), seen["pending_decisions"]) == (["completed", "pending", "pending"], [], 0)
        await person.says("steps/2/approve", by="ann")
        seen = await person.sees()
        assert (states(seen), undone(seen), len(seen["decisions"])) == (["completed", "approved", "pending"], [2], 1)
        monkeypatch.setattr(Tasks, "commit", real)
        await person.is_("completed")
    await told_alike(person)


async def test_one_of_a_process_measures_its_event_loop(
    person: Person, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a worker of runs there are one of tasks, and the hub through which that follows its steps."""
    by: list[Any] = []
    monkeypatch.setattr(metrics.LOOP_LAG, "observe", lambda _: by.append(asyncio.current_task()))
    async with working():
        await person.makes(steps=[{**PLAN[0], "metadata": {"script": "tokens=2 hang=2"}}], runner="scripted")
        await person.until(lambda task: task["steps"] and task["steps"][0]["state"] == "running")
        await eventually(lambda: len(by) >= 3)
        await person.says("cancel")
    assert len(set(by)) == 1
