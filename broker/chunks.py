"""Chunks: what range reads brought for viewers that catch up, rendered once per kind of viewer and kept for a moment.

Many viewers often want the same stretch (a page reloads, a pod restarts): they share the read and the rendering.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from broker.compact import compact
from broker.items import Entry
from broker.viewer import Viewer

__all__ = ["Chunk", "ChunkCache", "cut"]

PART_BYTES = 64 << 10
"""A viewer is written at most this much (of stored JSON) before its socket is looked at again."""

Render = Callable[[Viewer, Sequence[Entry]], Any]
_Key: TypeAlias = tuple[str, int, int]
"""Run, epoch, and the seq that a chunk or a part of it follows."""


class Chunk:
    """Entries that follow ``after``, cut into parts; ``entries`` is empty where the log had nothing."""

    __slots__ = ("_parts", "_rendered", "_room", "after", "entries", "size")

    def __init__(self, after: int, entries: Sequence[Entry]) -> None:
        self.after, self.entries = after, entries
        self.size = sum([len(e.data) for e in entries])
        self._parts: dict[bool, dict[int, Sequence[Entry]]] = {}
        self._rendered: dict[tuple[str, int, int, bool], Any] = {}
        self._room = 2 * self.size + 512 * len(entries)
        """Bytes of renderings that are kept: there are dozens of kinds of viewers, and one or two at a time."""

    @property
    def first(self) -> int:
        return self.entries[0].seq

    @property
    def last(self) -> int:
        return self.entries[-1].seq

    def holds(self, after: int, compacted: bool) -> bool:
        """Whether one of its parts begins behind ``after``."""
        return bool(self.entries) and after in self.parts(compacted)

    def parts(self, compacted: bool) -> dict[int, Sequence[Entry]]:
        """Parts by the seq that each follows, in order."""
        found = self._parts.get(compacted)
        if found is None:
            entries = compact(self.entries) if compacted else self.entries
            found = self._parts[compacted] = dict(cut(self.after, entries))
        return found

    def behind(self, viewer: Viewer, after: int, render: Render) -> Iterator[tuple[Sequence[Entry], Any]]:
        """Parts behind ``after`` and their rendering for such a viewer, one by one."""
        parts = self.parts(viewer.compact)
        while (part := parts.get(after)) is not None:
            key = (viewer.format.name, int(viewer.modes), after, viewer.compact)
            payload = self._rendered.get(key)
            if payload is None:
                payload = render(viewer, part)
                if len(payload) <= self._room:
                    self._room -= len(payload)
                    self._rendered[key] = payload
            after = part[-1].seq
            yield part, payload


def cut(after: int, entries: Sequence[Entry]) -> Iterator[tuple[int, Sequence[Entry]]]:
    """Entries that follow ``after`` → parts of about ``PART_BYTES``, each with the seq that it follows."""
    ends = list(accumulate([len(e.data) for e in entries]))
    start = before = 0
    while start < len(entries):
        stop = max(bisect_right(ends, before + PART_BYTES, start), start + 1)
        yield after, entries[start:stop]
        after, before, start = entries[stop - 1].seq, ends[stop - 1], stop


class ChunkCache:
    """The most recently used chunks of a process, bounded in bytes: of stored JSON, and of what holding it costs.

    A chunk is found by the seqs that its parts follow. Parts of compacted chunks may begin elsewhere; a viewer that
    stands there reads anew.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._weight = 0
        self._chunks: OrderedDict[_Key, Chunk] = OrderedDict()
        self._starts: dict[_Key, _Key] = {}

    def find(self, run_id: str, epoch: int, after: int, compacted: bool) -> Chunk | None:
        key = self._starts.get((run_id, epoch, after))
        if key is None or not (chunk := self._chunks[key]).holds(after, compacted):
            return None
        self._chunks.move_to_end(key)
        return chunk

    def put(self, run_id: str, epoch: int, chunk: Chunk) -> None:
        key = run_id, epoch, chunk.after
        self._drop(key)
        self._chunks[key] = chunk
        for start in chunk.parts(False):
            self._starts[run_id, epoch, start] = key
        self._weight += _weight(chunk)
        while self._weight > self._limit and len(self._chunks) > 1:
            self._drop(next(iter(self._chunks)))

    def _drop(self, key: _Key) -> None:
        chunk = self._chunks.pop(key, None)
        if chunk is None:
            return
        self._weight -= _weight(chunk)
        for start in chunk.parts(False):
            place = key[0], key[1], start
            if self._starts.get(place) == key:  # another chunk may have a part there too
                del self._starts[place]


def _weight(chunk: Chunk) -> int:
    """The data, its rendering, and the objects around them."""
    return 2 * chunk.size + 128 * len(chunk.entries) + 1024
