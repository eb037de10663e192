"""What was written to the viewers of a process and not taken by their sockets: watched for progress, and bounded.

For one viewer it is bounded by the high-water mark and one payload: past the mark nothing more is written to it. Here
are the two bounds that need a clock and a view of all of them:

- **Time.** One that takes not a byte for ``stall_limit`` seconds is cut.
- **Memory.** While more than ``limit`` bytes wait for all of them together, the slowest are cut: whoever took least
  of late, and of those that took nothing whoever has stood still for the longest. A backlog of less than ``_BRIEF``
  seconds does not count: a large item is on its way to everybody for a moment, in one object for all.

Cut is between two frames: what waits are whole frames, and the connection closes behind them. Where it does not take
them either within ``_GRACE`` seconds it is dropped. Whoever comes back goes on where it was; the log has everything.

A viewer counts until its connection has taken what was written, also when its stream has long ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker import metrics
from broker.viewer import Peer, Viewer

__all__ = ["Backlog"]

_BRIEF = 1.0
_LATELY = 5.0
"""After so many seconds a byte taken counts half. A slow peer takes its bytes in lumps, seconds apart."""
_GRACE = 1.0
_NO_MATTER = frozenset({"left", ""})
"""Why a viewer left where its connection is gone: nothing waits for it, whatever the transport says this moment."""


class _Slow:
    """One viewer that had something waiting at every look since ``began``."""

    __slots__ = ("at", "began", "drop_at", "moved", "peer", "recent", "taken", "viewer", "waiting")

    def __init__(self, viewer: Viewer, peer: Peer, now: float) -> None:
        self.viewer, self.peer = viewer, peer
        self.waiting = peer.waiting()
        self.taken = viewer.given - self.waiting
        self.recent = 0.0
        self.began = self.moved = self.at = now
        self.drop_at: float | None = None
        """It was cut: when its connection is dropped."""

    def look(self, now: float) -> bool:
        """Whether something waits still."""
        self.waiting = self.peer.waiting()
        taken = self.viewer.given - self.waiting
        self.recent *= 0.5 ** ((now - self.at) / _LATELY)
        self.at = now
        if taken > self.taken:
            if now - self.began >= _BRIEF:  # before that it may have filled the peer's buffers and no more
                self.recent += taken - self.taken
            self.taken, self.moved = taken, now
        return self.waiting > 0

    @property
    def rank(self) -> tuple[float, float, int]:
        """The lowest is the slowest."""
        return self.recent, self.moved, -self.waiting


class Backlog:
    """``look`` at all viewers of the process, again and again; ``left`` says that one is no more of the hub's."""

    def __init__(self, limit: int, stall_limit: float) -> None:
        self._limit, self._stall_limit = limit, stall_limit
        self._slow: dict[Viewer, _Slow] = {}

    def look(self, viewers: Iterable[Viewer], now: float) -> None:
        """Cut whoever takes nothing, and whoever is slowest while too much waits."""
        self._find(viewers, now)
        for slow in list(self._slow.values()):
            if slow.drop_at is not None:
                if now >= slow.drop_at:
                    self._drop(slow)
            elif now - slow.moved >= self._stall_limit:
                self._cut(slow, "stalled", now)
        self._relieve(now)
        metrics.WAITING.set(sum([slow.waiting for slow in self._slow.values()]))

    def left(self, viewer: Viewer, now: float) -> None:
        """What waits for it counts until it is taken."""
        if viewer.peer is None or viewer.reason in _NO_MATTER:
            self._slow.pop(viewer, None)
        elif viewer not in self._slow and viewer.peer.waiting():
            self._slow[viewer] = _Slow(viewer, viewer.peer, now)

    def _find(self, viewers: Iterable[Viewer], now: float) -> None:
        known = self._slow
        for viewer in [viewer for viewer, slow in known.items() if not slow.look(now)]:
            del known[viewer]
        for viewer in viewers:
            peer = viewer.peer
            if peer is not None and peer.waiting() and viewer not in known:
                known[viewer] = _Slow(viewer, peer, now)

    def _relieve(self, now: float) -> None:
        staying = [slow for slow in self._slow.values() if slow.drop_at is None and now - slow.began >= _BRIEF]
        over = sum([slow.waiting for slow in staying]) - self._limit
        for slow in sorted(staying, key=lambda s: s.rank) if over > 0 else ():
            self._cut(slow, "memory", now)
            over -= slow.waiting
            if over <= 0:
                return

    def _cut(self, slow: _Slow, reason: str, now: float) -> None:
        """End its stream, where it goes on; then its connection."""
        slow.drop_at = now + _GRACE
        if slow.viewer.closed:
            metrics.CUT.labels(reason).inc()
        else:
            slow.viewer.finish(reason)
        slow.peer.close()

    def _drop(self, slow: _Slow) -> None:
        metrics.RESET.inc()
        slow.peer.abort()
        del self._slow[slow.viewer]
