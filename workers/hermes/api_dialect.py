"""The API server's other stream, ``/api/sessions/{id}/chat/stream``, in the words of a run's events. Pure.

It names its events in the frame instead of in the data, shows the arguments of a tool but not how long it took, and
has the last text and the usage in two events. Runcast itself asks for runs, which can be stopped.
"""

from __future__ import annotations

from typing import Any

__all__ = ["as_run_event"]

_KEPT = ("run_id", "seq")


def as_run_event(name: str, record: dict[str, Any], content: str) -> dict[str, Any]:
    """``content`` is that of the ``assistant.completed`` before. Events that are not known stay as they are."""
    kept = {key: record[key] for key in _KEPT if key in record}
    match name:
        case "assistant.delta":
            return {**kept, "event": "message.delta", "delta": record.get("delta")}
        case "tool.progress" if record.get("tool_name") == "_thinking":
            return {**kept, "event": "reasoning.available"}
        case "tool.started":
            shown = {"tool": record.get("tool_name"), "preview": record.get("preview"), "args": record.get("args")}
            return {**kept, "event": "tool.started", **shown}
        case "tool.completed" | "tool.failed":
            return {**kept, "event": "tool.completed", "tool": record.get("tool_name"), "error": name == "tool.failed"}
        case "run.completed":
            return {**record, "event": "run.completed", "output": content}
        case "error":
            return {**kept, "event": "run.failed", "error": record.get("message")}
    return {**record, "event": name}
