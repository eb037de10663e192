"""A task as people see it: its steps and itself as JSON, the events of its stream, and the task that those tell. Pure.

Every transition is one event. It has the task in short and the step that changed, whole; where several changed, and in
every fiftieth event, all of them. So whoever has read the stream has the task, also where its head was trimmed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from broker.items import Event
from broker.task_model import Ask, Entry, Step, Task, current_step, halt_of, is_done, status_of

__all__ = ["EXCERPT", "TaskFold", "event_of", "resumed_event", "stamp", "step_view", "summary_of"]

EXCERPT = 8 << 10
"""Bytes of a step's result that people see with the task; the whole is in the checkpoint and in the step's run."""
SNAPSHOT_EVERY = 50
_WHOLE = frozenset({"created", "planned", "approved", "retried", "cancelled"})
PREFIX = "task."


def stamp(seconds: float | None) -> str | None:
    """Seconds since the epoch → ISO 8601, UTC, milliseconds."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def summary_of(task: Task) -> dict[str, Any]:
    """The task as it stands in lists and in each event."""
    halt, step = halt_of(task), current_step(task)
    return {
        "task_id": task.task_id,
        "goal": task.goal,
        "status": status_of(task),
        "current_step": step.n if step is not None and task.ended is None else None,
        "version": task.version,
        "planned_by": task.planned_by,
        "planning_run_id": task.planning_run_id,
        "steps_total": len(task.steps),
        "steps_done": sum(map(is_done, task.steps)),
        "halted": None if halt is None else msgspec.to_builtins(halt),
        "by": task.by,
        "created_at": stamp(task.created_at),
        "updated_at": stamp(task.updated_at),
        "ended_at": stamp(task.ended_at),
    }


def step_view(step: Step, excerpt: int = EXCERPT) -> dict[str, Any]:
    """A step as the API shows it: STEP in docs/tasks.md. ``excerpt``: bytes of its result."""
    result = (step.result or "").encode()
    return {
        "n": step.n,
        "title": step.title,
        "instruction": step.instruction,
        "risk": step.risk,
        "approval": step.approval,
        "state": step.state,
        "revision": step.revision,
        "run_id": step.run_id,
        "tries": step.tries,
        "approved_by": step.approved_by,
        "approved_at": stamp(step.approved_at),
        "reason": step.reason,
        "started_at": stamp(step.started_at),
        "ended_at": stamp(step.ended_at),
        "result": None if step.result is None else result[:excerpt].decode("utf-8", "ignore"),
        "result_bytes": len(result),
        "error": None if step.error is None else msgspec.to_builtins(step.error),
        "usage": step.usage,
        "cost": step.cost,
        "asks": [_ask_view(ask) for ask in step.asks],
    }


def _ask_view(ask: Ask) -> dict[str, Any]:
    return {**msgspec.to_builtins(ask), "expires_at": stamp(ask.expires_at)}


def entry_view(entry: Entry) -> dict[str, Any]:
    """One transition as the history shows it: ENTRY in docs/tasks.md."""
    return {**msgspec.to_builtins(entry), "at": stamp(entry.at)}


def event_of(task: Task, entry: Entry, max_bytes: int) -> Event:
    """The event of the transition ``entry``; ``task`` is as it stands behind it, or later."""
    whole = entry.what in _WHOLE or entry.version % SNAPSHOT_EVERY == 0
    said: dict[str, Any] = {"version": entry.version, "at": stamp(entry.at), "by": entry.by, "reason": entry.reason}
    said |= {"n": entry.step, "detail": entry.detail, "task": summary_of(task)}
    if whole:
        said["steps"] = _steps_view(task, max_bytes)
    elif entry.step is not None and entry.step <= len(task.steps):
        said["step"] = step_view(task.steps[entry.step - 1])
    return Event(name=PREFIX + entry.what, payload=said, component_id=_component(entry.step))


def resumed_event(task: Task, attempt: int, max_bytes: int) -> Event:
    """No transition: another worker has the task, and says how it stands."""
    said: dict[str, Any] = {"version": task.version, "at": stamp(task.updated_at), "by": "", "reason": None, "n": None}
    said |= {"detail": {"attempt": attempt}, "task": summary_of(task), "steps": _steps_view(task, max_bytes)}
    return Event(name=PREFIX + "resumed", payload=said, component_id="task")


def _component(step: int | None) -> str:
    return "task" if step is None else f"step:{step}"


def _steps_view(task: Task, max_bytes: int) -> list[dict[str, Any]]:
    """All steps, their results short enough that the event is no longer than an item may be."""
    excerpt = EXCERPT
    while True:
        steps = [step_view(step, excerpt) for step in task.steps]
        if excerpt < 64 or len(msgspec.json.encode(steps)) * 5 < max_bytes * 4:
            return steps
        excerpt //= 2


class TaskFold:
    """The task that a stream tells. ``add`` takes the fields of its events ``task.…`` in their order; others are left
    out. Repetitions do no harm."""

    def __init__(self) -> None:
        self.task: dict[str, Any] | None = None
        self.steps: dict[int, dict[str, Any]] = {}
        self.history: list[dict[str, Any]] = []

    @property
    def version(self) -> int:
        return 0 if self.task is None else int(self.task["version"])

    def add(self, fields: Mapping[str, Any]) -> None:
        name, version = fields.get("name"), fields.get("version")
        if not isinstance(name, str) or not name.startswith(PREFIX) or not isinstance(version, int):
            return
        self._take(fields)
        known = self.history[-1]["version"] if self.history else 0
        if name != PREFIX + "resumed" and version > known:
            entry = {key: fields.get(key) for key in ("version", "at", "by", "reason", "detail")}
            self.history.append({**entry, "what": name.removeprefix(PREFIX), "step": fields.get("n")})

    def _take(self, fields: Mapping[str, Any]) -> None:
        task = fields.get("task")
        if not isinstance(task, dict) or (self.task is not None and task["version"] < self.task["version"]):
            return
        self.task = task
        step, steps = fields.get("step"), fields.get("steps")
        for told in steps if isinstance(steps, list) else [step] if isinstance(step, dict) else []:
            self.steps[told["n"]] = told

    def view(self) -> dict[str, Any] | None:
        """The task with its steps and history; ``None``: the stream tells of none yet."""
        if self.task is None:
            return None
        return {**self.task, "steps": [self.steps[n] for n in sorted(self.steps)], "history": self.history}
