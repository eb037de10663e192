"""What a task hears of its runs, and the transition that follows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from broker.items import Event, Item, Raw
from broker.records import RunRecord
from broker.task_model import Ask, Change, Step, Task, Trouble
from workers.tasks.planning import PlanRefused, message_text, plan_of

__all__ = ["RESULT_MAX", "Heard", "abandoned_runs", "change_of_plan", "change_of_step", "version_of"]

RESULT_MAX = 256 << 10
"""Bytes of a step's result that are recorded."""
PLAN_TRIES = 2
LOST_MAX = 3
_SAID_MAX = 8_000
_ERROR_MAX = 2_000
_LATEST = 253_402_300_799.0
"""The last second that has a date, 9999-12-31."""
_LOST = frozenset({"worker_lost", "worker_stopped", "run_gone"})
"""How a run ends whose worker went away: no fault of the step, which is run again."""


class Heard(msgspec.Struct, kw_only=True, frozen=True):
    """What happened in a run: ``asked``, ``answered``, ``restarted`` (with the event's ``fields``) or ``ended`` (with
    its ``record``; ``None``: it is gone, or was not made because of ``trouble``). ``seq``: where it stands in the run's
    log."""

    what: str
    seq: int
    fields: Mapping[str, Any] = {}
    record: RunRecord | None = None
    trouble: Trouble | None = None


def change_of_step(task: Task, step: Step, heard: Heard, at: float) -> Change | None:
    """What follows from what was heard of a step's run; ``None``: nothing, it is known."""
    about: dict[str, Any] = {"at": at, "step": step.n, "seen": heard.seq}
    fields = heard.fields
    match heard.what:
        case "asked":
            known = _known_asks(task, step)
            ask = _ask(step, heard)
            return None if ask.request_id in known else Change(what="input_requested", ask=ask, **about)
        case "answered":
            if not any(ask.request_id == fields.get("request_id") for ask in step.asks):
                return None
            answer: dict[str, Any] = {name: str(fields.get(name) or "") for name in ("request_id", "answer", "how")}
            return Change(what="input_answered", **answer, **about)
        case "restarted":
            attempt = fields.get("attempt")
            return Change(what="step_restarted", attempt=attempt if type(attempt) is int else None, **about)
        case _:
            return _ended(step, heard, about)


def _known_asks(task: Task, step: Step) -> set[str]:
    """What this run of the step has asked already. An entry of an earlier version does not say which run it was."""
    asked = (e for e in task.history if e.step == step.n and e.what == "input_requested")
    ours = (entry for entry in asked if entry.detail.get("run_id", step.run_id) == step.run_id)
    return {str(entry.detail.get("request_id")) for entry in ours}


def _ask(step: Step, heard: Heard) -> Ask:
    fields = dict(heard.fields)
    kind = "approval" if fields.get("name") == "approval.requested" else "question"
    ours = ("name", "ts", "component_id", "parent_run_id", "request_id", "choices", "free", "expires_at", "timeout_s")
    expires, choices = fields.get("expires_at"), fields.get("choices")
    return Ask(
        run_id=step.run_id or "",
        request_id=str(fields.get("request_id")),
        kind=kind,
        payload={name: value for name, value in fields.items() if name not in ours},
        choices=tuple(map(str, choices)) if isinstance(choices, list) else (),
        free=bool(fields.get("free")),
        expires_at=float(expires) if isinstance(expires, (int, float)) and 0 <= expires <= _LATEST else None,
    )


def _ended(step: Step, heard: Heard, about: dict[str, Any]) -> Change:
    record, text, trouble = heard.record, _text(heard), _trouble(heard)
    spent: dict[str, Any] = {"usage": record.usage, "cost": record.cost} if record is not None else {}
    if trouble is None:
        return Change(what="step_completed", result=text, **spent, **about)
    if trouble.code in _LOST and step.lost < LOST_MAX:
        return Change(what="step_lost", trouble=trouble, **about)
    return Change(what="step_failed", trouble=trouble, result=text or None, **spent, **about)


def change_of_plan(task: Task, heard: Heard, at: float) -> Change | None:
    """What follows from what was heard of the planning run; ``None``: nothing."""
    if heard.what != "ended":
        return None
    trouble = _trouble(heard)
    if trouble is not None:
        lost = trouble.code in _LOST and task.plan_lost < LOST_MAX
        return Change(what="plan_lost" if lost else "plan_failed", at=at, trouble=trouble)
    text = _text(heard)
    try:
        plan = plan_of(text, task.options.max_steps)
    except PlanRefused as refused:
        faults = tuple(fault[:_ERROR_MAX] for fault in refused.faults)
        if task.plan_tries < PLAN_TRIES:
            return Change(what="plan_refused", at=at, errors=faults, said=text[:_SAID_MAX])
        told = f"{task.options.planner} gave no plan that can be used, {task.plan_tries} times: {'; '.join(faults)}"
        no_plan = Trouble(code="no_plan", message=told[:_ERROR_MAX], retryable=True)
        return Change(what="plan_failed", at=at, trouble=no_plan, errors=faults)
    return Change(what="planned", at=at, plan=tuple(plan))


def _text(heard: Heard) -> str:
    """What the run said, as far as it came."""
    item = _outcome(heard).get("item") or {}
    text = message_text(item.get("message") or item.get("partial"))
    return text.encode("utf-8", "replace")[:RESULT_MAX].decode("utf-8", "ignore")


def _trouble(heard: Heard) -> Trouble | None:
    """Why the run did not end well; ``None``: it did."""
    if heard.trouble is not None:
        return heard.trouble
    if heard.record is None:
        return Trouble(code="run_gone", message="the step's run is gone from the store", retryable=True)
    outcome = _outcome(heard)
    if outcome.get("type") == "final":
        return None
    item = outcome.get("item") or {}
    code, message = str(item.get("code") or "failed"), str(item.get("message") or "")
    return Trouble(code=code[:64], message=message[:_ERROR_MAX], retryable=bool(item.get("retryable")))


def _outcome(heard: Heard) -> dict[str, Any]:
    return (heard.record.outcome or {}) if heard.record is not None else {}


def abandoned_runs(task: Task) -> Iterator[str]:
    """The runs that a cancelled task leaves behind."""
    if task.planning_run_id is not None and not task.steps:
        yield task.planning_run_id
    for step in task.steps:
        if step.state == "cancelled" and step.run_id is not None:
            yield step.run_id


def version_of(item: Item | Raw) -> int:
    """The version of the task that an item of its stream tells of; 0: it tells of none."""
    if isinstance(item, Event):
        name, fields = item.name, item.payload
    elif isinstance(item, Raw) and item.type == "event":
        name, fields = str(item.fields.get("name")), item.fields
    else:
        return 0
    version = fields.get("version")
    return version if name.startswith("task.") and isinstance(version, int) else 0
