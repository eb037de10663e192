"""What the routes of tasks answer, as types: see docs/tasks.md."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

__all__ = ["CreatedTask", "DecidedTask", "TaskPage", "TaskView"]


class CreatedTask(msgspec.Struct, kw_only=True):
    task_id: str
    status: str
    url: str
    stream_url: str
    cancel_token: str
    created_at: str


class TaskView(msgspec.Struct, kw_only=True):
    """A task as its stream tells it, and what is decided beyond (steps that are ``pending``, ``decisions``). ``steps``,
    ``history`` and ``decisions`` are left out of lists."""

    task_id: str
    goal: str
    status: str
    current_step: int | None
    version: int
    planned_by: str
    planning_run_id: str | None
    steps_total: int
    steps_done: int
    halted: dict[str, Any] | None
    by: str
    created_at: str | None
    updated_at: str | None
    ended_at: str | None
    last_seq: int
    run_status: str
    cancel_requested: bool
    pending_decisions: int
    stream_url: str
    steps: list[dict[str, Any]] | UnsetType = UNSET
    history: list[dict[str, Any]] | UnsetType = UNSET
    decisions: list[dict[str, Any]] | UnsetType = UNSET


class TaskPage(msgspec.Struct, kw_only=True):
    """``next`` is the ``before`` of the next page; null where there is none."""

    tasks: list[TaskView]
    next: str | None


class DecidedTask(msgspec.Struct, kw_only=True):
    """A decision that is kept. ``status`` and ``steps`` (those that changed) as they are with it."""

    task_id: str
    status: str
    steps: list[dict[str, Any]]
