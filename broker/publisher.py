"""The one writer of a run.

Order: items are stored in the order of the ``publish`` calls, under dense seqs. One append is in flight at a
time; what arrives meanwhile is the next batch, without a linger timer. An append whose answer was lost is sent again
with the same seqs, which the script recognises, so nothing is stored twice (docs/architecture.md, decision 2).

Back-pressure: ``publish`` waits while the buffer is full, so a slow store slows the runner and nothing else.

Outage: appends are retried for ``outage_limit`` seconds; after that every call raises ``OutageTooLong``.

Rewind: a failover may lose the end of the log. What was appended is kept for a while and sent again under the same
seqs; where that is no longer possible the run's epoch changes, what is still held is published again under new seqs,
and an item ``event {name: "log.rewound"}`` says which seqs were lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from broker import metrics
from broker.errors import Fenced, LogGap, OutageTooLong, RuncastError, Sealed, StoreUnavailable
from broker.items import FENCES, Encoded, Event, Item, Raw, check_type, encode
from broker.limits import fit
from broker.settings import Settings

__all__ = ["Appends", "Beats", "Publisher"]

BATCH_ITEMS = 200
BATCH_BYTES = 1 << 20
_TYPE_MAX = 64
"""The limit of an item counts its type and its data together (append.lua); a type has so many bytes at most."""
_FIRST_BACKOFF, _LAST_BACKOFF = 0.05, 1.0


class Appends(Protocol):
    """What the publisher needs of ``RunLog``."""

    async def append(self, run_id: str, owner: str, epoch: int, first_seq: int, items: list[Encoded]) -> int: ...


class Seen(Protocol):
    @property
    def last(self) -> int: ...
    @property
    def epoch(self) -> int: ...


class Beats(Protocol):
    """What the publisher needs of ``Runs``."""

    async def beat(self, run_id: str, owner: str, epoch: int) -> Seen: ...
    async def new_epoch(self, run_id: str, owner: str, epoch: int) -> tuple[int, int]: ...


class _Kept:
    """What was appended, for a resend: contiguous, ends at ``last``, bounded in items and bytes."""

    def __init__(self, last: int, limit_items: int, limit_bytes: int) -> None:
        self.last = last
        self._limits = limit_items, limit_bytes
        self._items: deque[Encoded] = deque()
        self._bytes = 0

    def add(self, batch: list[Encoded]) -> None:
        self._items.extend(batch)
        self.last += len(batch)
        self._bytes += sum([len(e.data) for e in batch])
        while self._items and (len(self._items) > self._limits[0] or self._bytes > self._limits[1]):
            self._bytes -= len(self._items.popleft().data)

    def after(self, seq: int) -> list[Encoded]:
        """What is held of the items after ``seq``."""
        count = min(max(self.last - seq, 0), len(self._items))
        return [self._items[i] for i in range(len(self._items) - count, len(self._items))]

    def covers(self, seq: int) -> bool:
        return self.last - seq <= len(self._items)


class Publisher:
    """Create it with the claim's owner, epoch and last seq; use it as an async context manager, or call ``aclose``.

    All calls raise the publisher's error once it has one: ``Fenced``, ``Sealed``, ``OutageTooLong``, or whatever the
    store refused an item with.
    """

    def __init__(
        self,
        log: Appends,
        runs: Beats,
        run_id: str,
        *,
        owner: str,
        epoch: int,
        last: int,
        settings: Settings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log, self._runs, self._settings, self._clock = log, runs, settings, clock
        self._item_max = settings.item_max_bytes - _TYPE_MAX
        self.run_id, self.owner, self.epoch = run_id, owner, epoch
        self._kept = _Kept(last, settings.resend_items, settings.resend_bytes)
        self._pending: deque[Encoded] = deque()
        self._pending_bytes = 0
        self._suspect = False
        self._sealed = False
        self._error: RuncastError | None = None
        self._kick = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._turn: deque[asyncio.Future[None]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def last(self) -> int:
        """The last seq that the store has confirmed."""
        return self._kept.last

    @property
    def error(self) -> RuncastError | None:
        return self._error

    async def publish(self, item: Item | Raw) -> None:
        """Take an item; wait while the buffer is full.

        Cancelled while it waits, the item was not taken. Raises the publisher's error, and ``InvalidItem`` for an
        item without a JSON form or with an impossible type.
        """
        self._check_error()  # a publisher that has failed sends nothing more: room would never come
        if self._turn or self._full():
            await self._wait_for_room()
        self._check()
        if isinstance(item, Raw):
            check_type(item.type)
        ts = self._clock()
        encoded = encode(item, ts=ts)
        self._take((encoded,) if len(encoded.data) <= self._item_max else self._fitted(item, ts))

    async def flush(self) -> None:
        """Return when everything taken so far is stored."""
        self._check_error()
        await self._settled.wait()
        self._check_error()

    async def seal(self, fence: Item) -> int:
        """Publish the fence, wait until it is stored, and return its seq. Nothing may be published after it."""
        await self.publish(fence)
        await self.flush()
        return self.last

    def observe(self, beat: Seen) -> None:
        """Tell what a beat answered: a log shorter than what was confirmed is mended at once, not at the next item."""
        if beat.epoch == self.epoch and beat.last < self._kept.last and self._error is None:
            self._suspect = True
            self._start()

    async def aclose(self) -> None:
        """Stop. What is not stored yet is given up: call ``flush`` or ``seal`` first."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._error is None:
            self._fail(Sealed("the publisher is closed") if self._sealed else Fenced("the publisher is closed"))

    # The buffer.

    def _full(self) -> bool:
        s = self._settings
        return len(self._pending) >= s.publisher_items or self._pending_bytes >= s.publisher_bytes

    async def _wait_for_room(self) -> None:
        metrics.BACK_PRESSURE.inc()
        queue = self._turn.append
        while True:
            turn = asyncio.get_running_loop().create_future()
            queue(turn)
            queue = self._turn.appendleft  # woken in vain: keep the place in the line
            try:
                await turn
            except asyncio.CancelledError:
                self._give_turn_back(turn)
                raise
            if self._error is not None or not self._full():
                return

    def _give_turn_back(self, turn: asyncio.Future[None]) -> None:
        if turn in self._turn:
            self._turn.remove(turn)
        elif not self._full():
            self._next_turn()

    def _next_turn(self) -> None:
        while self._turn:
            turn = self._turn.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _check_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _check(self) -> None:
        self._check_error()
        if self._sealed:
            raise Sealed(f"run {self.run_id!r} has its fence: nothing is published after it")

    def _fitted(self, item: Item | Raw, ts: float) -> Sequence[Encoded]:
        fitted = fit(item, self._item_max, ts)
        metrics.SPLIT.inc(fitted.split)
        metrics.TRUNCATED_BYTES.inc(fitted.truncated_bytes)
        return fitted.encoded

    def _take(self, encoded: Sequence[Encoded]) -> None:
        for item in encoded:
            self._pending.append(item)
            self._pending_bytes += len(item.data)
        self._sealed = encoded[-1].type in FENCES
        self._start()
        if self._turn and not self._full():
            self._next_turn()

    def _start(self) -> None:
        if self._kick.is_set():
            return  # the sender has not looked yet, and nothing counts as settled
        self._settled.clear()
        self._kick.set()
        if self._task is None:
            self._task = asyncio.create_task(self._send_forever(), name=f"publisher {self.run_id}")

    def _fail(self, error: RuncastError) -> None:
        self._error = error
        self._settled.set()
        while self._turn:
            self._next_turn()

    # The sender: the only place that writes.

    async def _send_forever(self) -> None:
        try:
            while True:
                await self._kick.wait()
                self._kick.clear()
                if self._suspect:
                    await self._verify()
                while self._pending:
                    await self._send_batch(self._next_batch())
                if not self._kick.is_set():
                    self._settled.set()
        except RuncastError as error:
            self._fail(error)
        except Exception as error:  # a fault of ours must reach the runner, not hang it
            failure = RuncastError(f"the publisher failed: {error!r}")
            failure.__cause__ = error
            self._fail(failure)

    def _next_batch(self) -> list[Encoded]:
        pending = self._pending
        batch: list[Encoded] = []
        size = 0
        while pending and len(batch) < BATCH_ITEMS:
            size += len(pending[0].data)
            if batch and size > BATCH_BYTES:
                size -= len(pending[0].data)
                break
            batch.append(pending.popleft())
        self._pending_bytes -= size
        if not self._full():
            self._next_turn()
        return batch

    async def _send_batch(self, batch: list[Encoded]) -> None:
        while True:
            try:
                await self._append(self._kept.last + 1, batch)
                break
            except LogGap as gap:
                batch = await self._mend(gap.last) + batch
        self._kept.add(batch)
        metrics.APPENDED.inc(len(batch))

    async def _append(self, first: int, batch: list[Encoded]) -> None:
        waited: _Outage | None = None
        while True:
            metrics.APPEND_CALLS.inc()
            began = time.perf_counter()
            try:
                for start in range(0, len(batch), BATCH_ITEMS):
                    part = batch[start : start + BATCH_ITEMS]
                    await self._log.append(self.run_id, self.owner, self.epoch, first + start, part)
                metrics.APPEND_SECONDS.observe(time.perf_counter() - began)
                return
            except StoreUnavailable as error:
                waited = waited or _Outage(self._settings.outage_limit)
                metrics.RETRIES.inc()
                await waited.back_off(error)

    async def _verify(self) -> None:
        """A beat saw a log shorter than what was confirmed. Nothing is in flight here, so look again and believe it."""
        self._suspect = False
        waited: _Outage | None = None
        while True:
            try:
                beat = await self._runs.beat(self.run_id, self.owner, self.epoch)
                break
            except StoreUnavailable as error:
                waited = waited or _Outage(self._settings.outage_limit)
                await waited.back_off(error)
        if beat.last < self._kept.last:
            lost = await self._mend(beat.last)
            if lost:
                await self._send_batch(lost)

    async def _mend(self, last: int) -> list[Encoded]:
        """The log ends at ``last``, before what was confirmed. Returns what must go in front of the next batch."""
        if last >= self._kept.last:
            return []  # some of the batch itself is there: sending it again skips that
        while self._kept.covers(last) and last < self._kept.last:
            lost = self._kept.after(last)
            try:
                await self._append(last + 1, lost)
            except LogGap as gap:  # it was rewound once more meanwhile
                last = gap.last
                continue
            metrics.RESENT.inc(len(lost))
            return []
        return await self._change_epoch(last)

    async def _change_epoch(self, seen: int) -> list[Encoded]:
        waited: _Outage | None = None
        while True:
            try:
                epoch, last = await self._runs.new_epoch(self.run_id, self.owner, self.epoch)
                break
            except StoreUnavailable as error:
                waited = waited or _Outage(self._settings.outage_limit)
                await waited.back_off(error)
        metrics.EPOCHS.inc()
        held = self._kept.after(last)
        lost_to = self._kept.last - len(held)
        self.epoch = epoch
        self._kept = _Kept(last, self._settings.resend_items, self._settings.resend_bytes)
        payload = {"epoch": epoch, "lost_from": last + 1, "lost_to": lost_to}
        return [encode(Event(name="log.rewound", payload=payload), ts=self._clock()), *held]


class _Outage:
    """One outage as one call sees it: growing, jittered pauses, and an end."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since = time.monotonic()
        self._pause = _FIRST_BACKOFF

    async def back_off(self, error: StoreUnavailable) -> None:
        away = time.monotonic() - self._since
        if away >= self._limit:
            metrics.OUTAGES.inc()
            raise OutageTooLong(
                f"the store has been away for {away:.0f} s, longer than RUNCAST_OUTAGE_LIMIT"
            ) from error
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(self._pause * 2, _LAST_BACKOFF)
