"""Cohere's chat API, version 2: ``message-start``, content, tool plan, tool calls, citations, ``message-end``.

- Content blocks and tool calls are counted apart, both from 0: each gets a place of its own among the round's blocks.
- What the model says of its plan before it calls tools is neither its answer nor its reasoning, and has to be sent
  back as what it is: it is gathered into one ``provider.block`` of type ``tool_plan``.
- A citation of the answer's text is an ``annotation`` of that text's block; one of anything else is kept as an event.
- Usage comes once, at the end: ``tokens`` are what the model read (cached ones among them) and wrote;
  ``billed_units``, which leave out what Cohere adds to the prompt, are passed on in a ``provider.event``.
- ``message-end`` is the end; where it has an ``error``, or a finish reason that is one, the message failed.

Source: docs.cohere.com, “Streaming”, and the SDK's types. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from broker.items import Annotation, Item, MessageDelta, ReasoningDelta, ToolCallDelta
from workers.providers.reading import as_dict, as_text, dump
from workers.providers.response import Response, place

__all__ = ["CohereChat"]

_FAILED = ("ERROR", "TIMEOUT")
"""How the finish reasons begin that are none: the generation was given up."""


class CohereChat(Response):
    """The adapter of ``cohere.chat``. ``usage`` is declared cumulative."""

    api: ClassVar[str] = "cohere.chat"

    def __init__(self, round: int = 1) -> None:
        super().__init__(round)
        self._announced = False
        self._places: dict[tuple[str, int], int] = {}
        """Content or tool, and Cohere's index there → index among the blocks."""
        self._content: dict[int, str] = {}
        """Index → kind of the content blocks under way."""
        self._last_text = 0
        self._last_content = -1
        self._tools: dict[int, str] = {}
        """Index → id of the calls under way."""
        self._last_tool = -1
        self._plan: list[str] = []

    def _place(self, kind: str, index: int) -> int:
        return self._places.setdefault((kind, index), len(self._places))

    def feed(self, event: str, data: Any) -> list[Item]:
        """One event → items; what comes behind an error is not read."""
        if self.error is not None:
            return []
        if not isinstance(data, dict):
            return self.unknown(event, data)
        kind = data.get("type") or event
        if not kind and (data.get("message") or data.get("error")):
            kind = "error"  # the body of a failed request has no type
        read = _EVENTS.get(kind) if isinstance(kind, str) else None
        if read is None or (self.completed and kind != "message-start"):
            return self.unknown(as_text(kind), data)
        return self.began() + read(self, data) if kind != "message-start" else read(self, data)

    def close(self) -> list[Item]:
        """The end of the bytes; without ``message-end`` the message is incomplete."""
        return [] if self.completed else [*self._tell_plan(), *self.break_off(self._unclosed())]

    def _unclosed(self) -> list[int]:
        """A call that the finish reason speaks of is whole, whether its end was told or not."""
        tools = () if self.finish_reason == "TOOL_CALL" else self._tools
        return [self._place("content", i) for i in self._content] + [self._place("tool", i) for i in tools]

    # -- the message

    def _message_start(self, data: dict[str, Any]) -> list[Item]:
        id = as_text(data.get("id"))
        if self._announced and (id != self.id if id and self.id else self._last_content >= 0 or self._last_tool >= 0):
            return self.fail("corrupt_stream", f"message {id!r} begins inside of message {self.id!r}")
        self._announced = True
        return self.began(id=id)

    def _message_end(self, data: dict[str, Any]) -> list[Item]:
        delta = as_dict(data.get("delta"))
        self.began(id=as_text(data.get("id")))
        self.finish_reason = as_text(delta.get("finish_reason")) or None
        items = self._tell_plan() + self._count(as_dict(delta.get("usage")))
        reason, error = self.finish_reason or "", delta.get("error")
        if error or reason.upper().startswith(_FAILED):
            code = reason or "error"
            items += self.fail(code, as_text(error) or dump(error) or f"the generation ended with {code}")
            return items + self.break_off(self._unclosed())
        return items + self.complete(self._unclosed())

    def _count(self, usage: dict[str, Any]) -> list[Item]:
        tokens = as_dict(usage.get("tokens"))
        items = self.usage.set(
            input_tokens=tokens.get("input_tokens"),
            output_tokens=tokens.get("output_tokens"),
            cache_read_tokens=usage.get("cached_tokens"),
        )
        rest = {k: v for k, v in usage.items() if k not in ("tokens", "cached_tokens") and v is not None}
        return items + (self.unknown("usage", rest) if rest else [])

    def _error(self, data: dict[str, Any]) -> list[Item]:
        error = data.get("error")
        told = as_dict(error)
        message = as_text(told.get("message")) or as_text(error) or as_text(data.get("message")) or dump(error)
        return self.fail(as_text(told.get("type")) or as_text(told.get("code")) or "error", message)

    # -- its content

    def _content_start(self, data: dict[str, Any]) -> list[Item]:
        index, content = place(data.get("index"), self._last_content + 1), _told(data, "content")
        self._last_content = index
        self._content[index] = as_text(content.get("type")) or "text"
        return self._read_content(index, content, data)

    def _content_delta(self, data: dict[str, Any]) -> list[Item]:
        index = place(data.get("index"), max(self._last_content, 0))
        return self._read_content(index, _told(data, "content"), data)

    def _read_content(self, index: int, content: dict[str, Any], data: dict[str, Any]) -> list[Item]:
        """Which of the two it is, its own field says: text where there is any, else thinking."""
        kind = self._content.get(index)
        self._last_content = max(self._last_content, index)
        items: list[Item] = []
        if text := as_text(content.get("text")):
            self._last_text = index
            items.append(MessageDelta(text=text, round=self.round, index=self._place("content", index)))
        if thinking := as_text(content.get("thinking")):
            items.append(ReasoningDelta(text=thinking, round=self.round, index=self._place("content", index)))
        strange = kind not in (None, "text", "thinking") or not content.keys() <= {"type", "text", "thinking"}
        if strange or data.get("logprobs") is not None:
            items += self.unknown(as_text(data.get("type")), data)
        return items

    def _content_end(self, data: dict[str, Any]) -> list[Item]:
        self._content.pop(place(data.get("index"), self._last_content), None)
        return []

    def _citation_start(self, data: dict[str, Any]) -> list[Item]:
        citation = _told(data, "citations")
        if not citation or citation.get("type") not in (None, "TEXT_CONTENT"):
            return self.unknown("citation-start", data)
        index = place(citation.get("content_index"), self._last_text)
        return [Annotation(annotation=citation, round=self.round, index=self._place("content", index))]

    def _end_of_little(self, data: dict[str, Any]) -> list[Item]:
        """The end of what came whole."""
        return []

    # -- its calls

    def _plan_delta(self, data: dict[str, Any]) -> list[Item]:
        self._place("plan", 0)
        self._plan.append(as_text(as_dict(as_dict(data.get("delta")).get("message")).get("tool_plan")))
        return []

    def _tell_plan(self) -> list[Item]:
        plan, self._plan = "".join(self._plan), []
        return [self.block(self._place("plan", 0), {"type": "tool_plan", "tool_plan": plan})] if plan else []

    def _tool_start(self, data: dict[str, Any]) -> list[Item]:
        index, call = place(data.get("index"), self._last_tool + 1), _told(data, "tool_calls")
        self._last_tool = index
        self._tools[index] = self.call_id(as_text(call.get("id")))
        function = as_dict(call.get("function"))
        items = self._tell_plan()
        delta = ToolCallDelta(
            call_id=self._tools[index],
            name=as_text(function.get("name")),
            arguments=dump(function.get("arguments")),
            round=self.round,
            index=self._place("tool", index),
        )
        return [*items, delta]

    def _tool_delta(self, data: dict[str, Any]) -> list[Item]:
        index, call = place(data.get("index"), max(self._last_tool, 0)), _told(data, "tool_calls")
        arguments = dump(as_dict(call.get("function")).get("arguments"))
        if not arguments:
            return []
        if index not in self._tools:  # its start was lost: a call without a name, which nobody takes for a whole one
            self._last_tool = max(self._last_tool, index)
            self._tools[index] = self.call_id("")
        block = self._place("tool", index)
        return [ToolCallDelta(call_id=self._tools[index], arguments=arguments, round=self.round, index=block)]

    def _tool_end(self, data: dict[str, Any]) -> list[Item]:
        self._tools.pop(place(data.get("index"), self._last_tool), None)
        return []


def _told(data: dict[str, Any], field: str) -> dict[str, Any]:
    return as_dict(as_dict(as_dict(data.get("delta")).get("message")).get(field))


_EVENTS: dict[str, Callable[[CohereChat, dict[str, Any]], list[Item]]] = {
    "message-start": CohereChat._message_start,
    "content-start": CohereChat._content_start,
    "content-delta": CohereChat._content_delta,
    "content-end": CohereChat._content_end,
    "tool-plan-delta": CohereChat._plan_delta,
    "tool-call-start": CohereChat._tool_start,
    "tool-call-delta": CohereChat._tool_delta,
    "tool-call-end": CohereChat._tool_end,
    "citation-start": CohereChat._citation_start,
    "citation-end": CohereChat._end_of_little,
    "message-end": CohereChat._message_end,
    "error": CohereChat._error,
}
