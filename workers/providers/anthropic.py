"""Anthropic's messages API: ``message_start``, blocks with start, deltas and stop, ``message_delta``, ``message_stop``.

- The deltas of a block are its content. A tool's input may also stand whole in the block's start: that counts where
  no delta with text follows.
- Usage is cumulative, and the counts of ``message_delta`` replace those of ``message_start``, field by field. Its
  ``input_tokens`` leave out what was read from or written to the cache: ours have both. Counts of single iterations
  are details of the whole, or of work beside it (compaction): kept, never added.
- Blocks of tools that Anthropic runs itself, of their results, and of kinds yet unknown become ``provider.block``
  when they are whole; a compaction is a ``summary`` as well, a fallback an ``event fallback`` that renames the model.
- ``message_stop`` is the end. A block that was never closed is named in ``model.completed``.

Source: platform.claude.com/docs, “Streaming messages”, and the SDK's types. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from broker.items import Item
from workers.providers.anthropic_blocks import Blocks
from workers.providers.reading import as_count, as_dict, as_list, as_text, dump
from workers.providers.response import Response

__all__ = ["AnthropicMessages"]

_INPUT_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_COUNTS = frozenset({*_INPUT_COUNTS, "output_tokens"})
_READ = frozenset({"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "stop_details", "usage"})
"""Fields of the message, and of its delta, that the items say. All others go into one ``provider.event``."""


class AnthropicMessages(Response):
    """The adapter of ``anthropic.messages``. ``usage`` is declared cumulative."""

    api: ClassVar[str] = "anthropic.messages"

    def __init__(self, round: int = 1) -> None:
        super().__init__(round)
        self._blocks = Blocks(self)
        self._announced = False
        self._counts: dict[str, Any] = {}
        self._details: dict[str, Any] = {}
        self._stop: dict[str, Any] = {}

    def feed(self, event: str, data: Any) -> list[Item]:
        """One event → items; what comes behind an error is not read."""
        if self.error is not None:
            return []
        if not isinstance(data, dict):
            return self.unknown(event, data)
        kind = data.get("type") or event
        if not kind and data.get("error"):
            kind = "error"  # from a proxy that forgot to say so
        read = _EVENTS.get(kind) if isinstance(kind, str) else None
        if read is None or (self.completed and kind not in _READ_AFTER_END):
            return self.unknown(as_text(kind), data)
        return read(self, data)

    def close(self) -> list[Item]:
        """The end of the bytes; without ``message_stop`` the message is incomplete."""
        if self.completed:
            return []
        unclosed = self._blocks.unclosed()
        return [*self._blocks.close(), *self._tell_details(), *self.break_off(unclosed)]

    # -- the message

    def _message_start(self, data: dict[str, Any]) -> list[Item]:
        message = as_dict(data.get("message"))
        id = as_text(message.get("id"))
        if self._announced:
            return self._again(id)
        self._announced = True
        items = self.began(as_text(message.get("model")), id)
        self._describe(message, message)
        return items + self._count(message.get("usage")) + self._blocks.given(as_list(message.get("content")))

    def _again(self, id: str) -> list[Item]:
        """A proxy that repeats the start is harmless; one that starts another answer has spoiled both.

        Where an id is missing, content in between tells the second case from the first.
        """
        if id == self.id if id and self.id else not self._blocks.seen:
            return []
        return self.fail("corrupt_stream", f"message {id!r} begins inside of message {self.id!r}")

    def _message_delta(self, data: dict[str, Any]) -> list[Item]:
        delta = as_dict(data.get("delta"))
        self._describe(delta, {k: v for k, v in data.items() if k != "delta"} | delta)
        return self.began() + self._count(data.get("usage"))

    def _describe(self, told: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
        self.finish_reason = self.finish_reason or as_text(told.get("stop_reason")) or None
        for name in ("stop_sequence", "stop_details"):
            if told.get(name) is not None:
                self._stop[name] = told[name]
        # Empty ones say nothing, and would make an event of their own in each response.
        self._details |= {k: v for k, v in fields.items() if k not in _READ and v not in (None, [], {})}

    def _count(self, usage: Any) -> list[Item]:
        counts = as_dict(usage)
        if not counts:
            return []
        self._counts |= {name: count for name, count in counts.items() if count is not None}
        told = self._counts
        details = as_dict(told.get("output_tokens_details"))
        parts = [count for name in _INPUT_COUNTS if (count := as_count(told.get(name))) is not None]
        return self.usage.set(
            input_tokens=sum(parts) if "input_tokens" in told else None,
            output_tokens=told.get("output_tokens"),
            cache_read_tokens=told.get("cache_read_input_tokens"),
            cache_write_tokens=told.get("cache_creation_input_tokens"),
            reasoning_tokens=details.get("thinking_tokens"),
        )

    def _message_stop(self, data: dict[str, Any]) -> list[Item]:
        if self.completed:
            return []
        self._describe({}, data)  # Bedrock's own counts ride on it
        unclosed = self._blocks.unclosed()
        return [*self.began(), *self._blocks.close(), *self._tell_details(), *self.complete(unclosed, **self._stop)]

    def _block_start(self, data: dict[str, Any]) -> list[Item]:
        return self.began() + self._blocks.start(data)

    def _block_delta(self, data: dict[str, Any]) -> list[Item]:
        return self._blocks.delta(data) if self._began else self.began() + self._blocks.delta(data)

    def _block_stop(self, data: dict[str, Any]) -> list[Item]:
        return self.began() + self._blocks.stop(data)

    def _tell_details(self) -> list[Item]:
        """Once, at the end: container, service tier, iterations, edits of the context, and what else came along."""
        usage = {k: v for k, v in self._counts.items() if k not in _COUNTS and v not in (None, [], {})}
        details = self._details | ({"usage": usage} if usage else {})
        return self.unknown("message", details) if details else []

    def _ping(self, data: dict[str, Any]) -> list[Item]:
        return []

    def _error(self, data: dict[str, Any]) -> list[Item]:
        error = data.get("error")
        told = as_dict(error)
        code = as_text(told.get("type")) or as_text(told.get("code")) or "error"
        message = as_text(told.get("message")) or as_text(error) or as_text(data.get("message")) or dump(error)
        request_id = as_text(data.get("request_id"))
        return self.fail(code, message, **({"request_id": request_id} if request_id else {}))


_Reader = Callable[[AnthropicMessages, dict[str, Any]], list[Item]]
_EVENTS: dict[str, _Reader] = {
    "message_start": AnthropicMessages._message_start,
    "content_block_start": AnthropicMessages._block_start,
    "content_block_delta": AnthropicMessages._block_delta,
    "content_block_stop": AnthropicMessages._block_stop,
    "message_delta": AnthropicMessages._message_delta,
    "message_stop": AnthropicMessages._message_stop,
    "ping": AnthropicMessages._ping,
    "error": AnthropicMessages._error,
}
_READ_AFTER_END = frozenset({"ping", "message_start", "message_stop"})
