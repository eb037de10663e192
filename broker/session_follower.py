"""What follows the event bus and tells sessions, and the ledger, of runs: one task in every gateway.

The scripts that change a run write the bus in the same step; a session, in another slot, learns of it here. Several
followers do the same work side by side, and each change is told once, since every step may be repeated. How far they
came is kept in the store, so what happened while no gateway lived is made up for; and where the bus was trimmed
meanwhile, the partition's index of runs stands for it.

Beside ``run.*`` it takes two kinds that workers may announce with a session's id: ``session.title`` with ``title``, and
``task.completed`` with ``status`` and ``summary``, which the session's channel tells as ``bg_task_complete``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from broker.errors import BadRequest, RuncastError, SessionNotFound, StoreError, StoreUnavailable
from broker.records import pairs, parse_record
from broker.runs import Runs
from broker.tail import RawEntries, Tail

__all__ = ["SessionFollower"]

_log = logging.getLogger("runcast.sessions")

_COUNT = 200
_BEFORE = 5.0
"""Seconds by which a look at the index reaches further back than the bus: its entry comes after the record's time."""
_TOLD = frozenset({b"run.created", b"run.completed", b"run.failed", b"run.cancelled"})
_ENDS = _TOLD - {b"run.created"}
_object = msgspec.json.Decoder(dict[str, Any])


class SessionFollower:
    """``run_forever`` until it is cancelled. It holds no connection: ``tail`` tells where there is news, and it reads
    that for itself, at its own pace; so what waits for it is at most one mark for each partition."""

    def __init__(self, runs: Runs, tail: Tail) -> None:
        self._sessions, self._turns, self._ledger = runs.sessions, runs.turns, runs.ledger
        self._tail, self._store, self._keys = tail, runs.store, runs.store.keys
        self._followed: dict[int, bytes] = {}
        """The last entry of each partition that was seen to."""
        self._moved: set[int] = set()
        """Partitions that have, or may have, entries behind that."""
        self._woken = asyncio.Event()

    async def run_forever(self) -> None:
        """Follow; wait out outages, and begin again where it was."""
        pause = 0.1
        while True:
            try:
                await self._follow()
            except StoreUnavailable as error:
                _log.info("sessions wait for the store: %s", error)
            except Exception:
                _log.exception("following the bus failed; it starts again")
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 2.0)

    async def _follow(self) -> None:
        await self.catch_up()
        subscriptions = [
            self._tail.subscribe(self._keys.bus(p), after, partial(self._hear, p))
            for p, after in self._followed.items()
        ]
        try:
            while True:
                self._woken.clear()
                await self._see_to_news()
                await self._woken.wait()
        finally:
            for subscription in subscriptions:
                subscription.close()

    def _hear(self, partition: int, entries: RawEntries) -> None:
        self._moved.add(partition)
        self._woken.set()

    async def catch_up(self) -> None:
        """Take up where the followers before this one stood, and see to all that happened since.

        Raises ``StoreUnavailable``.
        """
        kept = pairs(await self._store.call(b"HGETALL", self._keys.sessions("followed")))
        self._followed = {p: kept.get(b"%d" % p, b"0-0") for p in range(self._keys.partitions)}
        self._moved = set(self._followed)
        await self._see_to_news()

    async def _see_to_news(self) -> None:
        while self._moved:
            moved, self._moved = sorted(self._moved), set()
            await self._read(moved)

    async def _read(self, partitions: Sequence[int]) -> None:
        commands: list[tuple[Any, ...]] = []
        for p in partitions:
            key = self._keys.bus(p)
            commands.append((b"XRANGE", key, b"-", b"+", b"COUNT", 1))
            commands.append((b"XRANGE", key, b"(" + self._followed[p], b"+", b"COUNT", _COUNT))
        replies = await self._store.pipeline(commands)
        for p, first, entries in zip(partitions, replies[::2], replies[1::2], strict=True):
            if first and _place(first[0][0]) > _place(self._followed[p]):
                await self._look_at(p, _place(self._followed[p])[0] / 1000 - _BEFORE)
            if entries:
                await self._take(p, entries)
            if len(entries) == _COUNT:
                self._moved.add(p)  # there may be more

    async def _look_at(self, partition: int, since: float) -> None:
        """The bus may lack what happened: fold all runs of a partition that were made since then."""
        ids = await self._store.call(b"ZRANGEBYSCORE", self._keys.runs(partition), repr(max(since, 0.0)), b"+inf")
        for start in range(0, len(ids), _COUNT):
            some = [run_id.decode() for run_id in ids[start : start + _COUNT]]
            await self._ledger.settle_ended(some)
            sessions = await self._store.pipeline([(b"HGET", self._keys.run(run_id), b"session") for run_id in some])
            for run_id, session_id in zip(some, sessions, strict=True):
                if session_id:
                    await self._fold(run_id)

    async def _take(self, partition: int, entries: Sequence[tuple[bytes, list[bytes]]]) -> None:
        events = [dict(zip(flat[::2], flat[1::2], strict=False)) for _, flat in entries]
        ended = [e.get(b"run_id", b"").decode("utf-8", "replace") for e in events if e.get(b"kind") in _ENDS]
        await self._ledger.settle_ended(ended)
        for (entry_id, _), event in zip(entries, events, strict=True):
            if event.get(b"session_id"):
                await self._told(b"%d %b" % (partition, entry_id), event)
        # Only now: whoever dies before leaves these entries to the others, or to himself.
        self._followed[partition] = entries[-1][0]
        await self._store.call(b"HSET", self._keys.sessions("followed"), b"%d" % partition, entries[-1][0])

    async def _told(self, mark: bytes, event: Mapping[bytes, bytes]) -> None:
        """One entry. What is wrong with it, or with its run, must not keep the others waiting."""
        kind = event.get(b"kind", b"")
        session_id = event[b"session_id"].decode("utf-8", "replace")
        try:
            if kind in _TOLD:
                await self._fold(event.get(b"run_id", b"").decode("utf-8", "replace"))
            elif kind == b"session.title":
                await self._sessions.rename(session_id, str(_said(event).get("title") or ""), mark=mark.decode())
            elif kind == b"task.completed":
                await self._task(session_id, mark.decode(), _said(event))
        except StoreUnavailable:
            raise
        except (SessionNotFound, BadRequest) as error:
            _log.info("an entry of the bus says nothing to a session: %s", error)
        except RuncastError as error:
            _log.error("session %s could not be told of %s: %s", session_id, kind.decode("utf-8", "replace"), error)
        except Exception:
            _log.exception("session %s could not be told of %s", session_id, kind.decode("utf-8", "replace"))

    async def _fold(self, run_id: str) -> None:
        try:
            if flat := await self._store.call(b"HGETALL", self._keys.run(run_id)):
                await self._turns.told(parse_record(run_id, pairs(flat)))
        except StoreUnavailable:
            raise
        except StoreError as error:
            _log.error("run %s could not be told to its session: %s", run_id, error)
        except Exception:  # what somebody else's worker wrote: from the bus or the index, the other runs come next
            _log.exception("run %s could not be told to its session", run_id)

    async def _task(self, session_id: str, mark: str, said: Mapping[str, Any]) -> None:
        event = {
            "event_id": str(said.get("event_id") or mark.replace(" ", ":")),
            "task_id": str(said.get("name") or ""),
            "status": str(said.get("status") or "completed"),
            "summary": str(said.get("summary") or ""),
        }
        await self._sessions.note(session_id, "bg_task_complete", event, mark=mark)


def _place(entry_id: bytes) -> tuple[int, int]:
    ms, _, seq = entry_id.partition(b"-")
    return int(ms), int(seq or 0)


def _said(event: Mapping[bytes, bytes]) -> dict[str, Any]:
    try:
        return _object.decode(event.get(b"d", b"{}"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
