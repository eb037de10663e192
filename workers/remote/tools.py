"""Tool calls of a runner service: their ids, and which of them are open. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from broker.items import Item, ToolCompleted, ToolFailed, ToolProgress, ToolStarted

__all__ = ["ToolCalls", "text_in"]


def text_in(payload: Mapping[str, Any], *names: str) -> str | None:
    """The first of these fields that is text, and not empty."""
    return next((value for name in names if isinstance(value := payload.get(name), str) and value), None)


class ToolCalls:
    """The calls of one run. A service that gives a call no id gets one; its end then belongs to the newest open call
    of that name."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}

    def recall(self, item: object) -> None:
        """An item of an earlier attempt."""
        if isinstance(item, ToolStarted):
            self._open[item.call_id] = item.name
        elif isinstance(item, (ToolCompleted, ToolFailed)):
            self._open.pop(item.call_id, None)

    def started(self, payload: Mapping[str, Any], source_id: str) -> Item:
        name = text_in(payload, "name", "tool") or "tool"
        call_id = _call_id(payload) or f"call_{source_id}"
        self._open[call_id] = name
        args = next((payload[key] for key in ("args", "arguments", "input") if key in payload), None)
        preview = text_in(payload, "preview") or UNSET
        return ToolStarted(call_id=call_id, name=name, args=args, preview=preview, component_id=f"tool:{name}")

    def progress(self, payload: Mapping[str, Any]) -> Item:
        call_id, name = self._known(payload)
        preview = text_in(payload, "preview", "text", "message", "stdout") or ""
        return ToolProgress(call_id=call_id, name=name, preview=preview, component_id=f"tool:{name}")

    def ended(self, payload: Mapping[str, Any], *, failed: bool) -> Item:
        call_id, name = self._known(payload)
        self._open.pop(call_id, None)
        result = next((payload[key] for key in ("result", "output", "preview") if key in payload), None)
        duration, component = _duration_ms(payload), f"tool:{name}"
        if failed or payload.get("is_error") is True:
            error = text_in(payload, "error", "message") or (result if isinstance(result, str) else "") or "it failed"
            return ToolFailed(
                call_id=call_id, name=name, error=error, result=result, duration_ms=duration, component_id=component
            )
        return ToolCompleted(call_id=call_id, name=name, result=result, duration_ms=duration, component_id=component)

    def closing(self) -> list[Item]:
        """What is said of calls whose end never came."""
        calls, self._open = self._open, {}
        why = "the run ended before this call did"
        return [ToolFailed(call_id=id_, name=n, error=why, component_id=f"tool:{n}") for id_, n in calls.items()]

    def _known(self, payload: Mapping[str, Any]) -> tuple[str, str]:
        name = text_in(payload, "name", "tool")
        call_id = _call_id(payload)
        if call_id is None:
            call_id = next((id_ for id_, n in reversed(self._open.items()) if name in (None, n)), f"call_{name}")
        return call_id, name or self._open.get(call_id, "tool")


def _call_id(payload: Mapping[str, Any]) -> str | None:
    return text_in(payload, "tid", "call_id", "tool_call_id", "id")


def _duration_ms(payload: Mapping[str, Any]) -> float | None:
    """``duration`` is in seconds."""
    for name, factor in (("duration_ms", 1.0), ("duration", 1000.0)):
        value = payload.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
            return round(value * factor, 3)
    return None
