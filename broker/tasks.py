"""Tasks in the store: making one, what people decide about it, its newest version, and how it stands for viewers.

A task is a run of the runner ``task`` (docs/decisions/0009-a-task-is-a-run.md). Its worker has it by the claim of that
run; the truth is the worker's checkpoint. The store holds what is newer than that: decisions that no worker has taken
yet, and the last version, which a dead worker may have failed to write down. What viewers see is the stream alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from broker.errors import (
    Fenced,
    InvalidRequest,
    RunNotFound,
    Sealed,
    StoreError,
    TaskEnded,
    TaskFull,
    TaskNotFound,
)
from broker.items import Entry
from broker.listing import Place
from broker.log import entries_of
from broker.records import RunRecord, pairs, parse_record
from broker.requests import RunInput, RunRequest
from broker.runs import Runs
from broker.scripts import SCRIPTS
from broker.task_model import TASK_RUNNER, Change, Step, Task, status_of
from broker.task_plan import TaskRequest, first_task
from broker.task_transitions import apply
from broker.task_view import TaskFold, stamp, step_view, summary_of

__all__ = ["Ahead", "Stored", "Tasks", "bare"]

WAITING_MAX = 1_000
"""Decisions that may wait for a worker."""
LIMIT_MAX = 100
_TRIES = 50
_NEWEST = 4
_task_decoder = msgspec.json.Decoder(Task)
_change_decoder = msgspec.json.Decoder(Change)


class Stored(NamedTuple):
    """What the store knows of a task's newest version; version 0: nothing."""

    version: int
    change: Change | None


class Ahead(StoreError):
    """The store knows a later version than the caller has: its checkpoint is not the newest one."""


def bare(task: Task) -> Task:
    """A task with all that decides what is allowed, and nothing else: what the store keeps of it."""
    return msgspec.structs.replace(task, history=(), plan_said=None, steps=tuple(map(_bare, task.steps)))


def _bare(step: Step) -> Step:
    return msgspec.structs.replace(step, instruction="", result=None, usage=None, cost=None, asks=(), metadata={})


class Tasks:
    """The tasks of one store. Every method raises ``StoreUnavailable``, ``InvalidId``."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self._store = runs, runs.store
        self._keys = runs.store.keys

    # Making and finding.

    async def create(
        self, request: TaskRequest, *, idempotency_key: str | None = None, principal: str = ""
    ) -> tuple[RunRecord, bool]:
        """Make a task: its run, and whether this call made it. Nothing is stored of one that is refused.

        Raises what ``TaskRequest.check`` and ``Runs.create`` raise.
        """
        request.check()
        run = RunRequest(
            runner=TASK_RUNNER,
            # The session is that of the steps: a task that were in it too would hold it for as long as it waits.
            input=RunInput(message=request.goal, task=_stated(request)),
            on_worker_lost="retry",
        )
        record, created = await self._runs.create(run, idempotency_key=idempotency_key, principal=principal)
        if created:
            await self.list_it(record)
        return record, created

    async def list_it(self, record: RunRecord) -> None:
        """Have lists show the task. Repeatable: its worker does it again, should the maker have died before."""
        await self._store.call(b"ZADD", self._keys.tasks(), repr(record.created), record.run_id)

    async def record(self, task_id: str) -> RunRecord:
        """The record of a task's run. Raises ``TaskNotFound``."""
        record = await self._runs.find(task_id)
        if record is None or record.runner != TASK_RUNNER:
            raise TaskNotFound(task_id)
        return record

    async def view(self, task_id: str) -> dict[str, Any]:
        """The task as its stream tells it: TASK in docs/tasks.md. Raises ``TaskNotFound``."""
        record = await self.record(task_id)
        fold, log, after = TaskFold(), self._runs.log, record.first - 1
        while after < record.last:
            page = await log.read(task_id, after, limit=self._store.settings.read_items, until=record.last)
            if not page:
                break
            for fields in _events(page):
                fold.add(fields)
            after = page[-1].seq
        told = fold.view() or {**_untold(record), "history": []}
        return _with_record(told, record)

    async def page(self, *, limit: int = 50, before: str | None = None) -> tuple[list[dict[str, Any]], str | None]:
        """Tasks in short, newest first, and the token of the next page, or ``None``. Raises ``BadRequest``."""
        if not 1 <= limit <= LIMIT_MAX:
            raise InvalidRequest(f"limit is {limit}: 1 to {LIMIT_MAX} are allowed", field="limit")
        places = await self._places(Place.of_token(before) if before is not None else None, limit)
        ids = [place.run_id.decode() for place in places]
        reads: list[tuple[Any, ...]] = [(b"HGETALL", self._keys.run(id_)) for id_ in ids]
        reads += [(b"XREVRANGE", self._keys.items(id_), b"+", b"-", b"COUNT", _NEWEST) for id_ in ids]
        replies = await self._store.pipeline(reads)
        found = []
        for task_id, flat, newest in zip(ids, replies[: len(ids)], replies[len(ids) :], strict=True):
            if flat:
                found.append(_listed(parse_record(task_id, pairs(flat)), entries_of(newest or ())))
            else:  # its record has expired
                await self._store.call(b"ZREM", self._keys.tasks(), task_id)
        return found, places[-1].token() if len(places) == limit else None

    async def _places(self, below: Place | None, limit: int) -> list[Place]:
        top = b"+inf" if below is None else repr(below.created).encode()
        options = (b"WITHSCORES", b"LIMIT", 0, limit + 8)
        flat = await self._store.call(b"ZREVRANGEBYSCORE", self._keys.tasks(), top, b"-inf", *options)
        places = [Place(float(score), id_) for id_, score in zip(flat[::2], flat[1::2], strict=True)]
        top_place = below or Place(math.inf, b"")
        return [place for place in places if place < top_place][:limit]

    # Deciding.

    async def decide(self, task_id: str, change: Change) -> Task:
        """Take a person's decision: durable once this returns, and obeyed by the worker that has the task or gets it.

        Returns the task as it stands with it, without texts and history. Raises ``TaskNotFound``, ``TaskEnded``, and
        what ``apply`` raises: then nothing has changed.
        """
        for _ in range(_TRIES):
            record = await self.record(task_id)
            if record.is_ended:
                raise TaskEnded(f"task {task_id!r} is {record.status}: nothing can be decided about it any more")
            seen, task, last = await self._newest(record)
            decided = apply(task, change)
            reply = await self._decide(task_id, seen, last, change)
            if reply[0] == b"OK":
                return decided
            if reply[0] == b"TOOMANY":
                raise TaskFull(f"{reply[1]} decisions about task {task_id!r} wait for a worker: more are not kept")
        raise StoreError(f"task {task_id!r} changes faster than a decision about it can be taken: try again")

    async def _decide(self, task_id: str, version: int, last: str, change: Change) -> Sequence[Any]:
        keys = (self._keys.run(task_id), self._keys.task(task_id), self._keys.decisions(task_id))
        args = (version, last, msgspec.json.encode(change), WAITING_MAX)
        reply: Sequence[Any] = await self._store.script(SCRIPTS["task_decide"], keys, args)
        return reply

    async def _newest(self, record: RunRecord) -> tuple[int, Task, str]:
        """The version that the store knows, the task with all decisions since, and the id of the last of them."""
        task_id = record.run_id
        reads: list[tuple[Any, ...]] = [
            (b"HMGET", self._keys.task(task_id), b"version", b"state"),
            (b"XRANGE", self._keys.decisions(task_id), b"-", b"+"),
        ]
        (version, state), decisions = await self._store.pipeline(reads, atomic=True)
        task = _task_decoder.decode(state) if state else first_of(record)
        for id_, change in _changes(decisions or (), task.command):
            try:
                task = apply(task, msgspec.structs.replace(change, command=id_))
            except Exception:  # the worker says why it could not obey it, and goes on
                task = msgspec.structs.replace(task, command=id_)
        return int(version or 0), task, task.command

    # For the worker that has the task.

    async def stored(self, task_id: str) -> Stored:
        """The newest version that the store knows, and the change that led to it."""
        version, change = await self._store.call(b"HMGET", self._keys.task(task_id), b"version", b"change")
        return Stored(int(version or 0), _change_decoder.decode(change) if change else None)

    async def decisions(self, task_id: str, after: str) -> list[Change]:
        """What people have decided since the decision ``after``, in the order in which it counts."""
        found = await self._store.call(b"XRANGE", self._keys.decisions(task_id), b"(" + after.encode(), b"+")
        return [msgspec.structs.replace(change, command=id_) for id_, change in _changes(found or (), after)]

    async def commit(self, task: Task, change: Change, owner: str) -> bool:
        """Make the task's next version known, ahead of its checkpoint. False: people decided something meanwhile, which
        comes first (never where the change is a decision itself). Repeatable.

        Raises ``RunNotFound``, ``Fenced``, ``Sealed``, ``Ahead``.
        """
        task_id = task.task_id
        p = self._keys.partition(task_id)
        keys = (self._keys.run(task_id), self._keys.task(task_id), self._keys.decisions(task_id), self._keys.bus(p))
        state, encoded = msgspec.json.encode(bare(task)), msgspec.json.encode(change)
        news = {"version": task.version, "what": change.what, "step": change.step, "status": status_of(task)}
        ends = "1" if task.ended is not None else "0"
        args: list[Any] = [task_id, owner, task.version, task.command, state, encoded, change.what]
        args += [msgspec.json.encode(news), ends, "1" if change.command else "0"]
        reply = await self._store.script(SCRIPTS["task_commit"], keys, args)
        match reply[0]:
            case b"OK":
                return True
            case b"MOVED":
                return False
            case b"NOTFOUND":
                raise RunNotFound(task_id)
            case b"FENCED":
                raise Fenced(f"task {task_id!r} has another worker by now: it was taken over")
            case b"SEALED":
                raise Sealed(f"task {task_id!r} has its fence")
            case b"AHEAD":
                raise Ahead(f"task {task_id!r} is of version {reply[1]} by now, not {task.version}")
            case _:
                raise StoreError(f"task_commit answered {reply!r}, which this version does not know")


def first_of(record: RunRecord) -> Task:
    """The task of version 0, as it was asked for. Raises ``InvalidRequest``."""
    body = (record.request.get("input") or {}).get("task") or {}
    return first_task(record.run_id, body, record.created, record.principal)


def _stated(request: TaskRequest) -> dict[str, Any]:
    """Without what is as by default: equal requests have equal forms, whatever a later version adds."""
    defaults = msgspec.to_builtins(TaskRequest(goal=""))
    given: dict[str, Any] = msgspec.to_builtins(request)
    return {name: value for name, value in given.items() if name == "goal" or value != defaults[name]}


def _changes(found: Iterable[Any], after: str) -> Iterable[tuple[str, Change]]:
    for id_, fields in found:
        name = id_.decode()
        if _order(name) > _order(after):
            values = dict(zip(fields[::2], fields[1::2], strict=False))
            yield name, _change_decoder.decode(values[b"d"])


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


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


def _listed(record: RunRecord, newest: Sequence[Entry]) -> dict[str, Any]:
    told = next((fields["task"] for fields in _events(newest) if isinstance(fields.get("task"), dict)), None)
    listed = _with_record(told or _untold(record), record)
    return {name: value for name, value in listed.items() if name != "steps"}


def _with_record(told: dict[str, Any], record: RunRecord) -> dict[str, Any]:
    """The run's end counts, also where the task's stream does not tell of it."""
    ended = {"status": record.status, "ended_at": stamp(record.ended), "halted": None, "current_step": None}
    return {
        **told,
        **(ended if record.is_ended else {}),
        "last_seq": record.last,
        "run_status": record.status,
        "cancel_requested": bool(record.cancel_requested),
        "stream_url": f"/v1/tasks/{record.run_id}/stream",
    }
