"""What is refused is told clearly, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.api import Broker
from tests.tasks.conftest import PLAN, Person, Working, states

MIB = 1 << 20


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 422, "invalid_request", "goal"),
        ({"goal": " "}, 422, "invalid_request", "goal"),
        ({"goal": "x" * MIB}, 413, "item_too_big", "goal"),
        ({"goal": "g", "steps": []}, 422, "invalid_request", "steps"),
        ({"goal": "g", "steps": [{"title": "t", "instruction": "i"}] * 10_000}, 422, "invalid_request", "steps"),
        ({"goal": "g", "steps": [PLAN[0], {"title": "t"}]}, 422, "invalid_request", None),
        ({"goal": "g", "steps": [{**PLAN[0], "title": ""}]}, 422, "invalid_request", "steps[0].title"),
        ({"goal": "g", "steps": [PLAN[0], {**PLAN[0], "risk": "none"}]}, 422, "invalid_request", None),
        (
            {"goal": "g", "steps": [{**PLAN[0], "instruction": "x" * 9_000}]},
            413,
            "item_too_big",
            "steps[0].instruction",
        ),
        ({"goal": "g", "steps": "all"}, 422, "invalid_request", "steps"),
        ({"goal": "g", "max_steps": 10_000}, 422, "invalid_request", "max_steps"),
        ({"goal": "g", "approval_from": "never"}, 422, "invalid_request", "approval_from"),
        ({"goal": "g", "session_id": "../x"}, 400, "invalid_id", "session_id"),
        ({"goal": "g", "runner": "task"}, 422, "invalid_request", "runner"),
        ({"goal": "g", "model": "m" * 257}, 422, "invalid_request", "model"),
        ({"goal": "g", "toolsets": ["t"] * 65}, 422, "invalid_request", "toolsets"),
        ({"goal": "g", "planner": "task"}, 422, "invalid_request", "planner"),
        ({"goal": "g", "colour": "red"}, 422, "invalid_request", "colour"),
        ({"goal": "g \ud800"}, 400, "bad_request", None),
    ],
)
async def test_a_task_that_is_none(
    person: Person, body: dict[str, Any], status: int, code: str, field: str | None
) -> None:
    answer = await person.client.post(
        "/v1/tasks", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert field is None or answer.json()["field"] == field
    assert len(answer.text) < 2_000
    assert (await person.client.get("/v1/tasks")).json()["tasks"] == []
    assert (await person.client.get("/v1/runs")).json()["runs"] == []


@pytest.mark.parametrize("verb", ["", "/cancel", "/retry", "/steps/1/approve"])
async def test_a_task_that_is_not_there(person: Person, verb: str) -> None:
    call = person.client.post if verb else person.client.get
    answer = await call(f"/v1/tasks/run_none{verb}")
    assert (answer.status_code, answer.json()["code"]) == (404, "task_not_found")


async def test_a_run_is_no_task(person: Person) -> None:
    made = await person.client.post("/v1/runs", json={"input": {"message": "m"}, "runner": "says"})
    person.task_id = made.json()["run_id"]
    assert (await person.says("cancel", expect=404))["code"] == "task_not_found"
    refused = await person.client.post("/v1/runs", json={"input": {"message": "m"}, "runner": "task"})
    assert (refused.status_code, refused.json()["field"]) == (422, "runner")


async def test_decisions_that_cannot_be(person: Person, working: Working, broker: Broker) -> None:
    async with working():
        await person.makes(steps=PLAN)
        before = await person.is_("waiting")
        kept = person.checkpoint()

        async def refused(what: str, status: int, code: str, **body: Any) -> None:
            told = await person.says(what, expect=status, **body)
            assert told["code"] == code, told

        await refused("steps/4/approve", 404, "unknown_step")
        await refused("steps/0/approve", 404, "unknown_step")
        await refused("steps/10000/reject", 404, "unknown_step", reason="x")
        await refused("steps/x/approve", 422, "invalid_request")
        await refused("steps/1/approve", 409, "step_conflict")  # completed
        await refused("steps/3/approve", 409, "step_conflict")  # needs none
        await refused("steps/2/approve", 409, "step_changed", revision=7)
        await refused("steps/2/approve", 422, "invalid_request", colour="red")
        await refused("steps/2/reject", 422, "invalid_request")
        await refused("steps/2/reject", 413, "item_too_big", reason="x" * 3_000)
        await refused("steps/2/edit", 422, "invalid_request")
        await refused("steps/2/edit", 413, "item_too_big", instruction="x" * 9_000)
        await refused("steps/2/edit", 422, "invalid_request", risk="none")
        await refused("steps/1/edit", 409, "step_conflict", title="x")
        await refused("approve", 422, "invalid_request")
        await refused("approve", 409, "step_conflict", up_to="low")
        await refused("retry", 409, "task_not_halted")
        await refused("input", 404, "unknown_request", request_id="q", answer="x")
        assert await person.sees() == before
        assert person.checkpoint() == kept

        await person.says("steps/2/approve")
        await refused("steps/2/approve", 409, "step_conflict")  # twice
        seen = await person.is_("completed")
        assert states(seen) == ["completed"] * 3
        for what in ("steps/2/approve", "retry", "cancel"):
            await refused(what, 409, "task_ended")
        await refused("steps/2/reject", 409, "task_ended", reason="x")
        assert await person.sees() == await person.sees()


async def test_an_approval_after_the_cancel(person: Person, working: Working) -> None:
    await person.makes(steps=PLAN)
    await person.says("cancel")
    told = await person.says("steps/2/approve", expect=409)
    assert told["code"] == "task_ended"
    async with working():
        seen = await person.until(lambda task: task["run_status"] == "cancelled")
    assert states(seen) == ["cancelled"] * 3
    assert (await person.says("steps/2/approve", expect=409))["code"] == "task_ended"


async def test_a_cancel_token_of_another_run(person: Person) -> None:
    await person.makes(steps=PLAN)
    answer = await person.client.post(f"/v1/tasks/{person.task_id}/cancel", headers={"X-Cancel-Token": "other"})
    assert answer.status_code == 403
    assert (await person.sees())["status"] == "queued"
