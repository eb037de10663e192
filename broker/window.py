"""The window: the last items of one followed run, and the seam between replay and live. Pure.

Seqs are dense, so the seam is arithmetic (docs/architecture.md, decision 3). ``seq`` is the tail's position: the
last item that this process has seen. The window holds a contiguous run of entries that ends there.

A viewer stands at ``after``: it has everything up to and including that seq. Exactly one of three is true:

    after > seq                  AHEAD   it resumed beyond the tail: attach it with ``after`` as its floor
    first - 1 <= after <= seq    INSIDE  attach it now: what it lacks is ``since(after)``
    after < first - 1            BEHIND  it must read the log first
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum

from broker.items import Entry

__all__ = ["ENTRY_BYTES", "Place", "Window", "above", "trim"]

ENTRY_BYTES = 240
"""What a held entry takes besides its data."""


class Place(Enum):
    AHEAD = "ahead"
    INSIDE = "inside"
    BEHIND = "behind"


def above(entries: Sequence[Entry], floor: int) -> Sequence[Entry]:
    """Those of a contiguous, increasing batch whose seq is above ``floor``: a batch that straddles it is sliced."""
    if not entries or entries[0].seq > floor:
        return entries
    return entries[floor - entries[0].seq + 1 :]


class Window:
    """Bounded in bytes of data: the oldest entries go first; the newest one always stays."""

    __slots__ = ("_bytes", "_entries", "_limit", "seq")

    def __init__(self, seq: int, limit_bytes: int) -> None:
        self.seq = seq
        self._limit = limit_bytes
        self._entries: deque[Entry] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes of item data held."""
        return self._bytes

    @property
    def memory(self) -> int:
        """Bytes that holding them takes, data and all."""
        return self._bytes + ENTRY_BYTES * len(self._entries)

    @property
    def first(self) -> int:
        """The first seq held, ``seq + 1`` where nothing is held."""
        return self.seq - len(self._entries) + 1

    @property
    def newest(self) -> Entry | None:
        """The entry at ``seq``, where it is held."""
        return self._entries[-1] if self._entries else None

    def place(self, after: int) -> Place:
        if after > self.seq:
            return Place.AHEAD
        return Place.INSIDE if after >= self.first - 1 else Place.BEHIND

    def since(self, after: int, most: int | None = None) -> list[Entry]:
        """What follows ``after``, which must be INSIDE; ``most``: one entry, and more up to so many bytes of data."""
        count = self.seq - after
        if count < 0 or count > len(self._entries):
            raise ValueError(f"{after} is not inside {self.first - 1}..{self.seq}")
        start = len(self._entries) - count
        if most is None:
            return [self._entries[i] for i in range(start, len(self._entries))] if count else []
        found: list[Entry] = []
        for i in range(start, len(self._entries)):
            entry = self._entries[i]
            most -= len(entry.data)
            if most < 0 and found:
                break
            found.append(entry)
        return found

    def push(self, batch: Sequence[Entry]) -> None:
        """Append entries that follow ``seq`` without a hole."""
        if not batch:
            return
        if batch[0].seq != self.seq + 1 or batch[-1].seq != self.seq + len(batch):
            raise ValueError(f"{batch[0].seq}..{batch[-1].seq} does not follow {self.seq}")
        self._entries.extend(batch)
        self._bytes += sum([len(e.data) for e in batch])
        self.seq = batch[-1].seq
        while self._bytes > self._limit and len(self._entries) > 1:
            self._bytes -= len(self._entries.popleft().data)

    def shorten(self, memory: int) -> None:
        """Let the oldest go until the others take no more than ``memory``, or the newest is left."""
        while self.memory > memory and len(self._entries) > 1:
            self._bytes -= len(self._entries.popleft().data)

    def restart(self, seq: int) -> None:
        """Forget what is held and stand at ``seq``: after a hole that retention made, or a log that was rewound."""
        self._entries.clear()
        self._bytes = 0
        self.seq = seq


def trim(windows: Sequence[Window], limit: int) -> tuple[int, int]:
    """Shorten the largest of a process's windows to one size, so that all together take no more than ``limit`` bytes,
    as far as their newest entries allow. Returns what they take now, and what was let go.

    Nobody misses anything: whoever stands behind a window reads the log.
    """
    before = sum([window.memory for window in windows])
    if before <= limit:
        return before, 0
    left, line = limit, 0
    ordered = sorted(windows, key=lambda window: window.memory)
    for place, window in enumerate(ordered):
        line = left // (len(ordered) - place)
        if window.memory > line:
            break
        left -= window.memory
    for window in ordered:
        window.shorten(line)
    after = sum([window.memory for window in ordered])
    return after, before - after
