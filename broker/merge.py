"""Items → messages: the one definition of “the merged stream”. Also exports compaction, its counterpart on bytes.

A ``Merger`` is fed a run's items in order, and can be asked at any time. What it guarantees:

- Folding a prefix and then the rest equals folding all; asking changes nothing.
- Text is append-only in arrival order. Nothing is de-duplicated by its content: two equal deltas are two deltas.
- Blocks stand in the order in which they first had content. Choices never mix, nor do the components of a run.
- A ``message`` item is its round's message from then on, whatever was merged before it.
- ``event run.restarted`` discards all that came before it.
- Nothing raises: an item whose fields are wrong is counted in ``skipped`` and passed over. A tool call whose
  arguments are no JSON object keeps its text, with the error and a repaired candidate.

A message is ``{role, content: [blocks], finish_reason?, model?, usage?}``, with the blocks ``{type: text, text,
annotations?}``, ``{type: reasoning, text, signature?, redacted?}``, ``{type: refusal, text}`` and ``{type: tool_call,
id, name, arguments, raw?, error?}``. Unknown fields of a ``message`` item are kept.

Pure: no clock, no IO. What is returned shares parts with the merger: read it, don't change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import UNSET, UnsetType

from broker.compact import compact
from broker.draft import Call, Draft, text_of
from broker.errors import InvalidItem
from broker.items import (
    TYPES,
    Annotation,
    Cancelled,
    Cost,
    Entry,
    Event,
    Failed,
    Final,
    Item,
    Message,
    MessageDelta,
    Raw,
    ReasoningDelta,
    RefusalDelta,
    StreamItem,
    ToolCallDelta,
    ToolCompleted,
    ToolFailed,
    ToolStarted,
    Usage,
    decode,
    encode,
)

__all__ = ["COUNTS", "Merger", "compact", "merge_entries", "text_of"]

COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
"""The token counts of a ``usage`` item."""


class Merger:
    """Folds a run's items, in their order. One per run; not for use by two threads at once."""

    def __init__(self) -> None:
        self.skipped = 0
        """Items with fields of the wrong type, which were passed over."""
        self._reset()

    def _reset(self) -> None:
        self._drafts: dict[tuple[int, int], Draft] = {}
        self._calls: dict[str, Call] = {}
        self._round = 0
        self._usage: dict[str, int | None] = {}
        self._cost: dict[str, Any] | None = None
        self._outcome: Final | Failed | Cancelled | None = None
        self._hot_key: tuple[Any, ...] | None = None
        self._hot_parts: list[str] = []

    # -- what was merged

    @property
    def rounds(self) -> int:
        """The highest round that has content, 0 where there is none."""
        return max((number for (number, _), draft in self._drafts.items() if draft.has_content), default=0)

    @property
    def usage(self) -> dict[str, int | None] | None:
        """Token counts so far, as in ``usage.total``; None where none was reported."""
        return dict(self._usage) if self._usage else None

    @property
    def cost(self) -> dict[str, Any] | None:
        """``{total, currency, estimated}`` so far; None where none was reported."""
        return dict(self._cost) if self._cost is not None else None

    @property
    def outcome(self) -> Final | Failed | Cancelled | None:
        """The fence, once it came."""
        return self._outcome

    def choices(self, round: int | None = None) -> list[int]:
        """The choices of a round (the last by default) that have content, ascending."""
        number = self.rounds if round is None else round
        return sorted(c for (n, c), draft in self._drafts.items() if n == number and draft.has_content)

    def message(self, round: int | None = None, choice: int = 0, *, raw: bool = False) -> dict[str, Any] | None:
        """One round's merged message, the last round's by default; None where that has no content.

        ``raw``: the tool calls keep the text of their arguments also where that is valid. Behind the fence that is the
        fence's message; a ``partial`` answers only where nothing else was seen.
        """
        if round is None:
            round = self.rounds
        draft = self._drafts.get((round, choice))
        return draft.message(raw=raw) if draft is not None and draft.has_content else None

    def round_of(self, call_id: str) -> int:
        """The round in which a tool call was made; of one that is not known the round under way."""
        call = self._calls.get(call_id)
        return call.round if call is not None else max(self._round, 1)

    def partial(self) -> dict[str, Any] | None:
        """The last round's message as far as it came. A call that never started is marked, as it may lack its end,

        unless ``model.completed`` said that the model was done.
        """
        draft = self._drafts.get((self.rounds, 0))
        return draft.message(partial=True) if draft is not None and draft.has_content else None

    # -- folding

    def add(self, item: StreamItem | Item | Raw) -> None:
        """Fold the next item. Types that say nothing about messages, usage or cost are passed over."""
        fold = _FOLD.get(type(item))
        if fold is not None:
            fold(self, item)

    def _draft(self, round: int, choice: int | UnsetType) -> Draft:
        key = (round, 0 if choice is UNSET else choice)
        draft = self._drafts.get(key)
        if draft is None:
            draft = self._drafts[key] = Draft(*key)
        if round > self._round:
            self._round = round
        return draft

    def _add_text(self, item: MessageDelta) -> None:
        key = ("text", item.index, item.round, item.choice, item.component_id, item.session_id, item.parent_run_id)
        if key == self._hot_key and item.signature is UNSET:  # token after token of one block
            self._hot_parts.append(item.text)
        elif item.text or item.signature:
            self._hot_key, self._hot_parts = key, self._draft(item.round, item.choice).say(item).parts

    def _add_refusal(self, item: RefusalDelta) -> None:
        if item.text:
            self._draft(item.round, item.choice).block("refusal", item).parts.append(item.text)

    def _add_reasoning(self, item: ReasoningDelta) -> None:
        key = ("reasoning", item.index, item.round, item.choice, item.component_id, item.session_id, item.parent_run_id)
        if key == self._hot_key and item.signature is UNSET and item.redacted is UNSET:
            self._hot_parts.append(item.text)
        elif item.text or item.signature or item.redacted is not UNSET:
            self._hot_key, self._hot_parts = key, self._draft(item.round, item.choice).reason(item).parts

    def _add_annotation(self, item: Annotation) -> None:
        self._draft(item.round, item.choice).block("text", item).annotations.append(item.annotation)

    def _add_call(self, item: ToolCallDelta) -> None:
        self._hot_key = None  # text behind a call tells that the call was complete: it must be looked at
        call = self._draft(item.round, item.choice).call(item)
        if call.id:
            self._calls[call.id] = call

    def _add_message(self, item: Message) -> None:
        self._settle(item.round, item.choice, item.message)

    def _settle(self, round: int, choice: int | UnsetType, message: dict[str, Any]) -> None:
        self._hot_key = None
        for call in self._draft(round, choice).settle(message):
            self._calls[call.id] = call

    def _add_started(self, item: ToolStarted) -> None:
        """A tool that starts has its call in some message already, or (agents without call deltas) gets it now."""
        draft = self._drafts.get((self._round, 0))
        # A `message` ends its round: a tool that it does not name belongs to the next one.
        target = self._round + 1 if draft is not None and draft.settled else max(self._round, 1)
        call = self._calls.get(item.call_id) if item.call_id else self._unnamed(item.name)
        if call is None or (call.started and call.round != target):
            call = self._draft(target, 0).start(item)
            if call.id:
                self._calls[call.id] = call
        call.started = True
        call.name = call.name or item.name

    def _unnamed(self, name: str) -> Call | None:
        """The oldest call of that name that has not started: what a start without an id means."""
        for draft in self._drafts.values():
            for call in draft.pending(name):
                return call
        return None

    def _add_ended(self, item: ToolCompleted | ToolFailed) -> None:
        call = self._calls.get(item.call_id)
        if call is not None:
            call.started = True

    def _add_usage(self, item: Usage) -> None:
        for name in COUNTS:
            total, delta = item.total.get(name), getattr(item, name)
            if total is not None:
                self._usage[name] = total
            elif delta is not None:
                self._usage[name] = (self._usage.get(name) or 0) + delta
            else:
                self._usage.setdefault(name, None)  # never wiped by a later null

    def _add_cost(self, item: Cost) -> None:
        self._cost = {"total": item.total, "currency": item.currency, "estimated": item.estimated}

    def _add_event(self, item: Event) -> None:
        if item.name == "run.restarted":
            self._reset()
        elif item.name in ("model.started", "model.completed"):
            number, choice = item.payload.get("round"), item.payload.get("choice")
            round = number if isinstance(number, int) and number > 0 else max(self._round, 1)
            self._draft(round, choice if isinstance(choice, int) else UNSET).describe(item.payload)
        elif item.name == "fallback":
            number, model = item.payload.get("round"), item.payload.get("to")
            if isinstance(number, int) and number > 0 and isinstance(model, str) and model:
                self._draft(number, UNSET).fall_back(model)

    def _add_final(self, item: Final) -> None:
        self._outcome = item
        # Its message is whole even where the log's head is gone; but not where it was cut to be stored.
        if item.message is not None and (item.truncated_bytes is UNSET or not self.rounds):
            self._settle(max(item.rounds, self.rounds, 1), UNSET, item.message)

    def _add_failed(self, item: Failed | Cancelled) -> None:
        self._outcome = item
        if item.partial is not None and not self.rounds:
            self._settle(max(self._round, 1), UNSET, item.partial)

    def _add_raw(self, item: Raw) -> None:
        if item.type not in _FOLDED:
            return
        try:
            self.add(decode(item.type, encode(item).data))
        except InvalidItem:
            self.skipped += 1


_FOLD: dict[type, Callable[[Merger, Any], None]] = {
    MessageDelta: Merger._add_text,
    ReasoningDelta: Merger._add_reasoning,
    RefusalDelta: Merger._add_refusal,
    Annotation: Merger._add_annotation,
    Message: Merger._add_message,
    ToolCallDelta: Merger._add_call,
    ToolStarted: Merger._add_started,
    ToolCompleted: Merger._add_ended,
    ToolFailed: Merger._add_ended,
    Usage: Merger._add_usage,
    Cost: Merger._add_cost,
    Event: Merger._add_event,
    Final: Merger._add_final,
    Failed: Merger._add_failed,
    Cancelled: Merger._add_failed,
    Raw: Merger._add_raw,
}
_FOLDED = frozenset(name for name, cls in TYPES.items() if cls in _FOLD)
_FOLDED_BYTES = frozenset(name.encode() for name in _FOLDED)


def merge_entries(entries: Iterable[Entry]) -> Merger:
    """Stored entries, ascending and of one run, → a merger that has folded them."""
    merger = Merger()
    for entry in entries:
        if entry.type not in _FOLDED_BYTES:
            continue
        try:
            merger.add(decode(entry.type, entry.data))
        except InvalidItem:
            merger.skipped += 1
    return merger
