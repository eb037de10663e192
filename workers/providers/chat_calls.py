"""Which fragment belongs to which tool call, for the chat completions API and those who copy it.

Whoever sends a fragment may leave out its index, its id, its name, or repeat them. The rules (docs/merging.md):

- A call is its index. Another id on a used index is another call. Without an index the id counts, and without an id
  it is the call under way, unless the fragment can only begin a new one.
- An id or name that comes again is ignored. Fragments of a name join as long as no argument has come.
- Each delta has its call's id. Where that did not come yet the deltas wait for it, at most until the next call or the
  end; then it is made from the call's place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from broker.arguments import parse_arguments
from broker.items import Item, ToolCallDelta
from workers.providers.reading import as_count, as_dict, as_text, dump

__all__ = ["ChoiceCalls"]


class _Call:
    __slots__ = ("chunk", "id", "index", "indexed", "known", "made_id", "name", "text", "waiting")

    def __init__(self, index: int, made_id: str) -> None:
        self.index, self.made_id = index, made_id
        self.id = ""
        self.indexed = False
        """The provider gave it an index."""
        self.known = False
        """The id is settled, be it the provider's or the made one."""
        self.name = ""
        self.text: list[str] = []
        self.chunk = 0
        """The last chunk that had a part of it."""
        self.waiting: list[ToolCallDelta] = []

    def is_complete(self) -> bool:
        text = "".join(self.text)
        return text.rstrip().endswith("}") and parse_arguments(text).error is None

    def flush(self) -> list[Item]:
        self.known = True
        id = self.id or self.made_id
        items: list[Item] = [d if d.call_id == id else replace(d, call_id=id) for d in self.waiting]
        self.waiting = []
        return items


class ChoiceCalls:
    """The calls of one choice. ``place`` gives the index of a new content block."""

    def __init__(self, round: int, choice: int, place: Callable[[], int]) -> None:
        self._round, self._place = round, place
        self._choice: int | UnsetType = choice or UNSET
        self._made_ids = f"call_{round}_{choice}_" if choice else f"call_{round}_"
        self._count = 0
        self._unsettled: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str | tuple[int, str], _Call] = {}
        self._latest: _Call | None = None
        self._legacy: _Call | None = None
        self._chunk = 0

    def fragments(self, entries: list[Any]) -> list[Item]:
        """One chunk's ``tool_calls`` → items."""
        self._chunk += 1
        return [item for entry in entries if isinstance(entry, dict) for item in self._fragment(entry)]

    def legacy(self, told: dict[str, Any]) -> list[Item]:
        """``function_call``, of before there were tools: one call, never with an id."""
        opens = self._legacy is None
        call = self._legacy = self._legacy or self._open()
        self._chunk += 1
        self._extend(call, as_text(told.get("name")), dump(told.get("arguments")), UNSET, opens=opens)
        return call.flush()

    def close(self) -> list[Item]:
        """What still waits for an id."""
        waiting, self._unsettled = self._unsettled, []
        return [item for call in waiting for item in call.flush()]

    def _fragment(self, entry: dict[str, Any]) -> list[Item]:
        custom = as_dict(entry.get("custom"))
        told = as_dict(entry.get("function")) or custom
        id, name = _id(entry.get("id")), as_text(told.get("name"))
        count, others = self._count, self._unsettled
        call = self._find(as_count(entry.get("index")), id, name)
        items: list[Item] = []
        if opens := self._count > count:
            items = [item for other in others for item in other.flush()]
            self._unsettled = [call]
        if not call.known:
            call.id = call.id or id
        text = dump(told.get("input") if custom else told.get("arguments"))
        self._extend(call, name, text, _signature(entry), opens=opens, custom=bool(custom))
        return items + (call.flush() if call.id or call.known else [])

    def _find(self, index: int | None, id: str, name: str) -> _Call:
        call = self._without_index(id, name) if index is None else self._with_index(index, id, name)
        if call is None:
            call = self._open()
        if index is not None:
            call.indexed = True
            self._by_index[index] = call
            self._by_id.setdefault((index, id), call)
        if id:
            self._by_id.setdefault(id, call)
        self._latest = call
        return call

    def _with_index(self, index: int, id: str, name: str) -> _Call | None:
        call = self._by_index.get(index)
        if call is None:  # one that began without an index, and has got one since
            begun = self._by_id.get(id) if id else None if name else self._latest
            return begun if begun is not None and not begun.indexed else None
        if id and call.id not in ("", id):
            return self._by_id.get((index, id))
        return call

    def _without_index(self, id: str, name: str) -> _Call | None:
        call = self._latest
        if id:
            return self._by_id.get(id)
        if call is None or not name:
            return call
        begins = call.chunk == self._chunk or (call.text and (name != call.name or call.is_complete()))
        return None if begins else call

    def _open(self) -> _Call:
        self._count += 1
        return _Call(self._place(), f"{self._made_ids}{self._count}")

    def _extend(
        self, call: _Call, name: str, text: str, signature: str | UnsetType, *, opens: bool, custom: bool = False
    ) -> None:
        call.chunk = self._chunk
        if name == call.name or (call.name and call.text):
            name = ""
        call.name += name
        if text:
            call.text.append(text)
        if not (name or text or signature or opens):
            return
        delta = ToolCallDelta(
            round=self._round,
            index=call.index,
            choice=self._choice,
            call_id=call.id or call.made_id,
            name=name or UNSET,
            arguments=text,
            kind="custom" if custom and opens else UNSET,
            signature=signature,
        )
        call.waiting.append(delta)


def _id(value: Any) -> str:
    """Some number their calls instead of naming them."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else as_text(value)


def _signature(entry: dict[str, Any]) -> str | UnsetType:
    """Gemini's signature of a call, in its compatible mode."""
    google = as_dict(as_dict(entry.get("extra_content")).get("google"))
    return as_text(google.get("thought_signature")) or UNSET
