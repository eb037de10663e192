"""The items of one OpenAI response's ``output``: which of them an event speaks of, and what their snapshots add.

Pure.
"""

from __future__ import annotations

from typing import Any

from broker.items import Item
from workers.providers.reading import as_count, as_dict, as_list, as_text, dump
from workers.providers.response import Response
from workers.providers.responses_draft import Block, Draft

__all__ = ["CALLS", "PARTS", "Output", "Outputs"]

CALLS = {"function_call": ("call", "arguments"), "custom_tool_call": ("custom", "input")}
"""Type of item → kind of its block, and the field that has its arguments."""
PARTS = {
    "output_text": ("text", "text"),
    "text": ("text", "text"),
    "refusal": ("refusal", "refusal"),
    "summary_text": ("summary", "text"),
    "reasoning_text": ("reasoning", "text"),
}
"""Type of part → kind of its block, and the field that has its text."""
_TYPES = {"text": "message", "refusal": "message", "summary": "reasoning", "reasoning": "reasoning"} | {
    kind: type for type, (kind, _) in CALLS.items()
}
"""Kind of block → type of item."""


class Output:
    """One item. ``place`` is its position in ``output`` and when it came; ``id`` and ``type`` what it said first."""

    __slots__ = ("_began", "blocks", "declared", "id", "index", "kept", "place", "seed", "type")

    def __init__(self, place: tuple[int, int], type: str, id: str) -> None:
        self.place = place
        self.type = type
        self.id = id
        self.declared = False
        """The item itself came, not only a part of it."""
        self.blocks: dict[tuple[str, int], Block] = {}
        self._began: list[str] = []
        self.index: int | None = None
        """The block index of what is no message, reasoning or call (a search, a container's code)."""
        self.kept: set[int] = set()
        """Which of its parts were passed on as they came; -1 is the item itself."""
        self.seed = ""
        """The arguments that the item began with: a placeholder, unless nothing follows."""

    def order(self, kind: str, n: int) -> tuple[int, ...]:
        """A reasoning item's summary and its text stand in the order in which they began; all else is one list."""
        if kind not in ("summary", "reasoning"):
            return (*self.place, 0, n)
        if kind not in self._began:
            self._began.append(kind)
        return (*self.place, self._began.index(kind), n)

    @property
    def last_reasoning(self) -> Block | None:
        """The block that the item's signature stands on: the one that has it, else the last."""
        blocks = [b for b in self.blocks.values() if b.kind in ("summary", "reasoning")]
        return max(blocks, key=lambda b: (bool(b.signature), b.shown, b.order), default=None)


class Outputs:
    """All items of one response, over its draft."""

    def __init__(self, draft: Draft, response: Response) -> None:
        self._draft = draft
        self._response = response
        self._places: dict[int, Output] = {}
        self._ids: dict[str, Output] = {}
        self.all: list[Output] = []

    def find(self, data: dict[str, Any], type: str = "", id: str = "") -> Output:
        """The item that an event speaks of: by its place, else by its id, else the latest. Made where there is none."""
        place = data.get("output_index")
        output = self._places.get(place) if place.__class__ is int else None
        if output is not None:
            return output
        place = as_count(place)
        id = id or as_text(data.get("item_id"))
        if place is None:
            output = self._ids.get(id)
            if output is None and not id and self.all:
                output = self.all[-1]
        return output or self.add(place, type, id)

    def add(self, place: int | None, type: str, id: str) -> Output:
        """A new item. One that is there at its place already stays, but events speak of the new one from now on."""
        if place is None:
            place = max(self._places, default=-1) + 1
        output = Output((place, len(self.all)), type, id)
        self._places[place] = output
        self.all.append(output)
        if id:
            self._ids[id] = output
        return output

    def block(self, output: Output, kind: str, n: int = 0) -> Block:
        """The item's block of that kind, made where there is none; ``n`` is its place within the item."""
        block = output.blocks.get((kind, n))
        if block is None:
            block = output.blocks[kind, n] = self._draft.new_block(kind, output.order(kind, n))
            output.type = output.type or _TYPES[kind]
        return block

    # -- calls

    def begin_call(self, output: Output, item: dict[str, Any]) -> list[Item]:
        """What an item says of its call, whole or not: it is told of once its name is known."""
        block = self.block(output, CALLS[as_text(item.get("type"))][0])
        block.name = block.name or as_text(item.get("name"))
        block.call_id = block.call_id or as_text(item.get("call_id"))
        return self._announce(block, output) if block.name else []

    def _announce(self, block: Block, output: Output) -> list[Item]:
        if not block.shown:
            block.call_id = self._response.call_id(block.call_id or output.id)
        return self._draft.announce(block)

    def flush(self) -> list[Item]:
        """Calls that never said their name, or never went beyond what they began with."""
        items: list[Item] = []
        for output in self.all:
            for (kind, _), block in list(output.blocks.items()):
                if kind in ("call", "custom") and (block.chunks or block.name or block.call_id or output.seed):
                    items += self._announce(block, output)
                    items += [] if block.chunks else self._draft.append(block, output.seed)
        return items

    # -- snapshots

    def agree(self, output: Output, item: dict[str, Any], said: set[int]) -> list[Item]:
        """One item, whole. ``said`` gets the indexes of the blocks that it speaks of."""
        type = as_text(item.get("type"))
        if type in CALLS:
            kind, field = CALLS[type]
            block = self.block(output, kind)
            said.add(block.index)
            return self.begin_call(output, item) + self._draft.agree(block, dump(item.get(field)))
        if type not in ("message", "reasoning"):
            return self._keep(output, -1, item)
        items: list[Item] = []
        for field in ("summary", "content"):
            content = item.get(field)
            parts = [{"type": "output_text", "text": content}] if isinstance(content, str) else as_list(content)
            for n, part in enumerate(parts):
                items += self.agree_part(output, n, part, said)
        if signature := as_text(item.get("encrypted_content")):
            items += self._draft.sign(output.last_reasoning or self.block(output, "summary"), signature)
        return items

    def agree_part(self, output: Output, n: int, part: Any, said: set[int]) -> list[Item]:
        told = as_dict(part)
        kind, field = PARTS.get(as_text(told.get("type")), ("", ""))
        if not kind:
            return self._keep(output, n, told or {"value": part})
        block = self.block(output, kind, n)
        if told.get(field):
            said.add(block.index)
        items = self._draft.agree(block, as_text(told.get(field)))
        return items + self._draft.agree_annotations(block, as_list(told.get("annotations")))

    def _keep(self, output: Output, n: int, block: dict[str, Any]) -> list[Item]:
        """What the message has no block for: passed on whole, once."""
        if n in output.kept:
            return []
        output.kept.add(n)
        return [self._response.block(self.reserve(output), block)]

    def reserve(self, output: Output) -> int:
        """The block index of an item that the message has no block for."""
        if output.index is None:
            output.index = self._draft.take_index()
        return output.index

    def snapshot(self, output: list[Any], *, whole: bool) -> list[Item]:
        """The terminal event's output. Silence is no contradiction, except within a response that is ``whole``."""
        said: set[int] = set()
        items: list[Item] = []
        left = list(self.all)
        for place, told in enumerate(output):
            item = as_dict(told)
            match = self._match(left, place, item)
            if match is None:
                free = place not in self._places
                match = self.add(place if free else None, as_text(item.get("type")), as_text(item.get("id")))
            else:
                left.remove(match)
            items += self.agree(match, item, said)
        if whole and said:
            said |= {b.index for b in self._draft.blocks if b.kind in ("summary", "reasoning")}
            self._draft.drop(said)
        return items

    def _match(self, left: list[Output], place: int, item: dict[str, Any]) -> Output | None:
        """The streamed item that a snapshot's item is: of its id, else of its place, else the next of its type."""
        same = [o for o in left if o.type == as_text(item.get("type"))]
        id = as_text(item.get("id"))
        by_id = [o for o in same if id and o.id == id]
        by_place = [o for o in same if o is self._places.get(place)]
        return next(iter([*by_id, *by_place, *same]), None)
