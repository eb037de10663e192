"""How tasks look in a terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ops.terminal import printable

__all__ = ["decision_line", "event_lines", "step_lines", "task_line"]

_GOAL_MAX = 60


def task_line(task: Mapping[str, Any]) -> str:
    """A task on one line."""
    done = f"{task['steps_done']}/{task['steps_total']}" if task["steps_total"] else "-"
    return f"{task['task_id']}  {task['status']:<9}  {done:>5}  {_short(task['goal'])}"


def decision_line(decision: Mapping[str, Any]) -> str:
    """What somebody decided and no worker has obeyed yet."""
    step = f" {decision['step']}" if decision["step"] is not None else ""
    by = f" by {printable(decision['by'])}" if decision["by"] else ""
    reason = f": {_short(decision['reason'])}" if decision["reason"] else ""
    return f"decided, waits for a worker: {decision['what'].replace('_', ' ')}{step}{by}{reason}"


def _short(text: str) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= _GOAL_MAX else line[: _GOAL_MAX - 1] + "…"


def step_lines(step: Mapping[str, Any]) -> list[str]:
    """A step: a line, and below it what a person should read."""
    approval = " · needs approval" if step["approval"] and step["state"] in ("pending", "waiting") else ""
    lines = [f"{step['n']:>3}. {step['state']:<9} {step['risk']:<8} {_short(step['title'])}{approval}"]
    if step["state"] in ("waiting", "failed", "rejected"):
        lines += _below("", step["instruction"])
    if step["error"] and step["state"] == "failed":
        lines += _below(f"{step['error']['code']}: ", step["error"]["message"])
    for ask in step["asks"]:
        said = ask["payload"].get("command") or ask["payload"].get("question") or ""
        lines += _below(f"asks ({ask['kind']}): ", str(said))
        lines += _below("", f"runcast input {ask['run_id']} --request {ask['request_id']}")
    if step["result"]:
        lines += _below("", step["result"])
    return lines


def _below(head: str, text: str) -> list[str]:
    """Indented; without the blank lines that many answers begin and end with."""
    lines = [line.rstrip() for line in (head + printable(text).strip()).splitlines()] or [""]
    return [f"       {line}".rstrip() for line in lines]


def event_lines(fields: Mapping[str, Any]) -> list[str]:
    """What happened, on a line; a result, an error, and what is asked on further ones."""
    what = fields["name"].removeprefix("task.").replace("_", " ")
    by = f" by {printable(fields['by'])}" if fields.get("by") else ""
    reason = f": {_short(fields['reason'])}" if fields.get("reason") else ""
    lines = [f"{fields['task']['status']:<9} {what}{_about(fields)}{by}{reason}"]
    step = fields.get("step")
    if fields["name"] == "task.planned":
        return [*lines, *(line for step in fields["steps"] for line in step_lines(step))]
    if isinstance(step, dict) and fields["name"] in _TOLD_WHOLE:
        lines += step_lines(step)[1:]
    return lines


_TOLD_WHOLE = frozenset(f"task.{what}" for what in ("step_waiting", "step_completed", "step_failed", "input_requested"))


def _about(fields: Mapping[str, Any]) -> str:
    n = fields.get("n")
    if n is None:
        return ""
    step = fields.get("step")
    title = f" ({_short(step['title'])})" if isinstance(step, dict) else ""
    return f" {n}{title}"
