"""The tool calls of one run, from what a command prints about them. Pure.

Ids that Hermes leaves out are made of the call's place in the run: the same whenever the same output is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from broker.items import Item, ToolCompleted, ToolFailed, ToolStarted

__all__ = ["OpenCall", "ToolCalls"]

_ERROR_MAX = 500


@dataclass(frozen=True, slots=True)
class OpenCall:
    wire_id: str | None
    name: str
    call_id: str


@dataclass(slots=True)
class ToolCalls:
    """``open`` are the calls whose end was not seen yet, the oldest first."""

    count: int = 0
    open: list[OpenCall] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)

    def start(self, name: str, *, wire_id: str | None = None, args: Any = None, preview: str = "") -> ToolStarted:
        call = self._new(name, wire_id)
        self.open.append(call)
        return ToolStarted(
            call_id=call.call_id,
            name=name,
            args=args,
            preview=preview or UNSET,
            component_id=f"tool:{name}",
        )

    def take(self, name: str, wire_id: str | None) -> OpenCall:
        """The open call of that id; without id the oldest open one of that name; else one whose start went unseen."""
        for call in self.open:
            if (call.wire_id == wire_id) if wire_id else (call.name == name):
                self.open.remove(call)
                return call
        return self._new(name, wire_id)

    def end(self, call: OpenCall, output: Any, duration_ms: float | None, *, error: str | None = None) -> Item:
        """``error``: it failed, in those words; where they are empty, ``output`` says how."""
        component = f"tool:{call.name}"
        if error is None:
            return ToolCompleted(
                call_id=call.call_id, name=call.name, result=output, duration_ms=duration_ms, component_id=component
            )
        return ToolFailed(
            call_id=call.call_id,
            name=call.name,
            error=error[:_ERROR_MAX] or _error_of(output),
            result=UNSET if output is None else output,
            duration_ms=duration_ms,
            component_id=component,
        )

    def close(self, why: str) -> list[Item]:
        """Nothing more comes: what is still open failed."""
        ended: list[Item] = [
            ToolFailed(call_id=c.call_id, name=c.name, error=why, component_id=f"tool:{c.name}") for c in self.open
        ]
        self.open.clear()
        return ended

    def _new(self, name: str, wire_id: str | None) -> OpenCall:
        self.count += 1
        call_id = wire_id or f"hermes_call_{self.count}"
        if call_id in self._ids:  # an id that comes again is another call
            call_id = f"{call_id}.{self.count}"
        self._ids.add(call_id)
        return OpenCall(wire_id, name, call_id)


def _error_of(output: Any) -> str:
    """One line about a failed tool: what its result calls the error, else its exit code, else its beginning."""
    text = output if isinstance(output, str) else "" if output is None else json.dumps(output)
    record = _object(text)
    if isinstance(error := record.get("error"), str) and error:
        return error[:_ERROR_MAX]
    if isinstance(code := record.get("exit_code"), int):
        return f"exit code {code}"
    return text[:_ERROR_MAX] or "the tool failed"


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
