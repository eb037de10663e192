"""The hub: fans out the runs of this process to their viewers.

One ``Feed`` per run with viewers. Live viewers of a feed stand together at the window's seq, in groups of equal
(format, modes, framing); a batch is rendered once per group and the same object is written to each of its sockets. A
viewer that is behind reads the log in byte-bounded chunks, shared with others at the same place, until the window
holds its seq; then it is attached in one event-loop step (docs/architecture.md, decisions 3, 5 and 6).

A viewer whose socket is full leaves its group and reads its own range again once the socket has drained. Nobody is
dropped in silence; those that take nothing, or for whom too much waits, are ended by ``broker.backlog``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time

from broker import metrics
from broker.backlog import Backlog
from broker.chunks import ChunkCache
from broker.errors import RuncastError, RunNotFound, StoreUnavailable
from broker.feed import Feed
from broker.log import LogState, RunLog
from broker.logs import unbound
from broker.settings import Settings
from broker.tail import Subscription, Tail
from broker.turns import Turns
from broker.viewer import Viewer
from broker.window import trim

__all__ = ["Hub"]

log = logging.getLogger("runcast.hub")

_CACHE_BYTES = 8 << 20


class Hub:
    """``serve`` or ``host`` is called once per viewer; ``drain`` ends all of them."""

    def __init__(self, run_log: RunLog, tail: Tail, settings: Settings) -> None:
        self.log, self.tail, self.settings = run_log, tail, settings
        self.reads = asyncio.Semaphore(settings.reads_at_once)
        self.turns = Turns()
        """Whoever catches up writes each part in a turn of its own: live viewers' items wait for no more than that."""
        self.chunks = ChunkCache(_CACHE_BYTES)
        self.backlog = Backlog(settings.viewers_memory, settings.stall_limit)
        self.tells_lag = True
        """Whether it measures the event loop: not where a worker of this process does."""
        self.feeds: dict[str, Feed] = {}
        self._attended: dict[Viewer, asyncio.Task[None]] = {}
        """Hosted viewers that catch up, with the tasks that do it."""
        self._draining = False
        self._ticker: asyncio.Task[None] | None = None
        tail.on_reconnect = self._verify

    @property
    def draining(self) -> bool:
        return self._draining

    async def serve(self, viewer: Viewer, *, ended: bool, last: int, average: int = 0, epoch: int) -> None:
        """Serve a viewer until it has the fence, leaves, is cut, or the process drains; ``viewer.reason`` says which.

        ``ended``, ``last``, ``epoch`` and ``average`` (bytes an item) are the run's as just read from the log.
        Cancellation detaches the viewer. Never raises for a store that is away: the viewer waits for its return.
        """
        feed = self._enter(viewer, ended, last, average, epoch)
        if feed is None:
            return
        try:
            await feed.serve(viewer)
        finally:
            self._leave(viewer)

    def host(self, viewer: Viewer, *, ended: bool, last: int, average: int = 0, epoch: int) -> None:
        """The same, and returns at once: ``viewer.on_finish`` tells of the end.

        A task lives only while the viewer catches up, so that an idle one costs its connection and little more.
        """
        if self._enter(viewer, ended, last, average, epoch) is not None:
            viewer.hosted = True
            self.attend(viewer)

    def attend(self, viewer: Viewer) -> None:
        """Something about a hosted viewer changed, and no task attends to it."""
        feed = viewer.feed
        if feed is None or viewer in self._attended:
            return
        if viewer.closed:
            # Not in this step: whoever finished it may be going through the feed's viewers.
            asyncio.get_running_loop().call_soon(self._leave, viewer)
        elif not (viewer.live or viewer.paused):
            task = asyncio.create_task(self._attend(viewer, feed), name=f"viewer of {viewer.run_id}")
            self._attended[viewer] = task

    async def _attend(self, viewer: Viewer, feed: Feed) -> None:
        try:
            await feed.settle(viewer)
        except Exception:
            log.exception("a viewer of run %s could not be served", viewer.run_id)
            viewer.finish("failed")
            if viewer.peer is not None:
                viewer.peer.abort()
        finally:
            del self._attended[viewer]
            if viewer.closed:
                self._leave(viewer)

    def state(self, run_id: str, after: int | None) -> LogState | None:
        """How a followed run stands, where a viewer behind ``after`` (``None``: its present end) needs no more than
        this process has seen: then joining costs Redis nothing, however many come back at once."""
        feed = self.feeds.get(run_id)
        return None if feed is None else feed.state(after)

    def _enter(self, viewer: Viewer, ended: bool, last: int, average: int, epoch: int) -> Feed | None:
        if self._draining:
            self._send_off(viewer)
            return None
        feed = self.feeds.get(viewer.run_id)
        if feed is None:
            feed = self.feeds[viewer.run_id] = Feed(self, viewer.run_id, last=last, average=average, epoch=epoch)
            metrics.FEEDS.inc()
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick_forever(), name="hub ticker", context=unbound())
        metrics.VIEWERS.inc()
        metrics.STREAMS.labels(viewer.format.name).inc()
        feed.enter(viewer, follow=not ended)
        return feed

    def _leave(self, viewer: Viewer) -> None:
        feed = viewer.feed
        if feed is None:
            return
        now = time.monotonic()
        feed.leave(viewer)
        self.backlog.left(viewer, now)
        metrics.VIEWERS.dec()
        metrics.STREAM_SECONDS.labels(viewer.reason or "left").observe(now - viewer.began)
        if not feed.viewers and self.feeds.get(viewer.run_id) is feed:
            del self.feeds[viewer.run_id]
            metrics.FEEDS.dec()
            feed.close()

    @property
    def viewers(self) -> int:
        return sum(len(feed.viewers) for feed in self.feeds.values())

    def drain(self) -> None:
        """End every stream at a frame boundary, each with a jittered ``retry:``; viewers come back elsewhere.

        Nobody waits for those that do not read: their connections are closed behind what was written.
        """
        if self._draining:
            return
        self._draining = True
        for feed in list(self.feeds.values()):
            for viewer in list(feed.viewers):
                feed.detach(viewer)
                slow = viewer.peer if viewer.peer is not None and viewer.peer.waiting() else None
                self._send_off(viewer)
                if slow is not None:
                    slow.close()

    def _send_off(self, viewer: Viewer) -> None:
        retry = int(self.settings.retry_ms * random.uniform(0.5, 1.5))
        viewer.send(viewer.format.retry(retry))
        viewer.finish("drain")

    async def aclose(self) -> None:
        self.drain()
        tasks = [*self._attended.values(), *([self._ticker] if self._ticker is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick_forever(self) -> None:
        pause = min(0.5, self.settings.heartbeat / 4, self.settings.cursor_seconds / 4)
        due = time.monotonic() + pause
        while True:
            await asyncio.sleep(pause)
            now = time.monotonic()
            if self.tells_lag:
                metrics.LOOP_LAG.observe(max(now - due, 0.0))
            metrics.LOOP_TASKS.set(len(asyncio.all_tasks()))
            self._tick(now)
            due = time.monotonic() + pause

    def _tick(self, now: float) -> None:
        # Ahead of the feeds: what they write now has not had a moment to go.
        self.backlog.look([viewer for feed in self.feeds.values() for viewer in feed.viewers], now)
        reading = paused = 0
        for feed in list(self.feeds.values()):
            try:
                behind = feed.tick(now)
            except Exception:  # one run's fault must not silence all the others
                log.exception("run %s: its viewers could not be seen to", feed.run_id)
            else:
                reading, paused = reading + behind.reading, paused + behind.paused
        held, gone = trim([feed.window for feed in self.feeds.values()], self.settings.windows_memory)
        metrics.WINDOWS.set(held)
        metrics.WINDOWS_CUT.inc(gone)
        metrics.VIEWERS_BEHIND.labels("reading").set(reading)
        metrics.VIEWERS_BEHIND.labels("paused").set(paused)

    async def _verify(self, subscriptions: list[Subscription]) -> None:
        """A lane has (re)connected: was any of its logs rewound meanwhile?"""
        feeds = [f for s in subscriptions if s.run_id is not None and (f := self.feeds.get(s.run_id)) is not None]
        for feed in feeds:
            try:
                await feed.verify()
            except RunNotFound:
                feed.abandon("gone")
            except StoreUnavailable:
                raise
            except RuncastError:  # one run that cannot be read must not hold up all that share its lane
                log.exception("run %s could not be verified", feed.run_id)
                feed.abandon("failed")
