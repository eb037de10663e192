"""One round's message in the making (of one choice): its blocks in order, and the calls among them.

Parts of the merge; its rules are stated in ``broker.merge``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import UNSET

from broker.arguments import incomplete, parse_arguments
from broker.items import Annotation, MessageDelta, ReasoningDelta, RefusalDelta, ToolCallDelta, ToolStarted

__all__ = ["Block", "Call", "Draft", "text_of"]

_Indexed: TypeAlias = MessageDelta | ReasoningDelta | RefusalDelta | Annotation | ToolCallDelta
_Slot: TypeAlias = tuple[Any, ...]


def text_of(message: Mapping[str, Any] | None) -> str:
    """The text blocks of a message, joined. Reasoning and refusals are no text."""
    blocks = (message or {}).get("content") or ()
    if isinstance(blocks, str):
        return blocks
    return "".join(str(b.get("text", "")) for b in blocks if isinstance(b, dict) and b.get("type") == "text")


class Block:
    """A text, reasoning or refusal block."""

    __slots__ = ("annotations", "kind", "parts", "redacted", "signature")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.parts: list[str] = []
        self.annotations: list[Any] = []
        self.signature = ""
        self.redacted: Any = UNSET

    def render(self, partial: bool) -> dict[str, Any]:
        block: dict[str, Any] = {"type": self.kind, "text": "".join(self.parts)}
        if self.annotations:
            block["annotations"] = list(self.annotations)
        if self.signature:
            block["signature"] = self.signature
        if self.redacted is not UNSET:
            block["redacted"] = self.redacted
        return block


class Call:
    """A tool call. ``told`` is its block where a message, or the tool's start, gave it whole."""

    __slots__ = ("id", "made_id", "name", "parts", "round", "started", "told")

    def __init__(self, round: int, made_id: str, id: str) -> None:
        self.round = round
        self.id = id
        self.made_id = made_id
        """Stands for an id that the provider left out. Made of the call's place: the same in each rendering."""
        self.name = ""
        self.parts: list[str] = []
        self.told: dict[str, Any] | None = None
        self.started = False
        """The tool was seen to start, so the call was complete."""

    def extend(self, item: ToolCallDelta) -> None:
        """A name or an id that is repeated in full is ignored; fragments of a name join before any argument only."""
        self.id = self.id or item.call_id
        name = "" if item.name is UNSET else item.name
        if name and name != self.name and (not self.name or not self.parts):
            self.name += name
        if item.arguments:
            self.parts.append(item.arguments)

    def render(self, partial: bool) -> dict[str, Any]:
        if self.told is not None:
            return dict(self.told)
        block: dict[str, Any] = {"type": "tool_call", "id": self.id or self.made_id, "name": self.name}
        return block | _arguments("".join(self.parts), cut=partial and not self.started)


def _arguments(raw: str, *, cut: bool = False) -> dict[str, Any]:
    value, error = parse_arguments(raw)
    if error is None and cut:
        error = incomplete(raw)
    if error is None:
        return {"arguments": value}
    return {"arguments": None, "raw": raw, "error": error}


class Draft:
    """The blocks of one (round, choice), in the order in which each first had content."""

    def __init__(self, round: int, choice: int) -> None:
        self.round = round
        self.settled = False
        """A ``message`` item has closed the round."""
        self._made_ids = f"call_{round}_{choice}_" if choice else f"call_{round}_"
        self._role: Any = "assistant"
        self._fields: dict[str, Any] = {}
        self._clear()

    def _clear(self) -> None:
        self._blocks: list[Block | Call | dict[str, Any]] = []
        self._open: dict[_Slot, Block] = {}
        self._calls: dict[_Slot, Call] = {}
        self._call_ids: dict[_Slot, Call] = {}
        self._count = 0

    @property
    def has_content(self) -> bool:
        return bool(self._blocks) or self.settled

    def message(self, partial: bool = False) -> dict[str, Any]:
        content = [dict(b) if isinstance(b, dict) else b.render(partial) for b in self._blocks]
        return {"role": self._role, "content": content, **self._fields}

    def block(self, kind: str, item: _Indexed) -> Block:
        """The open block that ``item`` belongs to, made where there is none."""
        slot = (kind, *_place(item))
        block = self._open.get(slot)
        return block if block is not None else self._new_block(slot, kind)

    def _new_block(self, slot: _Slot, kind: str) -> Block:
        block = self._open[slot] = Block(kind)
        self._blocks.append(block)
        return block

    def reason(self, item: ReasoningDelta) -> None:
        """A second signature, or a second redacted part, is that of another block: neither may be lost."""
        signature = "" if item.signature is UNSET else item.signature
        block = self.block("reasoning", item)
        taken = signature and block.signature and signature != block.signature
        if taken or (item.redacted is not UNSET and block.redacted is not UNSET):
            block = self._new_block(("reasoning", *_place(item)), "reasoning")
        if item.text:
            block.parts.append(item.text)
        block.signature = signature or block.signature
        if item.redacted is not UNSET:
            block.redacted = item.redacted

    def call(self, item: ToolCallDelta) -> Call:
        """Fold a fragment. One of a call that was told whole changes nothing any more."""
        place = _place(item)
        call = self._calls.get(place)
        if item.call_id and (call is None or call.id not in ("", item.call_id)):
            # A used index with another id: a call that was there before, or a new one.
            call = self._call_ids.get((item.call_id, *place)) or self._call_ids.get((item.call_id,))
        if call is None:
            call = self._new_call(item.call_id)
        self._calls[place] = call
        call.extend(item)
        if call.id:
            self._call_ids[call.id, *place] = call
        return call

    def _new_call(self, id: str) -> Call:
        self._count += 1
        call = Call(self.round, f"{self._made_ids}{self._count}", id)
        self._blocks.append(call)
        return call

    def _told_call(self, id: str, name: str) -> Call:
        call = self._new_call(id)
        call.name = name
        if id:
            self._call_ids[(id,)] = call
        return call

    def start(self, item: ToolStarted) -> Call:
        """A block for a tool that started without any call delta."""
        call = self._told_call(item.call_id, item.name)
        args = item.args
        told = _arguments(args) if isinstance(args, str) else {"arguments": {} if args is None else args}
        call.told = {"type": "tool_call", "id": item.call_id or call.made_id, "name": item.name, **told}
        return call

    def pending(self, name: str) -> Iterator[Call]:
        """Calls of that name that have not started, the oldest first."""
        for block in self._blocks:
            if isinstance(block, Call) and block.name == name and not block.started:
                yield block

    def settle(self, message: Mapping[str, Any]) -> list[Call]:
        """The round's message, whole: it replaces what was merged. Returns its calls that have an id."""
        started = {b.id or b.made_id for b in self._blocks if isinstance(b, Call) and b.started}
        self._clear()
        self.settled = True
        self._role = message.get("role") or "assistant"
        self._fields = {k: v for k, v in message.items() if k not in ("role", "content")}
        for block in _blocks(message.get("content")):
            if block.get("type") == "tool_call":
                call = self._told_call(str(block.get("id") or ""), str(block.get("name") or ""))
                call.told = block
                call.started = call.id in started
            else:
                self._blocks.append(block)
        return [b for b in self._blocks if isinstance(b, Call) and b.id]

    def describe(self, payload: Mapping[str, Any]) -> None:
        """What an event says of the model call. Each is set once, and not after the round's message."""
        if self.settled:
            return
        for name, kind in (("finish_reason", str), ("model", str), ("usage", dict)):
            value = payload.get(name)
            if value and isinstance(value, kind):
                self._fields.setdefault(name, value)


def _place(item: _Indexed) -> _Slot:
    return (item.index, item.component_id, item.session_id, item.parent_run_id)


def _blocks(content: Any) -> list[dict[str, Any]]:
    """A message's content → its blocks. A bare string is one text block; what is no block is kept as text."""
    if content is None or content == "":
        return []
    parts = content if isinstance(content, (list, tuple)) else [content]
    return [p if isinstance(p, dict) else {"type": "text", "text": str(p)} for p in parts]
