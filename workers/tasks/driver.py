"""One worker's work on one task, from its claim to its end or to the next worker.

Each transition goes three ways, in this order: into the store (ahead of everything, fenced by the claim, refused where
people decided something meanwhile), into the checkpoint (fenced by the file system), into the task's stream. A worker
that dies between two of them leaves the rest to the next one, which finds in the store what the checkpoint lacks, and
in the checkpoint what the stream lacks. Nothing is done in the world before the checkpoint says that it will be: the
id of a step's run is in it before that run is made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from broker.errors import Fenced, OutageTooLong, RuncastError, Sealed, StoreError
from broker.ids import IdMaker
from broker.items import Cancelled, Failed, Final
from broker.records import RunRecord
from broker.task_model import Change, Task, Trouble
from broker.task_reading import first_of
from broker.task_transitions import Move, apply, next_move
from broker.task_view import event_of, resumed_event, summary_of
from workers import metrics
from workers.runner import Outcome, RunContext, RunnerFailed
from workers.tasks.changes import abandoned_runs, change_of_plan, change_of_step, version_of
from workers.tasks.checkpoints import Checkpoint, Checkpoints, CheckpointTooNew, CheckpointUnreadable
from workers.tasks.children import Child, planning_request, step_request, stop_run
from workers.tasks.hosts import note_host
from workers.tasks.persistence import LAST_BACKOFF, persisted, written

if TYPE_CHECKING:
    from broker.api import Broker
    from broker.tail import RawEntries, Subscription

__all__ = ["TaskDriver"]

log = logging.getLogger("runcast.tasks")
T = TypeVar("T")
_LOOK_EVERY = 10.0
"""Decisions come by themselves; they are looked for this often (seconds) all the same."""


class _Misplaced(Exception):
    """The task's checkpoint is not where this worker looks: another one has to go on with it."""


class TaskDriver:
    """Of one attempt. ``run`` does everything."""

    def __init__(self, context: RunContext, broker: Broker, checkpoints: Checkpoints) -> None:
        self._context, self._broker, self._checkpoints = context, broker, checkpoints
        self._id, self._tasks = context.run_id, broker.tasks
        self._new_id = IdMaker()
        self._wake = asyncio.Event()
        self._decisions: Subscription | None = None
        self._child: Child | None = None
        self._record: RunRecord
        self._hold: Checkpoint
        self.task: Task

    async def run(self) -> Outcome:
        """Raises what ends the attempt: ``Fenced``, ``Sealed``, ``OutageTooLong``; ``RunnerFailed``, the task."""
        try:
            await self._begin()
            return await self._drive()
        except (Fenced, Sealed, OutageTooLong) as error:
            self._context.break_off(error)
            raise
        except (_Misplaced, CheckpointTooNew, OSError) as error:
            return await self._give_up(error)
        except CheckpointUnreadable as error:
            raise RunnerFailed("checkpoint_lost", str(error)) from error
        except StoreError as error:
            return await self._give_up(error)
        finally:
            await self._let_go()

    # The beginning.

    async def _begin(self) -> None:
        self._record = await self._persisted(lambda: self._broker.runs.get(self._id))
        if self._record.attempt != self._context.attempt or not self._record.owner:
            raise Fenced(f"task {self._id!r} has another worker by now")
        await self._find_checkpoint()
        await self._persisted(lambda: self._tasks.list_it(self._record))
        await note_host(self._broker.store, self._checkpoints)
        await self._tell_the_rest()
        self._listen()

    async def _find_checkpoint(self) -> None:
        mirror = self._context.mirror
        assert mirror is not None
        here = await asyncio.to_thread(self._checkpoints.identity)
        if mirror.source is None:
            await mirror.keep(here)
        elif mirror.source != here:
            raise _Misplaced(f"its checkpoint is not under {self._checkpoints.directory} of this host")
        self._hold = await asyncio.to_thread(self._checkpoints.open, self._id, self._context.attempt)
        kept = await asyncio.to_thread(self._hold.read)
        self.task = first_of(self._record) if kept is None else kept
        await self._catch_up()

    async def _catch_up(self) -> None:
        """What an earlier worker made known and did not come to write down is done again; what the store lost is
        told it again."""
        stored = await self._persisted(lambda: self._tasks.stored(self._id, self.task.version))
        if stored.version == self.task.version + 1 and stored.change is not None:
            self.task = apply(self.task, stored.change)
            await self._write(self.task)
        elif stored.version > self.task.version:
            message = f"the checkpoint {self._checkpoints.path(self._id)} is of version {self.task.version}, the task "
            raise RunnerFailed("checkpoint_lost", f"{message}was of version {stored.version} already")
        elif stored.version < self.task.version:
            last = self.task.history[-1]
            change = Change(what=last.what, at=last.at, step=last.step, command=self.task.command)
            await self._persisted(lambda: self._tasks.commit(self.task, change, self._record.owner))

    async def _tell_the_rest(self) -> None:
        """The events of transitions that an earlier worker wrote down and did not come to tell."""
        assert self._context.mirror is not None
        told = 0
        if self._context.attempt > 1:
            told = max((version_of(item) for item in await self._context.mirror.items()), default=0)
        for entry in self.task.history:
            if entry.version > told:
                await self._context.emit(event_of(self.task, entry, self._item_max))
        if self._context.attempt > 1 and self.task.history:
            await self._context.emit(resumed_event(self.task, self._context.attempt, self._item_max))

    @property
    def _item_max(self) -> int:
        return self._context.settings.item_max_bytes

    def _listen(self) -> None:
        def heard(entries: RawEntries) -> None:
            self._wake.set()

        try:
            self._decisions = self._broker.tail.subscribe(
                self._broker.keys.decisions(self._id), self.task.command.encode(), heard
            )
        except ValueError:
            # This process still clears up an earlier attempt of the same task: they are looked for.
            log.info("task %s: its decisions are followed already", self._id)

    # The work.

    async def _drive(self) -> Outcome:
        while True:
            await self._obey()
            if self._context.stop.is_set():
                return await self._stopped()
            move = next_move(self.task)
            match move.what:
                case "end":
                    return await self._end()
                case "wait":
                    await self._wait()
                case "follow":
                    await self._follow(move.step)
                case _:
                    await self._advance(self._own_change(move))

    def _own_change(self, move: Move) -> Change:
        drawn = self._new_id() if move.what in ("planning", "step_started") else None
        by = self.task.by if move.what == "created" else ""
        return Change(what=move.what, at=time.time(), step=move.step, run_id=drawn, by=by)

    async def _follow(self, n: int | None) -> None:
        """Take the next thing that the running step, or the planning run, has to tell, or wait for it."""
        child = await self._child_of(n)
        if not child.heard:
            child.changed.clear()
            await self._wait(child.changed)
            return
        heard, now = child.heard[0], time.time()
        change = (
            # The answer of a planner that rambles takes a while to look through, and others share the event loop.
            await asyncio.to_thread(change_of_plan, self.task, heard, now)
            if n is None
            else change_of_step(self.task, self.task.steps[n - 1], heard, now)
        )
        if change is None or await self._advance(change):
            child.heard.popleft()

    async def _child_of(self, n: int | None) -> Child:
        step = None if n is None else self.task.steps[n - 1]
        run_id = self.task.planning_run_id if step is None else step.run_id
        assert run_id is not None
        if self._child is None or self._child.run_id != run_id:
            await self._drop_child()
            request = planning_request(self.task) if step is None else step_request(self.task, step)
            after = 0 if step is None else step.seen
            self._child = Child(self._broker, run_id, request, self._record.principal, after=after)
        return self._child

    async def _drop_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.aclose()

    async def _wait(self, *events: asyncio.Event) -> None:
        """Until people have decided something, the attempt is to stop, one of ``events`` is set, or a while is over."""
        waits = [asyncio.create_task(event.wait()) for event in (self._wake, self._context.stop, *events)]
        limit = _LOOK_EVERY if self._decisions is not None else LAST_BACKOFF
        try:
            await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # Transitions.

    async def _obey(self) -> None:
        """Take what people have decided, in its order."""
        self._wake.clear()
        for decision in await self._persisted(lambda: self._tasks.decisions(self._id, self.task.command)):
            if self.task.ended is not None:
                return
            await self._take(decision)

    async def _take(self, decision: Change) -> None:
        try:
            task = apply(self.task, decision)
        except RuncastError as error:
            # It was allowed when it was taken, so this is a fault; it must be seen, and not hold up the others.
            refused = Trouble(code=error.code, message=str(error)[:1_000])
            about: dict[str, Any] = {"at": decision.at, "by": decision.by, "command": decision.command}
            decision = Change(what="decision_refused", step=decision.step, trouble=refused, **about)
            task = apply(self.task, decision)
        if decision.trouble is not None:
            log.error("task %s: a decision could not be obeyed: %s", self._id, decision.trouble.message)
        await self._settle(task, decision)

    async def _advance(self, change: Change) -> bool:
        """One transition of our own. False: people decided something first, so look again."""
        try:
            task = apply(self.task, change)
        except RuncastError as error:
            log.info("task %s: %s does not apply any more: %s", self._id, change.what, error)
            return True
        return await self._settle(task, change)

    async def _settle(self, task: Task, change: Change) -> bool:
        """Store, checkpoint, stream. False: not even the first, people decided something meanwhile."""
        if not await self._persisted(lambda: self._tasks.commit(task, change, self._record.owner)):
            return False
        await self._write(task)
        self.task = task
        metrics.TASK_CHANGES.labels(change.what).inc()
        await self._context.emit(event_of(task, task.history[-1], self._item_max))
        return True

    async def _write(self, task: Task) -> None:
        await written(self._hold, task)

    async def _persisted(self, step: Callable[[], Awaitable[T]]) -> T:
        return await persisted(step, self._context.settings.outage_limit)

    # The end.

    async def _stopped(self) -> Outcome:
        """The run was cancelled, or this worker goes: then the next one goes on."""
        if self._context.broken is not None:
            raise self._context.broken
        if self._context.stop_reason != "cancelled":
            return Failed(code="worker_stopped", message="the worker was stopped", retryable=True)
        while self.task.ended is None:
            cancelled = Change(what="cancelled", at=time.time(), reason="the task's run was cancelled")
            if not await self._advance(cancelled):
                await self._obey()
        return await self._end()

    async def _end(self) -> Outcome:
        await self._drop_child()
        await asyncio.to_thread(self._hold.close)
        if self.task.ended == "cancelled":
            for run_id in abandoned_runs(self.task):
                await self._persisted(lambda run_id=run_id: stop_run(self._broker, run_id))  # type: ignore[misc]
            entry = self.task.history[-1]
            return Cancelled(message=entry.reason or "the task was cancelled")
        return Final(metadata={"task": summary_of(self.task)})

    async def _give_up(self, error: Exception) -> Outcome:
        """Somebody else may be able to: hand the task on, after a while, so that it does not go round and round."""
        log.error("task %s cannot go on here, another worker has to: %s", self._id, error)
        metrics.TASKS_MISPLACED.inc()
        with_patience = asyncio.create_task(self._context.stop.wait())
        await asyncio.wait({with_patience}, timeout=self._context.settings.requeue_after)
        with_patience.cancel()
        self._context.request_stop("worker_stopped")
        return Failed(code="worker_stopped", message=str(error), retryable=True)

    async def _let_go(self) -> None:
        if self._decisions is not None:
            self._decisions.close()
        await self._drop_child()
