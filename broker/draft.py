"""One round's message in the making (of one choice): its blocks in order, and the calls among them.

Parts of the merge; its rules are stated in ``broker.merge``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import UNSET

from broker.arguments import incomplete, nameless, parse_arguments
from broker.items import Annotation, MessageDelta, ReasoningDelta, RefusalDelta, ToolCallDelta, ToolStarted

__all__ = ["Block", "Call", "Draft", "text_of"]

_CUT_SHORT = frozenset(
    {
        # No room left.
        *("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"),
        # Somebody stepped in.
        *("content_filter", "content_filtered", "guardrail_intervened", "refusal", "safety", "sensitive"),
        # The model went wrong, or its provider.
        *("malformed_function_call", "malformed_model_output", "malformed_tool_use"),
        *("error", "network_error", "insufficient_system_resource", "cancelled", "failed"),
    }
)
"""Finish reasons, in small letters, that leave the block under way without its end; ``incomplete:…`` is one more."""

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

    __slots__ = ("annotations", "incomplete", "kind", "parts", "redacted", "signature")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.incomplete = False
        """The provider never closed it."""
        self.parts: list[str] = []
        self.annotations: list[Any] = []
        self.signature = ""
        self.redacted: Any = UNSET

    def render(self) -> dict[str, Any]:
        block: dict[str, Any] = {"type": self.kind, "text": "".join(self.parts)}
        if self.annotations:
            block["annotations"] = list(self.annotations)
        if self.signature:
            block["signature"] = self.signature
        if self.redacted is not UNSET:
            block["redacted"] = self.redacted
        if self.incomplete:
            block["incomplete"] = True
        return block


class Call:
    """A tool call. ``told`` is its block where a message, or the tool's start, gave it whole."""

    __slots__ = ("custom", "id", "incomplete", "made_id", "name", "parts", "round", "signature", "started", "told")

    def __init__(self, round: int, made_id: str, id: str) -> None:
        self.round = round
        self.id = id
        self.made_id = made_id
        """Stands for an id that the provider left out. Made of the call's place: the same in each rendering."""
        self.name = ""
        self.custom = False
        """The tool takes free text, not JSON."""
        self.signature = ""
        self.parts: list[str] = []
        self.incomplete = False
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
        self.custom = self.custom or item.kind == "custom"
        if item.signature:
            self.signature = item.signature

    def render(self, cut: bool, raw: bool = False) -> dict[str, Any]:
        """``cut``: its end may be missing, unless the tool was seen to start. ``raw``: keep the text of any call."""
        if self.told is not None:
            return dict(self.told)
        text, cut = "".join(self.parts), (cut or self.incomplete) and not self.started
        block: dict[str, Any] = {"type": "tool_call", "id": self.id or self.made_id, "name": self.name}
        if self.custom:
            block |= {"kind": "custom", "input": text} | ({"error": incomplete(text)} if cut else {})
        else:
            block |= _arguments(text, cut=cut, name=self.name) | ({"raw": text} if raw else {})
        return block | ({"signature": self.signature} if self.signature else {})


def _arguments(raw: str, *, cut: bool = False, name: str = "?") -> dict[str, Any]:
    value, error = parse_arguments(raw)
    if error is None and cut:
        error = incomplete(raw)
    if error is None and not name:
        error = nameless(value)
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
        self._incomplete = False
        """The stream ended before the provider had said so."""
        self._clear()

    def _clear(self) -> None:
        self._blocks: list[Block | Call | dict[str, Any]] = []
        self._open: dict[_Slot, Block] = {}
        self._calls: dict[_Slot, Call] = {}
        self._call_ids: dict[_Slot, Call] = {}
        self._count = 0
        self._latest: Block | Call | None = None
        """What the last delta belonged to: the one block whose end may be missing."""

    @property
    def has_content(self) -> bool:
        return bool(self._blocks) or self.settled

    def message(self, partial: bool = False, raw: bool = False) -> dict[str, Any]:
        """``partial``: unless the provider said that it was done, any call that was not seen to start may lack its end.

        ``raw``: each call keeps its text.
        """
        reason = str(self._fields.get("finish_reason") or "").lower()
        cut_short = self._incomplete or reason in _CUT_SHORT or reason.startswith("incomplete")
        partial = partial and (cut_short or not reason)
        content: list[dict[str, Any]] = []
        for block in self._blocks:
            if isinstance(block, Call):
                content.append(block.render(partial or (cut_short and block is self._latest), raw))
            else:
                content.append(block.render() if isinstance(block, Block) else dict(block))
        return {"role": self._role, "content": content, **self._fields}

    def block(self, kind: str, item: _Indexed) -> Block:
        """The open block that ``item`` belongs to, made where there is none."""
        slot = (kind, *_place(item))
        block = self._open.get(slot)
        if block is None:
            block = self._new_block(slot, kind)
        self._latest = block
        return block

    def _new_block(self, slot: _Slot, kind: str) -> Block:
        block = self._open[slot] = self._latest = Block(kind)
        self._blocks.append(block)
        return block

    def say(self, item: MessageDelta) -> Block:
        """Text. A second signature is that of another block."""
        block = self.block("text", item)
        signature = item.signature or ""
        if signature and block.signature and signature != block.signature:
            block = self._new_block(("text", *_place(item)), "text")
        if item.text:
            block.parts.append(item.text)
        block.signature = signature or block.signature
        return block

    def reason(self, item: ReasoningDelta) -> Block:
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
        return block

    def call(self, item: ToolCallDelta) -> Call:
        """Fold a fragment. One of a call that was told whole changes nothing any more."""
        place = _place(item)
        call = self._calls.get(place)
        if item.call_id and (call is None or call.id not in ("", item.call_id)):
            # A used index with another id: a call that was there before, or a new one.
            call = self._call_ids.get((item.call_id, *place)) or self._call_ids.get((item.call_id,))
        if call is None:
            call = self._new_call(item.call_id)
        self._calls[place] = self._latest = call
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
        self._incomplete = self._incomplete or payload.get("incomplete") is True
        unclosed = payload.get("incomplete_blocks")
        for index in unclosed if isinstance(unclosed, list) else ():
            self._mark_incomplete(index)

    def fall_back(self, model: str) -> None:
        """The provider let another model answer: the one change of model that there is within a message."""
        if not self.settled:
            self._fields["model"] = model

    def _mark_incomplete(self, index: Any) -> None:
        for (_, place, *_), block in self._open.items():
            block.incomplete = block.incomplete or place == index
        for (place, *_), call in self._calls.items():
            call.incomplete = call.incomplete or place == index


def _place(item: _Indexed) -> _Slot:
    return (item.index, item.component_id, item.session_id, item.parent_run_id)


def _blocks(content: Any) -> list[dict[str, Any]]:
    """A message's content → its blocks. A bare string is one text block; what is no block is kept as text."""
    if content is None or content == "":
        return []
    parts = content if isinstance(content, (list, tuple)) else [content]
    return [p if isinstance(p, dict) else {"type": "text", "text": str(p)} for p in parts]
