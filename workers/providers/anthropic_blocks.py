"""The content blocks of an Anthropic message: how each kind begins, what its deltas add, what its end owes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.arguments import parse_arguments
from broker.items import Annotation, Event, Item, MessageDelta, ReasoningDelta, Summary, ToolCallDelta
from workers.providers.reading import as_dict, as_list, as_text, dump
from workers.providers.response import Response, place

__all__ = ["Blocks"]

_READ_OF_TOOL = frozenset({"type", "id", "name", "input"})
_CALLED_BY_MODEL = {"type": "direct"}
"""A tool use's ``caller`` where it is nothing special: no code that runs at Anthropic called the tool."""


class _Open:
    """A block under way. ``kind`` is text, thinking, tool, or provider: one that is gathered and passed on whole."""

    __slots__ = ("block", "call_id", "kind", "parts")

    def __init__(self, kind: str, block: Mapping[str, Any], call_id: str = "") -> None:
        self.kind = kind
        self.block = dict(block)
        self.call_id = call_id
        self.parts: list[str] = []
        """Fragments of a tool's input."""

    def whole(self) -> dict[str, Any]:
        """The block with the input that its deltas told. Text that is no JSON is kept beside the error."""
        text = "".join(self.parts)
        if text:
            value, error = parse_arguments(text)
            self.block |= {"input": value} if error is None else {"input": None, "raw": text, "error": error}
        return self.block


class Blocks:
    """The blocks of one response, by index. ``seen``: there was one."""

    def __init__(self, response: Response) -> None:
        self._response, self._round = response, response.round
        self._open: dict[int, _Open] = {}
        self._last = -1

    @property
    def seen(self) -> bool:
        return self._last >= 0

    def unclosed(self) -> list[int]:
        """Blocks whose end was not told. A call that the stop reason speaks of is whole in spite of that."""
        whole = "tool" if self._response.finish_reason == "tool_use" else None
        return [index for index, block in self._open.items() if block.kind != whole]

    def start(self, data: dict[str, Any]) -> list[Item]:
        """``content_block_start``"""
        index = place(data.get("index"), self._last + 1)
        return self._close(index) + self._begin(index, as_dict(data.get("content_block")))

    def given(self, blocks: list[Any]) -> list[Item]:
        """Blocks that stand whole in the message's own start."""
        items: list[Item] = []
        for index, block in enumerate(blocks):
            items += self._begin(index, as_dict(block))
            items += self._close(index)
        return items

    def _begin(self, index: int, block: dict[str, Any]) -> list[Item]:
        self._last = index
        kind = block.get("type")
        start = _STARTS.get(kind) if isinstance(kind, str) else None
        if start is None:
            self._open[index] = _Open("provider", block)
            return []
        return start(self, index, block)

    def _start_text(self, index: int, block: dict[str, Any]) -> list[Item]:
        self._open[index] = _Open("text", {})
        items: list[Item] = [self._annotation(index, c) for c in as_list(block.get("citations"))]
        return items + self._text(index, as_text(block.get("text")))

    def _start_thinking(self, index: int, block: dict[str, Any]) -> list[Item]:
        self._open[index] = _Open("thinking", {})
        thinking, signature = as_text(block.get("thinking")), as_text(block.get("signature"))
        return self._thinking(index, thinking) + self._signature(index, signature)

    def _start_redacted(self, index: int, block: dict[str, Any]) -> list[Item]:
        self._open[index] = _Open("thinking", {})
        return [ReasoningDelta(redacted=block.get("data", ""), round=self._round, index=index)]

    def _start_tool(self, index: int, block: dict[str, Any]) -> list[Item]:
        call = self._open[index] = _Open("tool", block, self._response.call_id(as_text(block.get("id"))))
        name = as_text(block.get("name"))
        items: list[Item] = [ToolCallDelta(call_id=call.call_id, name=name, round=self._round, index=index)]
        more = {k: v for k, v in block.items() if k not in _READ_OF_TOOL and v not in (None, _CALLED_BY_MODEL)}
        if more:
            items += self._response.unknown("tool_use", {"index": index, "id": call.call_id, **more})
        return items

    def stop(self, data: dict[str, Any]) -> list[Item]:
        """``content_block_stop``"""
        return self._close(place(data.get("index"), self._last))

    def close(self) -> list[Item]:
        """The end of the message: what the blocks still owe."""
        return [item for index in sorted(self._open) for item in self._close(index, closed=False)]

    def _close(self, index: int, *, closed: bool = True) -> list[Item]:
        block = self._open.pop(index, None)
        if block is None:
            return []
        if block.kind == "tool":
            return self._input_of_start(index, block)
        return self._pass_on(index, block.whole(), closed) if block.kind == "provider" else []

    def _input_of_start(self, index: int, call: _Open) -> list[Item]:
        if call.parts or not call.block.get("input"):
            return []
        return [self._arguments(index, call, dump(call.block["input"]))]

    def _pass_on(self, index: int, block: dict[str, Any], closed: bool) -> list[Item]:
        items: list[Item] = [self._response.block(index, block, closed=closed)]
        if block.get("type") == "fallback":
            items += self._fall_back(index, block)
        elif block.get("type") == "compaction" and isinstance(block.get("content"), str):
            items.append(Summary(text=block["content"], replaces="context"))
        return items

    def _fall_back(self, index: int, block: dict[str, Any]) -> list[Item]:
        """Another model goes on, and the message is its."""
        before, after = as_dict(block.get("from")).get("model"), as_dict(block.get("to")).get("model")
        self._response.model = as_text(after) or self._response.model
        payload = {"round": self._round, "index": index, "from": before, "to": after, "trigger": block.get("trigger")}
        return [Event(name="fallback", payload=payload)]

    # -- their deltas

    def delta(self, data: dict[str, Any]) -> list[Item]:
        """``content_block_delta``"""
        index, delta = place(data.get("index"), max(self._last, 0)), as_dict(data.get("delta"))
        kind = delta.get("type")
        block = self._open.get(index)
        if block is not None and block.kind == "provider":
            return self._gather(index, block, delta)
        if kind == "text_delta":
            return self._text(index, as_text(delta.get("text")))
        if kind == "input_json_delta" and (block is None or block.kind == "tool"):
            return self._input(index, block, dump(delta.get("partial_json")))
        if kind == "thinking_delta":
            return self._thinking(index, as_text(delta.get("thinking")))
        if kind == "signature_delta":
            return self._signature(index, as_text(delta.get("signature")))
        if kind == "citations_delta" and "citation" in delta:
            return [self._annotation(index, delta["citation"])]
        return self._unknown_delta(index, delta)

    def _unknown_delta(self, index: int, delta: dict[str, Any]) -> list[Item]:
        return self._response.unknown("content_block_delta", {"index": index, "delta": delta})

    def _text(self, index: int, text: str) -> list[Item]:
        return [MessageDelta(text=text, round=self._round, index=index)] if text else []

    def _thinking(self, index: int, text: str) -> list[Item]:
        return [ReasoningDelta(text=text, round=self._round, index=index)] if text else []

    def _signature(self, index: int, signature: str) -> list[Item]:
        return [ReasoningDelta(signature=signature, round=self._round, index=index)] if signature else []

    def _annotation(self, index: int, citation: Any) -> Annotation:
        return Annotation(annotation=citation, round=self._round, index=index)

    def _arguments(self, index: int, call: _Open, text: str) -> ToolCallDelta:
        return ToolCallDelta(call_id=call.call_id, arguments=text, round=self._round, index=index)

    def _input(self, index: int, call: _Open | None, text: str) -> list[Item]:
        if not text:
            return []
        if call is None:  # its start was lost: a call without a name, which no one will take for a whole one
            call = self._open[index] = _Open("tool", {}, self._response.call_id(""))
        call.parts.append(text)
        return [self._arguments(index, call, text)]

    def _gather(self, index: int, block: _Open, delta: dict[str, Any]) -> list[Item]:
        kind = delta.get("type")
        if kind == "input_json_delta":
            block.parts.append(dump(delta.get("partial_json")))
        elif kind == "compaction_delta":
            block.block |= {k: v for k, v in delta.items() if k != "type" and v is not None}
        elif kind == "text_delta" and isinstance(block.block.get("text", ""), str):
            block.block["text"] = block.block.get("text", "") + as_text(delta.get("text"))
        else:
            return self._unknown_delta(index, delta)
        return []


_STARTS: dict[str, Callable[[Blocks, int, dict[str, Any]], list[Item]]] = {
    "text": Blocks._start_text,
    "thinking": Blocks._start_thinking,
    "redacted_thinking": Blocks._start_redacted,
    "tool_use": Blocks._start_tool,
}
