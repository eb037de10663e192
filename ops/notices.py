"""What a warning, a retry or the like says to a person: its own message where it has one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ops.terminal import printable

__all__ = ["notice_text"]

_MAX = 400
_ENVELOPE = frozenset({"ts", "component_id", "name", "session_id", "parent_run_id", "source_id"})


def notice_text(fields: Mapping[str, Any]) -> str:
    """An event's message on one line; of an event without one what it holds, by name."""
    message = fields.get("message")
    if not isinstance(message, str) or not message.strip():
        rest = [(name, value) for name, value in fields.items() if name not in _ENVELOPE and value is not None]
        message = ", ".join(f"{name} {_shown(value)}" for name, value in rest)
    line = " ".join(printable(message).split())
    return line if len(line) <= _MAX else line[: _MAX - 1] + "…"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
