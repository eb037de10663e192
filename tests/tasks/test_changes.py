"""What a task makes of what it hears of a step's run: whatever an agent says there, the task goes on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from broker.task_model import Ask, Change, Entry, Step, Task
from broker.task_view import step_view
from workers.tasks.changes import Heard, change_of_step

STEP = Step(n=1, title="t", instruction="i", risk="low", approval=False, state="running", run_id="run_2")
TASK = Task(task_id="t", goal="g", created_at=1.0, steps=(STEP,))


def asked(**fields: Any) -> Ask | None:
    told = {"name": "question.asked", "request_id": "q", **fields}
    change = change_of_step(TASK, STEP, Heard(what="asked", seq=3, fields=told), 1.0)
    assert change is not None
    assert msgspec.json.decode(msgspec.json.encode(change), type=Change) == change
    return change.ask


@pytest.mark.parametrize("expires", [1e300, 10**400, -1, "soon", None])
def test_an_ask_with_a_time_that_is_none(expires: Any) -> None:
    ask = asked(expires_at=expires, choices=5)
    assert ask is not None
    assert (ask.expires_at, ask.choices) == (None, ())
    assert step_view(msgspec.structs.replace(STEP, asks=(ask,)))["asks"]


@pytest.mark.parametrize("attempt", ["two", True, 2.5, None])
def test_a_restart_that_does_not_say_which(attempt: Any) -> None:
    change = change_of_step(TASK, STEP, Heard(what="restarted", seq=3, fields={"attempt": attempt}), 1.0)
    assert change is not None
    assert change.attempt is None


@pytest.mark.parametrize("request_id", [{"a": 1}, ["q"], None, 5])
def test_an_answer_to_nothing(request_id: Any) -> None:
    step = msgspec.structs.replace(STEP, asks=(asked(),))
    assert change_of_step(TASK, step, Heard(what="answered", seq=3, fields={"request_id": request_id}), 1.0) is None
    answered = change_of_step(TASK, step, Heard(what="answered", seq=3, fields={"request_id": "q"}), 1.0)
    assert answered is not None
    assert answered.request_id == "q"


@pytest.mark.parametrize(("run_id", "known"), [("run_1", False), ("run_2", True), (None, True)])
def test_the_same_request_id_in_another_run_is_another_ask(run_id: str | None, known: bool) -> None:
    detail = {"request_id": "q"} | ({"run_id": run_id} if run_id else {})
    entry = Entry(version=1, at=1.0, what="input_requested", step=1, detail=detail)
    heard = Heard(what="asked", seq=3, fields={"name": "question.asked", "request_id": "q"})
    change = change_of_step(msgspec.structs.replace(TASK, history=(entry,)), STEP, heard, 1.0)
    assert (change is None) == known
