"""Mistral's chat API: the chunks of OpenAI's chat completions, with content that may be a list of parts.

- Content is text as a string, or a list of text, thinking (a list in itself), reference and media parts; both within
  one answer. Each change between text, thinking and calls begins a new content block.
- Tool calls come whole or in fragments, with or without an index; an empty name, and ``"null"`` for an id, say nothing.
- Usage is cumulative; ``prompt_tokens`` include those that were read from the cache.
- A choice ends with its finish reason; ``[DONE]`` ends them all. Usage can stand between the two.

Source: docs.mistral.ai, “Chat completion API”, and the SDK's types. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import UNSET, UnsetType

from broker.items import Annotation, Event, Item, MessageDelta, ReasoningDelta
from workers.providers.chat_calls import ChoiceCalls
from workers.providers.decoding import DONE
from workers.providers.places import Places
from workers.providers.reading import as_dict, as_list, as_text, dump
from workers.providers.response import Response, place

__all__ = ["MistralChat"]

_READ = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "p"})
"""Fields of a chunk that the items say, or that say nothing (``p`` is padding). Others are kept as they are."""
_READ_OF_DELTA = frozenset({"role", "content", "tool_calls", "index"})
_READ_OF_USAGE = frozenset({"prompt_tokens", "completion_tokens", "total_tokens", "num_cached_tokens"})
_EMPTY: tuple[Any, ...] = (None, "", [], {})


class _Choice:
    """One choice: which block is under way, and how it ended."""

    def __init__(self, round: int, number: int) -> None:
        self.round = round
        self.number = number
        self.finish_reason: str | None = None
        self._choice: int | UnsetType = number or UNSET
        self._places = Places()
        self.calls = ChoiceCalls(round, number, self._places.alone)

    def text(self, text: str) -> list[Item]:
        if not text:
            return []
        return [MessageDelta(text=text, round=self.round, index=self._places.go_on("text"), choice=self._choice)]

    def thinking(self, text: str, signature: str) -> list[Item]:
        if not (text or signature):
            return []
        index, told = self._places.go_on("thinking"), signature or UNSET
        return [ReasoningDelta(text=text, signature=told, round=self.round, index=index, choice=self._choice)]

    def reference(self, part: dict[str, Any]) -> list[Item]:
        """It belongs to the text before it."""
        index = self._places.go_on("text") if self._places.text is None else self._places.text
        return [Annotation(annotation=part, round=self.round, index=index, choice=self._choice)]

    def strange(self, part: Any, *, thought: bool = False) -> Event:
        """A part of no kind that an item fits; one within a thought does not break it in two."""
        index = self._places.go_on("thinking") if thought else self._places.alone()
        payload = {"round": self.round, "index": index, "block": part}
        return Event(name="provider.block", payload=payload | ({"choice": self.number} if self.number else {}))


class MistralChat(Response):
    """The adapter of ``mistral.chat``. ``usage`` is declared cumulative."""

    api: ClassVar[str] = "mistral.chat"
    hears_done: ClassVar[bool] = True

    def __init__(self, round: int = 1) -> None:
        super().__init__(round)
        self._choices: dict[int, _Choice] = {}
        self._done = False

    def feed(self, event: str, data: Any) -> list[Item]:
        """One chunk → items; what comes behind an error is not read."""
        if self.error is not None:
            return []
        if event == DONE:
            self._done = True
            return self.close()
        if not isinstance(data, dict) or self.completed:
            return self.unknown(event, data)
        if data.get("error") is not None or data.get("object") == "error" or event == "error":
            return self._error(data)
        items = self.began(as_text(data.get("model")), as_text(data.get("id")))
        for entry in as_list(data.get("choices")):
            items += self._read_choice(as_dict(entry))
        if data.get("usage"):
            items += self._count(as_dict(data["usage"]))
        rest = {k: v for k, v in data.items() if k not in _READ and v not in _EMPTY}
        return items + (self.unknown(event, rest) if rest else []) + self._given_up()

    def close(self) -> list[Item]:
        """The end of the bytes; a choice without its finish reason is incomplete, unless ``[DONE]`` has come."""
        if self.completed:
            return []
        items = self.began()
        choices = [self._choices[number] for number in sorted(self._choices)] or [_Choice(self.round, 0)]
        whole = {choice.number: bool(self._done or choice.finish_reason) for choice in choices}
        if not all(whole.values()):
            self.miss_end()
        self.completed = True
        for choice in choices:
            items += choice.calls.close()
            cut = None if whole[choice.number] and self.error is None else True
            items.append(self.ended(choice.finish_reason, choice.number, incomplete=cut))
        return items

    def _given_up(self) -> list[Item]:
        """Told as a finish reason of its own. It is looked at last: usage may stand in the same chunk."""
        if not any(choice.finish_reason == "error" for choice in self._choices.values()):
            return []
        return self.fail("error", "the generation ended with the finish reason “error”")

    def _error(self, data: dict[str, Any]) -> list[Item]:
        error = data.get("error")
        told = as_dict(error) or data
        message = as_text(told.get("message")) or as_text(error) or dump(told.get("message") or told)
        code = as_text(told.get("code")) or as_text(told.get("type")) or "error"
        return self.fail(code, message)

    # -- a choice

    def _read_choice(self, entry: dict[str, Any]) -> list[Item]:
        number = place(entry.get("index"), 0)
        choice = self._choices.get(number)
        if choice is None:
            choice = self._choices[number] = _Choice(self.round, number)
        delta = as_dict(entry.get("delta")) or as_dict(entry.get("message"))
        items = self._content(choice, delta.get("content"))
        if calls := as_list(delta.get("tool_calls")):
            items += choice.calls.fragments([_named(call) for call in calls])
        choice.finish_reason = choice.finish_reason or as_text(entry.get("finish_reason")) or None
        rest = {k: v for k, v in delta.items() if k not in _READ_OF_DELTA and v not in _EMPTY}
        rest |= {"logprobs": entry["logprobs"]} if entry.get("logprobs") else {}
        return items + (self.unknown("delta", {"choice": number, **rest}) if rest else [])

    def _content(self, choice: _Choice, content: Any) -> list[Item]:
        if isinstance(content, str):
            return choice.text(content)
        items: list[Item] = []
        for part in as_list(content):
            kind = as_dict(part).get("type")
            read = _PARTS.get(kind) if isinstance(kind, str) else None
            items += read(choice, part) if read is not None else _other(choice, part)
        return items

    def _count(self, usage: dict[str, Any]) -> list[Item]:
        details = as_dict(usage.get("prompt_tokens_details")) or as_dict(usage.get("prompt_token_details"))
        written = as_dict(usage.get("completion_tokens_details"))
        items = self.usage.set(
            input_tokens=usage.get("prompt_tokens"),
            output_tokens=usage.get("completion_tokens"),
            cache_read_tokens=details.get("cached_tokens", usage.get("num_cached_tokens")),
            reasoning_tokens=written.get("reasoning_tokens"),
        )
        rest = {k: v for k, v in usage.items() if k not in _READ_OF_USAGE and v not in _EMPTY}
        rest = {k: v for k, v in rest.items() if not k.endswith("_details")}
        return items + (self.unknown("usage", rest) if rest else [])


def _named(call: Any) -> Any:
    """Mistral's own clients write the string ``null`` where there is no id."""
    return {**call, "id": None} if isinstance(call, dict) and call.get("id") == "null" else call


def _text(choice: _Choice, part: dict[str, Any]) -> list[Item]:
    return choice.text(as_text(part.get("text")))


def _thinking(choice: _Choice, part: dict[str, Any]) -> list[Item]:
    thinking = part.get("thinking")
    if isinstance(thinking, str):
        return choice.thinking(thinking, as_text(part.get("signature")))
    items: list[Item] = []
    for piece in as_list(thinking):
        text = as_dict(piece).get("text")
        items += choice.thinking(text, "") if isinstance(text, str) else [choice.strange(piece, thought=True)]
    return items + choice.thinking("", as_text(part.get("signature")))


def _reference(choice: _Choice, part: dict[str, Any]) -> list[Item]:
    return choice.reference(part)


def _other(choice: _Choice, part: Any) -> list[Item]:
    return choice.text(part) if isinstance(part, str) else [choice.strange(part)]


_PARTS: dict[str, Callable[[_Choice, dict[str, Any]], list[Item]]] = {
    "text": _text,
    "thinking": _thinking,
    "reference": _reference,
}
