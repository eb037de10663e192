"""What can be wrong with a stream: events left out, repeated, exchanged, changed inside; bytes hit at random."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

from tests.workers.providers.chance import deep

__all__ = ["damage_bytes", "damage_events"]

_ODD: list[Any] = [
    *(None, True, False, 0, -1, 7, 1.5, 2**31, 2**53, 2**64, -(2**63), 1e308, 10**400, float("nan"), float("inf")),
    *("", " ", "x", "null", "error", "[DONE]", "a" * 5_000, "\ud83d", "\udf89", "a\ud83d", "\udf89b", "\x00", "\u2028"),
    *([], [[]], {}, [1], [None], [{}], {"type": 3}, {"text": ["a"]}, {"index": "0"}, [{"type": "text", "text": 1}]),
]
_WORDS = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\r", b"\r\n", b"\n\n", b"data: ", b"data", b"event: "),
    *(b"null", b"true", b"-1", b"1e999", b"NaN", b"-Infinity", b'""', b"{}", b"[]", b"\\ud83d", b"\\u0000", b"\xff"),
    *(b"\xef\xbb\xbf", b"\xed\xa0\xbd", b"\xf0\x9f", b"\xc2", b"[DONE]", b"\x00", b": hb\n", b"id: 1\n", b"retry: 9\n"),
    *(b"[" * 300, b"[" * 20_000, b'{"a":' * 20_000, b"9" * 40, b"9" * 5_000),
    *(b'"index":0', b'"index":1', b'"id":"a"', b'"type":"error"', b'"error":{"message":"x"}', b'"done":true'),
]
Change = Callable[[list[Any], list[Any], Random], None]


def damage_events(events: list[Any], others: list[Any], rng: Random) -> list[Any]:
    """A copy with one to four faults. ``others``: another stream's events, some of which may get in between."""
    changed = copy.deepcopy(events)
    for _ in range(rng.randint(1, 4)):
        rng.choice(_CHANGES)(changed, others, rng)
    return changed


def damage_bytes(stream: bytes, rng: Random) -> bytes:
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 5])):
        at = rng.randint(0, len(stream))
        end = min(len(stream), at + rng.choice([1, 1, 2, 10, 100, 1_000]))
        match rng.randrange(6):
            case 0:
                stream = stream[:at] + rng.choice(_WORDS) + stream[at:]
            case 1:
                stream = stream[:at] + rng.choice(_WORDS) + stream[end:]
            case 2:
                stream = stream[:at] + stream[end:]
            case 3:
                stream = stream[:end] + stream[at:]
            case 4:
                stream = stream[:at]
            case _:
                flipped = bytes(b ^ (1 << rng.randrange(8)) for b in stream[at : at + 1])
                stream = stream[:at] + flipped + stream[at + 1 :]
    return stream


def _drop(events: list[Any], others: list[Any], rng: Random) -> None:
    if events:
        at = rng.randrange(len(events))
        del events[at : at + rng.choice([1, 1, 1, 3])]


def _repeat(events: list[Any], others: list[Any], rng: Random) -> None:
    if events:
        events.insert(rng.randint(0, len(events)), copy.deepcopy(rng.choice(events)))


def _exchange(events: list[Any], others: list[Any], rng: Random) -> None:
    if events:
        one, other = rng.randrange(len(events)), rng.randrange(len(events))
        events[one], events[other] = events[other], events[one]


def _end(events: list[Any], others: list[Any], rng: Random) -> None:
    del events[rng.randint(0, len(events)) :]


def _mix(events: list[Any], others: list[Any], rng: Random) -> None:
    if others:
        events.insert(rng.randint(0, len(events)), copy.deepcopy(rng.choice(others)))


def _change_value(events: list[Any], others: list[Any], rng: Random) -> None:
    _put(events, rng, lambda value: copy.deepcopy(rng.choice(_ODD)))


def _nest(events: list[Any], others: list[Any], rng: Random) -> None:
    stand_in = deep(rng.choice([3, 50, 190, 210, 1_000, 5_000]), in_objects=rng.random() < 0.5)
    _put(events, rng, lambda value: stand_in)


def _exchange_values(events: list[Any], others: list[Any], rng: Random) -> None:
    """A value from elsewhere: an id of another call, a text where an index should be."""
    places = _places(events)
    if places:
        parent, key = rng.choice(places)
        _put(events, rng, lambda value: copy.deepcopy(parent[key]))


def _lose_field(events: list[Any], others: list[Any], rng: Random) -> None:
    places = [(parent, key) for parent, key in _places(events) if isinstance(parent, dict)]
    if places:
        parent, key = rng.choice(places)
        del parent[key]


def _rename_field(events: list[Any], others: list[Any], rng: Random) -> None:
    places = [(parent, key) for parent, key in _places(events) if isinstance(parent, dict)]
    if places:
        parent, key = rng.choice(places)
        parent[rng.choice(places)[1]] = parent.pop(key)


def _put(events: list[Any], rng: Random, change: Callable[[Any], Any]) -> None:
    places = _places(events)
    if places:
        parent, key = rng.choice(places)
        parent[key] = change(parent[key])


def _places(value: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """All values within, each as what holds it and its key there."""
    if depth > 12:
        return []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *_places(value[key], depth + 1)]]


_CHANGES: list[Change] = [
    *(_drop, _repeat, _exchange, _end, _mix, _nest, _exchange_values, _lose_field, _rename_field),
    *(_change_value, _change_value, _change_value),
]
