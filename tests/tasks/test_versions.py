"""What another version of Runcast stored, or nobody can read: it holds up neither the task nor who looks at it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from broker.api import Broker
from broker.errors import InvalidRequest, StoreError
from broker.task_model import Change
from broker.task_plan import first_task
from broker.task_stored import changes_of, stored_change
from broker.task_transitions import apply
from tests.tasks.conftest import PLAN, Person, Working
from tests.tasks.test_flow import told_alike
from tests.tasks.test_trouble import handed_on

LATER: list[Any] = [
    {"what": "step_skipped", "at": 5.0, "step": 2, "by": "x"},
    {"what": "step_rejected", "at": 5.0, "step": 2, "by": "x", "reason": "r", "then": "skip"},
    {"what": "step_edited", "at": 5.0, "step": 2, "by": "x", "risk": "extreme"},
    {"what": "step_approved", "at": 1e300, "step": 2, "by": "x"},
    {"what": "planned", "at": 5.0, "step": 2, "by": "x"},
]


def read(*fields: bytes) -> Change:
    [change] = changes_of([(b"5000-1", fields)], "4999-9")
    return change


@pytest.mark.parametrize("decision", LATER)
def test_a_decision_that_is_not_understood_comes_as_refused(decision: dict[str, Any]) -> None:
    change = read(b"d", json.dumps(decision).encode())
    assert (change.what, change.step, change.by, change.at) == ("decision_refused", 2, "x", 5.0)
    assert change.command == "5000-1"
    assert change.trouble is not None
    assert "does not understand" in change.trouble.message
    task = apply(first_task("t", {"goal": "g", "steps": PLAN}, 1.0), change)
    assert (task.command, task.history[-1].what) == ("5000-1", "decision_refused")


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (b"d", b""),
        (b"d", b"\xff"),
        (b"d", b"[" * 100_000),
        (b"d", b'{"what":"step_approved","at":1,"by":"\\ud800"}'),
        (b"d", b'{"what":1,"step":0,"by":5}'),
    ],
)
def test_a_decision_that_cannot_be_read_comes_as_refused(fields: tuple[bytes, ...]) -> None:
    change = read(*fields)
    assert (change.what, change.step, change.by) == ("decision_refused", None, "")


def test_only_what_was_decided_since_is_read() -> None:
    entries = [(b"5-0", (b"d", b"x")), (b"10-0", (b"d", b'{"what":"retried","at":1}'))]
    assert list(changes_of(entries, "5-0")) == [Change(what="retried", at=1.0, command="10-0")]


def test_a_change_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="step_skipped"):
        apply(first_task("t", {"goal": "g", "steps": PLAN}, 1.0), Change(what="step_skipped", at=1.0, step=1))
    for stored in (b'{"what":"step_skipped","at":1}', b'{"what":"created","at":"now"}', b"[" * 100_000):
        with pytest.raises(StoreError, match="another version"):
            stored_change(stored)


async def put(broker: Broker, task_id: str, decision: Any) -> None:
    await broker.store.call("XADD", broker.keys.decisions(task_id), "*", "d", json.dumps(decision))


async def test_a_later_gateways_decision_is_refused_and_everything_goes_on(
    person: Person, working: Working, broker: Broker
) -> None:
    await person.makes(steps=PLAN)
    for decision in LATER[:2]:
        await put(broker, person.task_id, decision)
    # Without a worker.
    seen = await person.sees()
    assert (seen["decisions"], seen["pending_decisions"]) == ([], 0)
    assert (await person.client.get("/v1/tasks")).status_code == 200
    assert (await person.says("steps/2/approve", by="ann"))["steps"][0]["state"] == "approved"
    seen = await person.sees()
    assert [decision["what"] for decision in seen["decisions"]] == ["step_approved"]
    async with working():
        seen = await person.is_("completed")
    refused = [entry for entry in seen["history"] if entry["what"] == "decision_refused"]
    assert [(entry["step"], entry["by"]) for entry in refused] == [(2, "x"), (2, "x")]
    assert "step_skipped" in refused[0]["detail"]["message"]
    await told_alike(person)


async def test_a_cancel_behind_a_later_gateways_decision(person: Person, broker: Broker) -> None:
    await person.makes(steps=PLAN)
    await put(broker, person.task_id, LATER[0])
    assert (await person.says("cancel"))["status"] == "cancelled"


@pytest.mark.parametrize("field", ["state", "change"])
async def test_what_a_later_worker_stored_breaks_no_list(person: Person, broker: Broker, field: str) -> None:
    other = await person.makes(steps=PLAN)
    await person.makes(steps=PLAN)
    record = await broker.runs.get(person.task_id)
    task = first_task(record.run_id, record.request["input"]["task"], record.created)
    stored = {"version": b"1", "state": msgspec.json.encode(task), "change": b'{"what":"created","at":1}'}
    stored[field] = b'{"what":"step_skipped","goal":5,"at":"now"}'
    flat = [part for pair in stored.items() for part in pair]
    await broker.store.call("HSET", broker.keys.task(person.task_id), *flat)
    listed = await person.client.get("/v1/tasks")
    assert [task["task_id"] for task in listed.json()["tasks"]] == [person.task_id, other]
    assert (await person.sees())["status"] == "queued"
    if field == "state":
        assert (await person.says("cancel", expect=422))["code"] == "invalid_request"
    else:
        await person.says("cancel")


async def test_a_task_that_a_later_worker_left_half_written_is_handed_on(
    person: Person, working: Working, broker: Broker
) -> None:
    async with working():
        await person.makes(steps=PLAN)
        seen = await person.is_("waiting")
    ahead = (b"version", seen["version"] + 1, b"change", b'{"what":"step_skipped","at":1,"step":2}')
    await broker.store.call("HSET", broker.keys.task(person.task_id), *ahead)
    async with working():
        await handed_on(broker, person.task_id, (await broker.runs.get(person.task_id)).attempt)
    assert (await person.sees())["run_status"] != "failed"
