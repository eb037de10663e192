"""Ollama's chat: JSON lines, each with a fragment of the message; the line with ``done`` is the last.

- ``thinking`` is reasoning, ``content`` text; what follows one another of a kind is one block.
- Tool calls come whole, their arguments as an object. Most have no id. The ``index`` that some have counts per line
  or per message, with 0 left out, so it says nothing: each is a call of its own.
- Counts come once, on the last line. ``prompt_eval_count`` is missing there where the prompt was cached.
- ``done_reason`` is the finish reason, ``stop`` with tool calls too. An object with ``error`` ends the response.

Source: the API's documentation and its types in ollama/ollama. Pure.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import UNSET

from broker.items import Item, MessageDelta, ReasoningDelta, ToolCallDelta
from workers.providers.places import Places
from workers.providers.reading import as_dict, as_list, as_text, dump
from workers.providers.response import Response

__all__ = ["OllamaChat"]

_READ = frozenset(
    {"model", "created_at", "message", "response", "thinking", "done", "done_reason", "error", "logprobs"}
    | {"prompt_eval_count", "eval_count"}
)
_READ_OF_MESSAGE = frozenset({"role", "content", "thinking", "tool_calls"})


class OllamaChat(Response):
    """The adapter of ``ollama.chat``. ``usage`` comes once, and counts all."""

    api: ClassVar[str] = "ollama.chat"

    def __init__(self, round: int = 1) -> None:
        super().__init__(round)
        self._places = Places()
        self._details: dict[str, Any] = {}

    def feed(self, event: str, data: Any) -> list[Item]:
        """One line → items. Behind the last line, or an error, nothing belongs to the message."""
        if self.error is not None:
            return []
        if self.completed or not isinstance(data, dict):
            return self.unknown(event, data)
        items = self.began(as_text(data.get("model")))
        if data.get("error"):
            return items + self._error(data)
        # `/api/generate` has the same lines, but for the fragment's place.
        message = data.get("message") or {"content": data.get("response"), "thinking": data.get("thinking")}
        items += self._fragment(message) if isinstance(message, dict) else self.unknown("message", message)
        if data.get("logprobs"):
            items += self.unknown("logprobs", data["logprobs"])
        self._details |= {name: value for name, value in data.items() if name not in _READ}
        return items + (self._done(data) if data.get("done") is True else [])

    def close(self) -> list[Item]:
        """The end of the bytes; without a line with ``done`` the message is incomplete."""
        return [] if self.completed else self.break_off()

    def _error(self, data: dict[str, Any]) -> list[Item]:
        error = data["error"]
        told = as_dict(error)
        code = as_text(told.get("code")) or as_text(told.get("type")) or "provider_error"
        return self.fail(code, as_text(error) or as_text(told.get("message")) or dump(error))

    def _fragment(self, message: dict[str, Any]) -> list[Item]:
        items: list[Item] = []
        if thinking := as_text(message.get("thinking")):
            index = self._places.go_on("reasoning")
            items.append(ReasoningDelta(round=self.round, index=index, text=thinking))
        if content := as_text(message.get("content")):
            items.append(MessageDelta(round=self.round, index=self._places.go_on("text"), text=content))
        for call in as_list(message.get("tool_calls")):
            items += self._call(call)
        rest = {name: value for name, value in message.items() if name not in _READ_OF_MESSAGE and value}
        return [*items, self.block(self._places.alone(), rest)] if rest else items

    def _call(self, call: Any) -> list[Item]:
        told = as_dict(call)
        function = as_dict(told.get("function"))
        if not function:
            return self.unknown("tool_call", call)
        return [
            ToolCallDelta(
                round=self.round,
                index=self._places.alone(),
                call_id=self.call_id(as_text(told.get("id"))),
                name=as_text(function.get("name")) or UNSET,
                arguments=dump(function.get("arguments")),
            )
        ]

    def _done(self, data: dict[str, Any]) -> list[Item]:
        self.finish_reason = as_text(data.get("done_reason")) or None
        usage = self.usage.set(input_tokens=data.get("prompt_eval_count"), output_tokens=data.get("eval_count"))
        return [*usage, *self.complete(details=self._details or None)]
