"""One run of a session at a time: who has the turn, and who is next.

A run that is to wait for its session is made at once, as every run is, and can be watched and cancelled; but its record
says ``waits``, and it is in no queue, so it takes nobody's slot. The turn is a field of the session (session.lua,
``enter``): one run has it, the oldest that is open gets it when it is free. Whoever ends a run of the session frees
the turn and lets the next one begin: admits it (beat.lua) and queues it. That is its worker, once it has cleared up
what the run left behind; where there was none, whoever ended it, and every gateway that follows the bus; and the sweep,
where a worker died before. Every step may be repeated by anybody: of several one admits a run.

Runs that do not ask for it neither wait nor are refused. Those that do wait for them, where they are older.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from broker import metrics
from broker.errors import RuncastError, SessionBusy
from broker.records import RunRecord, Standing, pairs, parse_record
from broker.scripts import SCRIPTS
from broker.sessions import Sessions, Turn

__all__ = ["SessionTurns"]

_log = logging.getLogger("runcast.sessions")

_ROUNDS = 100
"""Runs that have ended, or vanished, and that nobody told the session of: so many are made up for in one go."""


class SessionTurns:
    """``enqueue(run, attempt)`` puts a run into the queue."""

    def __init__(self, sessions: Sessions, enqueue: Callable[[Standing, int], Awaitable[None]]) -> None:
        self._sessions, self._enqueue = sessions, enqueue
        self._store, self._keys = sessions.store, sessions.keys

    async def reserve(self, session_id: str, run_id: str) -> None:
        """Take the session for a run that is about to be made, or raise ``SessionBusy``. See ``Sessions.reserve``."""
        standing = await self._sessions.reserve(session_id, run_id)
        if standing is not None:
            metrics.SESSION_REFUSED.inc()
            raise SessionBusy(session_id, standing)

    async def over(self, run_id: str) -> RunRecord | None:
        """Tell the session of a run that has ended, and let the next one begin: → its record.

        ``None``: it has none, has not ended, or has no session. Raises ``StoreUnavailable``, ``StoreError``.
        """
        record = await self._record(run_id)
        if record is None or record.session_id is None or not record.is_ended:
            return None
        await self.told(record)
        return record

    async def told(self, record: RunRecord) -> str | None:
        """Take in how a run stands, and let the one begin whose turn it is by now: → its id, where this call did it."""
        told = await self._sessions.tell(record)
        if record.session_id is None or not (record.waits or (told.next and told.next != record.run_id)):
            return None
        return await self.advance(record.session_id)

    async def try_over(self, run_id: str) -> None:
        """The same, where nobody waits for it: what fails is made up for by a gateway, or by the sweep."""
        try:
            await self.over(run_id)
        except RuncastError as error:
            _log.warning("the session of run %s was not told that it has ended: %s", run_id, error)

    async def leave(self, run_id: str, owner: str) -> None:
        """The worker has cleared up all that the run left behind its fence. Another owner's run stays as it is.

        Raises ``StoreUnavailable``, ``StoreError``: then the sweep does it, a lease later.
        """
        record = await self.over(run_id)
        if record is None or record.owner != owner:
            return
        assert record.session_id is not None
        if await self._sessions.free(record.session_id, run_id):
            await self.advance(record.session_id)

    async def advance(self, session_id: str) -> str | None:
        """Let the run that has the turn, or gets it now, begin: → its id, where this call admitted it.

        On the way it makes up for what nobody told. Raises ``StoreUnavailable``, ``StoreError``.
        """
        for _ in range(_ROUNDS):
            turn = await self._sessions.enter(session_id)
            if turn is None:
                return None
            record = await self._record(turn.run_id)
            if record is not None and not record.is_ended:
                return await self._admit(record)
            if not await self._pass(session_id, turn, record):
                return None
        _log.error("session %s has more than %d runs that ended untold", session_id, _ROUNDS)
        return None

    async def _admit(self, record: RunRecord) -> str | None:
        if not record.waits:
            return None
        args: list[Any] = [record.run_id, "", record.attempt, "admitted"]
        reply: Sequence[Any] = await self._store.script(SCRIPTS["beat"], [self._keys.run(record.run_id)], args)
        if reply[0] != b"OK" or not reply[4]:
            return None  # somebody else did, or it was cancelled meanwhile
        await self._enqueue(record, record.attempt)
        return record.run_id

    async def _pass(self, session_id: str, turn: Turn, record: RunRecord | None) -> bool:
        """Take the turn from a run that has ended or has no record: → false where that is not due yet."""
        seconds, micros = await self._store.call(b"TIME")
        now = int(seconds) + int(micros) / 1e6
        if record is None:
            if turn.since is not None and now - turn.since < self._store.settings.requeue_after:
                return False  # it is about to be made
            await self._sessions.forget(session_id, turn.run_id)
        elif turn.since is not None:
            await self._sessions.tell(record)
        elif record.lingers and now - (record.ended or 0.0) < self._store.settings.lease:
            return False  # its worker is about to free it
        else:
            if record.lingers:
                metrics.SESSION_FREED_LATE.inc()
                _log.warning("run %s never freed its session: its worker is taken for dead", record.run_id)
            await self._sessions.free(session_id, turn.run_id)
        return True

    async def _record(self, run_id: str) -> RunRecord | None:
        flat = await self._store.call(b"HGETALL", self._keys.run(run_id))
        return parse_record(run_id, pairs(flat)) if flat else None
