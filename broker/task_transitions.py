"""The transitions of a task: one table, and the function that makes the next value. Pure.

The worker that has the task and the gateways that take people's decisions use this same table: a gateway applies a
decision to the newest state and asks the store to take it only if nothing else happened meanwhile; the worker applies
it again, in the same order. So whoever was answered “done” is obeyed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from broker.errors import InvalidRequest, StepChanged, StepConflict, TaskEnded, TaskFull, UnknownStep
from broker.task_effects import OPEN, STEP_EFFECTS, TASK_EFFECTS, with_steps
from broker.task_model import Change, Entry, State, Step, Task, current_step, halt_of
from broker.task_plan import REASON_MAX, check_text

__all__ = ["DECISIONS", "RULES", "Move", "Rule", "apply", "next_move"]

VERSIONS_MAX = 5_000
"""Transitions that people may cause; beyond it a task can only be cancelled, or go on."""


@dataclass(frozen=True, slots=True)
class Rule:
    """``of``: the states that a step may be in (empty: it is about the whole task), ``to``: what it is in then
    (``None``: the same, or what the function says). ``people``: people decide it."""

    of: frozenset[State] = frozenset()
    to: State | None = None
    people: bool = False


def _rule(of: str = "", to: State | None = None, *, people: bool = False) -> Rule:
    return Rule(frozenset(of.split()), to, people)  # type: ignore[arg-type]  # the words stand below


RULES: dict[str, Rule] = {
    # The whole task.
    "created": _rule(),
    "planning": _rule(),
    "plan_refused": _rule(),
    "plan_lost": _rule(),
    "plan_failed": _rule(),
    "planned": _rule(),
    "completed": _rule(),
    "decision_refused": _rule(),
    "approved": _rule(people=True),
    "retried": _rule(people=True),
    "cancelled": _rule(people=True),
    # A step.
    "step_waiting": _rule("pending", "waiting"),
    "step_approved": Rule(OPEN, "approved", people=True),
    "step_rejected": _rule("pending waiting approved failed", "rejected", people=True),
    "step_edited": _rule("pending waiting failed rejected", people=True),
    "step_started": _rule("pending approved", "running"),
    "step_restarted": _rule("running", "running"),
    "input_requested": _rule("running", "running"),
    "input_answered": _rule("running", "running"),
    "step_completed": _rule("running", "completed"),
    "step_failed": _rule("running", "failed"),
    "step_lost": _rule("running"),
}
DECISIONS = frozenset(what for what, rule in RULES.items() if rule.people)


def apply(task: Task, change: Change) -> Task:
    """The task after ``change``: one version on, with an entry in its history. Nothing else of it is touched.

    Raises ``TaskEnded``, ``UnknownStep``, ``StepConflict`` (the step is in no state for it), ``StepChanged`` (it was
    edited since the person looked), ``TaskNotHalted``, ``TaskFull``, ``InvalidRequest``, ``ItemTooBig``.
    """
    rule = RULES.get(change.what)
    if rule is None:
        raise InvalidRequest(f"this version of Runcast knows no change “{change.what[:64]}”")
    if task.ended is not None:
        raise TaskEnded(f"task {task.task_id!r} is {task.ended}: nothing can be decided about it any more")
    if rule.people:
        _check_decision(task, change)
    if rule.of:
        step = _step(task, change, rule)
        made, detail = STEP_EFFECTS[change.what](task, step, change)
        if rule.to is not None:
            made = msgspec.structs.replace(made, state=rule.to)
        task = with_steps(task, made)
    else:
        task, detail = TASK_EFFECTS[change.what](task, change)
    return _told(task, change, detail)


def _check_decision(task: Task, change: Change) -> None:
    if task.version >= VERSIONS_MAX and change.what != "cancelled":
        raise TaskFull(f"task {task.task_id!r} has had {task.version} changes: it takes no more; cancel it, or wait")
    if change.reason is not None:
        check_text(change.reason, REASON_MAX, "reason", empty=True)
    check_text(change.by, 128, "by", empty=True)


def _step(task: Task, change: Change, rule: Rule) -> Step:
    if change.step is None or not 1 <= change.step <= len(task.steps):
        count = len(task.steps)
        has = f"it has {count} step{'' if count == 1 else 's'}" if count else "it has no plan yet"
        raise UnknownStep(f"task {task.task_id!r} has no step {change.step}: {has}")
    step = task.steps[change.step - 1]
    if change.revision is not None and change.revision != step.revision:
        raise StepChanged(
            f"step {step.n} was edited meanwhile: it is of revision {step.revision}, the decision is about "
            f"{change.revision}; look at it again"
        )
    if step.state not in rule.of:
        raise StepConflict(f"step {step.n} is {_story(step)}: it can be {_allowed(change.what, rule)}")
    return step


def _story(step: Step) -> str:
    if step.state in ("approved", "running", "completed") and step.approved_by is not None:
        by = f" by {step.approved_by}" if step.approved_by else ""
        return f"{step.state} (it was approved{by})"
    return step.state


def _allowed(what: str, rule: Rule) -> str:
    *states, last = (state for state in get_args(State) if state in rule.of)
    return f"{what.removeprefix('step_')} while it is {' or '.join([', '.join(states), last] if states else [last])}"


def _told(task: Task, change: Change, detail: dict[str, Any]) -> Task:
    version = task.version + 1
    entry = Entry(
        version=version,
        at=change.at,
        what=change.what,
        step=change.step,
        by=change.by,
        reason=change.reason,
        detail=detail,
    )
    return msgspec.structs.replace(
        task,
        version=version,
        updated_at=change.at,
        command=change.command or task.command,
        history=(*task.history, entry),
    )


@dataclass(frozen=True, slots=True)
class Move:
    """What the worker is to do next: ``what`` is a transition of its own, or ``wait`` (for people), ``follow`` (the run
    of ``step``, or the planning run), ``end`` (it is over)."""

    what: str
    step: int | None = None


def next_move(task: Task) -> Move:
    """What comes next, from the task alone."""
    if task.ended is not None:
        return Move("end")
    if not task.started:
        return Move("created")
    if halt_of(task) is not None:
        return Move("wait")
    if not task.steps:
        return Move("planning" if task.planning_run_id is None else "follow")
    step = current_step(task)
    if step is None:
        return Move("completed")
    if step.state == "running":
        return Move("follow", step.n)
    if step.state == "waiting":
        return Move("wait", step.n)
    if step.state == "pending" and step.approval:
        return Move("step_waiting", step.n)
    return Move("step_started", step.n)
