"""What people decided about a task and its stream does not tell yet: the steps as they stand with it, and the
decisions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from broker.task_model import Change, Step, Task
from broker.task_transitions import DECISIONS, apply
from broker.task_view import stamp

__all__ = ["Undone", "undone"]

_OF_A_STEP = ("title", "risk", "approval", "state", "revision", "approved_by", "reason")


@dataclass(frozen=True, slots=True)
class Undone:
    """``steps``: the fields of each step that a decision changes. ``cancelled``: the task's end is decided."""

    steps: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    decisions: Sequence[dict[str, Any]] = ()
    cancelled: bool = False


def undone(
    one_ahead: bool, told: Mapping[str, Any], task: Task, change: Change | None, waiting: Iterable[Change]
) -> Undone:
    """``told``: the task as its stream tells it. ``task``: the store's, by ``change``; ``one_ahead``: it is the version
    behind the one that is told. ``waiting``: what was decided since."""
    changed: dict[int, Step] = {}
    decisions: list[dict[str, Any]] = []
    texts: dict[int | None, str] = {}
    if one_ahead and change is not None and change.what in DECISIONS:
        known = {step["n"]: step for step in told["steps"]}
        changed |= {step.n: step for step in task.steps if _shown(step) != _told(known.get(step.n, {}))}
        decisions.append(_decision(change))
        texts[change.step] = change.instruction or ""
    for decision in waiting:
        if decision.what not in DECISIONS:  # one that this version does not understand
            continue
        try:
            after = apply(task, decision)
        except Exception:  # the worker tells of it, as of a fault
            continue
        before = {step.n: step for step in task.steps}
        changed |= {step.n: step for step in after.steps if step != before.get(step.n)}
        decisions.append(_decision(decision))
        task = after
    newest = {step.n: step for step in task.steps}
    steps = {n: _fields(newest[n], newest[n].instruction or texts.get(n, "")) for n in changed}
    return Undone(steps, decisions, task.ended == "cancelled")


def _shown(step: Step) -> dict[str, Any]:
    return {name: getattr(step, name) for name in _OF_A_STEP}


def _told(step: Mapping[str, Any]) -> dict[str, Any]:
    return {name: step.get(name) for name in _OF_A_STEP}


def _fields(step: Step, instruction: str) -> dict[str, Any]:
    """The store's steps have no texts: there is one where it was edited."""
    text = {"instruction": instruction} if instruction else {}
    return {**_shown(step), **text, "approved_at": stamp(step.approved_at), "pending": True}


def _decision(change: Change) -> dict[str, Any]:
    detail: dict[str, Any] = {}
    if change.what == "step_rejected":
        detail["then"] = change.then
    if change.up_to is not None:
        detail["up_to"] = change.up_to
    said = {"at": stamp(change.at), "what": change.what, "step": change.step, "by": change.by, "reason": change.reason}
    return {**said, "detail": msgspec.to_builtins(detail)}
