"""The tail: follows many streams over few connections (lanes).

A lane is one connection with one blocking ``XREAD`` over all the streams it follows: a few for everything on one
server; in a Cluster, where such a read is of one slot, one for each slot (so, for each partition) in use. A stream
joins a blocked read at once through the lane's wake key, never by polling (docs/architecture.md, decision 4). Sinks
are called in the event-loop step in which the reply was read, in the order of the stream, and must not block or raise.

A stream may have several subscribers. It is asked for once, behind the entry at which the one stands that has least of
it, and each is given what lies behind its own place.

Interruptions: a lane whose connection broke opens another one, verifies its subscriptions (``on_reconnect``: the log
may have been rewound meanwhile) and reads on from where each stood. Nothing is skipped, nothing comes twice.

While a slot moves to another node, its streams lie on two: no blocking read is possible then. Each is read by itself,
``_MOVING_PAUSE`` seconds after the other, until the slot has come to rest.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from zlib import crc32

from broker import metrics
from broker.errors import RuncastError, StoreUnavailable
from broker.logs import unbound
from broker.redis import Link, Moving, Store
from broker.settings import Settings

__all__ = ["RawEntries", "Subscription", "Tail"]

log = logging.getLogger("runcast.tail")

RawEntries = Sequence[tuple[bytes, list[bytes]]]
Sink = Callable[[RawEntries], None]
_PACE = 0.005
"""A lane of many streams that is never at rest reads at most so often (seconds): batches, not single items."""
_PACE_ABOVE = 64
_REST_EACH = 40e-6
"""Seconds of pace for each write that a reply led to, some ten times what it takes: the next items go together."""
_LEAST_REST = 0.001
_READ_GRACE = 2.0
_FIRST_COUNT = 16
_MOVING_PAUSE = 0.1
_IDLE = 30.0
"""Seconds after which a lane that follows nothing lets its connection go."""


def _bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


class Subscription:
    """One followed stream. ``after`` is the id of the last entry that the sink was given; ``weight`` is how many
    writes one call of the sink leads to."""

    __slots__ = ("_lane", "_packed_id", "after", "key", "packed_key", "run_id", "sink", "weight")

    def __init__(self, lane: _Lane, key: bytes, after: bytes, sink: Sink, run_id: str | None) -> None:
        self._lane = lane
        self.key, self.sink, self.run_id = key, sink, run_id
        self.weight = 1
        self.packed_key = _bulk(key)
        self.after = after
        self._packed_id = _bulk(after)

    @property
    def packed_id(self) -> bytes:
        return self._packed_id

    @property
    def open(self) -> bool:
        return self in self._lane.streams.get(self.key, ())

    def move(self, after: bytes) -> None:
        """Go on after another entry, when the log was rewound. What the read under way brings is left aside."""
        self.advance(after)
        self._lane.renew(self)

    def advance(self, after: bytes) -> None:
        self.after = after
        self._packed_id = _bulk(after)

    def close(self) -> None:
        """Stop following. The sink is not called again. Harmless when repeated."""
        self._lane.drop(self)


class Tail:
    """All lanes of one process.

    ``on_reconnect`` is awaited with a lane's subscriptions whenever that lane has (re)connected, before it reads;
    what it raises counts as an interruption.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self.on_reconnect: Callable[[list[Subscription]], Awaitable[None]] | None = None
        self.process = secrets.token_hex(6)
        self._store, self._settings = store, settings
        self._lanes: dict[int, _Lane] = {}

    def subscribe(self, key: bytes, after: bytes, sink: Sink, *, run_id: str | None = None) -> Subscription:
        """Follow the stream ``key`` behind the entry ``after`` (``b"0-0"``: from its start); it may not exist yet."""
        return self._lane_of(key).add(key, after, sink, run_id)

    def _lane_of(self, key: bytes) -> _Lane:
        slot = self._store.slot(key)
        number = crc32(key) % self._settings.lanes if slot is None else slot
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = _Lane(self, self._store, self._settings, number, key)
        return lane

    @property
    def connections(self) -> int:
        return sum(lane.connected for lane in self._lanes.values())

    async def aclose(self) -> None:
        await asyncio.gather(*(lane.aclose() for lane in self._lanes.values()))


class _Lane:
    """``near``: a key of the slot that its connection is to."""

    def __init__(self, tail: Tail, store: Store, settings: Settings, number: int, near: bytes) -> None:
        self._tail, self._store, self._settings = tail, store, settings
        self.streams: dict[bytes, list[Subscription]] = {}
        """By key; each list has at least one."""
        self.fresh: set[Subscription] = set()
        """Added or moved since the read under way was sent: its reply does not answer them."""
        self.connected = False
        self._number = number
        self._near, self._wake_key = near, store.keys.wake(near, f"{tail.process}.{number}")
        self._wake_id = b"0-0"
        self._count = _FIRST_COUNT
        self._blocked = False
        self._unanswered = False
        """Somebody came, or moved, since the last wake was sent."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None

    def add(self, key: bytes, after: bytes, sink: Sink, run_id: str | None) -> Subscription:
        subscription = Subscription(self, key, after, sink, run_id)
        several = self.streams.setdefault(key, [])
        several.append(subscription)
        if len(several) == 1:
            metrics.FOLLOWED.inc()
        self._changed.set()
        if self._task is None:
            # It serves whoever comes after, too: its records are not about the one who came first.
            self._task = asyncio.create_task(self._run(), name=f"lane {self._number}", context=unbound())
        self.renew(subscription)
        return subscription

    def renew(self, subscription: Subscription) -> None:
        """The read under way does not ask for this one as it stands now: the next one, at once, will."""
        self.fresh.add(subscription)
        if self._blocked:
            self._wake()

    def drop(self, subscription: Subscription) -> None:
        several = self.streams.get(subscription.key, [])
        if subscription in several:
            several.remove(subscription)
            if not several:
                del self.streams[subscription.key]
                metrics.FOLLOWED.dec()

    async def aclose(self) -> None:
        tasks = [t for t in (self._task, self._waking) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        metrics.FOLLOWED.dec(len(self.streams))
        self.streams.clear()

    # Waking a blocked read.

    def _wake(self) -> None:
        self._unanswered = True
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._send_wake(), name=f"wake lane {self._number}", context=unbound())

    async def _send_wake(self) -> None:
        expiry = int(self._settings.block * 4_000)
        while self._blocked and self._unanswered:
            # Who comes while this is sent may be too late for the read that it wakes the lane for: again, then.
            self._unanswered = False
            try:
                await self._store.pipeline(
                    [("XADD", self._wake_key, "MAXLEN", "1", "*", "w", "1"), ("PEXPIRE", self._wake_key, expiry)]
                )
            except RuncastError:
                # The lane's own read notices a lost store by its deadline; until then keep trying.
                self._unanswered = True
                await asyncio.sleep(0.1)

    # Reading.

    async def _run(self) -> None:
        pause = 0.05
        while True:
            await self._changed.wait()
            started = time.monotonic()
            try:
                await self._connect_and_read()
                continue
            except StoreUnavailable as error:
                log.info("lane %d lost the store: %s", self._number, error)
            except RuncastError as error:
                log.error("lane %d: %s", self._number, error)
            except Exception:
                log.exception("lane %d failed and starts again", self._number)
            metrics.LANE_BROKEN.inc()
            pause = 0.05 if time.monotonic() - started > 2.0 else min(pause * 2, 1.0)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _connect_and_read(self) -> None:
        link = await self._store.link(self._near)
        self.connected = True
        self._wake_id, self._count = b"0-0", _FIRST_COUNT  # another server's clock may be behind; a backlog may wait
        try:
            if self._tail.on_reconnect is not None:
                await self._tail.on_reconnect([one for several in self.streams.values() for one in several])
            while self.streams or await self._needed():
                await self._read_once(link)
        finally:
            self.connected = self._blocked = False
            await link.aclose()

    async def _needed(self) -> bool:
        """Nothing is followed: wait whether something is again."""
        self._changed.clear()
        try:
            async with asyncio.timeout(_IDLE):
                return await self._changed.wait()
        except TimeoutError:
            return False

    async def _read_once(self, link: Link) -> None:
        asked = [s[0] if len(s) == 1 else min(s, key=_place) for s in self.streams.values()]
        self.fresh.clear()
        self._unanswered = False
        started = time.monotonic()
        self._blocked = True  # while sending too, which may take a while: who comes meanwhile is not in the request
        try:
            await link.send(self._request(asked))
            reply = await link.read(self._settings.block + _READ_GRACE)
        except Moving:
            reply = await self._read_singly(asked)
        finally:
            self._blocked = False
        if reply:
            pace = max(self._pace(self._dispatch(reply)), _PACE if len(asked) > _PACE_ABOVE else 0.0)
            if (rest := pace - (time.monotonic() - started)) > 0:
                await asyncio.sleep(rest)

    def _pace(self, writes: int) -> float:
        """Seconds from one read to the next at least, after one that led to so many writes."""
        pace = min(writes * _REST_EACH, self._settings.pace)
        return pace if pace >= _LEAST_REST else 0.0

    async def _read_singly(self, asked: list[Subscription]) -> Any:
        await asyncio.sleep(_MOVING_PAUSE)
        replies = await self._store.pipeline(
            [(b"XREAD", b"COUNT", self._count, b"STREAMS", one.key, one.after) for one in asked if one.open]
        )
        return [stream for reply in replies if reply for stream in reply]

    def _request(self, asked: list[Subscription]) -> list[bytes]:
        n = len(asked) + 1
        head = b"*%d\r\n$5\r\nXREAD\r\n$5\r\nCOUNT\r\n%b$5\r\nBLOCK\r\n%b$7\r\nSTREAMS\r\n" % (
            6 + 2 * n,
            _bulk(b"%d" % self._count),
            _bulk(b"%d" % int(self._settings.block * 1000)),
        )
        keys = [head, _bulk(self._wake_key), *[s.packed_key for s in asked]]
        return [b"".join(keys) + _bulk(self._wake_id) + b"".join([s.packed_id for s in asked])]

    def _dispatch(self, reply: Any) -> int:
        """Gives everybody what came; → how many writes that led to."""
        metrics.LANE_READS.inc()
        size = fullest = writes = 0
        for key, entries in reply:
            if key == self._wake_key:
                self._wake_id = entries[-1][0]
                continue
            fullest = max(fullest, len(entries))
            size += sum([len(fields[-1]) for _, fields in entries])
            for subscription in tuple(self.streams.get(key, ())):
                if subscription not in self.fresh:
                    self._deliver(subscription, _behind(entries, subscription))
                    writes += subscription.weight
        self._bound(size, fullest)
        return writes

    @staticmethod
    def _deliver(subscription: Subscription, entries: RawEntries) -> None:
        if not entries:
            return
        subscription.advance(entries[-1][0])
        try:
            subscription.sink(entries)
        except Exception:
            log.exception("a sink of %r failed: it is followed no longer", subscription.key)
            subscription.close()

    def _bound(self, size: int, fullest: int) -> None:
        """COUNT is per stream, so the bound in bytes is kept by adapting it to what the last reply weighed."""
        if size > self._settings.read_bytes:
            self._count = max(self._count // 2, 1)
        elif fullest >= self._count and size < self._settings.read_bytes // 4:
            self._count = min(self._count * 2, self._settings.read_items)


def _place(subscription: Subscription) -> tuple[int, int]:
    return _numbers(subscription.after)


def _behind(entries: RawEntries, subscription: Subscription) -> RawEntries:
    """Those that this one has not been given yet: the read may have been for another, who stood further back."""
    after = _place(subscription)
    return entries if _numbers(entries[0][0]) > after else [e for e in entries if _numbers(e[0]) > after]


def _numbers(entry_id: bytes) -> tuple[int, int]:
    ms, _, seq = entry_id.partition(b"-")
    return int(ms), int(seq or 0)
