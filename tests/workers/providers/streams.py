"""Events of a provider, as its tests write them → what an adapter and the merge make of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from broker.items import Event, Item, Usage, decode, encode
from broker.merge import Merger
from workers.providers import get_adapter
from workers.providers.adapter import Adapter, ProviderError
from workers.providers.stream import ProviderStream

COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")


@dataclass(frozen=True)
class Told:
    """``items`` in their order, and the message of round ``round`` as the merge has it."""

    items: list[Item]
    message: dict[str, Any] | None
    usage: dict[str, int | None] | None
    error: ProviderError | None

    def of(self, kind: type[Item]) -> list[Any]:
        return [item for item in self.items if isinstance(item, kind)]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [item.payload for item in self.items if isinstance(item, Event) and item.name == name]

    @property
    def content(self) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = (self.message or {"content": []})["content"]
        return blocks

    @property
    def end(self) -> dict[str, Any]:
        """What the one ``model.completed`` says."""
        (payload,) = self.events("model.completed")
        return payload


def read(api: str, events: Iterable[Any], *, round: int = 1, close: bool = True) -> Told:
    """Decoded events, each the data alone or ``(name, data)``."""
    adapter: Adapter = get_adapter(api)(round)
    items: list[Item] = []
    for event in events:
        name, data = event if isinstance(event, tuple) else ("", event)
        items += adapter.feed(name, data)
    if close:
        items += adapter.close()
    return told(items, adapter.error, round)


def told(items: list[Item], error: ProviderError | None, round: int = 1) -> Told:
    merger = Merger()
    for item in items:
        merger.add(item)
    return Told(items, merger.message(round), merger.usage, error)


def sse(events: Iterable[dict[str, Any]], *, named: bool = True) -> bytes:
    """Server-sent events; ``named`` after their type."""
    head = "event: {}\n" if named else ""
    return b"".join(f"{head.format(e.get('type'))}data: {json.dumps(e)}\n\n".encode() for e in events)


def lines(events: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(e).encode() + b"\n" for e in events)


def split(api: str, stream: bytes, cuts: Iterable[int]) -> list[Item]:
    """The stream in pieces that begin at ``cuts`` → its items."""
    reader = ProviderStream(get_adapter(api)(1))
    places = [0, *sorted(cuts), len(stream)]
    items = [item for a, b in itertools.pairwise(places) for item in reader.feed(stream[a:b])]
    return items + reader.close()


def strange(names: Iterable[str], values: Iterable[Any]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Events that look like a provider's without being any: its names and words, put together by chance."""
    words = sorted({*names, *(v for v in values if isinstance(v, str))})
    numbers = st.one_of(st.integers(-2, 4), st.sampled_from([2**31, 2**53, 2**70, -1]), st.floats())
    leaves = st.one_of(st.sampled_from(words), st.text(max_size=3), numbers, st.booleans(), st.none())
    data = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from(words), inner, max_size=6), st.lists(inner, max_size=3)
        ),
        max_leaves=25,
    )
    return st.lists(st.tuples(st.sampled_from(["", *words]), data), max_size=12)


def mutated(events: list[dict[str, Any]]) -> st.SearchStrategy[list[Any]]:
    """A right stream with events left out, repeated and exchanged, and values replaced within them."""
    paths = [(n, path) for n, event in enumerate(events) for path in _paths(event)]
    odd: st.SearchStrategy[Any] = st.sampled_from(
        [None, True, -1, 7, 2**70, 1.5, "", "x", [], [1], [[]], {}, {"type": 3}, {"text": ["a"]}]
    )
    changes = st.lists(st.tuples(st.sampled_from(paths), odd), max_size=4)
    order = st.lists(st.integers(0, len(events) - 1), max_size=len(events) + 4)
    return st.builds(lambda told, places: _mutate(events, told, places), changes, st.one_of(st.none(), order))


def keys(events: Iterable[Any]) -> set[str]:
    """The names of all fields in the events."""
    return {step for event in events for path in _paths(event) for step in path if isinstance(step, str)}


def words(value: Any) -> set[str]:
    """All strings in the events that are no texts: types, roles, reasons, ids."""
    if isinstance(value, str):
        return {value} if value.isascii() and " " not in value and len(value) < 40 else set()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {word for v in inner for word in words(v)}


def _paths(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return ([way] if way else []) + [path for key, v in inner for path in _paths(v, (*way, key))]


def _mutate(events: list[dict[str, Any]], changes: list[Any], places: list[int] | None) -> list[Any]:
    copies: list[Any] = json.loads(json.dumps(events))
    for (n, path), value in changes:
        target = copies[n]
        for key in path[:-1]:
            target = target[key] if isinstance(target, (dict, list)) and _has(target, key) else None
        if isinstance(target, (dict, list)) and _has(target, path[-1]):
            target[path[-1]] = value
    return copies if places is None else [copies[place] for place in places]


def _has(target: Any, key: Any) -> bool:
    return key in target if isinstance(target, dict) else isinstance(key, int) and key < len(target)


def check(api: str, events: Iterable[Any]) -> None:
    """What holds for any events whatsoever."""
    result = read(api, events)
    first = result.items[0]
    assert isinstance(first, Event)
    assert first.name == "model.started"
    assert len(result.events("model.started")) == 1
    completed = result.events("model.completed")
    assert len({payload.get("choice", 0) for payload in completed}) == len(completed) >= 1
    assert len(result.events("model.failed")) <= 1
    assert bool(result.events("model.failed")) <= (result.error is not None)
    stored = [encode(item, ts=1.0) for item in result.items]
    for entry in stored:
        assert decode(entry.type, entry.data) is not None
    usage = result.of(Usage)
    for name in COUNTS:
        counts = [count for item in usage if (count := getattr(item, name)) is not None]
        assert (sum(counts) if counts else None) == ((result.usage or {}).get(name)), name
    again = read(api, events)
    assert [encode(item, ts=1.0) for item in again.items] == stored, "the same again: the events were not changed"
    assert again.error == result.error
