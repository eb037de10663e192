"""Making a run: its record, once, whoever asks how often, and only where its session and its payer let it.

The record is one script (create.lua). What comes before it may refuse the run; what comes behind it (its session, the
queue) is the caller's, and is mended where he dies.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, NamedTuple, TypeAlias

from broker import tracing
from broker.errors import IdempotencyConflict, RunExists, StoreUnavailable
from broker.ids import IdMaker, check_id
from broker.records import RunRecord, pairs, parse_record
from broker.requests import RunRequest
from broker.scripts import SCRIPTS
from broker.session_turns import SessionTurns
from broker.sessions import Sessions
from broker.settings import Settings
from broker.task_model import TASK_RUNNER

__all__ = ["Busy", "Creation", "Making"]

Busy: TypeAlias = Literal["overlap", "wait", "refuse"]
_Once: TypeAlias = tuple[bytes, str]
"""The idempotency entry, and the run that it may name without that counting, since it is gone."""


class Making(NamedTuple):
    """What is asked for: see ``Runs.create``."""

    request: RunRequest
    principal: str
    before: Callable[[str], Awaitable[None]] | None
    busy: Busy


class Creation:
    """Every method raises ``StoreUnavailable``, ``SessionBusy``, and what ``Making.before`` raises."""

    def __init__(self, sessions: Sessions, turns: SessionTurns) -> None:
        self._sessions, self._turns = sessions, turns
        self._store, self._keys, self._settings = sessions.store, sessions.keys, sessions.store.settings
        self._new_id = IdMaker()

    async def new(self, making: Making, run_id: str | None = None) -> RunRecord:
        """A run under that id, or one of its own. Raises ``RunExists``, ``InvalidId``."""
        run_id = self._new_id() if run_id is None else check_id(run_id)
        reply = await self._create(making, run_id)
        if reply[0] == b"EXISTS":
            raise RunExists(f"there is a run {run_id!r} already: ids are not reused while their record lives")
        return parse_record(run_id, pairs(reply[2]))

    async def once(self, making: Making, key: str) -> tuple[RunRecord, bool]:
        """The run that this key made, and whether that was now. Raises ``IdempotencyConflict``."""
        whose = making.principal.encode()
        digest = hashlib.sha256(b"%d:%b:%b" % (len(whose), whose, key.encode("utf-8", "replace"))).hexdigest()
        partition = self._keys.partition(digest)
        entry = self._keys.idempotency(partition, digest)
        stale = ""
        while True:
            run_id = self._new_id.in_partition(partition, self._keys.partitions)
            reply = await self._create(making, run_id, (entry, stale))
            if reply[0] == b"OK":
                return parse_record(run_id, pairs(reply[2])), True
            if reply[0] == b"EXISTS":
                continue  # drawn twice; the next one differs
            known = reply[1].decode()
            flat = await self._store.call(b"HGETALL", self._keys.run(known))
            if not flat:
                stale = known  # its record is gone: the key is free again
                continue
            if reply[0] == b"CONFLICT":
                raise IdempotencyConflict(
                    f"this idempotency key made run {known!r} from another body: use a new key for a new request"
                )
            return parse_record(known, pairs(flat)), False

    async def _is_free(self, entry: bytes, stale: str) -> bool:
        """No run was made under that idempotency key: one is about to be."""
        known = await self._store.call(b"GET", entry)
        return known is None or known.decode().rpartition(" ")[2] == stale

    async def _create(self, making: Making, run_id: str, once: _Once | None = None) -> Sequence[Any]:
        guarded = making.before is not None or making.busy == "refuse"
        if not guarded or (once is not None and not await self._is_free(*once)):
            return await self._create_now(making, run_id, once)
        async with self._reserved(making, run_id):
            if making.before is not None:
                await making.before(run_id)
            return await self._create_now(making, run_id, once)

    @asynccontextmanager
    async def _reserved(self, making: Making, run_id: str) -> AsyncIterator[None]:
        """The session is the run's from here on, where it is to be its alone; free again where no run was made."""
        session_id = making.request.session_id
        if making.busy != "refuse" or session_id is None:
            yield
            return
        await self._turns.reserve(session_id, run_id)
        try:
            yield
        finally:
            with suppress(StoreUnavailable):  # then it is free by itself, a little later
                await self._sessions.release(session_id, run_id)

    async def _create_now(self, making: Making, run_id: str, once: _Once | None) -> Sequence[Any]:
        request, principal = making.request, making.principal
        p = self._keys.partition(run_id)
        keys = [self._keys.run(run_id), self._keys.items(run_id), self._keys.control(run_id)]
        keys += [self._keys.live(p), self._keys.runs(p), self._keys.bus(p)]
        args: list[Any] = [run_id, request.encoded(), request.session_id or "", principal, request.on_worker_lost]
        queue = self._settings.tasks_queue if request.runner == TASK_RUNNER else self._settings.queue
        args += [_limits(self._settings), queue]
        if once is not None:
            keys.append(once[0])
            args += [request.digest(), once[1]]
        trace, wait = tracing.traceparent() or "", "" if making.busy == "overlap" else "wait"
        if trace or wait:
            args += [*([] if once is not None else ["", ""]), trace, wait]
        reply: Sequence[Any] = await self._store.script(SCRIPTS["create"], keys, args)
        return reply


def _limits(settings: Settings) -> str:
    """What ``create`` keeps with the run, for every later script; its order is in create.lua."""
    numbers = (
        settings.item_max_bytes,
        settings.run_max_items,
        settings.run_max_bytes,
        max(1, round(settings.run_ttl * 1000)),
        max(1, round(settings.record_ttl * 1000)),
        settings.bus_max_entries,
    )
    return " ".join(map(str, numbers))
