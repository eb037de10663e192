"""What each transition does to a step, or to the whole task, and what the history keeps of it. Pure.

``broker.task_transitions`` says which transition is allowed when. What an effect refuses is what a state does not tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from broker.errors import InvalidRequest, StepConflict, TaskNotHalted
from broker.task_model import RISKS, Change, State, Step, Task, halt_of, is_done
from broker.task_plan import INSTRUCTION_MAX, check_text, check_title, steps_of

__all__ = ["OPEN", "STEP_EFFECTS", "TASK_EFFECTS", "with_steps"]

OPEN: frozenset[State] = frozenset({"pending", "waiting"})
"""What may be approved."""
_Detail = dict[str, Any]
_changed = msgspec.structs.replace


def with_steps(task: Task, *changed: Step) -> Task:
    """The task with these steps instead of those of their numbers."""
    steps = {step.n: step for step in (*task.steps, *changed)}
    return msgspec.structs.replace(task, steps=tuple(steps.values()))


# Steps: people.


def _approve(task: Task, step: Step, change: Change) -> tuple[Step, _Detail]:
    if not step.approval:
        raise StepConflict(f"step {step.n} needs no approval")
    return _approval(step, change), {}


def _approval(step: Step, change: Change) -> Step:
    return _changed(step, state="approved", approved_by=change.by, approved_at=change.at, reason=change.reason)


def _reject(task: Task, step: Step, change: Change) -> tuple[Step, _Detail]:
    if not (change.reason or "").strip():
        raise InvalidRequest("a rejection needs a reason", field="reason")
    passed = change.then == "continue"
    rejected = _changed(step, approved_by=None, approved_at=None, reason=change.reason, passed=passed)
    return rejected, {"then": change.then}


def _edit(task: Task, step: Step, change: Change) -> tuple[Step, _Detail]:
    if step.state == "rejected" and step.passed:
        raise StepConflict(f"step {step.n} was rejected, and the task went on without it")
    asked = {"title": change.title, "instruction": change.instruction, "risk": change.risk, "approval": change.approval}
    given = {name: value for name, value in asked.items() if value is not None}
    if not given:
        raise InvalidRequest("an edit changes at least one of title, instruction, risk, approval", field="title")
    _check_edit(change)
    if change.risk is not None and change.approval is None:
        risky = RISKS.index(change.risk) >= RISKS.index(task.options.approval_from)
        given["approval"] = step.approval or risky
    was = {name: getattr(step, name) for name, value in given.items() if getattr(step, name) != value}
    # What was approved was another text.
    fresh = {"approved_by": None, "approved_at": None, "reason": change.reason}
    edited = _changed(step, **given, **fresh, revision=step.revision + 1)
    if edited.state == "waiting" and not edited.approval:
        edited = _changed(edited, state="pending")
    return edited, {"changed": was}


def _check_edit(change: Change) -> None:
    if change.title is not None:
        check_title(change.title, "title")
    if change.instruction is not None:
        check_text(change.instruction, INSTRUCTION_MAX, "instruction")


# Steps: the worker.


def _wait(task: Task, step: Step, change: Change) -> tuple[Step, _Detail]:
    return step, {}


def _start(task: Task, step: Step, change: Change) -> tuple[Step, _Detail]:
    if step.approval and step.state != "approved":
        raise StepConflict(f"step {step.n} needs an approval before it runs")
    begun = {"run_id": change.run_id, "tries": step.tries + 1, "seen": 0, "asks": ()}
    fresh = {"started_at": change.at, "ended_at": None, "result": None, "error": None, "usage": None, "cost": None}
    return _changed(step, **begun, **fresh), {"run_id": change.run_id, "try": step.tries + 1}


def _restart(task: Task, step: Step, change: Change) -> tuple[Step, _Detail]:
    return _changed(step, asks=(), seen=change.seen or step.seen), {"attempt": change.attempt}


def _ask(task: Task, step: Step, change: Change) -> tuple[Step, _Detail]:
    assert change.ask is not None
    others = tuple(ask for ask in step.asks if ask.request_id != change.ask.request_id)
    detail = {"request_id": change.ask.request_id, "kind": change.ask.kind, "run_id": change.ask.run_id}
    return _changed(step, asks=(*others, change.ask), seen=change.seen or step.seen), detail


def _answer(task: Task, step: Step, change: Change) -> tuple[Step, _Detail]:
    left = tuple(ask for ask in step.asks if ask.request_id != change.request_id)
    detail = {"request_id": change.request_id, "answer": change.answer, "how": change.how}
    return _changed(step, asks=left, seen=change.seen or step.seen), detail


def _complete(task: Task, step: Step, change: Change) -> tuple[Step, _Detail]:
    spent = {"usage": change.usage, "cost": change.cost}
    return _changed(step, result=change.result or "", asks=(), ended_at=change.at, **spent), {"run_id": step.run_id}


def _fail(task: Task, step: Step, change: Change) -> tuple[Step, _Detail]:
    assert change.trouble is not None
    spent = {"usage": change.usage, "cost": change.cost, "result": change.result}
    failed = _changed(step, error=change.trouble, asks=(), ended_at=change.at, **spent)
    return failed, {"run_id": step.run_id, "code": change.trouble.code, "message": change.trouble.message}


def _lose(task: Task, step: Step, change: Change) -> tuple[Step, _Detail]:
    assert change.trouble is not None
    ready = _changed(step, state=_ready(step), lost=step.lost + 1, asks=(), error=change.trouble)
    return ready, {"run_id": step.run_id, "code": change.trouble.code}


def _ready(step: Step) -> State:
    """The state from which it may start again: its approval stays."""
    return "approved" if step.approval and step.approved_by is not None else "pending"


# The whole task.


def _create(task: Task, change: Change) -> tuple[Task, _Detail]:
    return _changed(task, started=True), {}


def _plan(task: Task, change: Change) -> tuple[Task, _Detail]:
    _without_plan(task)
    tries = task.plan_tries + 1
    return _changed(task, planning_run_id=change.run_id, plan_tries=tries), {"run_id": change.run_id, "try": tries}


def _plan_refused(task: Task, change: Change) -> tuple[Task, _Detail]:
    _without_plan(task)
    detail = {"run_id": task.planning_run_id, "errors": list(change.errors)}
    return _changed(task, planning_run_id=None, plan_errors=change.errors, plan_said=change.said), detail


def _plan_lost(task: Task, change: Change) -> tuple[Task, _Detail]:
    _without_plan(task)
    assert change.trouble is not None
    detail = {"run_id": task.planning_run_id, "code": change.trouble.code}
    again = {"plan_tries": max(task.plan_tries - 1, 0), "plan_lost": task.plan_lost + 1}
    return _changed(task, planning_run_id=None, **again), detail


def _plan_failed(task: Task, change: Change) -> tuple[Task, _Detail]:
    _without_plan(task)
    assert change.trouble is not None
    detail = {
        "run_id": task.planning_run_id,
        "code": change.trouble.code,
        "message": change.trouble.message,
        "errors": list(change.errors),
    }
    return _changed(task, plan_trouble=change.trouble), detail


def _planned(task: Task, change: Change) -> tuple[Task, _Detail]:
    _without_plan(task)
    steps = steps_of(change.plan, task.options.approval_from, trusted=False)
    return _changed(task, steps=steps, plan_errors=(), plan_said=None), {"run_id": task.planning_run_id}


def _without_plan(task: Task) -> None:
    if task.steps or task.plan_trouble is not None:
        raise StepConflict("the task has a plan, or was refused one")


def _approve_all(task: Task, change: Change) -> tuple[Task, _Detail]:
    if change.up_to is None:
        raise InvalidRequest(f"up_to is one of {', '.join(RISKS)}", field="up_to")
    most = RISKS.index(change.up_to)
    open_ = [s for s in task.steps if s.approval and s.state in OPEN]
    taken = [step for step in open_ if RISKS.index(step.risk) <= most]
    if not taken:
        raise StepConflict(f"no step of a risk up to {change.up_to} waits for an approval")
    approved = with_steps(task, *(_approval(step, change) for step in taken))
    return approved, {"up_to": change.up_to, "approved": [step.n for step in taken]}


def _retry(task: Task, change: Change) -> tuple[Task, _Detail]:
    halt = halt_of(task)
    if halt is None:
        raise TaskNotHalted(f"task {task.task_id!r} is not halted: there is nothing to go on with")
    if halt.step is None:
        fresh = {"plan_trouble": None, "plan_tries": 0, "plan_lost": 0, "plan_errors": (), "planning_run_id": None}
        return _changed(task, **fresh), {"step": None}
    step = task.steps[halt.step - 1]
    # Why it was rejected is no reason of what comes now; why it was approved still is.
    reason = None if step.state == "rejected" else step.reason
    again = _changed(step, state=_ready(step), lost=0, asks=(), reason=reason)
    return with_steps(task, again), {"step": step.n}


def _cancel(task: Task, change: Change) -> tuple[Task, _Detail]:
    gone = [s for s in task.steps if s.state in ("pending", "waiting", "approved", "running")]
    steps = (
        _changed(s, state="cancelled", asks=(), ended_at=change.at if s.state == "running" else None) for s in gone
    )
    return _changed(with_steps(task, *steps), ended="cancelled", ended_at=change.at), {}


def _end(task: Task, change: Change) -> tuple[Task, _Detail]:
    if not task.steps or not all(map(is_done, task.steps)):
        raise StepConflict("not all steps are done")
    return _changed(task, ended="completed", ended_at=change.at), {}


def _decision_refused(task: Task, change: Change) -> tuple[Task, _Detail]:
    assert change.trouble is not None
    return task, {"code": change.trouble.code, "message": change.trouble.message}


STEP_EFFECTS: dict[str, Callable[[Task, Step, Change], tuple[Step, _Detail]]] = {
    "step_waiting": _wait,
    "step_approved": _approve,
    "step_rejected": _reject,
    "step_edited": _edit,
    "step_started": _start,
    "step_restarted": _restart,
    "input_requested": _ask,
    "input_answered": _answer,
    "step_completed": _complete,
    "step_failed": _fail,
    "step_lost": _lose,
}
TASK_EFFECTS: dict[str, Callable[[Task, Change], tuple[Task, _Detail]]] = {
    "created": _create,
    "planning": _plan,
    "plan_refused": _plan_refused,
    "plan_lost": _plan_lost,
    "plan_failed": _plan_failed,
    "planned": _planned,
    "completed": _end,
    "decision_refused": _decision_refused,
    "approved": _approve_all,
    "retried": _retry,
    "cancelled": _cancel,
}
