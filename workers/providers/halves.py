"""Characters beyond U+FFFF that a provider, counting in UTF-16, cut in two, so that a delta has half of one. Pure.

JSON can carry half a character (``"\\ud83d"``), UTF-8 cannot: stored one by one, both halves would be lost.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from broker.items import Item, MessageDelta, ReasoningDelta, RefusalDelta, ToolCallDelta, scrub

__all__ = ["Halves"]

_FIELDS: dict[type, str] = {
    MessageDelta: "text",
    ReasoningDelta: "text",
    RefusalDelta: "text",
    ToolCallDelta: "arguments",
}
_SURROGATE = re.compile("[\ud800-\udfff]")
_LOST = "\ufffd"


class Halves:
    """Holds a first half back until the next delta of its block; what never finds its other half is U+FFFD."""

    def __init__(self) -> None:
        self._held: dict[Any, Item] = {}

    def read(self, items: list[Item]) -> list[Item]:
        return [_tidy(whole) for item in items if (whole := self._join(item)) is not None]

    def close(self) -> list[Item]:
        held, self._held = self._held, {}
        return [_with_text(item, _LOST) for item in held.values()]

    def _join(self, item: Item) -> Item | None:
        field = _FIELDS.get(type(item))
        if field is None:
            return item
        key = (type(item), getattr(item, "index", 0), getattr(item, "choice", 0))
        before = self._held.pop(key, None)
        if before is None and _is_whole(item):
            return item
        text = ("" if before is None else getattr(before, field)) + getattr(item, field)
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")  # halves that meet
        if "\ud800" <= text[-1:] <= "\udbff":
            self._held[key] = _with_text(_bare(item), text[-1])
            text = text[:-1]
            if not text and _is_bare(item):
                return None
        return _with_text(item, _SURROGATE.sub(_LOST, text))


def _is_whole(item: Item) -> bool:
    field = _FIELDS.get(type(item))
    text = "" if field is None else getattr(item, field)
    return text.isascii() or _SURROGATE.search(text) is None


def _tidy(item: Item) -> Item:
    """The fields beside the text as they will be stored: nothing goes on there, so a half is lost, and NaN is null."""
    values = {name: getattr(item, name) for name in item.__struct_fields__}
    lost = {name: scrub(value) for name, value in values.items() if _is_lossy(value)}
    return msgspec.structs.replace(item, **lost) if lost else item


def _is_lossy(value: Any) -> bool:
    if isinstance(value, str):
        return _SURROGATE.search(value) is not None
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_is_lossy(key) or _is_lossy(inner) for key, inner in value.items())
    return isinstance(value, list) and any(map(_is_lossy, value))


def _with_text(item: Item, text: str) -> Item:
    return msgspec.structs.replace(item, **{_FIELDS[type(item)]: text})


def _bare(item: Item) -> Item:
    """The delta without what is said once: a name, a signature."""
    once = ("name", "kind", "signature", "redacted")
    fields = {name: msgspec.UNSET for name in once if hasattr(item, name)}
    return msgspec.structs.replace(item, **fields)


def _is_bare(item: Item) -> bool:
    return _bare(item) == item
