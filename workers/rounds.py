"""The rounds of a run as its runner emits them: each is closed with its message, and each message is checked.

A run has one truth: what a viewer merges from the items is the message that the worker calls the run's. So whoever
gives a message of his own (an adapter a snapshot, a runner its last word) is compared with the items so far; a
difference is said, as ``event merge.mismatch``, in front of the message that then counts.

Pure: items in, items out.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from broker.difference import differences
from broker.errors import InvalidItem
from broker.items import Event, Final, Item, Message, Raw, decode, encode
from broker.merge import Merger

__all__ = ["Rounds"]


class Rounds:
    """``add`` every item that was published. The others say what is to be published, and change nothing."""

    def __init__(self) -> None:
        self.merger = Merger()
        self.current = 1
        self._told: dict[tuple[int, int], dict[str, Any]] = {}
        """The messages that were published, by round and choice."""
        self._admitted: set[tuple[int, int]] = set()
        """Where the runner itself said that its message differs."""

    def add(self, item: Item | Raw) -> None:
        self.merger.add(item)
        if isinstance(item, Event) and item.name == "run.restarted":
            self._told.clear()
        if isinstance(item, Event) and item.name == "merge.mismatch":
            self._admitted.add((_int(item.payload.get("round"), 1), _int(item.payload.get("choice"), 0)))
        elif (message := _message(item)) is not None:
            self._told[_place(message)] = message.message

    def closing(self) -> list[Message]:
        """The messages of the round under way, one a choice that has content, unless it was told already."""
        number = max(self.current, self.merger.rounds)
        merged = {choice: self.merger.message(number, choice) for choice in self.merger.choices(number)}
        return [
            Message(round=number, choice=choice or UNSET, message=message)
            for choice, message in merged.items()
            if message is not None and (number, choice) not in self._told
        ]

    def mismatch(self, item: Item | Raw) -> list[Event]:
        """What to say before ``item``: where it is a message that is not the merge of its round's items."""
        message = _message(item)
        if message is None:
            return []
        place = _place(message)
        merged = self.merger.message(*place)
        if merged is None or place in self._admitted or not (found := differences(merged, message.message)):
            return []
        choice = {"choice": place[1]} if place[1] else {}
        return [Event(name="merge.mismatch", payload={"round": place[0], **choice, "differs": found})]

    def ending(self, outcome: Final) -> list[Item]:
        """What to publish before the fence, so that the last ``message`` item is the fence's message."""
        number = max(self.merger.rounds, outcome.rounds if outcome.message else 0, 1)
        final = outcome.message or self.merger.message(number)
        told = self._told.get((number, 0))
        if final is None or told == final or (told is None and not outcome.message):
            return [*self.closing()]
        last = Message(round=number, message=final)
        others = [m for m in self.closing() if _place(m) != (number, 0)]
        if outcome.message:
            return [*others, *self.mismatch(last), last]
        # Deltas came behind their round's message.
        payload = {"round": number, "differs": differences(told or {}, final)}
        return [*others, Event(name="merge.mismatch", payload=payload), last]


def _message(item: Item | Raw) -> Message | None:
    if isinstance(item, Raw) and item.type == "message":
        try:
            decoded = decode(item.type, encode(item).data)
        except InvalidItem:
            return None
        return decoded if isinstance(decoded, Message) else None
    return item if isinstance(item, Message) else None


def _place(message: Message) -> tuple[int, int]:
    return message.round, 0 if message.choice is UNSET else message.choice


def _int(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise
