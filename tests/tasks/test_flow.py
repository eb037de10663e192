"""A task from its making to its end, over HTTP, with the runners of the test."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest

from broker.api import Broker
from broker.task_view import entry_view, step_view, summary_of
from tests.tasks.conftest import PLAN, Person, Says, Working, states
from workers.runner import RunnerFailed
from workers.tasks import driver
from workers.tasks.changes import change_of_plan


async def told_alike(person: Person) -> None:
    """Checkpoint, stream and view tell the same story, in every field."""
    seen, kept, events = await person.sees(), person.checkpoint(), await person.events()
    steps, history = [step_view(step) for step in kept.steps], [entry_view(entry) for entry in kept.history]
    assert (seen["steps"], seen["history"]) == (as_json(steps), as_json(history))
    assert {name: seen[name] for name in summary_of(kept)} == as_json(summary_of(kept))
    # What docs/tasks.md says to others who read the stream: the newest task, and for each number the newest step.
    told: dict[int, Any] = {}
    for event in events:
        for step in event.get("steps") or [event[name] for name in ("step",) if name in event]:
            told[step["n"]] = step
    assert [told[n] for n in sorted(told)] == seen["steps"]
    assert events[-1]["task"] == as_json(summary_of(kept))
    transitions = [e for e in events if e["name"] != "task.resumed"]
    names = ("version", "at", "by", "reason", "detail")
    shown = [{**{n: e[n] for n in names}, "what": e["name"][5:], "step": e["n"]} for e in transitions]
    assert shown == seen["history"]


def as_json(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


async def test_a_given_plan_with_an_approval(person: Person, working: Working, says: Says, broker: Broker) -> None:
    async with working():
        await person.makes(steps=PLAN, by="ann")
        seen = await person.is_("waiting")
        assert states(seen) == ["completed", "waiting", "pending"]
        assert seen["current_step"] == 2
        told = await person.says("steps/2/approve", reason="go on", by="bob")
        assert [step["state"] for step in told["steps"]] == ["approved"]
        seen = await person.until(lambda task: task["run_status"] == "completed")
    assert [step["result"] for step in seen["steps"]] == ["LOOK AROUND.", "CHANGE IT.", "TELL WHAT CHANGED."]
    assert (seen["steps"][1]["approved_by"], seen["steps"][1]["reason"], seen["by"]) == ("bob", "go on", "ann")
    assert [entry["by"] for entry in seen["history"] if entry["by"]] == ["ann", "bob"]
    assert all("source_id" not in event for event in await person.events())  # a task is relayed from nowhere
    await told_alike(person)
    assert list((broker.settings.tasks_path / ".open").iterdir()) == []  # nothing is left but the checkpoint
    assert "LOOK AROUND." in says.asked[1]  # a step knows what the one before said
    child = await broker.runs.get(seen["steps"][1]["run_id"])
    assert (child.request["parent_run_id"], child.request["component"]) == (person.task_id, "step:2")
    items = await broker.log.read(child.run_id, 0, limit=10)
    assert all(b'"parent_run_id":"%b"' % person.task_id.encode() in item.data for item in items)
    assert any(b'"component_id":"step:2"' in item.data for item in items)


async def test_a_plan_by_the_planner_which_is_asked_once_more(person: Person, working: Working, says: Says) -> None:
    says.answers = ["I think we should look first.", {"steps": PLAN[:2]}]
    async with working():
        await person.makes()
        seen = await person.is_("waiting")
        assert [step["title"] for step in seen["steps"]] == ["Look", "Change"]
        assert seen["planned_by"] == "says"
        assert "no JSON object" in says.asked[1]  # it was told what was wrong
        assert "I think we should look first." in says.asked[1]
        await person.says("approve", up_to="high")
        await person.is_("completed")
    whats = [entry["what"] for entry in (await person.sees())["history"]]
    assert whats[:5] == ["created", "planning", "plan_refused", "planning", "planned"]
    await told_alike(person)


async def test_a_planner_that_writes_nonsense_holds_nobody_up(
    person: Person, working: Working, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return change_of_plan(*args)

    monkeypatch.setattr(driver, "change_of_plan", noted)
    broken = json.dumps({"steps": [{**PLAN[0], "\ud800": 1}]})
    says.answers = ["{" * (64 << 10), broken, {"steps": PLAN[:1]}]
    async with working():
        await person.makes()
        seen = await person.is_("halted")
        assert seen["halted"]["code"] == "no_plan"
        await person.says("retry")
        seen = await person.is_("completed")
    whats = [entry["what"] for entry in seen["history"]]
    assert whats[1:8] == ["planning", "plan_refused", "planning", "plan_failed", "retried", "planning", "planned"]
    assert len(threads) >= 3
    assert threading.main_thread() not in threads  # the event loop has others to serve
    await told_alike(person)


async def test_no_plan_halts_and_a_retry_asks_again(person: Person, working: Working, says: Says) -> None:
    says.answers = ["no", "no", {"steps": PLAN[:1]}]
    async with working():
        await person.makes()
        seen = await person.is_("halted")
        assert (seen["halted"]["step"], seen["halted"]["code"]) == (None, "no_plan")
        await person.says("retry")
        assert states(await person.is_("completed")) == ["completed"]
    await told_alike(person)


async def test_a_failed_step_halts_and_is_retried(person: Person, working: Working, says: Says) -> None:
    says.answers = ["seen", RunnerFailed("no_luck", "it did not work")]
    async with working():
        await person.makes(steps=[{**step, "approval": False} for step in PLAN])
        seen = await person.is_("halted")
        assert seen["halted"] == {"step": 2, "code": "no_luck", "message": "it did not work"}
        first = seen["steps"][1]["run_id"]
        await person.says("retry", reason="once more")
        seen = await person.is_("completed")
    assert seen["steps"][1]["tries"] == 2
    assert seen["steps"][1]["run_id"] != first
    await told_alike(person)


async def test_a_rejection_halts_until_it_is_edited_and_tried_again(person: Person, working: Working) -> None:
    async with working():
        await person.makes(steps=PLAN)
        await person.is_("waiting")
        await person.says("steps/2/reject", reason="too much")
        seen = await person.is_("halted")
        assert seen["halted"] == {"step": 2, "code": "rejected", "message": "too much"}
        await person.says("steps/2/edit", instruction="Change half of it.")
        await person.says("retry")
        await person.is_("waiting")
        await person.says("steps/2/approve", revision=2, by="bob")
        seen = await person.is_("completed")
    assert (seen["steps"][1]["approved_by"], seen["steps"][1]["reason"]) == ("bob", None)  # not that of the rejection
    assert seen["steps"][1]["result"] == "CHANGE HALF OF IT."
    await told_alike(person)


async def test_a_task_goes_on_without_a_step(person: Person, working: Working, says: Says) -> None:
    async with working():
        await person.makes(steps=PLAN)
        await person.is_("waiting")
        await person.says("steps/2/reject", reason="not needed", then="continue")
        seen = await person.is_("completed")
    assert states(seen) == ["completed", "rejected", "completed"]
    assert "rejected by a person: not needed" in says.asked[1]
    await told_alike(person)


async def test_a_task_goes_on_without_a_step_that_failed(person: Person, working: Working, says: Says) -> None:
    says.answers = [RunnerFailed("no_luck", "it did not work")]
    async with working():
        await person.makes(steps=[{**step, "approval": False} for step in PLAN[:2]])
        await person.is_("halted")
        told = await person.says("steps/1/approve", expect=409)
        assert told["detail"] == "step 1 is failed: it can be approved while it is pending or waiting"
        await person.says("steps/1/reject", reason="it will not work", then="continue")
        seen = await person.is_("completed")
    assert states(seen) == ["rejected", "completed"]
    assert "rejected by a person: it will not work" in says.asked[1]
    await told_alike(person)


async def test_a_cancel_stops_the_running_step(person: Person, working: Working, broker: Broker) -> None:
    async with working():
        await person.makes(steps=[{**PLAN[0], "metadata": {"script": "tokens=5 hang=2"}}, *PLAN[1:]], runner="scripted")
        seen = await person.until(lambda task: task["steps"] and task["steps"][0]["state"] == "running")
        told = await person.says("cancel", reason="enough", by="ann")
        assert told["status"] == "cancelled"
        assert [step["state"] for step in told["steps"]] == ["cancelled"] * 3
        seen = await person.until(lambda task: task["run_status"] == "cancelled")
        run_id = seen["steps"][0]["run_id"]
        async with asyncio.timeout(30):
            assert [entry.type async for entry in broker.stream(run_id, modes="final")] == ["cancelled"]
    assert seen["history"][-1]["reason"] == "enough"
    await told_alike(person)


async def test_a_cancel_of_the_tasks_run_is_one_of_the_task(person: Person, working: Working) -> None:
    async with working():
        await person.makes(steps=PLAN)
        await person.is_("waiting")
        assert (await person.client.post(f"/v1/runs/{person.task_id}/cancel")).status_code == 202
        seen = await person.until(lambda task: task["run_status"] == "cancelled")
    assert states(seen) == ["completed", "cancelled", "cancelled"]
    await told_alike(person)


async def test_what_hermes_asks_in_a_step_is_answered_through_the_task(person: Person, working: Working) -> None:
    script = {"metadata": {"script": "tokens=4 ask=2 question=3"}}
    async with working():
        await person.makes(steps=[{**PLAN[0], **script}], runner="scripted")
        seen = await person.until(lambda task: task["steps"] and task["steps"][0]["asks"])
        [ask] = seen["steps"][0]["asks"]
        assert (ask["kind"], ask["payload"]["command"], ask["free"]) == ("approval", "rm -rf build", False)
        told = await person.says("input", request_id=ask["request_id"], answer=True)
        assert told["answer"] == "once"
        await person.says("input", expect=409, request_id=ask["request_id"], answer=False)
        await person.says("input", expect=404, request_id="other", answer=False)
        seen = await person.until(lambda task: [a for a in task["steps"][0]["asks"] if a["kind"] == "question"])
        [question] = seen["steps"][0]["asks"]
        await person.says("input", request_id=question["request_id"], answer="blue")
        seen = await person.is_("completed")
    assert "[approval: once]" in seen["steps"][0]["result"]
    assert "[answer: blue]" in seen["steps"][0]["result"]
    told_of = [(e["what"], e["detail"].get("answer")) for e in seen["history"] if e["what"].startswith("input")]
    assert told_of == [
        ("input_requested", None),
        ("input_answered", "once"),
        ("input_requested", None),
        ("input_answered", "blue"),
    ]
    await told_alike(person)


async def test_an_answer_that_comes_too_late_is_told_so_also_after_a_retry(person: Person, working: Working) -> None:
    script = {"metadata": {"script": "tokens=2 ask=1 fail=2"}}
    async with working():
        await person.makes(steps=[{**PLAN[0], **script}], runner="scripted")
        seen = await person.until(lambda task: task["steps"] and task["steps"][0]["asks"])
        [ask] = seen["steps"][0]["asks"]
        assert (await person.says("input", request_id=ask["request_id"], answer=True))["run_id"] == ask["run_id"]
        await person.is_("halted")
        await person.says("retry")
        seen = await person.until(lambda task: task["steps"][0]["asks"])
        assert seen["steps"][0]["run_id"] != ask["run_id"]
        late = await person.says("input", expect=409, request_id=ask["request_id"], answer=False)
        assert (late["code"], late["answer"]) == ("already_answered", "once")
        await person.says("cancel")


async def test_decisions_before_a_worker_is_there_are_obeyed(person: Person, working: Working) -> None:
    await person.makes(steps=PLAN)
    assert (await person.sees())["status"] == "queued"
    await person.says("steps/2/approve", by="early")
    await person.says("steps/2/approve", expect=409)
    async with working():
        seen = await person.is_("completed")
    assert seen["steps"][1]["approved_by"] == "early"
    await told_alike(person)


async def test_a_worker_that_stops_hands_its_task_on(person: Person, working: Working) -> None:
    async with working():
        await person.makes(steps=PLAN)
        await person.is_("waiting")
    record = await person.broker.runs.get(person.task_id)
    assert (record.status, record.attempt) == ("queued", 2)
    await person.says("steps/2/approve")
    async with working():
        await person.is_("completed")
    events = await person.events()
    assert [e["detail"]["attempt"] for e in events if e["name"] == "task.resumed"] == [2]
    await told_alike(person)


async def test_lists_and_the_bus(person: Person, working: Working, broker: Broker) -> None:
    async with working():
        ids = [await person.makes(goal=f"Goal {n}.", steps=PLAN[:1]) for n in range(3)]
        for person.task_id in ids:
            await person.is_("completed")
    page = (await person.client.get("/v1/tasks?limit=2")).json()
    assert [task["task_id"] for task in page["tasks"]] == ids[:0:-1]
    assert [task["goal"] for task in page["tasks"]] == ["Goal 2.", "Goal 1."]
    assert {task["status"] for task in page["tasks"]} == {"completed"}
    assert "steps" not in page["tasks"][0]
    rest = (await person.client.get(f"/v1/tasks?limit=2&before={page['next']}")).json()
    assert ([task["task_id"] for task in rest["tasks"]], rest["next"]) == (ids[:1], None)
    key = broker.keys.bus(broker.keys.partition(ids[0]))
    entries = await broker.store.call("XRANGE", key, "-", "+")
    news: list[dict[bytes, bytes]] = [dict(zip(f[::2], f[1::2], strict=True)) for _, f in entries]
    kinds = [n[b"kind"].decode() for n in news if n[b"run_id"] == ids[0].encode() and n[b"kind"].startswith(b"task.")]
    assert kinds == ["task.created", "task.step_started", "task.step_completed", "task.completed"]


@pytest.mark.parametrize("key", ["once", None])
async def test_an_idempotency_key_makes_one_task(person: Person, key: str | None) -> None:
    headers: dict[str, Any] = {"Idempotency-Key": key} if key else {}
    body = {"goal": "Tidy up.", "steps": PLAN}
    made = [(await person.client.post("/v1/tasks", json=body, headers=headers)) for _ in range(2)]
    assert len({answer.json()["task_id"] for answer in made}) == (1 if key else 2)
    assert [answer.status_code for answer in made] == [201, 200 if key else 201]
