"""OpenAI's Responses API, and what speaks like it: the events of one response → items.

- Parts belong together by ``output_index`` (some proxies change ``item_id`` from event to event); without one by id,
  else to the latest item. Each part of a message and of a reasoning item, and each call, is a block of its own.
- A call's id is ``call_id``; one left out is the item's id, else made. Free text for a custom tool is no JSON.
- ``encrypted_content`` is the signature of the item's last reasoning block. It is taken from the finished item only.
- The snapshots (``….done`` and the terminal event) are authoritative in what they say: see ``responses_draft``. A
  completed response that has output has no blocks but those, save reasoning, which some servers leave out of it.
- What the provider runs itself (searches, code, MCP, images) and every item that is not known here is an ``event
  provider.block`` once it is whole, and ``provider.event`` on its way.
- ``finish_reason`` is the response's status; where it is incomplete with the reason: ``incomplete:max_output_tokens``.
- Usage is cumulative; input includes cached tokens and output reasoning.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from broker.items import Event, Item
from workers.providers.reading import as_count, as_dict, as_list, as_text, dump
from workers.providers.response import Response
from workers.providers.responses_draft import Draft
from workers.providers.responses_output import CALLS, PARTS, Outputs

__all__ = ["OpenAIResponses"]

_TERMINAL = ("completed", "incomplete", "failed", "cancelled")
_IN_BLOCKS = frozenset({"content", "summary", "encrypted_content", "arguments", "input"})
"""Fields of an item that its blocks have."""


class OpenAIResponses(Response):
    """Reads one response. A second ``response.created`` with another id is two responses in one: corrupt."""

    api: ClassVar[str] = "openai.responses"

    def __init__(self, round: int = 1) -> None:
        super().__init__(round)
        self._draft = Draft(round)
        self._outputs = Outputs(self._draft, self)
        self._created = self._over = False
        self._tier: str | None = None
        self._sequence: int | None = None
        self._gap_told = False

    def feed(self, event: str, data: Any) -> list[Item]:
        if not isinstance(data, dict):
            return self.unknown(event, data)
        kind = data.get("type")
        if not isinstance(kind, str):
            kind = event or ("error" if "error" in data else "")
            data = {**data, "type": kind}
        items = self._check_sequence(data)
        if not self._began:
            self._describe(as_dict(data.get("response")))
            items += self.began()
        handler = None if self._over else _HANDLERS.get(kind)
        items += self.unknown(kind, data) if handler is None else handler(self, data)
        return items

    def close(self) -> list[Item]:
        if self.completed:
            return []
        return [*self._outputs.flush(), *self._draft.settle(model=self.model, incomplete=True), *self.break_off()]

    # -- the response as a whole

    def _describe(self, response: dict[str, Any]) -> None:
        self.id = self.id or as_text(response.get("id")) or None
        self.model = self.model or as_text(response.get("model")) or None

    def _check_sequence(self, data: dict[str, Any]) -> list[Item]:
        """A hole in the numbers is told once. They are trusted for no more: some servers send one number throughout."""
        number, last = as_count(data.get("sequence_number")), self._sequence
        if number is None:
            return []
        self._sequence = number
        if self._gap_told or last is None or number <= last + 1:
            return []
        self._gap_told = True
        message = f"the stream's events {last + 1} to {number - 1} did not arrive"
        return [Event(name="warning", payload={"round": self.round, "code": "sequence_gap", "message": message})]

    def _lifecycle(self, data: dict[str, Any]) -> list[Item]:
        response = as_dict(data.get("response"))
        id = as_text(response.get("id"))
        if data["type"] == "response.created":
            if self._created and id != self.id:
                self._over = True
                return self.fail("corrupt_stream", f"a second response, {id[:80]!r}, began inside the first")
            self._created = True
        self._describe(response)
        return self._count(response)

    def _count(self, response: dict[str, Any]) -> list[Item]:
        usage = as_dict(response.get("usage"))
        given, made = as_dict(usage.get("input_tokens_details")), as_dict(usage.get("output_tokens_details"))
        return self.usage.set(
            input_tokens=usage.get("input_tokens"),
            output_tokens=usage.get("output_tokens"),
            cache_read_tokens=given.get("cached_tokens"),
            cache_write_tokens=given.get("cache_write_tokens"),
            reasoning_tokens=made.get("reasoning_tokens"),
        )

    def _terminal(self, data: dict[str, Any]) -> list[Item]:
        response = as_dict(data.get("response"))
        status = as_text(data["type"]).removeprefix("response.")
        reason = as_text(as_dict(response.get("incomplete_details")).get("reason"))
        self.finish_reason = f"{status}:{reason}" if status == "incomplete" and reason else status
        self._describe(response)
        self._tier = as_text(response.get("service_tier")) or None
        items = self._outputs.snapshot(as_list(response.get("output")), whole=status == "completed")
        items += self._outputs.flush()
        self._draft.reorder()
        items += self._draft.settle(finish_reason=self.finish_reason, model=self.model)
        return [*items, *self._count(response), *self._finish(status, response.get("error"))]

    def _finish(self, status: str, error: Any) -> list[Item]:
        self._over = True
        broken = status in ("failed", "cancelled")
        items = self.fail(*_error_of(error, f"response_{status}")) if broken or error else []
        return items + self.complete(incomplete=True if broken else None, service_tier=self._tier)

    def _error(self, data: dict[str, Any]) -> list[Item]:
        return self.fail(*_error_of(data.get("error") or data, "provider_error"))

    # -- its items and their parts

    def _item_added(self, data: dict[str, Any]) -> list[Item]:
        item = as_dict(data.get("item"))
        if not item:
            return self.unknown(data["type"], data)
        type, id = as_text(item.get("type")), as_text(item.get("id"))
        output = self._outputs.find(data, type, id)
        if output.declared and (output.type, output.id) != (type, id):
            output = self._outputs.add(as_count(data.get("output_index")), type, id)  # the place was another item's
        output.type, output.declared = type, True
        if type in CALLS:
            output.seed = dump(item.get(CALLS[type][1]))
            return self._outputs.begin_call(output, item)
        if type in ("message", "reasoning"):
            return []
        self._outputs.reserve(output)
        return self.unknown(data["type"], data)

    def _item_done(self, data: dict[str, Any]) -> list[Item]:
        item = as_dict(data.get("item"))
        if not item:
            return self.unknown(data["type"], data)
        type = as_text(item.get("type"))
        output = self._outputs.find(data, type, as_text(item.get("id")))
        output.type, output.declared = type, True
        items = self._outputs.agree(output, item, set())
        if type in CALLS or type in ("message", "reasoning"):
            # Its id and phase have no place in a block, and a stateless caller has to send them back.
            rest = {name: value for name, value in item.items() if name not in _IN_BLOCKS}
            items += self.unknown(data["type"], {"output_index": output.place[0], "item": rest})
        return items

    def _part_added(self, data: dict[str, Any]) -> list[Item]:
        part = as_dict(data.get("part"))
        kind, field = PARTS.get(as_text(part.get("type")), ("", ""))
        if not kind:
            return []
        block = self._outputs.block(self._outputs.find(data), kind, _place(data))
        return self._draft.append(block, as_text(part.get(field)))

    def _part_done(self, data: dict[str, Any]) -> list[Item]:
        return self._outputs.agree_part(self._outputs.find(data), _place(data), data.get("part"), set())

    def _annotation(self, data: dict[str, Any]) -> list[Item]:
        block = self._outputs.block(self._outputs.find(data), "text", _place(data))
        return self._draft.annotate(block, data.get("annotation"))

    def _delta(self, kind: str, data: dict[str, Any]) -> list[Item]:
        text = data.get("delta")
        if not isinstance(text, str):
            return self.unknown(data["type"], data)
        block = self._outputs.block(self._outputs.find(data), kind, _place(data))
        items = self._draft.append(block, text)
        if data.get("logprobs"):
            payload = {"round": self.round, "index": block.index, "event": "logprobs", "data": data["logprobs"]}
            items.append(Event(name="provider.event", payload=payload))
        return items

    def _done(self, kind: str, field: str, data: dict[str, Any]) -> list[Item]:
        value = data.get(field)
        block = self._outputs.block(self._outputs.find(data), kind, _place(data))
        return self._draft.agree(block, dump(value) if kind in ("call", "custom") else as_text(value))


def _place(data: dict[str, Any]) -> int:
    """A part's place within its item."""
    n = data.get("content_index")
    return as_count(data.get("summary_index") if n is None else n) or 0


def _error_of(value: Any, code: str) -> tuple[str, str]:
    """An error, in whatever shape → code and message. ``code`` is for one that has none."""
    told = as_dict(value)
    type = as_text(told.get("type"))
    own = told.get("code")
    named = as_text(own) or (str(own) if as_count(own) is not None else "") or ("" if type == "error" else type)
    return named or code, as_text(told.get("message")) or as_text(value) or "the provider said no more"


_Handler: TypeAlias = Callable[[OpenAIResponses, dict[str, Any]], list[Item]]


def _delta_of(kind: str) -> _Handler:
    return lambda adapter, data: adapter._delta(kind, data)


def _done_of(kind: str, field: str) -> _Handler:
    return lambda adapter, data: adapter._done(kind, field, data)


_HANDLERS: dict[str, _Handler] = {
    "error": OpenAIResponses._error,
    "response.created": OpenAIResponses._lifecycle,
    "response.queued": OpenAIResponses._lifecycle,
    "response.in_progress": OpenAIResponses._lifecycle,
    "response.output_item.added": OpenAIResponses._item_added,
    "response.output_item.done": OpenAIResponses._item_done,
    "response.content_part.added": OpenAIResponses._part_added,
    "response.content_part.done": OpenAIResponses._part_done,
    "response.reasoning_summary_part.added": OpenAIResponses._part_added,
    "response.reasoning_summary_part.done": OpenAIResponses._part_done,
    "response.output_text.annotation.added": OpenAIResponses._annotation,
    "response.output_text.delta": _delta_of("text"),
    "response.output_text.done": _done_of("text", "text"),
    "response.refusal.delta": _delta_of("refusal"),
    "response.refusal.done": _done_of("refusal", "refusal"),
    "response.reasoning_summary_text.delta": _delta_of("summary"),
    "response.reasoning_summary_text.done": _done_of("summary", "text"),
    "response.reasoning_text.delta": _delta_of("reasoning"),
    "response.reasoning_text.done": _done_of("reasoning", "text"),
    "response.reasoning.delta": _delta_of("reasoning"),
    "response.reasoning.done": _done_of("reasoning", "text"),
    "response.function_call_arguments.delta": _delta_of("call"),
    "response.function_call_arguments.done": _done_of("call", "arguments"),
    "response.custom_tool_call_input.delta": _delta_of("custom"),
    "response.custom_tool_call_input.done": _done_of("custom", "input"),
    **{f"response.{status}": OpenAIResponses._terminal for status in _TERMINAL},
}
