"""Texts and calls by chance, and the fragments in which they come: what the makers of streams have in common."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

__all__ = [
    "Data",
    "Made",
    "any_call",
    "any_fragments",
    "any_text",
    "deep",
    "expanded",
    "fragments_of",
    "joined",
    "mixed",
]

Data = dict[str, Any]
_PIECES = [
    *("a", "hello", " ", "\n", "  ", "0", "é", "東京", "{", '"', "\\", "\\n", "data: ", "[DONE]", "</think>", "null"),
    *("\u2028", "\u0085", "\ufeff", "\x00", "\r\n", "🎉", "👩‍👩‍👧", "\U0010ffff", "\uffff", "ى", "x" * 60),
]
_NAMES = ["get_weather", "f", "search.web", "größe", "a" * 64]


@dataclass
class Made:
    """A stream: its events as decoded data, ``DONE`` among them where the API says so, and what its choices say."""

    api: str
    events: list[Any] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=lambda: {0: ""})
    calls: dict[int, list[tuple[str, Any]]] = field(default_factory=lambda: {0: []})
    """Name and arguments."""


def any_text(rng: Random) -> str:
    return "".join(rng.choice(_PIECES) for _ in range(rng.randint(1, 6)))


def fragments_of(text: str, rng: Random, *, halves: bool = True) -> list[str]:
    """The text in fragments. Some who count in UTF-16 cut a character in two; an empty fragment may be among them."""
    raw = text.encode("utf-16-le")
    places = sorted(rng.randint(0, len(raw) // 2) * 2 for _ in range(rng.randint(0, 4)))
    if not halves or rng.random() < 0.7:
        places = sorted({len(text[: p // 2].encode("utf-16-le")) for p in places})
    edges = [0, *(p for p in places if p <= len(raw)), len(raw)]
    return [raw[a:b].decode("utf-16-le", "surrogatepass") for a, b in pairwise(edges)]


def any_fragments(rng: Random) -> list[str]:
    return fragments_of(any_text(rng), rng)


def any_call(rng: Random) -> tuple[str, Data, list[str]]:
    """Name, arguments, and their text in fragments; no arguments are no fragment at all."""
    value: Data = {
        any_text(rng): rng.choice([1, -0.5, None, True, [], {}, any_text(rng)]) for _ in range(rng.randint(0, 3))
    }
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    return rng.choice(_NAMES), value, fragments_of(text, rng, halves=False) if value else rng.choice([[], ["{}"]])


def joined(fragments: list[str]) -> str:
    """Halves of characters meet."""
    return "".join(fragments).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def mixed(queues: list[list[Data]], rng: Random) -> Iterator[Data]:
    """Several sequences as one; each keeps its order."""
    left = [queue for queue in queues if queue]
    while left:
        queue = rng.choice(left)
        yield queue.pop(0)
        left = [q for q in left if q]


def deep(levels: int, *, in_objects: bool) -> str:
    """Stands for arrays or objects in one another, deeper than Python would copy or write them: see ``expanded``."""
    return f"<{levels} {'objects' if in_objects else 'arrays'}>"


def expanded(text: str) -> str:
    """JSON with what ``deep`` stands for."""

    def nested(found: re.Match[str]) -> str:
        opening, closing = ('{"a":', "}") if found[2] == "objects" else ("[", "]")
        return opening * int(found[1]) + "1" + closing * int(found[1])

    return re.sub(r'"<(\d+) (objects|arrays)>"', nested, text)
