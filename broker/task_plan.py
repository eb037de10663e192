"""What somebody asks for when they make a task, the limits of a plan, and the task that comes of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from broker.errors import BadRequest, InvalidRequest, ItemTooBig
from broker.ids import check_id
from broker.requests import check_names
from broker.task_model import TASK_RUNNER, Options, PlannedStep, Risk, Step, Task, needs_approval

__all__ = [
    "GOAL_MAX",
    "INSTRUCTION_MAX",
    "REASON_MAX",
    "STEPS_MAX",
    "TITLE_MAX",
    "TaskRequest",
    "check_plan",
    "check_text",
    "check_title",
    "first_task",
    "plan_faults",
    "steps_of",
]

GOAL_MAX = 32 << 10
STEPS_MAX = 50
TITLE_MAX = 200
"""Characters; the others are bytes."""
INSTRUCTION_MAX = 8 << 10
REASON_MAX = 2_000
_BY_MAX = 128
_METADATA_MAX = 8 << 10
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class TaskRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /v1/tasks``. Without ``steps`` a run of ``planner`` makes the plan. ``by``: who asks."""

    goal: str
    steps: list[PlannedStep] | None = None
    runner: _Name = "hermes"
    planner: _Name = "hermes"
    approvals: Literal["yolo", "ask"] = "ask"
    approval_from: Risk = "medium"
    max_steps: Annotated[int, msgspec.Meta(ge=1, le=STEPS_MAX)] = 12
    model: str | None = None
    provider: str | None = None
    toolsets: list[str] | None = None
    max_turns: Annotated[int, msgspec.Meta(ge=1)] | None = None
    session_id: str | None = None
    metadata: dict[str, str] = {}
    by: str = ""

    def check(self) -> None:
        """What the types do not say. Raises ``InvalidRequest``, ``ItemTooBig``, ``InvalidId``, naming the field."""
        check_text(self.goal, GOAL_MAX, "goal")
        for field, runner in (("runner", self.runner), ("planner", self.planner)):
            if runner == TASK_RUNNER:
                raise InvalidRequest(f"“{runner}” is the runner of tasks themselves: a step is no task", field=field)
        check_text(self.by, _BY_MAX, "by", empty=True)
        check_names(self.model, self.provider, self.toolsets)
        _check_metadata(self.metadata, "metadata")
        if self.session_id is not None:
            check_id(self.session_id, "session_id")
        if self.steps is not None:
            check_plan(self.steps, STEPS_MAX)

    @property
    def options(self) -> Options:
        kept = {name: getattr(self, name) for name in Options.__struct_fields__}
        return Options(**{**kept, "toolsets": None if self.toolsets is None else tuple(self.toolsets)})


def check_text(text: str, most: int, field: str, *, empty: bool = False) -> str:
    """``text``, of up to ``most`` bytes and not blank. Raises ``InvalidRequest``, ``ItemTooBig``."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{field} cannot be written as UTF-8: {error}", field=field) from error
    if size > most:
        raise ItemTooBig(f"{field} has {size} bytes, {most} are allowed", field=field)
    if not empty and not text.strip():
        raise InvalidRequest(f"{field} is empty", field=field)
    return text


def check_title(title: str, field: str) -> str:
    """``title``, of up to ``TITLE_MAX`` characters and not blank. Raises ``InvalidRequest``, ``ItemTooBig``."""
    if len(title) > TITLE_MAX:
        raise ItemTooBig(f"{field} has {len(title)} characters, {TITLE_MAX} are allowed", field=field)
    return check_text(title, TITLE_MAX * 4, field)


def check_plan(steps: Sequence[PlannedStep], most: int) -> None:
    """Raises ``InvalidRequest`` or ``ItemTooBig`` for the first thing that is wrong with a plan, naming the field."""
    if not 1 <= len(steps) <= most:
        raise InvalidRequest(f"the plan has {len(steps)} steps, 1 to {most} are allowed", field="steps")
    for place, step in enumerate(steps):
        _check_step(step, f"steps[{place}]")


def _check_step(step: PlannedStep, field: str) -> None:
    check_title(step.title, f"{field}.title")
    check_text(step.instruction, INSTRUCTION_MAX, f"{field}.instruction")
    _check_metadata(step.metadata, f"{field}.metadata")


def _check_metadata(metadata: dict[str, str], field: str) -> None:
    check_text("".join((*metadata, *metadata.values())), _METADATA_MAX, field, empty=True)


def plan_faults(steps: Sequence[PlannedStep], most: int) -> list[str]:
    """All that is wrong with a plan, a sentence each: for a planner that is asked once more."""
    if not 1 <= len(steps) <= most:
        return [f"the plan has {len(steps)} steps, 1 to {most} are allowed"]
    faults = []
    for place, step in enumerate(steps):
        try:
            _check_step(step, f"steps[{place}]")
        except BadRequest as error:
            faults.append(str(error))
    return faults


def steps_of(plan: Sequence[PlannedStep], approval_from: Risk, *, trusted: bool) -> tuple[Step, ...]:
    """A plan as the steps of a task, none of them begun. ``trusted`` as in ``needs_approval``."""
    return tuple(
        Step(
            n=n,
            title=" ".join(planned.title.split()),
            instruction=planned.instruction,
            risk=planned.risk,
            approval=needs_approval(planned, approval_from, trusted=trusted),
            metadata=planned.metadata,
        )
        for n, planned in enumerate(plan, 1)
    )


def first_task(task_id: str, body: dict[str, Any], created_at: float, by: str = "") -> Task:
    """The task of version 0 that a stored request stands for. ``by``: the principal, which wins over the request's.

    Raises ``InvalidRequest`` for what another version stored and this one cannot read.
    """
    try:
        request = msgspec.convert(body, TaskRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the task's request cannot be read: {error}") from error
    planned = request.steps is None
    return Task(
        task_id=task_id,
        goal=request.goal,
        created_at=created_at,
        updated_at=created_at,
        by=by or request.by,
        planned_by=request.planner if planned else "given",
        options=request.options,
        steps=steps_of(request.steps or (), request.approval_from, trusted=True),
    )
