"""Checkpoints that are elsewhere, gone, older than the store, or cannot be written; a store that is away."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.api import Broker
from broker.errors import StoreError, StoreUnavailable
from broker.task_model import Change
from broker.tasks import Tasks
from tests.servers import eventually
from tests.tasks.conftest import PLAN, Person, Says, Working, states
from tests.tasks.test_flow import told_alike
from workers.runner import RunnerFailed
from workers.tasks.checkpoints import Checkpoints


async def handed_on(broker: Broker, task_id: str, attempt: int) -> None:
    """Once the worker that has it as that attempt has given it away."""
    async with asyncio.timeout(30):
        while (await broker.runs.get(task_id)).attempt <= attempt:  # noqa: ASYNC110 - another process's doing
            await asyncio.sleep(0.02)


async def test_a_task_whose_checkpoint_is_elsewhere_is_handed_on_until_its_host_comes(
    person: Person, working: Working, tmp_path: Path, broker: Broker, says: Says
) -> None:
    async with working():
        await person.makes(steps=PLAN)
        await person.is_("waiting")
    await person.says("steps/2/approve")
    async with working(checkpoints=Checkpoints(tmp_path / "elsewhere")):
        attempt = (await broker.runs.get(person.task_id)).attempt
        await handed_on(broker, person.task_id, attempt)
    assert len(says.asked) == 1  # nothing was done again
    async with working():
        await person.is_("completed")
    await told_alike(person)


@pytest.mark.parametrize("gone", ["removed", "older"])
async def test_a_task_without_its_checkpoint_fails_instead_of_doing_things_twice(
    person: Person, working: Working, says: Says, gone: str
) -> None:
    async with working():
        await person.makes(steps=PLAN)
        await person.is_("waiting")
    file = Checkpoints(person.broker.settings.tasks_path).path(person.task_id)
    if gone == "removed":
        file.unlink()
    else:
        kept = file.read_bytes()
        async with working():
            for title in ("Another", "A third"):
                await person.says("steps/2/edit", title=title)
            await person.until(lambda task: task["steps"][1]["title"] == "A third" and not task["pending_decisions"])
        file.write_bytes(kept)
    done = len(says.asked)
    async with working():
        await person.is_("failed")
    result = (await person.client.get(f"/v1/runs/{person.task_id}/result")).json()
    assert result["outcome"]["code"] == "checkpoint_lost"
    assert len(says.asked) == done


async def test_nothing_begins_that_cannot_be_written_down(
    person: Person, working: Working, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0
    real = os.fsync

    def full(descriptor: int) -> None:
        nonlocal tried
        tried += 1
        if tried > 2:
            raise OSError(28, "No space left on device")
        real(descriptor)

    async with working():
        monkeypatch.setattr(os, "fsync", full)
        await person.makes(steps=PLAN[:1])
        await eventually(lambda: tried >= 4)
        assert says.asked == []
        monkeypatch.setattr(os, "fsync", real)
        assert states(await person.is_("completed")) == ["completed"]
    assert len(says.asked) == 1
    await told_alike(person)


async def test_an_outage_is_waited_out(
    person: Person, working: Working, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit fails twice: once before it is done, once after, so that its reply is lost."""
    real, tries = Tasks.commit, Counter[int]()

    async def shaky(self: Tasks, task: Any, change: Change, owner: str) -> bool:
        tries[task.version] += 1
        if tries[task.version] == 1:
            raise StoreUnavailable("away")
        done = await real(self, task, change, owner)
        if tries[task.version] == 2:
            raise StoreUnavailable("its reply is lost")
        return done

    monkeypatch.setattr(Tasks, "commit", shaky)
    async with working():
        await person.makes(steps=PLAN[:1])
        await person.is_("completed")
    assert set(tries.values()) == {3}
    assert len(says.asked) == 1
    await told_alike(person)


async def test_a_store_that_lost_the_task_is_told_again(person: Person, working: Working, broker: Broker) -> None:
    async with working():
        await person.makes(steps=PLAN)
        await person.is_("waiting")
    await broker.store.call("DEL", broker.keys.task(person.task_id), broker.keys.decisions(person.task_id))
    async with working():
        await person.until(lambda task: task["run_status"] == "running")
        async with asyncio.timeout(30):
            while (await broker.tasks.stored(person.task_id)).version == 0:  # noqa: ASYNC110 - the worker's doing
                await asyncio.sleep(0.02)
        await person.says("steps/2/approve")
        await person.is_("completed")
    await told_alike(person)


async def test_a_decision_that_cannot_be_obeyed_is_told_and_holds_nothing_up(
    person: Person, working: Working, broker: Broker
) -> None:
    """It does not happen by the API: an entry that somebody else put there."""
    async with working():
        await person.makes(steps=PLAN)
        await person.is_("waiting")
        wrong = Change(what="step_approved", at=1.0, step=9, by="x")
        await broker.store.call("XADD", broker.keys.decisions(person.task_id), "*", "d", msgspec.json.encode(wrong))
        seen = await person.until(lambda task: task["history"][-1]["what"] == "decision_refused")
        assert seen["history"][-1]["detail"]["code"] == "unknown_step"
        await person.says("steps/2/approve")
        await person.is_("completed")
    await told_alike(person)


async def test_a_step_whose_run_is_lost_is_tried_again(person: Person, working: Working, says: Says) -> None:
    says.answers = [RunnerFailed("worker_lost", "gone")] * 2
    async with working():
        await person.makes(steps=PLAN[:1])
        seen = await person.is_("completed")
        assert seen["steps"][0]["tries"] == 3
        says.answers = [RunnerFailed("worker_lost", "gone")] * 4
        await person.makes(steps=PLAN[:1])
        seen = await person.is_("halted")
        assert seen["halted"]["code"] == "worker_lost"
        assert seen["steps"][0]["tries"] == 4
    await told_alike(person)


@pytest.mark.parametrize("kind", ["torn", "empty", "foreign", "nonsense"])
async def test_a_checkpoint_that_is_none_fails_the_task(
    person: Person, working: Working, says: Says, kind: str
) -> None:
    """Nobody can know what was done: nothing is done again."""
    checkpoints = Checkpoints(person.broker.settings.tasks_path)
    async with working():
        await person.makes(steps=PLAN)
        await person.is_("waiting")
        other = checkpoints.path(person.task_id).read_bytes()
        await person.makes(steps=PLAN)
        await person.is_("waiting")
    file = checkpoints.path(person.task_id)
    whole = file.read_bytes()
    file.write_bytes(
        {"torn": whole[: len(whole) // 2], "empty": b"", "foreign": other, "nonsense": b"\x00" * 500}[kind]
    )
    await person.says("steps/2/approve")
    done = len(says.asked)
    async with working():
        await person.is_("failed")
    outcome = (await person.client.get(f"/v1/runs/{person.task_id}/result")).json()["outcome"]
    assert outcome["code"] == "checkpoint_lost"
    assert str(file) in outcome["message"]
    assert len(says.asked) == done
    assert (await person.says("cancel", expect=409))["code"] == "task_ended"


async def test_a_checkpoint_of_a_later_version_waits_for_a_worker_of_that(
    person: Person, working: Working, broker: Broker, says: Says
) -> None:
    async with working():
        await person.makes(steps=PLAN)
        await person.is_("waiting")
    file = Checkpoints(broker.settings.tasks_path).path(person.task_id)
    kept = file.read_bytes()
    file.write_bytes(b'{"format": 2, "what": "nobody knows"}')
    attempt = (await broker.runs.get(person.task_id)).attempt
    await person.says("steps/2/approve")
    async with working():
        await handed_on(broker, person.task_id, attempt)
    file.write_bytes(kept)
    async with working():
        await person.is_("completed")
    assert len(says.asked) == 3
    await told_alike(person)


async def test_a_task_path_that_cannot_be_written_hands_tasks_on(
    person: Person, working: Working, broker: Broker, tmp_path: Path, says: Says
) -> None:
    """A file stands where the directory should be: nobody may write there, not even root."""
    (tmp_path / "file").write_text("in the way")
    await person.makes(steps=PLAN[:1])
    async with working(checkpoints=Checkpoints(tmp_path / "file" / "tasks")):
        await handed_on(broker, person.task_id, 1)
    assert not says.asked
    assert (await person.sees())["status"] == "queued"
    async with working():
        await person.is_("completed")
    await told_alike(person)


async def test_a_store_that_refuses_hands_the_task_on(
    person: Person, working: Working, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator may mend it: the task is not lost for it."""
    real = Tasks.commit

    async def refused(*_: Any) -> bool:
        raise StoreError("NOPERM")

    await person.makes(steps=PLAN[:1])
    monkeypatch.setattr(Tasks, "commit", refused)
    async with working():
        await handed_on(broker, person.task_id, 1)
        monkeypatch.setattr(Tasks, "commit", real)
        await person.is_("completed")
    await told_alike(person)
