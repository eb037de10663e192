"""The run registry: create, find, cancel, claim, beat, take over. What a run is stands in its record.

Every change is one script: it happens whole or not at all, and a call whose reply was lost may be made again.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from broker import metrics
from broker.artifacts import check_inbound
from broker.asks import Asks
from broker.bus import Bus
from broker.creation import Busy, Creation, Making
from broker.errors import (
    ClaimRefused,
    Fenced,
    InvalidRequest,
    RuncastError,
    RunEnded,
    RunNotFound,
    Sealed,
    StoreError,
    StoreUnavailable,
)
from broker.fences import NOTHING, Seen, cancelled_fence, lost_fence, seen_of
from broker.ids import check_id
from broker.ledger import Ledger
from broker.listing import list_runs
from broker.log import RunLog
from broker.queue import Queue
from broker.records import Beat, RunRecord, Settled, Standing, pairs, parse_record
from broker.redis import Store
from broker.requests import RunRequest
from broker.scripts import SCRIPTS
from broker.session_turns import SessionTurns
from broker.sessions import Sessions
from broker.task_model import TASK_RUNNER

__all__ = ["Beat", "Busy", "Page", "RunRecord", "Runs"]

Page: TypeAlias = tuple[list[RunRecord], str | None]
"""Records, newest first, and the token of the page that follows."""

_log = logging.getLogger("runcast.runs")
_UNLIMITED = 1 << 53

_REFUSALS = {
    b"gone": "it has no record",
    b"ended": "it has ended",
    b"claimed": "somebody else claimed it",
    b"attempt": "that attempt is over",
    b"waits": "earlier runs of its session come first",
}


class Runs:
    """The runs of one store. Every method raises ``StoreUnavailable`` where Redis is away, and ``InvalidId``."""

    def __init__(self, store: Store, log: RunLog, bus: Bus, queue: Queue) -> None:
        self.store, self.log, self.bus, self.queue = store, log, bus, queue
        self.asks = Asks(store)
        self.sessions = Sessions(store)
        self.turns = SessionTurns(self.sessions, self._enqueue)
        self.ledger = Ledger(store)
        self._keys = store.keys
        self._settings = store.settings
        self._creation = Creation(self.sessions, self.turns)

    async def create(
        self,
        request: RunRequest,
        *,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        principal: str = "",
        enqueue: bool = True,
        before: Callable[[str], Awaitable[None]] | None = None,
        busy: Busy | None = None,
    ) -> tuple[RunRecord, bool]:
        """Make a run and queue it; returns its record and whether this call made it.

        With ``idempotency_key`` the same request of the same principal makes one run however often it comes, and
        mends a run that never reached the queue. The record comes first, then the queue's entry; where the latter
        fails, or the process dies between, the run is queued by the sweep. ``enqueue=False``: the caller claims it.
        Its session, where it names one, is told last; that is mended by whoever follows the bus. ``before`` is given
        the id of a run that is about to be made: what it raises is raised, and no run is made.

        ``busy``: what becomes of it where its session has an open run. ``wait``: it is made, and may not be claimed
        before the earlier ones have ended. ``refuse``: ``SessionBusy``. ``overlap``: it does not care, nor does one
        that the caller claims. ``None``: as ``RUNCAST_SESSION_BUSY`` says, else ``overlap``.

        Raises ``InvalidRequest``, ``ItemTooBig``, ``RunExists``, ``IdempotencyConflict``, ``SessionBusy``.
        """
        request.check(self._settings.item_max_bytes)
        check_inbound(request.input.artifacts or (), self._settings)
        if request.session_id is None or not enqueue:
            busy = "overlap"
        making = Making(request, principal, before, busy or self._settings.session_busy or "overlap")
        if idempotency_key is not None:
            if run_id is not None:
                raise InvalidRequest("give a run id or an idempotency key, not both", field="run_id")
            record, created = await self._creation.once(making, idempotency_key)
            if not created and record.status == "queued":
                await self.mend([record])
        else:
            record, created = await self._creation.new(making, run_id), True
        (metrics.CREATED if created else metrics.REPEATED).inc()
        if created and enqueue and not record.waits:
            try:
                await self._enqueue(record, record.attempt)
            except StoreUnavailable as error:
                _log.warning("run %s waits for the sweep to queue it: %s", record.run_id, error)
        return await self._join_session(record, created), created

    async def _join_session(self, record: RunRecord, created: bool) -> RunRecord:
        """Tell the run's session of it, and let it begin where it is its turn: → its record by then.

        Where that fails, whoever follows the bus does it later.
        """
        try:
            if await self.turns.told(record) == record.run_id:
                return msgspec.structs.replace(record, waits=False)
        except RuncastError as error:
            _log.warning("run %s is not in its session yet: %s", record.run_id, error)
        if record.waits and created:
            metrics.SESSION_WAITS.inc()
        return record

    async def find(self, run_id: str) -> RunRecord | None:
        """The record, or ``None``."""
        flat = await self.store.call(b"HGETALL", self._keys.run(check_id(run_id)))
        return parse_record(run_id, pairs(flat)) if flat else None

    async def trace_of(self, run_id: str) -> str | None:
        """The traceparent of what made the run; ``None``: it has none, or no record."""
        value = await self.store.call(b"HGET", self._keys.run(check_id(run_id)), b"trace")
        return None if value is None else str(value.decode("ascii", "replace"))

    async def get(self, run_id: str) -> RunRecord:
        """The record. Raises ``RunNotFound``."""
        record = await self.find(run_id)
        if record is None:
            raise RunNotFound(run_id)
        return record

    async def list(
        self, *, status: str | None = None, session_id: str | None = None, limit: int = 50, before: str | None = None
    ) -> Page:
        """Runs, newest first, and the token of the next page (to be passed as ``before``) or ``None``.

        A page that a filter thinned out may be short, even empty, and have a next one. Raises ``BadRequest``.
        """
        return await list_runs(self.store, status=status, session_id=session_id, limit=limit, before=before)

    async def cancel(self, run_id: str, *, principal: str = "") -> RunRecord:
        """Ask a run to stop, durably: a queued run ends at once, a running one when its worker hears of it.

        Repeatable: also once the run has ended as cancelled by such a request. Returns the record as it is then.
        Raises ``RunNotFound``, ``RunEnded``.
        """
        record = await self.get(run_id)
        seen = await self._seen(record) if record.status == "queued" else NOTHING
        p = self._keys.partition(run_id)
        keys = [*self._own_keys(run_id), self._keys.live(p), self._keys.bus(p), self._keys.ids(run_id)]
        fence = cancelled_fence(record, seen, self._settings.item_max_bytes)
        reply = await self.store.script(SCRIPTS["cancel"], keys, [run_id, fence])
        if reply[0] == b"NOTFOUND":
            raise RunNotFound(run_id)
        metrics.CANCELS.labels(reply[0].decode().lower()).inc()
        if reply[0] == b"ENDED" and not (reply[1] == b"cancelled" and reply[2]):
            raise RunEnded(f"run {run_id!r} has ended as {reply[1].decode()}: there is nothing to cancel")
        if reply[0] == b"OK":
            await self.ledger.audit.note("cancel", run_id=run_id, principal=principal, status=reply[1].decode())
            if reply[1] == b"cancelled":
                await self.ledger.try_settle(run_id)
                await self.turns.try_over(run_id)
        return await self.get(run_id)

    async def answer(self, run_id: str, request_id: str, answer: str | bool, *, principal: str = "") -> Settled:
        """Answer what a run asked a person: see ``Asks.answer`` for what it raises. The first answer counts."""
        settled = await self.asks.answer(run_id, request_id, answer, principal=principal)
        said = {"answer": settled.answer} if self._settings.audit_text else {}
        await self.ledger.audit.note("input", run_id=run_id, principal=principal, request_id=request_id, **said)
        return settled

    async def cancel_token(self, run_id: str) -> str:
        """What lets its holder cancel the run: an HMAC of the id under the deployment's secret."""
        return hmac.new(await self.store.secret(), check_id(run_id).encode(), hashlib.sha256).hexdigest()

    async def check_cancel_token(self, run_id: str, token: str) -> bool:
        """Whether ``token`` is that run's; compared in constant time. The run need not exist."""
        expected = await self.cancel_token(run_id)
        return hmac.compare_digest(expected.encode(), token.encode("utf-8", "replace"))

    async def claim(self, run_id: str, attempt: int, owner: str, *, lingers: bool = False) -> RunRecord:
        """Make ``owner`` (a token of this claim alone) the run's owner; returns the record of that moment.

        Exactly one of several claims wins; repeated by the winner it succeeds again. Look at ``cancel_requested``
        before running. ``lingers``: the owner calls ``turns.leave`` when it has cleared up behind the run's fence, and
        the next run of its session begins then. Raises ``ClaimRefused``: then the queue's entry is of no use.
        """
        p = self._keys.partition(check_id(run_id))
        keys = [self._keys.run(run_id), self._keys.bus(p)]
        args: list[Any] = [run_id, attempt, owner, "lingers" if lingers else ""]
        reply = await self.store.script(SCRIPTS["claim"], keys, args)
        if reply[0] == b"REFUSED":
            reason = _REFUSALS.get(reply[1], reply[1].decode())
            raise ClaimRefused(f"attempt {attempt} of run {run_id!r} cannot be claimed: {reason}")
        return parse_record(run_id, pairs(reply[2]))

    async def beat(self, run_id: str, owner: str, epoch: int) -> Beat:
        """Tell that the owner lives, and hear how the run stands. After the owner's own fence: no error, no effect.

        Raises ``RunNotFound``, ``Fenced``.
        """
        reply = await self._beat(run_id, [run_id, owner, epoch])
        return Beat(int(reply[1]), int(reply[2]), bool(reply[3]))

    async def new_epoch(self, run_id: str, owner: str, epoch: int) -> tuple[int, int]:
        """The store lost items that the owner cannot send again: → the epoch from now on, and the log's last seq.

        Viewers beyond that are reset. Repeatable with the old epoch. Raises ``RunNotFound``, ``Fenced``, ``Sealed``.
        """
        reply = await self._beat(run_id, [run_id, owner, epoch, b"rewound"])
        return int(reply[2]), int(reply[1])

    async def keep_source(self, run_id: str, owner: str, epoch: int, source: str) -> None:
        """Keep in the record where the owner stands in what it relays, for the next attempt: ``RunRecord.source``.

        The text is the runner's own. A beat besides; repeatable. Raises ``RunNotFound``, ``Fenced``, ``Sealed``.
        """
        await self._beat(run_id, [run_id, owner, epoch, b"source", source])

    async def _beat(self, run_id: str, args: Sequence[Any]) -> Sequence[Any]:
        reply: Sequence[Any] = await self.store.script(SCRIPTS["beat"], [self._keys.run(check_id(run_id))], args)
        match reply[0]:
            case b"OK":
                return reply
            case b"NOTFOUND":
                raise RunNotFound(run_id)
            case b"FENCED":
                raise Fenced(f"run {run_id!r} has another owner or epoch by now: it was taken over")
            case b"SEALED":
                raise Sealed(f"run {run_id!r} has its fence at {reply[1]}")
            case _:
                raise StoreError(f"beat answered {reply!r}, which this version does not know")

    async def takeover(self, record: RunRecord) -> str | None:
        """End or requeue a run whose owner was not heard of since ``record`` was read, for a lease: → its status.

        Compare-and-set on the owner and beat of ``record``: one of several callers gets ``"failed"``,
        ``"cancelled"`` or ``"queued"``, the others, and all where the owner was heard of, get ``None``.
        """
        limit = self._settings.item_max_bytes
        seen = await self._seen(record)
        fences = lost_fence(record, seen, limit), cancelled_fence(record, seen, limit)
        # A task outlives any number of workers: its attempts are no repetitions, they go on from its checkpoint.
        most = _UNLIMITED if record.runner == TASK_RUNNER else self._settings.max_attempts
        reply = await self._take_over(record.run_id, record.owner, record.beat, *fences, most=most)
        match reply[0]:
            case b"FAILED" | b"CANCELLED":
                await self.turns.try_over(record.run_id)
                return str(reply[0].decode().lower())
            case b"QUEUED":
                await self._enqueue(record, int(reply[1]))
                return "queued"
            case b"REQUEUE":
                await self._enqueue(record, int(reply[1]))
        return None

    async def forget(self, run_id: str) -> None:
        """Take a run whose record is gone out of the indexes. One that has a record stays as it is."""
        await self._take_over(run_id, "", "", b"{}", b"{}")

    async def _take_over(
        self, run_id: str, owner: str, beat: str, failed: bytes, cancelled: bytes, *, most: int = 1
    ) -> Sequence[Any]:
        p = self._keys.partition(run_id)
        keys = [*self._own_keys(run_id), self._keys.live(p), self._keys.runs(p), self._keys.bus(p)]
        keys.append(self._keys.ids(run_id))
        args: list[Any] = [run_id, owner, beat, most, failed, cancelled]
        reply: Sequence[Any] = await self.store.script(SCRIPTS["takeover"], keys, args)
        return reply

    async def mend(self, records: Sequence[Standing]) -> int:
        """Queue those queued runs that have waited ``requeue_after`` by the store's clock and are in no queue.

        Of several callers one queues a run; a run that merely waits for a free worker stays where it is.
        Returns how many were queued.
        """
        seconds, micros = await self.store.call(b"TIME")
        latest = int(seconds) + int(micros) / 1e6 - self._settings.requeue_after
        waiting = [r for r in records if r.status == "queued" and float(r.beat) <= latest]
        lacking = await self.queue.lacking([(record.queue, record.queue_entry) for record in waiting])
        mended, sessions = 0, set()
        for record, lacks in zip(waiting, lacking, strict=True):
            if not lacks:
                continue
            reply = await self._take_over(record.run_id, "", record.beat, b"{}", b"{}")
            if reply[0] == b"REQUEUE":
                await self._enqueue(record, record.attempt)
                mended += 1
            elif reply[0] == b"WAITS":
                sessions.add(reply[1].decode())
        for session_id in sessions:
            mended += await self._mend_session(session_id)
        return mended

    async def _mend_session(self, session_id: str) -> bool:
        """Whether that let a run begin. Nobody told the session of what is over, or died before he let the next in."""
        try:
            return await self.turns.advance(session_id) is not None
        except StoreError as error:  # one that is broken must not hold up the others
            _log.error("session %s: %s", session_id, error)
            return False

    async def _enqueue(self, record: Standing, attempt: int) -> None:
        entry = await self.queue.put(record.run_id, attempt, queue=record.queue)
        await self._beat(record.run_id, [record.run_id, b"", attempt, b"enqueued", entry])

    async def _seen(self, record: RunRecord) -> Seen:
        pages = {"page_bytes": self._settings.read_bytes, "page_items": self._settings.read_items}
        return await seen_of(self.log, record, **pages)

    def _own_keys(self, run_id: str) -> tuple[bytes, bytes, bytes]:
        check_id(run_id)
        return self._keys.run(run_id), self._keys.items(run_id), self._keys.control(run_id)
