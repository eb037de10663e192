"""The blocks of one OpenAI response as its events tell them, and what becomes of them when a snapshot says otherwise.

A response says each text three or four times: in fragments, in the ``done`` of its part, in that of its item, and in
the terminal event. A later telling that is equal adds nothing, a longer one adds its tail, and one that differs
replaces: the fragments are out by then, so a ``message`` item with the whole message follows at the end.

Pure.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from broker.items import (
    Annotation,
    Event,
    Item,
    Message,
    MessageDelta,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
)
from broker.merge import Merger

__all__ = ["Block", "Draft"]

_REASONING = ("summary", "reasoning")
_CALLS = ("call", "custom")
_TYPES = {"summary": "reasoning", "call": "tool_call", "custom": "tool_call"}


class Block:
    """One block: a part of a message, a part of a reasoning item, or a call. ``kind`` is text, refusal, summary,
    reasoning, call or custom; ``index`` its place among the round's blocks, ``order`` that in the response."""

    __slots__ = ("annotations", "call_id", "chunks", "index", "kind", "name", "order", "shown", "signature")

    def __init__(self, kind: str, index: int, order: tuple[int, ...]) -> None:
        self.kind = kind
        self.index = index
        self.order = order
        self.chunks: list[str] = []
        self.annotations: list[Any] = []
        self.signature = ""
        self.call_id = ""
        self.name = ""
        self.shown = False
        """An item of it is out: it is a block of the message."""

    @property
    def text(self) -> str:
        if len(self.chunks) > 1:
            self.chunks = ["".join(self.chunks)]
        return self.chunks[0] if self.chunks else ""


class Draft:
    """All blocks of one response, with the items that tell of them."""

    def __init__(self, round: int) -> None:
        self.round = round
        self.differences: list[dict[str, Any]] = []
        self.blocks: list[Block] = []
        """Those that are out, in the order in which each first had content."""
        self._indexes = 0

    def take_index(self) -> int:
        self._indexes += 1
        return self._indexes - 1

    def new_block(self, kind: str, order: tuple[int, ...]) -> Block:
        return Block(kind, self.take_index(), order)

    def append(self, block: Block, text: str) -> list[Item]:
        """The next fragment of a block."""
        if not text:
            return []
        block.chunks.append(text)
        if block.kind in _CALLS and not block.shown:
            return []  # nothing is told of a call before its name is known
        return [self._delta(block, text)]

    def _delta(self, block: Block, text: str) -> Item:
        if not block.shown:
            self._show(block)
        if block.kind == "text":
            return MessageDelta(round=self.round, index=block.index, text=text)
        if block.kind == "refusal":
            return RefusalDelta(round=self.round, index=block.index, text=text)
        if block.kind in _REASONING:
            return ReasoningDelta(round=self.round, index=block.index, text=text)
        return ToolCallDelta(round=self.round, index=block.index, call_id=block.call_id, arguments=text)

    def announce(self, block: Block) -> list[Item]:
        """Tell a call's id and name, once, with what came of its arguments."""
        if block.shown:
            return []
        self._show(block)
        return [self._call(block)]

    def _call(self, block: Block) -> Item:
        return ToolCallDelta(
            round=self.round,
            index=block.index,
            call_id=block.call_id,
            name=block.name or UNSET,
            arguments=block.text,
            kind="custom" if block.kind == "custom" else UNSET,
        )

    def _show(self, block: Block) -> None:
        if not block.shown:
            block.shown = True
            self.blocks.append(block)

    def annotate(self, block: Block, annotation: Any) -> list[Item]:
        self._show(block)
        block.annotations.append(annotation)
        return [Annotation(round=self.round, index=block.index, annotation=annotation)]

    def sign(self, block: Block, signature: str) -> list[Item]:
        """A reasoning item's encrypted content. A second one that differs replaces the first."""
        if block.signature:
            if block.signature != signature:
                self._differ(block, block.signature, signature, what="signature")
                block.signature = signature
            return []
        block.signature = signature
        self._show(block)
        return [ReasoningDelta(round=self.round, index=block.index, signature=signature)]

    def agree(self, block: Block, text: str) -> list[Item]:
        """The whole text of a block, once more. Empty says nothing: some servers leave it out."""
        known = block.text
        if not text or text == known:
            return []
        if text.startswith(known):
            return self.append(block, text[len(known) :])
        self._differ(block, known, text)
        block.chunks = [text]
        return []

    def agree_annotations(self, block: Block, annotations: list[Any]) -> list[Item]:
        known = block.annotations
        if annotations[: len(known)] == known:
            return [item for a in annotations[len(known) :] for item in self.annotate(block, a)]
        if annotations:
            self._differ(block, "", "", what="annotations")
            block.annotations = list(annotations)
        return []

    def drop(self, keep: set[int]) -> None:
        """Forget the blocks whose index is not in ``keep``: the response as it says it is has no such block."""
        for block in self.blocks:
            if block.index not in keep:
                self._differ(block, block.text, "", what="block")
        self.blocks = [b for b in self.blocks if b.index in keep]

    def reorder(self) -> None:
        """Put the blocks into the response's own order, where that is another than that of their first content."""
        ordered = sorted(self.blocks, key=_order)
        if ordered != self.blocks:
            self.differences.append({"what": "order"})
            self.blocks = ordered

    def _differ(self, block: Block, told: str, now: str, what: str = "text") -> None:
        same = next((i for i, (a, b) in enumerate(zip(told, now, strict=False)) if a != b), min(len(told), len(now)))
        difference = {"what": what, "index": block.index, "type": _TYPES.get(block.kind, block.kind)}
        self.differences.append(difference | {"streamed": len(told), "snapshot": len(now), "position": same})

    def settle(self, **facts: Any) -> list[Item]:
        """Where fragments and snapshots differ: what differs, and the message as the snapshots have it.

        ``facts``: what ``model.completed`` will say. The message is made by the merge, of its blocks told whole.
        """
        if not self.differences:
            return []
        merger = Merger()
        for block in self.blocks:
            for item in self._tell(block):
                merger.add(item)
        merger.add(Event(name="model.completed", payload={"round": self.round, **facts}))
        message = merger.message(self.round) or {"role": "assistant", "content": []}
        mismatch = Event(name="merge.mismatch", payload={"round": self.round, "differences": self.differences})
        return [mismatch, Message(round=self.round, message=message)]

    def _tell(self, block: Block) -> list[Item]:
        if block.kind in _CALLS:
            return [self._call(block)]
        items: list[Item] = [self._delta(block, block.text)] if block.text else []
        if block.signature:
            items.append(ReasoningDelta(round=self.round, index=block.index, signature=block.signature))
        return items + [Annotation(round=self.round, index=block.index, annotation=a) for a in block.annotations]


def _order(block: Block) -> tuple[int, ...]:
    return block.order
