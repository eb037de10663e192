"""The queue: runs that wait for a worker, one stream with one consumer group.

An entry is a hint, the record is the truth: claiming is a compare-and-set on the record, so an entry that comes twice,
late, or for a run that was cancelled is refused there and deleted. An entry is acknowledged and deleted when it was
claimed or its claim refused. One that a worker took and then died with is taken by another worker after
``requeue_after`` seconds; one that never was written, or was lost, is written again by the sweep.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker.errors import StoreError
from broker.redis import Link, Moving, Store

__all__ = ["Queue", "Taken"]

GROUP = b"workers"
_GRACE = 2.0
_CONSUMER_IDLE = 3600.0
_MOVING_PAUSE = 0.2


class Taken(NamedTuple):
    """An entry of the queue, now this consumer's."""

    entry_id: str
    run_id: str
    attempt: int


class Queue:
    """The queue that the settings name, or the one of that name."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic, *, name: str | None = None) -> None:
        self._store = store
        self._clock = clock
        self._key = store.keys.queue(name or store.settings.queue)
        self._looked = float("-inf")
        self._cursor = b"0-0"

    @property
    def key(self) -> bytes:
        return self._key

    async def put(self, run_id: str, attempt: int, *, queue: str | None = None) -> str:
        """Append an entry, to the queue of that name or else to this one; returns its id.

        After ``StoreUnavailable`` it may be there: another one does no harm.
        """
        entry: bytes = await self._store.call(b"XADD", self._named(queue), b"*", b"run", run_id, b"attempt", attempt)
        return entry.decode()

    async def take(self, link: Link, consumer: str, *, block_ms: int) -> Taken | None:
        """The next entry, or ``None`` after ``block_ms`` of none. Whoever takes one claims it and then calls ``done``.

        ``link`` is one near ``key``. What another consumer took and left lying for ``requeue_after`` seconds comes
        first; it is looked for when that long has passed since the last look. Cancelled: the link is closed, and an
        entry that was on its way is taken by somebody else later. Raises ``StoreUnavailable``.
        """
        idle = self._store.settings.requeue_after
        if self._clock() - self._looked >= idle and (left := await self.reclaim(consumer, idle)) is not None:
            return left
        ask, stream = (b"XREADGROUP", b"GROUP", GROUP, consumer, b"COUNT", 1), (b"STREAMS", self._key, b">")
        try:
            try:
                reply = await link.call(*ask, b"BLOCK", block_ms, *stream, deadline=block_ms / 1000 + _GRACE)
            except Moving:
                # On its way to another node: nobody can wait for it there yet.
                await asyncio.sleep(_MOVING_PAUSE)
                reply = await self._store.call(*ask, *stream)
        except StoreError as error:
            await self._make_group(error)
            return None
        return await self._first(reply[0][1]) if reply else None

    async def reclaim(self, consumer: str, idle: float) -> Taken | None:
        """One entry that was taken ``idle`` seconds ago and left lying, now this consumer's, or ``None``."""
        command = (b"XAUTOCLAIM", self._key, GROUP, consumer, int(idle * 1000), self._cursor, b"COUNT", 1)
        try:
            reply = await self._store.call(*command)
        except StoreError as error:
            await self._make_group(error)
            return None
        self._cursor = reply[0]
        taken = await self._first(reply[1])
        if taken is None:
            self._looked = self._clock()
        return taken

    async def done(self, entry_id: str) -> None:
        """Acknowledge and delete it: its claim was granted or refused. Repeatable."""
        await self._store.pipeline([(b"XACK", self._key, GROUP, entry_id), (b"XDEL", self._key, entry_id)], atomic=True)

    async def leave(self, consumer: str) -> int:
        """This consumer takes nothing more. What it took and never claimed waits anew, at once instead of after
        ``requeue_after``, and the group forgets it; returns how many entries that were.

        Repeatable. Call it when its link is closed. Raises ``StoreUnavailable``.
        """
        command = (b"XREADGROUP", b"GROUP", GROUP, consumer, b"COUNT", 1_000, b"STREAMS", self._key, b"0")
        try:
            reply = await self._store.call(*command)
        except StoreError as error:
            await self._make_group(error)
            return 0
        entries = reply[0][1] if reply else []
        back = 0
        for entry in entries:
            if (taken := await self._first([entry])) is not None:
                await self.put(taken.run_id, taken.attempt)
                await self.done(taken.entry_id)
                back += 1
        await self._store.call(b"XGROUP", b"DELCONSUMER", self._key, GROUP, consumer)
        return back

    async def lacking(self, entries: Sequence[tuple[str, str]]) -> list[bool]:
        """For each (queue, entry id), whether that queue holds the entry no more. ``""``: none was noted."""
        asked = [(b"XRANGE", self._named(queue), entry, entry) for queue, entry in entries if entry]
        found = iter(await self._store.pipeline(asked) if asked else [])
        return [not next(found) if entry else True for _, entry in entries]

    async def prune_consumers(self, idle: float = _CONSUMER_IDLE) -> int:
        """Remove consumers that hold nothing and have not asked for ``idle`` seconds: they died; → how many."""
        try:
            consumers = await self._store.call(b"XINFO", b"CONSUMERS", self._key, GROUP)
        except StoreError:
            return 0  # no queue, or no group yet
        seen = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in consumers]
        dead = [c[b"name"] for c in seen if not int(c[b"pending"]) and int(c[b"idle"]) >= idle * 1000]
        for name in dead:
            await self._store.call(b"XGROUP", b"DELCONSUMER", self._key, GROUP, name)
        return len(dead)

    async def size(self) -> int:
        """Entries in the queue, taken ones included."""
        return int(await self._store.call(b"XLEN", self._key))

    def _named(self, queue: str | None) -> bytes:
        return self._key if queue is None else self._store.keys.queue(queue)

    async def _first(self, entries: Sequence[Any]) -> Taken | None:
        for entry_id, fields in entries:
            if fields is None:
                continue  # it was deleted while it was on its way
            values = dict(zip(fields[::2], fields[1::2], strict=False))
            run_id, attempt = values.get(b"run", b""), values.get(b"attempt", b"")
            if run_id and attempt.isdigit():
                return Taken(entry_id.decode(), run_id.decode("utf-8", "replace"), int(attempt))
            await self.done(entry_id.decode())  # nobody can make anything of it
        return None

    async def _make_group(self, error: StoreError) -> None:
        """The answer to NOGROUP: this queue's first consumer, or somebody deleted the stream. Other errors go on."""
        if getattr(error, "kind", "") != "NOGROUP":
            raise error
        try:
            await self._store.call(b"XGROUP", b"CREATE", self._key, GROUP, b"0", b"MKSTREAM")
        except StoreError as refused:
            if getattr(refused, "kind", "") != "BUSYGROUP":
                raise
