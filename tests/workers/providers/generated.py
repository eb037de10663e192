"""Right streams of every API, made by chance, with what a right merge of them says.

Each API has one maker: random numbers in, decoded events out. ``framed`` puts events on the wire in one of the ways in
which they come: server-sent events with any line ends, JSON lines, one array, values over several lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.workers.providers import made_blocks, made_choices, made_pieces, made_responses
from tests.workers.providers.chance import Made, expanded
from workers.providers import ADAPTERS
from workers.providers.decoding import DONE

__all__ = ["APIS", "framed", "make"]

APIS = sorted(ADAPTERS)
_MAKERS: dict[str, Callable[[Random], Made]] = {
    "anthropic.messages": made_blocks.anthropic,
    "bedrock.converse": made_blocks.bedrock,
    "cohere.chat": made_blocks.cohere,
    "google.generateContent": made_pieces.google,
    "mistral.chat": made_choices.mistral,
    "ollama.chat": made_pieces.ollama,
    "openai.chat": made_choices.chat,
    "openai.responses": made_responses.responses,
}


def make(api: str, rng: Random) -> Made:
    return _MAKERS[api](rng)


def framed(events: list[Any], rng: Random) -> bytes:
    """The events as bytes. Values that UTF-8 cannot carry are escaped."""
    escape = rng.random() < 0.5
    texts = [DONE if event == DONE else _dump(event, escape) for event in events]
    ways: list[Callable[[list[Any], list[str], Random], str]] = [_sse, _sse, _sse]
    ways += [] if DONE in events else [_lines, _array, _spread]
    text = rng.choice(ways)(events, texts, rng)
    return (b"\xef\xbb\xbf" if rng.random() < 0.1 else b"") + text.encode("utf-8", "surrogatepass")


def _dump(event: Any, escape: bool) -> str:
    text = json.dumps(event, ensure_ascii=False)
    halves = any("\ud800" <= c <= "\udfff" for c in text)
    return expanded(json.dumps(event) if escape or halves else text)


def _sse(events: list[Any], texts: list[str], rng: Random) -> str:
    end, named, gap = rng.choice(["\n", "\n", "\r\n", "\r"]), rng.random() < 0.5, rng.choice([" ", " ", ""])
    out = []
    for event, text in zip(events, texts, strict=True):
        kind = event.get("type") if isinstance(event, dict) else None
        head = f"event: {kind}{end}" if named and isinstance(kind, str) and kind.isprintable() else ""
        out.append(f"{head}data:{gap}{text}{end}{end}" + (f": hb{end}{end}" if rng.random() < 0.05 else ""))
    return "".join(out)


def _lines(events: list[Any], texts: list[str], rng: Random) -> str:
    return rng.choice(["\n", "\r\n", "\n\n"]).join(texts) + rng.choice(["\n", ""])


def _array(events: list[Any], texts: list[str], rng: Random) -> str:
    return "[" + rng.choice([",", ",\r\n", "\n,\n"]).join(texts) + "]"


def _spread(events: list[Any], texts: list[str], rng: Random) -> str:
    """Only objects: of a number over two lines nobody could tell."""
    try:
        values = [json.loads(text) for text in texts]
        spread = "\n".join(json.dumps(value, indent=1) for value in values)
    except (RecursionError, ValueError):  # nested too deep, or a number too long, to be read again
        return _lines(events, texts, rng)
    return spread if all(isinstance(value, dict) and value for value in values) else _lines(events, texts, rng)
