"""A run's outcome as it stands in lists: short, whatever the run said. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["FIELDS_MAX", "FIELD_MAX", "TEXT_MAX", "shortened"]

TEXT_MAX = 500
"""Characters of each text, names included."""
FIELD_MAX = 4_000
"""Characters of all texts of one of the outcome's fields, other values counting ``_OTHER`` each."""
FIELDS_MAX = 64
_OTHER = 8
_DEPTH_MAX = 16


def shortened(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Without what came before its message (``steps``), each longer text cut to its beginning, and of each field no
    more than ``FIELD_MAX``; ``truncated_bytes`` is what is missing, with what the item itself lacked. The whole is with
    the run."""
    short, missing = {}, 0
    given = [(name, value) for name, value in outcome.items() if name != "steps"]
    for name, value in given[:FIELDS_MAX]:
        cut = _Cut()
        kept = cut.text(name)
        short[kept] = cut.short(value)
        missing += cut.missing
    missing += sum(_size(field) for field in given[FIELDS_MAX:])
    if missing:
        before = outcome.get("truncated_bytes")
        short["truncated_bytes"] = missing + (before if isinstance(before, int) else 0)
    return short


class _Cut:
    """One field: what may still be kept of it, and what is missing in bytes."""

    def __init__(self) -> None:
        self.left, self.missing = FIELD_MAX, 0

    def short(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, dict | list):
            self.left -= _OTHER
            return value
        if depth == _DEPTH_MAX:
            self.missing += _size(value)
            return None
        if isinstance(value, list):
            return [self.short(it, depth + 1) for it in self._kept(value)]
        return {self.text(name): self.short(it, depth + 1) for name, it in self._kept(list(value.items()))}

    def _kept(self, parts: list[Any]) -> Any:
        """The first ones, one after the other, as long as there is room."""
        for place, part in enumerate(parts):
            if self.left <= 0:
                self.missing += _size(parts[place:])
                return
            self.left -= _OTHER
            yield part

    def text(self, text: str) -> str:
        kept = text[: max(min(TEXT_MAX, self.left), 0)]
        self.left -= len(kept)
        self.missing += len(text[len(kept) :].encode("utf-8", "replace"))
        return kept


def _size(value: Any) -> int:
    try:
        return len(msgspec.json.encode(value))
    except (RecursionError, UnicodeEncodeError):
        return len(repr(type(value)))
