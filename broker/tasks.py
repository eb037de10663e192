"""Tasks in the store: making one, what people decide about it, its newest version, and how it stands for viewers.

A task is a run of the runner ``task`` (docs/decisions/0009-a-task-is-a-run.md). Its worker has it by the claim of that
run; the truth is the worker's checkpoint. The store holds what is newer than that: decisions that no worker has taken
yet, and the last version, which a dead worker may have failed to write down. What viewers see is the stream alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from broker.errors import (
    Fenced,
    RunNotFound,
    Sealed,
    StoreError,
    TaskEnded,
    TaskFull,
    TaskNotFound,
)
from broker.records import RunRecord
from broker.requests import RunInput, RunRequest
from broker.runs import Runs
from broker.scripts import SCRIPTS
from broker.task_model import TASK_RUNNER, Change, Step, Task, status_of
from broker.task_plan import TaskRequest
from broker.task_reading import TaskReading
from broker.task_stored import changes_of, stored_change
from broker.task_transitions import apply

__all__ = ["Ahead", "Stored", "Tasks", "bare"]

WAITING_MAX = 1_000
"""Decisions that may wait for a worker."""
_TRIES = 50


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
        self._reading = TaskReading(runs)

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
        """The task as its stream tells it, with what was decided beyond: TASK in docs/tasks.md.

        Raises ``TaskNotFound``.
        """
        return await self._reading.view(await self.record(task_id))

    async def page(self, *, limit: int = 50, before: str | None = None) -> tuple[list[dict[str, Any]], str | None]:
        """Tasks in short, newest first, and the token of the next page, or ``None``. Raises ``BadRequest``."""
        return await self._reading.page(limit, before)

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
            newest = await self._reading.newest(record)
            task = newest.decided()
            decided = apply(task, change)
            reply = await self._decide(task_id, newest.version, task.command, change)
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

    # For the worker that has the task.

    async def stored(self, task_id: str, known: int = 0) -> Stored:
        """The newest version that the store knows, and the change that led to it where it is later than ``known``.

        Raises ``StoreError`` where another version of Runcast stored that change, and this one does not know it.
        """
        version, change = await self._store.call(b"HMGET", self._keys.task(task_id), b"version", b"change")
        newest = int(version or 0)
        return Stored(newest, stored_change(change) if newest > known else None)

    async def decisions(self, task_id: str, after: str) -> list[Change]:
        """What people have decided since the decision ``after``, in the order in which it counts."""
        found = await self._store.call(b"XRANGE", self._keys.decisions(task_id), b"(" + after.encode(), b"+")
        return list(changes_of(found or (), after))

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


def _stated(request: TaskRequest) -> dict[str, Any]:
    """Without what is as by default: equal requests have equal forms, whatever a later version adds."""
    defaults = msgspec.to_builtins(TaskRequest(goal=""))
    given: dict[str, Any] = msgspec.to_builtins(request)
    return {name: value for name, value in given.items() if name == "goal" or value != defaults[name]}
