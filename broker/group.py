"""Live viewers of one run that receive the same bytes, and what their modes hide from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from broker import metrics
from broker.items import Entry, Mode, modes_of
from broker.viewer import Format, Framing, Viewer

__all__ = ["Group", "is_no_loss", "trailing_hidden"]


class Group:
    """Live viewers that receive the same bytes."""

    __slots__ = ("format", "framing", "hidden", "hidden_since", "last_write", "modes", "viewers", "written")

    def __init__(self, format: Format, modes: Mode, framing: Framing) -> None:
        self.format, self.modes, self.framing = format, modes, framing
        self.viewers: dict[Viewer, Callable[[Any], None]] = {}
        """With what writes to each: a broadcast that touched the viewers themselves would miss the cache for each."""
        self.hidden = 0
        self.hidden_since = 0.0
        self.last_write = time.monotonic()
        self.written = 0
        """Bytes that each of its viewers was written by now; one that came later, less what was written before."""

    def add(self, viewer: Viewer) -> None:
        self.viewers[viewer] = viewer.write
        viewer.group = self
        viewer.sent -= self.written

    def remove(self, viewer: Viewer) -> None:
        del self.viewers[viewer]
        viewer.group = None
        viewer.sent += self.written

    def write(self, payload: Any) -> None:
        if not payload:
            return
        self.last_write = time.monotonic()
        framed = self.framing(payload)
        if type(framed) is bytes:
            metrics.STREAM_BYTES.inc(len(framed) * len(self.viewers))
            self.written += len(framed)
        for write in self.viewers.values():
            write(framed)

    def hide(self, count: int) -> None:
        if count and not self.hidden:
            self.hidden_since = time.monotonic()
        self.hidden += count


def is_no_loss(modes: Mode, earliest: int, latest: int) -> bool:
    """Who wants the fence alone misses nothing by what went before it, as long as the log has its end."""
    return modes == Mode.FINAL and earliest <= latest


def trailing_hidden(entries: Sequence[Entry], modes: Mode) -> int:
    """How many entries at the end of a batch such a viewer is not shown."""
    count, wanted = 0, int(modes)
    for entry in reversed(entries):
        if int(modes_of(entry.type)) & wanted:
            break
        count += 1
    return count
