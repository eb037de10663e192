"""A run's outcome as it stands in lists: short, whatever the run said. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["TEXT_MAX", "shortened"]

TEXT_MAX = 500
"""Characters of each text."""
_DEPTH_MAX = 16
"""What a tool was given may be nested as somebody else likes; below this it is left as it is."""


def shortened(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Without what came before its message (``steps``), and each longer text cut to its beginning; ``truncated_bytes``
    is what those lack, with what the item itself lacked. The whole is with the run."""
    cut = _Cut()
    short = {name: cut.short(value) for name, value in outcome.items() if name != "steps"}
    if cut.missing:
        before = outcome.get("truncated_bytes")
        short["truncated_bytes"] = cut.missing + (before if isinstance(before, int) else 0)
    return short


class _Cut:
    def __init__(self) -> None:
        self.missing = 0

    def short(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if depth < _DEPTH_MAX and isinstance(value, dict):
            return {name: self.short(it, depth + 1) for name, it in value.items()}
        if depth < _DEPTH_MAX and isinstance(value, list):
            return [self.short(it, depth + 1) for it in value]
        return value

    def _text(self, text: str) -> str:
        if len(text) <= TEXT_MAX:
            return text
        self.missing += len(text[TEXT_MAX:].encode("utf-8", "replace"))
        return text[:TEXT_MAX]
