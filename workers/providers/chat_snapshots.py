"""Providers that send a text whole, and longer, each time, instead of what is new. Pure.

Only for adapters that were told so: two chunks with the same text are two pieces of text otherwise.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from broker.items import Event, Item, Message, MessageDelta, ReasoningDelta, ToolCallDelta
from broker.merge import Merger

__all__ = ["Snapshots"]

_TEXTS = {MessageDelta: "text", ReasoningDelta: "text", ToolCallDelta: "arguments"}


class Snapshots:
    """One choice's. ``read`` turns items whose text is all of it into items with what is new in it."""

    def __init__(self, round: int, number: int) -> None:
        self._round, self._number = round, number
        self._latest: dict[Any, Item] = {}
        """Per block the item with all of its text; other items as they came. In the order of their beginning."""
        self._torn: set[Any] = set()
        """Blocks of which a snapshot did not begin with the one before."""

    def read(self, items: list[Item]) -> list[Item]:
        return [news for item in items if (news := self._news(item)) is not None]

    def _news(self, item: Item) -> Item | None:
        field = _TEXTS.get(type(item))
        if field is None:
            self._latest[len(self._latest)] = item
            return item
        key = (type(item), getattr(item, "index", 0))
        first, whole = self._latest.get(key), getattr(item, field)
        self._latest[key] = item if first is None else msgspec.structs.replace(first, **{field: whole})
        before = "" if first is None else getattr(first, field)
        if not whole.startswith(before):
            self._torn.add(key)
        if key in self._torn or (first is not None and len(whole) == len(before)):
            return None
        return msgspec.structs.replace(item, **{field: whole[len(before) :]})

    def whole(self, fields: dict[str, Any]) -> list[Item]:
        """The message of the last snapshots, where deltas could not tell them; it replaces what they told."""
        if not self._torn:
            return []
        merger = Merger()
        for item in self._latest.values():
            merger.add(item)
        message = (merger.message(self._round, self._number) or {}) | fields
        choice = self._number or UNSET
        told = {"round": self._round, **({"choice": self._number} if self._number else {})}
        mismatch = Event(name="merge.mismatch", payload={**told, "reason": "a snapshot did not go on from the last"})
        return [mismatch, Message(round=self._round, choice=choice, message=message)]
