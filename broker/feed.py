"""A feed: one run's fan-out in this process. Everything here but the reads happens within one event-loop step."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from broker import metrics
from broker.chunks import PART_BYTES, Chunk
from broker.errors import RuncastError, RunNotFound, StoreUnavailable
from broker.group import Group, is_no_loss, trailing_hidden
from broker.items import FENCES, STATUS_OF_FENCE, Entry, Mode
from broker.log import LogState, entries_of
from broker.tail import RawEntries, Subscription
from broker.viewer import Format, Framing, Viewer
from broker.window import Place, Window, above

if TYPE_CHECKING:
    from broker.hub import Hub

__all__ = ["Feed"]

_logger = logging.getLogger("runcast.hub")

_FENCE_TYPES = frozenset(name.encode() for name in FENCES)
_SUSPECT_PAUSE = 0.25
_AWAY_PAUSE = 0.25
_LAG_PAUSE = 0.02


class Behind(NamedTuple):
    """How many of a run's viewers read what they missed, and how many take nothing just now."""

    reading: int
    paused: int


class Feed:
    """``window.seq`` is where all live viewers stand; ``epoch`` is the log's as it was last verified."""

    def __init__(self, hub: Hub, run_id: str, *, last: int, average: int, epoch: int) -> None:
        self.hub, self.run_id, self.epoch = hub, run_id, epoch
        self._run = run_id.encode()
        self._average = average or 256
        self.window = Window(last, hub.settings.window_bytes)
        self.viewers: dict[Viewer, None] = {}
        self.groups: dict[tuple[str, Mode, Framing], Group] = {}
        self.ahead: dict[Viewer, None] = {}
        self.ended = False
        """The tail has seen the fence."""
        self.closed = False
        self._subscription: Subscription | None = None
        self._suspect: asyncio.Task[None] | None = None
        self._broadcasting = False
        self._leaving: list[Viewer] = []
        self._reading: dict[int, asyncio.Task[Chunk]] = {}

    # Coming and going.

    @property
    def following(self) -> bool:
        return self._subscription is not None

    def enter(self, viewer: Viewer, *, follow: bool) -> None:
        viewer.feed = self
        self.viewers[viewer] = None
        if follow and not self.following and not self.ended and self._suspect is None:
            self._follow()
        self._weigh()

    def leave(self, viewer: Viewer) -> None:
        self.detach(viewer)
        self.viewers.pop(viewer, None)
        self._weigh()
        viewer.feed = None

    def _weigh(self) -> None:
        if self._subscription is not None:
            self._subscription.weight = len(self.viewers)

    def close(self) -> None:
        self.closed = True
        self._unfollow()
        if self._suspect is not None:
            self._suspect.cancel()
        for task in self._reading.values():
            task.cancel()

    def _follow(self) -> None:
        key, after = self.hub.log.items_key(self.run_id), b"%d-0" % self.window.seq
        self._subscription = self.hub.tail.subscribe(key, after, self._on_entries, run_id=self.run_id)
        self._weigh()

    def _unfollow(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    async def serve(self, viewer: Viewer) -> None:
        """Bring a viewer to the seam, attach it, and again whenever it was demoted, until it is finished."""
        while not viewer.closed:
            await self.settle(viewer)
            if not viewer.closed:
                await viewer.signalled()

    async def settle(self, viewer: Viewer) -> None:
        """Bring a viewer to the seam and attach it. Returns when it is live, or paused, or finished."""
        while not (viewer.live or viewer.paused or viewer.closed):
            await self.hub.turns.take()
            if not (viewer.live or viewer.paused or viewer.closed or self.attach(viewer)):
                await self._catch_up(viewer)

    # The seam.

    def state(self, after: int | None) -> LogState | None:
        """How the log stands, from memory, where a viewer behind ``after`` (``None``: the present end) needs to know
        no more than this process has seen. ``None``: ask the log."""
        window = self.window
        if not self.following or self._suspect is not None:
            return None
        if after is not None and window.place(after) is not Place.INSIDE:
            return None
        size = self._average * (window.seq - window.first + 1)
        return LogState("running", self.epoch, 0, window.first, window.seq, size)

    def attach(self, viewer: Viewer) -> bool:
        """Make a viewer live in this step, if the window holds its seq; or write it a part of what it lacks, where
        that is more than one. False: it must read the log first."""
        if not (self.following or self.ended):
            return False
        place = self.window.place(viewer.seq)
        if place is Place.BEHIND or (place is Place.AHEAD and self.ended):
            return False
        if place is Place.AHEAD:
            self.ahead[viewer] = None
            viewer.live = True
            return True
        if missing := self.window.since(viewer.seq, PART_BYTES):  # a slow socket is not given a whole window at once
            self._write(viewer, missing, None)
        elif self.ended:
            self._end(viewer)
        if viewer.seq == self.window.seq and not (viewer.closed or viewer.paused):
            self._join(viewer)
        return True

    def _join(self, viewer: Viewer) -> None:
        key = (viewer.format.name, viewer.modes, viewer.framing)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(viewer.format, viewer.modes, viewer.framing)
        group.add(viewer)
        if viewer.hidden > group.hidden:
            group.hide(viewer.hidden - group.hidden)
        viewer.live = True
        if viewer.demoted:
            viewer.demoted = False
            metrics.RETURNED.inc()

    def detach(self, viewer: Viewer) -> None:
        """Take a viewer out of the live group or the floor list; it then stands at its own ``seq``."""
        if not viewer.live:
            return
        if self._broadcasting:
            self._leaving.append(viewer)
            return
        viewer.live = False
        if viewer in self.ahead:
            del self.ahead[viewer]
            return
        group = viewer.group
        if group is None:
            return
        viewer.seq, viewer.hidden = self.window.seq, group.hidden
        group.remove(viewer)
        if not group.viewers:
            del self.groups[viewer.format.name, viewer.modes, viewer.framing]

    def demote(self, viewer: Viewer) -> None:
        """A live viewer's socket is full: from here on it reads its own range, at its own pace."""
        metrics.DEMOTED.inc()
        viewer.demoted = True
        self.detach(viewer)
        viewer.signal()

    # Live.

    def _on_entries(self, raw: RawEntries) -> None:
        try:
            self._take(raw)
        except Exception:
            # A feed that the tail has dropped would keep its viewers for ever, with heartbeats and nothing else.
            _logger.exception("what came of run %s could not be sent on", self.run_id)
            self.abandon("failed")

    def _take(self, raw: RawEntries) -> None:
        batch = above(entries_of(raw), self.window.seq)
        if not batch:
            return
        self._broadcasting = True
        try:
            if batch[0].seq > self.window.seq + 1:
                self._overtaken(batch)
            self.window.push(batch)
            self._broadcast(batch)
            _tell_lag(batch[0])
        finally:
            self._broadcasting = False
        for viewer in self._leaving:
            self.detach(viewer)
        self._leaving.clear()
        if batch[-1].type in _FENCE_TYPES:
            self._end_all()

    def _broadcast(self, batch: Sequence[Entry]) -> None:
        rendered: dict[tuple[str, Mode], Any] = {}
        for group in self.groups.values():
            key = (group.format.name, group.modes)
            payload = rendered.get(key)
            if payload is None:
                payload = rendered[key] = self._render(group.format, group.modes, batch)
                metrics.RENDERS.inc()
            if not group.modes & Mode.EVENTS:
                payload = self._account(group, batch, payload)
            group.write(payload)
        if self.ahead:
            self._reach(batch)

    def _reach(self, batch: Sequence[Entry]) -> None:
        """Viewers that resumed ahead of the tail, and that it has reached now, join the others."""
        for viewer in [v for v in self.ahead if v.seq < batch[-1].seq]:
            del self.ahead[viewer]
            viewer.live = False
            self._write(viewer, above(batch, viewer.seq), None, end=False)
            if not (viewer.closed or viewer.paused):
                self._join(viewer)

    def _account(self, group: Group, batch: Sequence[Entry], payload: Any) -> Any:
        """Keep a filtered group's cursor moving: after so many hidden items, say where it stands."""
        unseen = trailing_hidden(batch, group.modes)
        if unseen < len(batch):
            group.hidden = 0
        group.hide(unseen)
        if group.hidden >= self.hub.settings.cursor_items and batch[-1].type not in _FENCE_TYPES:
            group.hidden = 0
            metrics.CONTROL_FRAMES.labels("cursor").inc(len(group.viewers))
            payload = payload + group.format.cursor(self.run_id, batch[-1].seq)
        return payload

    def _overtaken(self, batch: Sequence[Entry]) -> None:
        """Retention removed what the tail had not read yet: live viewers are told."""
        requested, earliest, latest = self.window.seq, batch[0].seq, batch[-1].seq
        for key, group in list(self.groups.items()):
            if not is_no_loss(group.modes, earliest, latest):
                metrics.CONTROL_FRAMES.labels("gap").inc(len(group.viewers))
                group.write(group.format.gap(self.run_id, requested, earliest, latest))
                if not group.format.goes_on:
                    self._dissolve(key)
        for viewer in self.ahead:
            if viewer.seq + 1 < earliest:
                self._tell_gap(viewer, earliest, latest)
        self.window.restart(earliest - 1)

    def _dissolve(self, key: tuple[str, Mode, Framing]) -> None:
        """End a group's viewers at once: nothing may be written behind what they got last."""
        group = self.groups.pop(key)
        for viewer in list(group.viewers):
            group.remove(viewer)
            viewer.live = False
            viewer.finish("recovery")

    def _end_all(self) -> None:
        self.ended = True
        self._unfollow()
        fence = self.window.since(self.window.seq - 1)[0]
        status = STATUS_OF_FENCE[fence.type.decode()]
        for group in list(self.groups.values()):
            viewers = list(group.viewers)
            self._group_write(group, group.format.end(self.run_id, status, fence.seq))
            for viewer in viewers:
                viewer.finish("end")
        for viewer in list(self.viewers):
            viewer.signal()

    # One viewer.

    def _render(self, format: Format, modes: Mode, entries: Sequence[Entry]) -> Any:
        return format.items(self._run, entries, modes)

    def _write(self, viewer: Viewer, entries: Sequence[Entry], payload: Any | None, *, end: bool = True) -> None:
        """Write entries to one viewer, and the end behind the fence. ``payload``: their rendering, if it is known."""
        if payload is None:
            payload = self._render(viewer.format, viewer.modes, entries)
        last = entries[-1]
        viewer.seq = last.seq
        fence = last.type in _FENCE_TYPES
        if not fence and not viewer.modes & Mode.EVENTS:
            unseen = trailing_hidden(entries, viewer.modes)
            viewer.hidden = unseen if unseen < len(entries) else viewer.hidden + unseen
            if viewer.hidden >= self.hub.settings.cursor_items:
                viewer.hidden = 0
                metrics.CONTROL_FRAMES.labels("cursor").inc()
                payload = payload + viewer.format.cursor(self.run_id, last.seq)
        if fence and end:
            payload = payload + viewer.format.end(self.run_id, STATUS_OF_FENCE[last.type.decode()], last.seq)
        viewer.send(payload)
        if fence and end:
            viewer.finish("end")

    def _end(self, viewer: Viewer) -> None:
        fence = self.window.since(self.window.seq - 1)[0]
        viewer.send(viewer.format.end(self.run_id, STATUS_OF_FENCE[fence.type.decode()], fence.seq))
        viewer.finish("end")

    # Catching up.

    async def _catch_up(self, viewer: Viewer) -> None:
        after, epoch = viewer.seq, self.epoch
        try:
            chunk = await self._read(after, viewer.compact)
            if viewer.closed or viewer.seq != after or viewer.live or self.epoch != epoch:
                return  # it left, or a rewind moved it meanwhile
            if chunk.entries:
                await self._write_parts(viewer, chunk, epoch)
            else:
                await self._explain_nothing(viewer)
        except StoreUnavailable:
            await viewer.signalled(_AWAY_PAUSE)
        except RunNotFound:
            viewer.finish("gone")

    async def _write_parts(self, viewer: Viewer, chunk: Chunk, epoch: int) -> None:
        """A part at a time, so that a slow socket is never given a whole read at once; each in a turn of its own, so
        that live viewers wait for one part at most, however many others catch up."""
        if chunk.after == viewer.seq and chunk.first > viewer.seq + 1:
            self._tell_gap(viewer, chunk.first, max(chunk.last, self.window.seq))
            viewer.seq = chunk.after
        while not (viewer.paused or viewer.closed):
            after = viewer.seq
            await self.hub.turns.take()
            if viewer.paused or viewer.closed or viewer.seq != after or self.epoch != epoch:
                return  # it left, or a rewind moved it meanwhile
            part = next(chunk.behind(viewer, after, self._render_for), None)
            if part is None:
                return
            self._write(viewer, *part)

    def _render_for(self, viewer: Viewer, entries: Sequence[Entry]) -> Any:
        metrics.RENDERS.inc()
        return self._render(viewer.format, viewer.modes, entries)

    def _tell_gap(self, viewer: Viewer, earliest: int, latest: int) -> None:
        if not is_no_loss(viewer.modes, earliest, latest):
            metrics.CONTROL_FRAMES.labels("gap").inc()
            viewer.send(viewer.format.gap(self.run_id, viewer.seq, earliest, latest))
            if not viewer.format.goes_on:
                viewer.finish("recovery")
        viewer.seq = earliest - 1

    async def _read(self, after: int, compacted: bool) -> Chunk:
        """One byte-bounded read behind ``after``, shared with whoever is at the same place."""
        known = self.hub.chunks.find(self.run_id, self.epoch, after, compacted)
        if known is not None:
            return known
        task = self._reading.get(after)
        if task is None:
            task = self._reading[after] = asyncio.create_task(self._read_log(after))
            task.add_done_callback(lambda done: self._read_done(after, done))
        return await asyncio.shield(task)

    def _read_done(self, after: int, task: asyncio.Task[Chunk]) -> None:
        self._reading.pop(after, None)
        if not task.cancelled():
            task.exception()  # whoever still waits gets it; nobody waiting is no fault

    async def _read_log(self, after: int) -> Chunk:
        s, epoch = self.hub.settings, self.epoch
        async with self.hub.reads:
            metrics.RANGE_READS.inc()
            limit = max(1, min(s.read_bytes // max(self._average, 1), s.read_items))
            chunk = Chunk(after, await self.hub.log.read(self.run_id, after, limit=limit))
        if chunk.entries:
            self._average = max(chunk.size // len(chunk.entries), 1)
            self.hub.chunks.put(self.run_id, epoch, chunk)
        return chunk

    async def _explain_nothing(self, viewer: Viewer) -> None:
        """The log has nothing behind a viewer: expired, trimmed, rewound, or the tail is about to bring it."""
        log = await self.hub.log.state(self.run_id)
        if log.epoch != self.epoch or log.last < viewer.seq:
            await self.verify()
            if log.last < viewer.seq:
                await viewer.signalled(_SUSPECT_PAUSE)
        elif log.first > viewer.seq + 1:
            self._tell_gap(viewer, log.first, log.last)
            if log.is_ended and log.first > log.last:
                # The fence's id is lost with its item; the cursor stops clients that would come back for ever.
                viewer.send(
                    viewer.format.cursor(self.run_id, log.last) + viewer.format.end(self.run_id, log.status, log.last)
                )
                viewer.finish("end")
        elif log.is_ended and viewer.seq >= log.last:
            viewer.send(viewer.format.end(self.run_id, log.status, log.last))
            viewer.finish("end")
        elif not self.following and not self.ended and self._suspect is None and not log.is_ended:
            self.window.restart(log.last)
            self._follow()
        else:
            await viewer.signalled(_LAG_PAUSE if self._suspect is None else _SUSPECT_PAUSE)

    # A store that rewound.

    async def verify(self) -> None:
        """Compare with the log after an interruption. Raises ``StoreUnavailable``, ``RunNotFound``."""
        seen = self._seen()
        log = await self.hub.log.state(self.run_id)
        if self.closed:
            return
        if log.epoch != self.epoch:
            await self._change_epoch(log)
        elif log.last < seen:
            # Lost items, and the epoch stands: their publisher may send them again. Until then nothing is sure.
            self._unfollow()
            if self._suspect is None:
                self._suspect = asyncio.create_task(self._await_publisher())

    def _seen(self) -> int:
        """The highest seq that anybody here has: viewers that read the log may be ahead of the tail."""
        return max([self.window.seq, *(v.seq for v in self.viewers)])

    async def _await_publisher(self) -> None:
        """Ends when the lost items are there again, or given up by a new epoch."""
        while True:
            await asyncio.sleep(_SUSPECT_PAUSE)
            with contextlib.suppress(RuncastError):  # whatever it is: nobody else would try again
                try:
                    seen = self._seen()
                    log = await self.hub.log.state(self.run_id)
                    if log.epoch != self.epoch:
                        await self._change_epoch(log)
                    elif log.last < seen:
                        continue
                except RunNotFound:
                    self.abandon("gone")
                    return
                break
        self._suspect = None
        if not self.following and not self.ended:
            self._follow()

    async def _change_epoch(self, log: LogState) -> None:
        """A takeover changes the epoch of a log that lost nothing: what was seen here decides, not the number."""
        newest = self.window.newest
        stands = newest is not None and await self.hub.log.read(self.run_id, newest.seq - 1, limit=1) == [newest]
        if log.epoch == self.epoch or self.closed:
            return  # somebody else has seen to it meanwhile
        base = log.rewound_to if log.epoch == self.epoch + 1 else 0
        if newest is not None and stands:
            base = max(base, newest.seq)  # those ahead of the tail may have seen what is gone all the same
        self._rewound(log.epoch, base)

    def _rewound(self, epoch: int, base: int) -> None:
        """The epoch changed: whoever saw items beyond ``base``, where the log was cut, starts again."""
        self.epoch = epoch
        for viewer in list(self.viewers):
            stands = viewer.seq if not viewer.live or viewer in self.ahead else self.window.seq
            if stands > base and not viewer.closed:
                self.detach(viewer)
                metrics.CONTROL_FRAMES.labels("reset").inc()
                viewer.send(viewer.format.reset(self.run_id, "rewound"))
                if not viewer.format.goes_on:
                    viewer.finish("recovery")
                viewer.seq = viewer.hidden = 0
                viewer.signal()
        if self.window.seq > base:
            self.ended = False
            self.window.restart(base)
            if self._subscription is not None:
                self._subscription.move(b"%d-0" % base)

    def abandon(self, reason: str) -> None:
        for viewer in list(self.viewers):
            viewer.finish(reason)

    # Time.

    def tick(self, now: float) -> Behind:
        """Heartbeats in silence, and cursors for hidden items. Returns how many viewers are not live."""
        s = self.hub.settings
        reading = paused = 0
        for group in list(self.groups.values()):
            if group.hidden and now - group.hidden_since >= s.cursor_seconds:
                group.hidden = 0
                metrics.CONTROL_FRAMES.labels("cursor").inc(len(group.viewers))
                self._group_write(group, group.format.cursor(self.run_id, self.window.seq))
            elif now - group.last_write >= s.heartbeat:
                self._group_write(group, group.format.heartbeat)
        for viewer in list(self.viewers):
            if viewer.paused:
                paused += 1
            elif not viewer.live or viewer in self.ahead:
                reading += 1
                if now - viewer.last_write >= s.heartbeat:
                    viewer.send(viewer.format.heartbeat)
        return Behind(reading, paused)

    def _group_write(self, group: Group, payload: Any) -> None:
        self._broadcasting = True
        try:
            group.write(payload)
        finally:
            self._broadcasting = False
        for viewer in self._leaving:
            self.detach(viewer)
        self._leaving.clear()


def _tell_lag(oldest: Entry) -> None:
    """How long ago an item was made that has just gone out. Its data begins with its time (``broker.items``)."""
    data = oldest.data
    try:
        made = float(data[6 : data.index(b",", 6)])
    except ValueError:  # somebody else's writing
        return
    metrics.DELIVERY_LAG.observe(max(time.time() - made, 0.0))
