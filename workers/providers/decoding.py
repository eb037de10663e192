"""Bytes of a provider's response → its events, decoded. Incremental: every way to split the bytes gives the same.

What providers send is told apart by its first byte: server-sent events, JSON lines, or one JSON array (Gemini without
``alt=sse``); JSON objects spread over several lines are read as well. What cannot be read is an ``Unreadable`` in its
place, never an exception, and nothing is held without bound.

Pure: no clock, no IO.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from broker import sse
from broker.arguments import too_deep

__all__ = ["DONE", "LIMIT", "Decoded", "Mended", "Piece", "StreamDecoder", "Unreadable"]

LIMIT = 16 * 1024 * 1024
"""Bytes of one event, line or JSON value; what is longer is left out, and said so."""
DONE = "[DONE]"
"""The name of the event that OpenAI's chat completions, and those who copy them, end with. It has no data."""
_EXCERPT = 200
_BOM = b"\xef\xbb\xbf"


class Decoded(NamedTuple):
    """``event`` is the SSE event's name, ``""`` where it has none; ``data`` the JSON value."""

    event: str
    data: Any


class Mended(Decoded):
    """What only a lax parser reads: its strings may hold halves of surrogate pairs, its numbers be none."""

    __slots__ = ()


class Unreadable(NamedTuple):
    """``code``: ``broken_json``, ``too_long``, ``truncated`` (the bytes ended in it), ``no_stream`` (no events)."""

    code: str
    message: str
    excerpt: str


Piece: TypeAlias = Decoded | Unreadable


class _Framing(Protocol):
    def feed(self, chunk: bytes) -> list[Piece]: ...

    def close(self) -> list[Piece]: ...


class StreamDecoder:
    """``feed`` bytes as they arrive, ``close`` at their end. Neither raises anything, whatever the bytes."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._framing: _Framing | None = None
        self._head = b""
        self._at_start = True
        self._seen = False

    def feed(self, chunk: bytes) -> list[Piece]:
        if self._framing is None:
            chunk = self._begin(chunk)
            if not chunk:
                return []
            self._framing = self._detect(chunk[:1])
        pieces = self._framing.feed(chunk)
        self._seen = self._seen or bool(pieces)
        return pieces

    def close(self) -> list[Piece]:
        """What the end of the bytes decides: a last line without its end is whole if its JSON is."""
        if self._framing is None:
            return []
        pieces = self._framing.close()
        if not pieces and not self._seen and isinstance(self._framing, _Events):
            head = self._framing.head.decode("utf-8", "replace")
            return [Unreadable("no_stream", "neither server-sent events nor JSON", head)] if head.strip() else []
        return pieces

    def _begin(self, chunk: bytes) -> bytes:
        """The bytes without what stands before the first event: a byte order mark, white space."""
        if not self._at_start:
            return chunk.lstrip()
        self._head += chunk
        if _BOM.startswith(self._head):  # all of it, part of it, or nothing yet
            return b""
        self._at_start = False
        return self._head.removeprefix(_BOM).lstrip()

    def _detect(self, start: bytes) -> _Framing:
        if start == b"[":
            return _Values(self._limit, array=True)
        return _Lines(self._limit) if start == b"{" else _Events(self._limit)


class _Events:
    """Server-sent events."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._decoder = sse.Decoder(limit=limit)
        self.head = b""
        """The first bytes, to be shown where they turn out to be no events."""

    def feed(self, chunk: bytes) -> list[Piece]:
        if len(self.head) < _EXCERPT:
            self.head = (self.head + chunk)[:_EXCERPT]
        pieces: list[Piece] = []
        for event in self._decoder.feed(chunk):
            pieces += self._read(event)
        return pieces

    def close(self) -> list[Piece]:
        """The standard drops an event without its blank line. Here it counts where its JSON is whole."""
        return [
            piece._replace(code="truncated") if isinstance(piece, Unreadable) else piece
            for event in self._decoder.feed(b"\n\n")
            for piece in self._read(event)
        ]

    def _read(self, event: sse.Event) -> list[Piece]:
        name, text, _, _, cut = event
        name = "" if name == "message" else name
        text = text.strip()
        if cut:
            return [_too_long(text, self._limit)]
        if not text:
            return []
        if text == DONE:
            return [Decoded(DONE, None)]
        piece = _parse(name, text)
        if isinstance(piece, Unreadable) and "\n" in text:
            # Some proxies lose the blank lines between events.
            each = [_parse(name, line) if line != DONE else Decoded(DONE, None) for line in text.split("\n") if line]
            if all(isinstance(p, Decoded) for p in each):
                return each
        return [piece]


class _Lines:
    """One JSON value a line. Where the first line is no whole value, the values span lines."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._held = 0
        self._values: _Values | None = None
        self._first = True

    def feed(self, chunk: bytes) -> list[Piece]:
        if self._values is not None:
            return self._values.feed(chunk)
        pieces: list[Piece] = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._hold(chunk[start:end])
            pieces += self._line()
            start = end + 1
            if self._values is not None:
                return pieces + self._values.feed(chunk[start:])
        self._hold(chunk[start:])
        return pieces

    def close(self) -> list[Piece]:
        if self._values is not None:
            return self._values.close()
        pieces = self._line()
        if self._values is not None:
            pieces += self._values.close()
        return [p._replace(code="truncated") if isinstance(p, Unreadable) else p for p in pieces]

    def _hold(self, part: bytes) -> None:
        part = part[: self._limit + 1 - self._held]
        if part:
            self._parts.append(part)
            self._held += len(part)

    def _line(self) -> list[Piece]:
        raw, self._parts, self._held = b"".join(self._parts), [], 0
        text = raw.decode("utf-8", "replace").strip()
        if len(raw) > self._limit:
            return [_too_long(text, self._limit)]
        if not text:
            return []
        first, self._first = self._first, False
        if first and _goes_on(raw):
            self._values = _Values(self._limit, array=False)
            return self._values.feed(raw + b"\n")
        return [_parse("", text)]


class _Values:
    """JSON objects one after the other, or as the elements of an array; white space and commas between them."""

    _MARK = re.compile(rb'["{}\[\],]')
    _IN_STRING = re.compile(rb'["\\]')

    def __init__(self, limit: int, *, array: bool) -> None:
        self._limit = limit
        self._base = 1 if array else 0
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> list[Piece]:
        pieces: list[Piece] = []
        start = at = 0
        if self._escaped and chunk:
            self._escaped, at = False, 1
        while (found := (self._IN_STRING if self._in_string else self._MARK).search(chunk, at)) is not None:
            at = found.end()
            mark = found[0]
            if mark == b"\\":
                self._escaped = at == len(chunk)
                at += 1
            elif self._ends_value(mark):
                # A closing bracket of the value belongs to it; a comma, or the array's own bracket, does not.
                inside = mark in b"}]" and self._depth >= self._base
                self._hold(chunk[start : at if inside else at - 1])
                pieces += self._take()
                start = at
        self._hold(chunk[start:])
        return pieces

    def close(self) -> list[Piece]:
        return [p._replace(code="truncated") if isinstance(p, Unreadable) else p for p in self._take()]

    def _ends_value(self, mark: bytes) -> bool:
        """Follow one mark; true where what was held until here is one value."""
        if mark == b'"':
            self._in_string = not self._in_string
        elif mark in b"{[":
            self._depth += 1
            return self._depth == self._base == 1 and mark == b"["  # the array itself begins: nothing is held yet
        elif mark in b"}]":
            self._depth -= 1
            return self._depth <= self._base
        else:
            return self._depth <= self._base
        return False

    def _hold(self, part: bytes) -> None:
        part = part[: self._limit + 1 - self._held]
        if part:
            self._parts.append(part)
            self._held += len(part)

    def _take(self) -> list[Piece]:
        raw, self._parts, self._held = b"".join(self._parts), [], 0
        text = raw.decode("utf-8", "replace").strip()
        self._depth = max(self._depth, 0)
        if len(raw) > self._limit:
            return [_too_long(text, self._limit)]
        return [_parse("", text)] if text else []


def _goes_on(raw: bytes) -> bool:
    """A first line that opens more brackets than it closes, outside of any string: its value spans lines."""
    scan = _Values(LIMIT, array=False)
    scan.feed(raw)
    return scan._depth > 0 and not scan._in_string


_strict = msgspec.json.Decoder().decode


def _parse(event: str, text: str) -> Piece:
    if too_deep(text):
        return Unreadable("broken_json", "nested too deep", text[:_EXCERPT])
    try:
        return Decoded(event, _strict(text))
    except (ValueError, RecursionError):
        pass
    try:  # lone halves of surrogate pairs, NaN, line breaks in strings: sent by some, refused by the strict parser
        return Mended(event, json.loads(text, strict=False))
    except (ValueError, RecursionError) as error:
        return Unreadable("broken_json", str(error) or type(error).__name__, text[:_EXCERPT])


def _too_long(text: str, limit: int) -> Unreadable:
    return Unreadable("too_long", f"longer than {limit} bytes", text[:_EXCERPT])
