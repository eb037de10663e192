"""What a task is: a goal, a plan of steps, where each stands, and what happened. Values only; they are never changed,
``broker.task_transitions`` makes new ones.

Times are seconds since the epoch. Pure.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

__all__ = [
    "RISKS",
    "TASK_RUNNER",
    "Ask",
    "Change",
    "Entry",
    "Halt",
    "Options",
    "PlannedStep",
    "Risk",
    "State",
    "Status",
    "Step",
    "Task",
    "Trouble",
    "current_step",
    "halt_of",
    "is_done",
    "needs_approval",
    "status_of",
]

TASK_RUNNER = "task"
"""The runner of a task's own run."""

Risk: TypeAlias = Literal["low", "medium", "high", "critical"]
RISKS: tuple[Risk, ...] = ("low", "medium", "high", "critical")
"""From the least to the greatest."""
State: TypeAlias = Literal["pending", "waiting", "approved", "running", "completed", "failed", "rejected", "cancelled"]
Status: TypeAlias = Literal["queued", "planning", "running", "waiting", "halted", "completed", "cancelled"]


class PlannedStep(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A step as a plan names it. ``approval``: ``None`` leaves it to the risk. ``metadata`` goes to the step's run."""

    title: str
    instruction: str
    risk: Risk = "medium"
    approval: bool | None = None
    metadata: dict[str, str] = {}


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """How a task is worked on: what its steps' runs are given, and when people are asked."""

    runner: str = "hermes"
    planner: str = "hermes"
    approvals: Literal["yolo", "ask"] = "ask"
    approval_from: Risk = "medium"
    max_steps: int = 12
    model: str | None = None
    provider: str | None = None
    toolsets: tuple[str, ...] | None = None
    max_turns: int | None = None
    session_id: str | None = None
    metadata: dict[str, str] = {}


class Trouble(msgspec.Struct, kw_only=True, frozen=True):
    """Why something failed."""

    code: str
    message: str
    retryable: bool = False


class Ask(msgspec.Struct, kw_only=True, frozen=True):
    """What the run of a step asks people; see ``broker.records.OpenAsk``."""

    run_id: str
    request_id: str
    kind: str
    payload: dict[str, Any] = {}
    choices: tuple[str, ...] = ()
    free: bool = False
    expires_at: float | None = None


class Step(msgspec.Struct, kw_only=True, frozen=True):
    """``n`` counts from 1. ``revision`` counts its edits, from 1. ``tries``: how many runs it has had; ``lost``: how
    many of them since a person last had it go on were lost with their worker. ``seen``: the run's items up to that seq
    are in here. ``passed``: rejected, and the task goes on without it."""

    n: int
    title: str
    instruction: str
    risk: Risk
    approval: bool
    metadata: dict[str, str] = {}
    state: State = "pending"
    revision: int = 1
    run_id: str | None = None
    tries: int = 0
    lost: int = 0
    seen: int = 0
    passed: bool = False
    approved_by: str | None = None
    approved_at: float | None = None
    reason: str | None = None
    """Of the last decision about it."""
    started_at: float | None = None
    ended_at: float | None = None
    result: str | None = None
    error: Trouble | None = None
    usage: dict[str, Any] | None = None
    cost: dict[str, Any] | None = None
    asks: tuple[Ask, ...] = ()


class Halt(msgspec.Struct, kw_only=True, frozen=True):
    """Why a task does not go on by itself. ``step``: ``None`` where it has no plan."""

    step: int | None
    code: str
    message: str


class Entry(msgspec.Struct, kw_only=True, frozen=True):
    """One transition, as the history keeps it."""

    version: int
    at: float
    what: str
    step: int | None = None
    by: str = ""
    reason: str | None = None
    detail: dict[str, Any] = {}


class Task(msgspec.Struct, kw_only=True, frozen=True):
    """``version`` counts the transitions. ``command``: the last decision of people that is in here, an entry id of the
    task's decisions. ``planning_run_id`` and ``plan_…`` are about a plan that Hermes makes. ``ended``: how it did."""

    task_id: str
    goal: str
    created_at: float
    by: str = ""
    planned_by: str = "given"
    options: Options = Options()
    started: bool = False
    version: int = 0
    updated_at: float = 0.0
    command: str = "0-0"
    steps: tuple[Step, ...] = ()
    planning_run_id: str | None = None
    plan_tries: int = 0
    plan_lost: int = 0
    plan_errors: tuple[str, ...] = ()
    plan_said: str | None = None
    plan_trouble: Trouble | None = None
    ended: Literal["completed", "cancelled"] | None = None
    ended_at: float | None = None
    history: tuple[Entry, ...] = ()


class Change(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One transition that is to happen: ``what`` is a key of ``broker.task_transitions.RULES``, the rest what it needs.

    ``command``: the entry id of the decision that it came as; ``""``: the worker's own."""

    what: str
    at: float
    step: int | None = None
    by: str = ""
    reason: str | None = None
    command: str = ""
    # What people say.
    revision: int | None = None
    title: str | None = None
    instruction: str | None = None
    risk: Risk | None = None
    approval: bool | None = None
    then: Literal["halt", "continue"] = "halt"
    up_to: Risk | None = None
    # What the worker says.
    run_id: str | None = None
    seen: int | None = None
    trouble: Trouble | None = None
    result: str | None = None
    usage: dict[str, Any] | None = None
    cost: dict[str, Any] | None = None
    ask: Ask | None = None
    request_id: str | None = None
    answer: str | None = None
    how: str | None = None
    attempt: int | None = None
    errors: tuple[str, ...] = ()
    said: str | None = None
    plan: tuple[PlannedStep, ...] = ()


def needs_approval(planned: PlannedStep, approval_from: Risk, *, trusted: bool) -> bool:
    """Whether a person must approve it. ``trusted``: a person's plan, which may leave out the approval of a risk."""
    risky = RISKS.index(planned.risk) >= RISKS.index(approval_from)
    if planned.approval is None:
        return risky
    return planned.approval or (risky and not trusted)


def is_done(step: Step) -> bool:
    """The task goes on behind it."""
    return step.state == "completed" or (step.state == "rejected" and step.passed)


def current_step(task: Task) -> Step | None:
    """The step whose turn it is; ``None``: there is no plan, or all are done."""
    return next((step for step in task.steps if not is_done(step)), None)


def halt_of(task: Task) -> Halt | None:
    """Why the task waits for a person to have it go on; ``None``: it does not."""
    if task.ended is not None:
        return None
    if task.plan_trouble is not None:
        return Halt(step=None, code=task.plan_trouble.code, message=task.plan_trouble.message)
    step = current_step(task)
    if step is None or step.state not in ("failed", "rejected"):
        return None
    if step.state == "rejected":
        return Halt(step=step.n, code="rejected", message=step.reason or "")
    trouble = step.error or Trouble(code="failed", message="")
    return Halt(step=step.n, code=trouble.code, message=trouble.message)


def status_of(task: Task) -> Status:
    """How the task stands, in a word."""
    if task.ended is not None:
        return task.ended
    if halt_of(task) is not None:
        return "halted"
    if not task.started:
        return "queued"
    if not task.steps:
        return "planning"
    step = current_step(task)
    return "waiting" if step is not None and step.state == "waiting" else "running"
