"""Bytes as they arrive → whole lines. Pure, incremental, bounded.

Any split of the same bytes gives the same lines. Only LF ends a line (``splitlines`` would break at U+2028 and its
like, inside a JSON string). A line beyond the limit is not kept: it comes out as ``TooLong`` with its size.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LineSplitter", "TooLong"]


class TooLong(NamedTuple):
    """A line that was left out, and how many bytes it had."""

    size: int


class LineSplitter:
    """``keep_cr``: a CR ahead of the LF stays at the line's end, where it says which of two printers wrote it."""

    def __init__(self, limit: int = 16 << 20, *, keep_cr: bool = False) -> None:
        self._limit, self._keep_cr = limit, keep_cr
        self._parts: list[bytes] = []  # joined once a line: appending to bytes would cost the square of its length
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes | TooLong]:
        """The lines that ``chunk`` completes, without their LF (and CR before it, unless kept)."""
        first, *rest = chunk.split(b"\n")
        if not rest:
            self._hold(first)
            return []
        self._hold(first)
        lines = [self._take()]
        for piece in rest[:-1]:
            self._hold(piece)
            lines.append(self._take())
        self._hold(rest[-1])
        return lines

    def close(self) -> list[bytes | TooLong]:
        """The last line, where the stream ended without LF."""
        return [self._take()] if self._size else []

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._limit:
            if piece:
                self._parts.append(piece)
        else:
            self._parts.clear()

    def _take(self) -> bytes | TooLong:
        size, self._size = self._size, 0
        line = b"".join(self._parts)
        self._parts.clear()
        if size > self._limit:
            return TooLong(size)
        return line if self._keep_cr else line.removesuffix(b"\r")
