"""Chunks: what range reads brought for viewers that catch up, rendered once per kind of viewer and kept for a moment.

Many viewers often want the same stretch (a page reloads, a pod restarts): they share the read and the rendering.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from broker.compact import compact
from broker.items import Entry
from broker.viewer import Viewer

__all__ = ["Chunk", "ChunkCache", "cut"]

PART_BYTES = 64 << 10
"""A viewer is written at most this much (of stored JSON) before its socket is looked at again."""

Render = Callable[[Viewer, Sequence[Entry]], Any]


class Chunk:
    """Entries that follow ``after``, cut into parts; ``entries`` is empty where the log had nothing."""

    __slots__ = ("_parts", "_rendered", "after", "entries", "size")

    def __init__(self, after: int, entries: Sequence[Entry]) -> None:
        self.after, self.entries = after, entries
        self.size = sum([len(e.data) for e in entries])
        self._parts: dict[bool, dict[int, Sequence[Entry]]] = {}
        self._rendered: dict[tuple[str, int, int, bool], Any] = {}

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
                payload = self._rendered[key] = render(viewer, part)
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
    """The most recently used chunks of a process, bounded in bytes of stored JSON."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._chunks: OrderedDict[tuple[str, int, int], Chunk] = OrderedDict()
        self._by_run: dict[tuple[str, int], list[int]] = {}

    def find(self, run_id: str, epoch: int, after: int, compacted: bool) -> Chunk | None:
        for start in self._by_run.get((run_id, epoch), ()):
            chunk = self._chunks[run_id, epoch, start]
            if chunk.after <= after < chunk.last and chunk.holds(after, compacted):
                self._chunks.move_to_end((run_id, epoch, start))
                return chunk
        return None

    def put(self, run_id: str, epoch: int, chunk: Chunk) -> None:
        self._drop((run_id, epoch, chunk.after))
        self._chunks[run_id, epoch, chunk.after] = chunk
        self._by_run.setdefault((run_id, epoch), []).append(chunk.after)
        self._bytes += chunk.size
        while self._bytes > self._limit and len(self._chunks) > 1:
            self._drop(next(iter(self._chunks)))

    def _drop(self, key: tuple[str, int, int]) -> None:
        chunk = self._chunks.pop(key, None)
        if chunk is None:
            return
        self._bytes -= chunk.size
        starts = self._by_run[key[0], key[1]]
        starts.remove(key[2])
        if not starts:
            del self._by_run[key[0], key[1]]
