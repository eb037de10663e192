"""Sessions: conversations of several runs, of any runner. What a session is follows from its runs.

Three places, in three slots, none of which can be written in one step with another: the run's record, the session, the
index of all sessions. The record counts. Whoever makes a run tells its session; every gateway follows the bus and
tells sessions what became of their runs (``broker.session_follower``); and whoever reads a session looks at those of
its runs that it holds for open. All of that is the same ``fold``, which may be repeated by anybody at any time, so a
process that dies in between leaves nothing that is not mended.

A session is kept while a run of it is open, and ``record_ttl`` from then on, as the records of its runs are: a run
whose record is gone is taken out of its session, and its messages with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from broker.errors import BadRequest, SessionNotFound, StoreError
from broker.hermes_ids import looks_like_hermes
from broker.ids import IdMaker, check_id
from broker.listing import Place
from broker.records import ENDED, RunRecord, pairs, parse_record
from broker.redis import Store
from broker.scripts import SCRIPTS
from broker.session_records import (
    ActiveRun,
    Session,
    Spent,
    asked,
    beginning,
    ending,
    fields,
    parse_session,
    spent_by,
    without,
)

__all__ = ["CHANNEL_ENTRIES", "LIST_MAX", "ActiveRun", "Session", "Sessions", "Told", "Turn"]

_log = logging.getLogger("runcast.sessions")

CHANNEL_ENTRIES = 200
"""What a session's channel, and the stream of changes to the index, keep: both are news, not the record."""
LIST_MAX = 500
_OPEN_MAX = 50
"""Open runs of one session that are looked at whenever it is read: more than one is rare."""
_ROUNDS = 3


class Told(NamedTuple):
    """``news``: it was not known. ``next``: an open run whose turn it may be, or ``""``."""

    news: bool
    next: str


class Turn(NamedTuple):
    """The run that has the session's turn. ``since``: when it was made, ``None`` where it is open no more."""

    run_id: str
    since: float | None


class Sessions:
    """The sessions of one store. Every method raises ``StoreUnavailable`` where Redis is away, and ``InvalidId``."""

    def __init__(self, store: Store) -> None:
        self.store, self.keys = store, store.keys
        self._ttl = max(1, round(store.settings.record_ttl * 1000))
        self._new_id = IdMaker(prefix="ses_")

    # Writing.

    async def create(
        self, session_id: str | None = None, *, title: str = "", model: str = "", provider: str = ""
    ) -> Session:
        """Make a session without a run. It is listed when it has a title or its first run. Repeatable with an id."""
        session_id = self._new_id() if session_id is None else check_id(session_id, "session_id")
        reply = await self._tell(session_id, "make", "", fields(title=title, model=model, provider=provider))
        if title:
            await self._touch(session_id, reply[2], "session_new")
        return await self.get(session_id)

    async def adopt(self, session_id: str) -> Session:
        """The session; one of Hermes' own that is not known here becomes one, under its id: its first run resumes it.

        Repeatable. Raises ``SessionNotFound`` for an id that is neither ours nor one that Hermes could have made.
        """
        if (session := await self.find(session_id)) is not None:
            return session
        if not looks_like_hermes(session_id):
            raise SessionNotFound(session_id)
        await self._tell(session_id, "make", "", fields(hermes_session_id=session_id))
        return await self.get(session_id)

    async def reserve(self, session_id: str, run_id: str) -> str | None:
        """Take the session for a run that is about to be made under that id: → ``None``, or the run that is open.

        Of several callers at once one gets it. Whoever got it makes the run, or calls ``release``; where he dies
        before, the session is free again after ``requeue_after`` seconds. Repeatable for the same run. Makes the
        session where there is none.
        """
        check_id(run_id)
        standing = ""
        for _ in range(_ROUNDS):
            reply = await self._tell(check_id(session_id, "session_id"), "reserve", run_id)
            if reply[0] != b"BUSY":
                return None
            standing = reply[1].decode()
            before = await self._open(session_id)
            if await self._settle(session_id, before) == before:
                break  # it is what it was thought to be
        return standing

    async def release(self, session_id: str, run_id: str) -> None:
        """The run that was reserved for will not be made. Where it was made all the same, nothing happens."""
        if not await self.store.call(b"EXISTS", self.keys.run(check_id(run_id))):
            await self._tell(check_id(session_id, "session_id"), "forget", run_id)

    async def fold(self, record: RunRecord) -> bool:
        """Take in how a run stands: → whether that was news. Repeatable, by anybody; without a session: nothing."""
        return (await self.tell(record)).news

    async def tell(self, record: RunRecord) -> Told:
        """The same, and whose turn it may be by now."""
        if record.session_id is None:
            return Told(False, "")
        verb, args = ("end", ending(record)) if record.is_ended else ("begin", beginning(record))
        reply = await self._tell(record.session_id, verb, record.run_id, args)
        # Also where nothing was new: whoever told the session may have died before he came here.
        await self._touch(record.session_id, reply[2], "run_ended" if record.is_ended else "run_started")
        return Told(bool(reply[1]), reply[4].decode())

    async def enter(self, session_id: str) -> Turn | None:
        """Who has the turn; where nobody has it, the oldest open run has it from now on. ``None``: none is open.

        Repeatable, by anybody. See ``broker.session_turns``, which is what calls this.
        """
        reply = await self._tell(check_id(session_id, "session_id"), "enter", "")
        return Turn(reply[1].decode(), float(reply[2]) if reply[2] else None) if reply[1] else None

    async def free(self, session_id: str, run_id: str) -> str:
        """The turn of a run that has ended is over: → an open run whose turn it may be, or ``""``. Repeatable."""
        reply = await self._tell(session_id, "free", run_id)
        return str(reply[4].decode())

    async def note(
        self, session_id: str, name: str, event: Mapping[str, Any], *, mark: str = "", title: str = ""
    ) -> bool:
        """Tell a session's channel something that is no run's beginning or end: → whether it was news.

        ``mark`` (``SOURCE MS-SEQ``, the id of an entry of some stream) makes it repeatable: each is told once, in the
        order of its source. ``title`` is the session's from now on. Raises ``SessionNotFound``.
        """
        args = [mark, name, msgspec.json.encode(event), *fields(title=title)]
        reply = await self._tell(check_id(session_id, "session_id"), "note", "", args)
        if reply[0] == b"NONE":
            raise SessionNotFound(session_id)
        if title:
            await self._touch(session_id, reply[2], "session_title")
        return bool(reply[1])

    async def rename(self, session_id: str, title: str, *, mark: str = "") -> None:
        """Give it a title. Raises ``SessionNotFound``, ``BadRequest`` (blank)."""
        if not (title := " ".join(title.split())[:200]):
            raise BadRequest("the title is blank", field="title")
        await self.note(session_id, "title", {"title": title}, mark=mark, title=title)

    async def forget(self, session_id: str, run_id: str) -> None:
        """Take a run out whose record is gone."""
        await self._tell(session_id, "forget", run_id)

    async def _tell(self, session_id: str, verb: str, run_id: str, args: Sequence[Any] = ()) -> Sequence[Any]:
        k = self.keys
        every = (k.session, k.session_runs, k.session_open, k.session_messages, k.session_events)
        keys = [key_of(session_id) for key_of in every]
        head: list[Any] = [verb, run_id, self._ttl, CHANNEL_ENTRIES]
        reply: Sequence[Any] = await self.store.script(SCRIPTS["session"], keys, [*head, *args])
        return reply

    async def _touch(self, session_id: str, updated: bytes, reason: str) -> None:
        keys = [self.keys.sessions(name) for name in ("index", "changes", "version")]
        await self.store.script(SCRIPTS["sessions"], keys, [session_id, updated, reason, CHANNEL_ENTRIES])

    # Reading.

    async def find(self, session_id: str) -> Session | None:
        """The session, its runs as they stand now; ``None`` where there is none."""
        flat, open_runs = await self.store.pipeline(
            [(b"HGETALL", self.keys.session(check_id(session_id, "session_id"))), self._ask_open(session_id)]
        )
        if not flat:
            return None
        return await self._read(session_id, flat, _names(open_runs))

    async def get(self, session_id: str) -> Session:
        """The session, its runs as they stand now. Raises ``SessionNotFound``."""
        session = await self.find(session_id)
        if session is None:
            raise SessionNotFound(session_id)
        return session

    async def newest(self, *, limit: int = 100, before: str | None = None) -> tuple[list[Session], str | None]:
        """Sessions, newest first, and the token of the next page (to be passed as ``before``) or ``None``.

        A page may be short and have a next one: sessions that expired meanwhile are left out. Raises ``BadRequest``.
        """
        if not 1 <= limit <= LIST_MAX:
            raise BadRequest(f"limit is {limit}: 1 to {LIST_MAX} are allowed", field="limit")
        places = await self._places(Place.of_token(before) if before is not None else None, limit)
        ids = [place.run_id.decode() for place in places]
        commands = [c for id_ in ids for c in ((b"HGETALL", self.keys.session(id_)), self._ask_open(id_))]
        replies = await self.store.pipeline(commands)
        found = await asyncio.gather(*map(self._listed, ids, replies[::2], replies[1::2]))
        if gone := [id_ for id_, flat in zip(ids, replies[::2], strict=True) if not flat]:
            await self.store.call(b"ZREM", self.keys.sessions("index"), *gone)
        return [session for session in found if session], places[-1].token() if len(places) == limit else None

    async def _listed(self, session_id: str, flat: Sequence[bytes], open_runs: Sequence[bytes]) -> Session | None:
        """A broken one is left out and logged: it must not hide the others."""
        try:
            return await self._read(session_id, flat, _names(open_runs)) if flat else None
        except StoreError as error:
            _log.warning("left out of a list: %s", error)
            return None

    async def _places(self, below: Place | None, count: int) -> list[Place]:
        top = b"+inf" if below is None else repr(below.created).encode()
        # Those of the same moment as the last one of the page before come again, and are dropped here.
        asks = (b"ZREVRANGEBYSCORE", self.keys.sessions("index"), top, b"-inf", b"WITHSCORES", b"LIMIT", 0, count + 8)
        flat = await self.store.call(*asks)
        places = [Place(float(score), id_) for id_, score in zip(flat[::2], flat[1::2], strict=True)]
        return [place for place in places if below is None or place < below][:count]

    async def runs_of(self, session_id: str) -> list[str]:
        """The ids of its runs, oldest first."""
        ids = await self.store.call(b"ZRANGE", self.keys.session_runs(check_id(session_id, "session_id")), 0, -1)
        return [run_id.decode() for run_id in ids]

    async def resumes(self, session_id: str) -> str | None:
        """The session of Hermes that its next run goes on with, all ended ones taken in; ``None``: none yet."""
        key = self.keys.session(check_id(session_id, "session_id"))
        known, open_runs = await self.store.pipeline([(b"HGET", key, b"hermes_session_id"), self._ask_open(session_id)])
        before = _names(open_runs)
        if len(before) > 1 and await self._settle(session_id, before) != before:
            known = await self.store.call(b"HGET", key, b"hermes_session_id")
        return known.decode("utf-8", "replace") if known else None

    async def spent_before(self, session_id: str, run_id: str) -> Spent:
        """What the session's other runs used that have ended by now. Raises ``SessionNotFound``."""
        await self.get(session_id)  # what ended and was told by nobody is counted first
        asks = [
            (b"HGETALL", self.keys.session(session_id)),
            (b"HEXISTS", self.keys.session_messages(session_id), check_id(run_id)),
        ]
        flat, counted = await self.store.pipeline(asks, atomic=True)
        spent = spent_by(pairs(flat))
        if counted and (record := await self.store.call(b"HGETALL", self.keys.run(run_id))):
            return without(spent, parse_record(run_id, pairs(record)))
        return spent

    # What is held for open.

    def _ask_open(self, session_id: str) -> tuple[Any, ...]:
        return (b"ZRANGE", self.keys.session_open(session_id), 0, _OPEN_MAX - 1, b"WITHSCORES")

    async def _open(self, session_id: str) -> dict[str, float]:
        return _names(await self.store.call(*self._ask_open(session_id)))

    async def _read(self, session_id: str, flat: Sequence[bytes], open_runs: dict[str, float]) -> Session:
        active = None
        if open_runs:
            if (left := await self._settle(session_id, open_runs)) != open_runs:
                flat = await self.store.call(b"HGETALL", self.keys.session(session_id)) or flat
            active = await self._active(left)
        return parse_session(session_id, pairs(flat), active)

    async def _settle(self, session_id: str, open_runs: dict[str, float]) -> dict[str, float]:
        """Fold what ended, and forget what is gone, of those that the session holds for open: → the others."""
        commands = [(b"HGET", self.keys.run(run_id), b"status") for run_id in open_runs]
        (seconds, _), *statuses = await self.store.pipeline([(b"TIME",), *commands])
        left: dict[str, float] = {}
        for (run_id, since), status in zip(open_runs.items(), statuses, strict=True):
            if status is None and int(seconds) - since > self.store.settings.requeue_after:
                await self.forget(session_id, run_id)
            elif status is not None and status.decode() in ENDED:
                await self._fold_ended(run_id)
            else:
                left[run_id] = since
        return left

    async def _fold_ended(self, run_id: str) -> None:
        if flat := await self.store.call(b"HGETALL", self.keys.run(run_id)):
            await self.fold(parse_record(run_id, pairs(flat)))

    async def _active(self, open_runs: dict[str, float]) -> ActiveRun | None:
        """The first that has a record: one that is only reserved for has none yet."""
        for run_id in open_runs:
            status, created, request = await self.store.call(
                b"HMGET", self.keys.run(run_id), b"status", b"created", b"request"
            )
            if status is not None:
                message = asked(msgspec.json.decode(request))
                return ActiveRun(run_id=run_id, status=status.decode(), message=message, created=float(created))
        return None


def _names(flat: Sequence[bytes]) -> dict[str, float]:
    return {id_.decode(): float(score) for id_, score in zip(flat[::2], flat[1::2], strict=True)}
