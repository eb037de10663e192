"""Amazon Bedrock's ConverseStream: ``messageStart``, ``contentBlock{Start,Delta,Stop}``, ``messageStop``, ``metadata``.

The binary frames of AWS are decoded before. An event is then either ``{"contentBlockDelta": {…}}``, as the SDKs give
it, or the inner object under the name that stood in the frame's ``:event-type`` (or ``:exception-type``) header.

- Text and reasoning blocks have no start. Blocks of tools that Bedrock runs itself, of their results, and of images
  are gathered and become ``provider.block`` when they are whole.
- ``metadata`` follows ``messageStop`` as a rule, and is waited for: it has the usage, cumulative and once. Its
  ``inputTokens`` leave out what was read from or written to the cache: ours have both. Metrics, traces and the rest
  of it become one ``provider.event``.
- The stream names neither the message nor its model, unless a prompt router chose one.
- Exceptions inside the stream end the message; their code is the exception's name, as Bedrock writes it.

Source: the API reference, “ConverseStreamOutput”, and the user guide on prompt caching. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from broker.arguments import parse_arguments
from broker.items import Annotation, Item, MessageDelta, ReasoningDelta, ToolCallDelta
from workers.providers.reading import as_count, as_dict, as_list, as_text, dump
from workers.providers.response import Response, place

__all__ = ["BedrockConverse"]

_INPUT_COUNTS = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
_COUNTS = frozenset({*_INPUT_COUNTS, "outputTokens", "totalTokens"})
_EMPTY: tuple[Any, ...] = (None, [], {})


class BedrockConverse(Response):
    """The adapter of ``bedrock.converse``. ``usage`` is declared cumulative."""

    api: ClassVar[str] = "bedrock.converse"

    def __init__(self, round: int = 1) -> None:
        super().__init__(round)
        self._open: set[int] = set()
        self._tools: dict[int, str] = {}
        """Index → id of the calls under way."""
        self._gathered: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._last = -1
        self._stopped = False
        self._measured = False
        self._more: Any = None

    def feed(self, event: str, data: Any) -> list[Item]:
        """One event → items; what comes behind an error is not read."""
        if self.error is not None:
            return []
        if not isinstance(data, dict):
            return self.unknown(event, data)
        if event in _EVENTS or _is_exception(event):
            return self._read(event, data.get(event, data))
        items: list[Item] = []
        for name, inner in data.items():  # a union: one member, as a rule
            if self.error is not None:
                break
            if name in _EVENTS or _is_exception(name):
                items += self._read(name, inner)
            else:
                items += self.unknown(event or name, {name: inner})
        return items

    def _read(self, name: str, data: Any) -> list[Item]:
        read = _EVENTS.get(name)
        if self.completed or (self._stopped and name not in ("metadata", "messageStop")):
            return self.unknown(name, data)
        if read is None:
            return self._exception(name, data)
        return self.began() + read(self, as_dict(data))

    def close(self) -> list[Item]:
        """The end of the bytes; without ``messageStop`` the message is incomplete."""
        if self._stopped and self.error is None:
            return self._complete()
        return [] if self.completed else [*self._close_all(), *self.break_off(self._open)]

    # -- the message

    def _message_start(self, data: dict[str, Any]) -> list[Item]:
        """It has no id: content in between tells a second answer from a repeated start."""
        if self._last >= 0:
            return self.fail("corrupt_stream", "a second message begins inside of the first")
        return []

    def _message_stop(self, data: dict[str, Any]) -> list[Item]:
        self._stopped = True
        self.finish_reason = self.finish_reason or as_text(data.get("stopReason")) or None
        self._more = self._more or data.get("additionalModelResponseFields")
        return self._complete() if self._measured else []

    def _metadata(self, data: dict[str, Any]) -> list[Item]:
        self._measured = True
        usage = as_dict(data.get("usage"))
        router = as_dict(as_dict(data.get("trace")).get("promptRouter"))
        self.model = self.model or as_text(router.get("invokedModelId")) or None
        rest = {k: v for k, v in data.items() if k != "usage" and v not in _EMPTY}
        uncounted = {k: v for k, v in usage.items() if k not in _COUNTS and v not in _EMPTY}
        rest |= {"usage": uncounted} if uncounted else {}
        items = self._count(usage) + (self.unknown("metadata", rest) if rest else [])
        return items + (self._complete() if self._stopped else [])

    def _count(self, usage: dict[str, Any]) -> list[Item]:
        parts = [count for name in _INPUT_COUNTS if (count := as_count(usage.get(name))) is not None]
        return self.usage.set(
            input_tokens=sum(parts) if "inputTokens" in usage else None,
            output_tokens=usage.get("outputTokens"),
            cache_read_tokens=usage.get("cacheReadInputTokens"),
            cache_write_tokens=usage.get("cacheWriteInputTokens"),
        )

    def _complete(self) -> list[Item]:
        # A call that the stop reason speaks of is whole, whether its block was closed or not.
        whole = self._tools if self.finish_reason == "tool_use" else ()
        unclosed = self._open.difference(whole)
        return [*self._close_all(), *self.complete(unclosed, additional_fields=self._more)]

    def _exception(self, name: str, told: Any) -> list[Item]:
        data = as_dict(told)
        message = as_text(data.get("message")) or as_text(data.get("Message")) or as_text(data.get("originalMessage"))
        original = {k: data[k] for k in ("originalStatusCode", "originalMessage") if data.get(k) is not None}
        return self.fail(name, message or as_text(told) or name, **original)

    # -- its blocks

    def _block_start(self, data: dict[str, Any]) -> list[Item]:
        index, start = place(data.get("contentBlockIndex"), self._last + 1), as_dict(data.get("start"))
        items = self._close(index)
        self._begin(index)
        for kind, inner in start.items():
            block = as_dict(inner)
            if kind == "toolUse" and block.get("type") is None:
                items += self._start_tool(index, block)
            else:
                self._gathered[index] = {kind: dict(block)}
        return items

    def _begin(self, index: int) -> None:
        self._last = index
        self._open.add(index)

    def _start_tool(self, index: int, block: dict[str, Any]) -> list[Item]:
        call_id = self._tools[index] = self.call_id(as_text(block.get("toolUseId")))
        name = as_text(block.get("name"))
        return [ToolCallDelta(call_id=call_id, name=name, round=self.round, index=index)]

    def _block_stop(self, data: dict[str, Any]) -> list[Item]:
        return self._close(place(data.get("contentBlockIndex"), self._last))

    def _close(self, index: int) -> list[Item]:
        self._open.discard(index)
        self._tools.pop(index, None)
        return self._pass_on(index, closed=True)

    def _close_all(self) -> list[Item]:
        return [item for index in sorted(self._gathered) for item in self._pass_on(index, closed=False)]

    def _pass_on(self, index: int, *, closed: bool) -> list[Item]:
        block = self._gathered.pop(index, None)
        if block is None:
            return []
        if text := "".join(self._inputs.pop(index, ())):
            value, error = parse_arguments(text)
            told = {"input": value} if error is None else {"input": None, "raw": text, "error": error}
            block["toolUse"] = as_dict(block.get("toolUse")) | told
        return [self.block(index, block, closed=closed)]

    # -- their deltas

    def _block_delta(self, data: dict[str, Any]) -> list[Item]:
        index, delta = place(data.get("contentBlockIndex"), max(self._last, 0)), as_dict(data.get("delta"))
        if index not in self._open:
            self._begin(index)
        if index in self._gathered:
            return self._gather(index, delta)
        items: list[Item] = []
        for kind, inner in delta.items():
            read = _DELTAS.get(kind)
            items += read(self, index, inner) if read is not None else self._unknown_delta(index, {kind: inner})
        return items

    def _unknown_delta(self, index: int, delta: dict[str, Any]) -> list[Item]:
        return self.unknown("contentBlockDelta", {"index": index, "delta": delta})

    def _text(self, index: int, text: Any) -> list[Item]:
        return [MessageDelta(text=text, round=self.round, index=index)] if text and isinstance(text, str) else []

    def _reasoning(self, index: int, inner: Any) -> list[Item]:
        told = as_dict(inner)
        items: list[Item] = []
        if text := as_text(told.get("text")):
            items.append(ReasoningDelta(text=text, round=self.round, index=index))
        if signature := as_text(told.get("signature")):
            items.append(ReasoningDelta(signature=signature, round=self.round, index=index))
        if told.get("redactedContent") is not None:
            items.append(ReasoningDelta(redacted=told["redactedContent"], round=self.round, index=index))
        return items

    def _input(self, index: int, inner: Any) -> list[Item]:
        text = dump(as_dict(inner).get("input"))
        if not text:
            return []
        if index not in self._tools:  # its start was lost: a call without a name, which nobody takes for a whole one
            self._tools[index] = self.call_id("")
        return [ToolCallDelta(call_id=self._tools[index], arguments=text, round=self.round, index=index)]

    def _citation(self, index: int, citation: Any) -> list[Item]:
        return [Annotation(annotation=citation, round=self.round, index=index)]

    def _gather(self, index: int, delta: dict[str, Any]) -> list[Item]:
        block = self._gathered[index]
        items: list[Item] = []
        for kind, inner in delta.items():
            if kind == "toolUse" and kind in block:
                self._inputs.setdefault(index, []).append(dump(as_dict(inner).get("input")))
            elif kind in block:  # parts of a result, or of an image
                content = as_list(block[kind].get("content"))
                block[kind]["content"] = [*content, *(inner if isinstance(inner, list) else [inner])]
            else:
                items += self._unknown_delta(index, {kind: inner})
        return items


def _is_exception(name: str) -> bool:
    return name.endswith(("Exception", "Error")) or name == "error"


_EVENTS: dict[str, Callable[[BedrockConverse, dict[str, Any]], list[Item]]] = {
    "messageStart": BedrockConverse._message_start,
    "contentBlockStart": BedrockConverse._block_start,
    "contentBlockDelta": BedrockConverse._block_delta,
    "contentBlockStop": BedrockConverse._block_stop,
    "messageStop": BedrockConverse._message_stop,
    "metadata": BedrockConverse._metadata,
}
_DELTAS: dict[str, Callable[[BedrockConverse, int, Any], list[Item]]] = {
    "text": BedrockConverse._text,
    "reasoningContent": BedrockConverse._reasoning,
    "toolUse": BedrockConverse._input,
    "citation": BedrockConverse._citation,
}
