"""One choice of a chat completion: its blocks, in the order in which they begin. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from broker.items import Annotation, Event, Item, MessageDelta, ReasoningDelta, RefusalDelta
from workers.providers.chat_calls import ChoiceCalls
from workers.providers.chat_snapshots import Snapshots
from workers.providers.reading import as_dict, as_list, as_text

__all__ = ["Choice"]

_CHOICE = frozenset({"index", "delta", "message", "finish_reason", "usage", "error", "native_finish_reason"})
_DELTA = frozenset(
    {
        "role",
        "content",
        "refusal",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "tool_calls",
        "function_call",
        "annotations",
    }
)
_STATE = frozenset({"content_filter_results", "channel", "stop_reason"})
"""Fields that some repeat in every chunk: told when they change."""


class Choice:
    """``feed`` takes an entry of ``choices``. ``finish_reason`` is the first that came, ``facts`` what stands by it."""

    def __init__(self, round: int, number: int, *, snapshots: bool = False) -> None:
        self.finish_reason: str | None = None
        self.facts: dict[str, Any] = {}
        self._round, self._number = round, number
        self._choice: int | UnsetType = number or UNSET
        self._places: dict[Any, int] = {}
        self._calls = ChoiceCalls(round, number, self._new_place)
        self._state: dict[str, Any] = {}
        self._snapshots = Snapshots(round, number) if snapshots else None

    def feed(self, told: dict[str, Any]) -> list[Item]:
        # A whole completion, not streamed, has a `message`. Beside a delta it is the same again, or all so far.
        delta = as_dict(told["delta"] if "delta" in told else told.get("message"))
        items = self._delta(delta)
        if not self.finish_reason and (reason := as_text(told.get("finish_reason"))):
            self.finish_reason = reason
            if native := told.get("native_finish_reason"):
                self.facts["native_finish_reason"] = native
            items += self._calls.close()
        items += self._extras(told, _CHOICE)
        items += self._extras(delta, _DELTA)
        return self._snapshots.read(items) if self._snapshots else items

    def close(self) -> list[Item]:
        items = self._calls.close()
        return self._snapshots.read(items) if self._snapshots else items

    def whole(self, fields: dict[str, Any]) -> list[Item]:
        """Where snapshots did not grow out of one another: the last of them as the message, with ``fields``."""
        return self._snapshots.whole(fields) if self._snapshots else []

    def text_index(self) -> int:
        return self._place("text")

    def _delta(self, delta: dict[str, Any]) -> list[Item]:
        items: list[Item] = []
        if delta.get("reasoning_details") or delta.get("reasoning_content") or delta.get("reasoning"):
            items += self._reasoning(delta)
        if content := delta.get("content"):
            items += self._content(content)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            items.append(RefusalDelta(**self._at("refusal"), text=refusal))
        if calls := delta.get("tool_calls"):
            items += self._calls.fragments(as_list(calls))
        if call := delta.get("function_call"):
            items += self._calls.legacy(as_dict(call))
        if annotations := delta.get("annotations"):
            items += [Annotation(**self._at("text"), annotation=a) for a in as_list(annotations)]
        return items

    def _content(self, content: Any) -> list[Item]:
        if isinstance(content, str):
            return [MessageDelta(round=self._round, index=self._place("text"), choice=self._choice, text=content)]
        return [item for part in as_list(content) for item in self._part(part)]

    def _part(self, part: Any) -> list[Item]:
        """Content as a list of typed parts: Mistral's models behind a compatible server."""
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        told = as_dict(part)
        kind, text = told.get("type"), as_text(told.get("text"))
        if kind == "text":
            return [MessageDelta(**self._at("text"), text=text)] if text else []
        if kind == "refusal" and (refusal := as_text(told.get("refusal"))):
            return [RefusalDelta(**self._at("refusal"), text=refusal)]
        thought = told.get("thinking") or told.get("reasoning")
        if isinstance(thought, list):
            thought = "".join(as_text(as_dict(p).get("text")) for p in thought)
        if kind in ("thinking", "reasoning") and isinstance(thought, str):
            return [ReasoningDelta(**self._at("reasoning"), text=thought)] if thought else []
        return [self._event({"data": {"content": part}})]

    def _reasoning(self, delta: dict[str, Any]) -> list[Item]:
        items: list[Item] = []
        if details := delta.get("reasoning_details"):
            items = [item for d in as_list(details) if (item := self._detail(as_dict(d))) is not None]
            if any(isinstance(item, ReasoningDelta) and item.text for item in items):
                return items  # `reasoning` has the same text once more
        text = as_text(delta.get("reasoning_content")) or as_text(delta.get("reasoning"))
        if not text:
            return items
        index = self._place("reasoning")
        return [ReasoningDelta(round=self._round, index=index, choice=self._choice, text=text), *items]

    def _detail(self, detail: dict[str, Any]) -> Item | None:
        kind = as_text(detail.get("type"))
        text = as_text(detail.get("text")) or as_text(detail.get("summary"))
        signature, data = as_text(detail.get("signature")), detail.get("data")
        if not text and not signature and data is None:
            return None
        at = self._at(("reasoning", kind, str(detail.get("index"))))
        redacted = UNSET if data is None else data
        return ReasoningDelta(**at, text=text, signature=signature or UNSET, redacted=redacted)

    def _extras(self, told: dict[str, Any], known: frozenset[str]) -> list[Item]:
        """Fields that no item has: log probabilities, a filter's verdict, audio."""
        extras: dict[str, Any] = {}
        for name, value in told.items():
            if name not in known and value is not None and not _hollow(value) and self._is_news(name, value):
                extras[name] = value
        return [self._event({"data": extras})] if extras else []

    def _is_news(self, name: str, value: Any) -> bool:
        if name not in _STATE:
            return True
        news = bool(self._state.get(name) != value)
        self._state[name] = value
        return news

    def _event(self, facts: dict[str, Any]) -> Event:
        choice = {"choice": self._number} if self._number else {}
        return Event(name="provider.event", payload={"round": self._round, **choice, **facts})

    def _at(self, slot: Any) -> dict[str, Any]:
        return {"round": self._round, "index": self._place(slot), "choice": self._choice}

    def _place(self, slot: Any) -> int:
        place = self._places.get(slot)
        return self._new_place(slot) if place is None else place

    def _new_place(self, slot: Any = None) -> int:
        place = len(self._places)
        self._places[place if slot is None else slot] = place
        return place


def _hollow(value: Any, depth: int = 0) -> bool:
    """Nothing is said: null, or a small structure of nothing but nulls."""
    if isinstance(value, dict) and depth < 3:
        return all(_hollow(v, depth + 1) for v in value.values())
    return value is None or value == [] or value == ""
