"""Tasks as viewers see them: what their streams tell, and what people decided that these do not tell yet.

A decision is durable as soon as it is answered, and in the stream once a worker has obeyed it. Without a worker, or
while one cannot write its checkpoint, that may take long: whoever looks meanwhile must see it all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from broker.errors import InvalidRequest, RuncastError, StoreError
from broker.items import Entry
from broker.listing import Place
from broker.log import entries_of
from broker.records import RunRecord, pairs, parse_record
from broker.runs import Runs
from broker.task_model import Change, Task
from broker.task_plan import first_task
from broker.task_stored import changes_of, stored_change
from broker.task_transitions import DECISIONS, apply
from broker.task_undone import Undone, undone
from broker.task_view import TaskFold, stamp, step_view, summary_of

__all__ = ["LIMIT_MAX", "Newest", "TaskReading", "first_of"]

LIMIT_MAX = 100
_NEWEST = 4
_LOOKS = 5
_task_decoder = msgspec.json.Decoder(Task)


class Newest(NamedTuple):
    """What the store knows: the ``version`` (0: nothing), the ``task`` of it without texts and history, the ``change``
    that led to it, and the decisions ``waiting`` since."""

    version: int
    task: Task
    change: Change | None
    waiting: tuple[Change, ...]

    def decided(self) -> Task:
        """The task with all that was decided since."""
        task = self.task
        for change in self.waiting:
            try:
                task = apply(task, change)
            except RuncastError:  # the worker says why it could not obey it, and goes on
                task = msgspec.structs.replace(task, command=change.command)
        return task

    def untold(self, told: int) -> int:
        """How many decisions a stream that tells of the version ``told`` does not tell of."""
        own = self.change is None or self.change.what not in DECISIONS
        return len(self.waiting) + (0 if own or self.version != told + 1 else 1)


class TaskReading:
    """Of the tasks of one store. Every method raises ``StoreUnavailable``."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self._store, self._keys = runs, runs.store, runs.store.keys

    async def newest(self, record: RunRecord) -> Newest:
        """Raises ``InvalidRequest`` where another version stored what this one cannot read."""
        reply = await self._store.pipeline(self._reads(record.run_id), atomic=True)
        return _newest(record, *reply)

    def _reads(self, task_id: str) -> list[tuple[Any, ...]]:
        return [
            (b"HMGET", self._keys.task(task_id), b"version", b"state", b"change"),
            (b"XRANGE", self._keys.decisions(task_id), b"-", b"+"),
        ]

    async def view(self, record: RunRecord) -> dict[str, Any]:
        """The task as its stream tells it, and what is decided beyond: TASK in docs/tasks.md."""
        fold, after, newest = TaskFold(), record.first - 1, None
        for _ in range(_LOOKS):
            after = await self._fold(fold, record, after)
            newest = None if record.is_ended else await self._newest_or_none(record)
            # The stream lacks the newest version at most; where it lacks more, it has gone on since it was read.
            if newest is None or newest.version <= fold.version + 1:
                break
            record = await self._runs.find(record.run_id) or record
        told = fold.view() or {**_untold(record), "history": []}
        found = undone(newest.version == fold.version + 1, told, *newest[1:]) if newest is not None else Undone()
        for step in told["steps"]:
            step.update(found.steps.get(step["n"], {}))
        viewed = _with_record(told, record, len(found.decisions), found.cancelled)
        return {**viewed, "decisions": found.decisions}

    async def _newest_or_none(self, record: RunRecord) -> Newest | None:
        try:
            return await self.newest(record)
        except InvalidRequest:
            return None

    async def _fold(self, fold: TaskFold, record: RunRecord, after: int) -> int:
        """Add what the stream tells behind ``after``: → where it was read to."""
        while after < record.last:
            page = await self._runs.log.read(
                record.run_id, after, limit=self._store.settings.read_items, until=record.last
            )
            if not page:
                break
            for fields in _events(page):
                fold.add(fields)
            after = page[-1].seq
        return after

    # Lists.

    async def page(self, limit: int, before: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """Tasks in short, newest first, and the token of the next page, or ``None``. Raises ``BadRequest``."""
        if not 1 <= limit <= LIMIT_MAX:
            raise InvalidRequest(f"limit is {limit}: 1 to {LIMIT_MAX} are allowed", field="limit")
        places = await self._places(Place.of_token(before) if before is not None else None, limit)
        ids = [place.run_id.decode() for place in places]
        replies = iter(await self._store.pipeline([read for id_ in ids for read in self._short_reads(id_)]))
        found = []
        for task_id, flat, items, *kept in zip(ids, *[replies] * 4, strict=True):
            if flat:
                found.append(_listed(parse_record(task_id, pairs(flat)), entries_of(items or ()), *kept))
            else:  # its record has expired
                await self._store.call(b"ZREM", self._keys.tasks(), task_id)
        return found, places[-1].token() if len(places) == limit else None

    def _short_reads(self, task_id: str) -> list[tuple[Any, ...]]:
        """The stream before the store: what was told in between is not counted as untold."""
        record = (b"HGETALL", self._keys.run(task_id))
        items = (b"XREVRANGE", self._keys.items(task_id), b"+", b"-", b"COUNT", _NEWEST)
        return [record, items, *self._reads(task_id)]

    async def _places(self, below: Place | None, limit: int) -> list[Place]:
        top = b"+inf" if below is None else repr(below.created).encode()
        options = (b"WITHSCORES", b"LIMIT", 0, limit + 8)
        flat = await self._store.call(b"ZREVRANGEBYSCORE", self._keys.tasks(), top, b"-inf", *options)
        places = [Place(float(score), id_) for id_, score in zip(flat[::2], flat[1::2], strict=True)]
        top_place = below or Place(math.inf, b"")
        return [place for place in places if place < top_place][:limit]


def first_of(record: RunRecord) -> Task:
    """The task of version 0, as it was asked for. Raises ``InvalidRequest``."""
    body = (record.request.get("input") or {}).get("task") or {}
    return first_task(record.run_id, body, record.created, record.principal)


def _newest(record: RunRecord, stored: Sequence[Any], decisions: Iterable[Any]) -> Newest:
    """Raises ``InvalidRequest``."""
    version, state, change = stored
    task = _stored_task(state) if state else first_of(record)
    try:
        led = stored_change(change)
    except StoreError:  # of a later worker, who tells of it
        led = None
    return Newest(int(version or 0), task, led, tuple(changes_of(decisions or (), task.command)))


def _stored_task(state: bytes) -> Task:
    try:
        return _task_decoder.decode(state)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the task was stored by another version of Runcast: {error}") from error


def _events(entries: Iterable[Entry]) -> Iterable[dict[str, Any]]:
    for entry in entries:
        if entry.type == b"event":
            yield msgspec.json.decode(entry.data)


def _untold(record: RunRecord) -> dict[str, Any]:
    """Of a task that no worker has begun, or whose stream has expired: as it was asked for."""
    try:
        task = first_of(record)
    except InvalidRequest:
        goal = str((record.request.get("input") or {}).get("message", ""))
        task = Task(task_id=record.run_id, goal=goal, created_at=record.created, updated_at=record.created)
    return {**summary_of(task), "steps": [step_view(step) for step in task.steps]}


def _listed(record: RunRecord, newest: Sequence[Entry], stored: Sequence[Any], decisions: Any) -> dict[str, Any]:
    told = next((fields["task"] for fields in _events(newest) if isinstance(fields.get("task"), dict)), None)
    short = told or _untold(record)
    count, cancelled = 0, False
    if not record.is_ended:
        try:
            kept = _newest(record, stored, decisions)
        except InvalidRequest:
            pass
        else:
            count, cancelled = kept.untold(short["version"]), kept.decided().ended == "cancelled"
    listed = _with_record(short, record, count, cancelled)
    return {name: value for name, value in listed.items() if name != "steps"}


def _with_record(told: dict[str, Any], record: RunRecord, undone_: int, cancelled: bool) -> dict[str, Any]:
    """The run's end counts, also where the task's stream does not tell of it."""
    at = told["ended_at"] or stamp(record.ended)
    ended = {"status": record.status, "ended_at": at, "halted": None, "current_step": None}
    return {
        **told,
        **(ended if record.is_ended else {}),
        "last_seq": record.last,
        "run_status": record.status,
        "cancel_requested": bool(record.cancel_requested) or cancelled,
        "pending_decisions": undone_,
        "stream_url": f"/v1/tasks/{record.run_id}/stream",
    }
