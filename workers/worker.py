"""The worker: claims runs while it has free slots, beats for those it has, and ends in order.

One link to the queue and one beat loop serve all its runs. Shutdown: ``drain`` (SIGTERM) stops claiming; runs get
``RUNCAST_WORKER_DRAIN`` seconds to end by themselves and are then stopped with ``failed {code: worker_stopped}``.
A second ``drain`` stops them at once, their fence first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import Gauge

from broker.audit_file import AuditFile
from broker.errors import (
    ClaimRefused,
    Fenced,
    InvalidId,
    RuncastError,
    RunNotFound,
    Sealed,
    StoreError,
    StoreUnavailable,
)
from broker.metrics import LOOP_LAG
from broker.queue import Queue, Taken
from broker.records import RunRecord
from broker.redis import Link
from workers import metrics
from workers.execution import Execution
from workers.files import Files
from workers.retention import Retention
from workers.runner import Runner, load_runners

if TYPE_CHECKING:
    from broker.api import Broker

__all__ = ["Worker"]

log = logging.getLogger("runcast.worker")
_BACKOFF = 0.5


class Worker:
    """``run`` works until it was drained. ``sweep=False`` where something else in this process sweeps, writes the
    audit's file and measures the event loop. ``queue``, ``drain_s`` (seconds that runs get to end), ``slots``,
    ``running``: of a worker for something else than runs."""

    def __init__(
        self,
        broker: Broker,
        *,
        concurrency: int | None = None,
        runners: Mapping[str, Runner] | None = None,
        name: str | None = None,
        sweep: bool = True,
        queue: Queue | None = None,
        drain_s: float | None = None,
        slots: Gauge = metrics.SLOTS,
        running: Gauge = metrics.RUNNING,
    ) -> None:
        self._broker, self._settings = broker, broker.settings
        self.concurrency = concurrency or broker.settings.concurrency
        self.runners = dict(load_runners() if runners is None else runners)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._sweep = sweep
        self._files = Files(broker.settings, broker.artifacts)
        self._queue = queue or broker.queue
        self._drain_s = broker.settings.worker_drain if drain_s is None else drain_s
        self._slots, self._running_gauge = slots, running
        self._running: dict[asyncio.Task[None], Execution] = {}
        self._draining = asyncio.Event()
        self._hurry = asyncio.Event()
        self._changed = asyncio.Event()
        self._link: Link | None = None
        self._at_work = False

    @property
    def running(self) -> int:
        """Runs that hold a slot: their cleanup counts."""
        return len(self._running)

    @property
    def not_ready(self) -> str | None:
        """Why no run is taken just now, for ``/readyz``; ``None``: they are. That all slots are busy is no reason."""
        if self._draining.is_set():
            return "draining"
        return None if self._at_work and self._link is not None else "waiting for the store"

    @property
    def draining(self) -> bool:
        return self._draining.is_set()

    def drain(self) -> None:
        """Claim nothing more and end. Called again: without waiting for the runs."""
        if self._draining.is_set():
            self._hurry.set()
        self._draining.set()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT drain, while inside."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.drain)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def run(self) -> None:
        """Work until drained. Cancelled, it stops its runs at once, as by a second ``drain``."""
        self._slots.set(self.concurrency)
        self._at_work = True
        if self._sweep:
            self._broker.hub.tells_lag = False
        async with self._background():
            await self._announce("worker.started")
            try:
                await self._claim_until_drained()
                await self._let_runs_end()
            finally:
                await self._stop_runs()
                await self._close_runners()
                await self._announce("worker.stopped")

    @contextlib.asynccontextmanager
    async def _background(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._beat_forever(), name="beats")]
        if self._sweep:
            tasks.append(asyncio.create_task(self._broker.sweeper.run_forever(), name="sweep"))
            tasks.append(asyncio.create_task(Retention(self._broker, self._files.workspaces).run_forever()))
            audit = AuditFile(self._broker.store, self._broker.ledger.audit)
            tasks.append(asyncio.create_task(audit.run_forever(), name="audit"))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _announce(self, kind: str) -> None:
        payload = {"runners": sorted(self.runners), "concurrency": self.concurrency}
        with contextlib.suppress(RuncastError):  # news only
            await self._broker.bus.announce(kind, self.name, payload)

    # Claiming.

    async def _claim_until_drained(self) -> None:
        while await self._free_slot():
            taking = asyncio.create_task(self._take(), name="take from the queue")
            taken = await self._unless_drained(taking)
            if taken is None:
                continue
            if not self._draining.is_set():
                await self._claim(taken)
        await self._drop_link()
        with contextlib.suppress(RuncastError):  # else what is left of ours is reclaimed after a while
            await self._queue.leave(self.name)

    async def _free_slot(self) -> bool:
        """Wait for one; false once drained."""
        while not self._draining.is_set():
            if len(self._running) < self.concurrency:
                return True
            self._changed.clear()
            await _either(self._changed, self._draining)
        return False

    async def _unless_drained(self, taking: asyncio.Task[Taken | None]) -> Taken | None:
        draining = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait({taking, draining}, return_when=asyncio.FIRST_COMPLETED)
            taking.cancel()
            return await _result(taking)
        finally:
            draining.cancel()

    async def _take(self) -> Taken | None:
        """The next entry; ``None`` after a while without one, or without the store."""
        try:
            if self._link is None:
                self._link = await self._broker.store.link(self._queue.key)
            return await self._queue.take(self._link, self.name, block_ms=int(self._settings.block * 1000))
        except asyncio.CancelledError:
            raise
        except (StoreUnavailable, StoreError) as error:
            log.warning("the queue cannot be read: %s", error)
        except Exception:
            log.exception("the queue cannot be read")
        await self._drop_link()
        await asyncio.sleep(_BACKOFF)
        return None

    async def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()

    async def _claim(self, taken: Taken) -> None:
        # An owner's token is of one claim only: a claim whose answer was lost can then be repeated, and a run that came
        # back to this worker as its next attempt is not mixed up with the one before.
        owner = f"{self.name}.{secrets.token_hex(6)}"
        try:
            record = await self._claimed(taken, owner)
        except (ClaimRefused, RunNotFound, InvalidId) as refused:
            metrics.CLAIMS_REFUSED.inc()
            log.info("claim of %s, attempt %d, refused: %s", taken.run_id, taken.attempt, refused)
            await self._done(taken)
            return
        except RuncastError as error:
            # Unknown whether it is ours. Nobody beats for it, so a sweep ends it if it is; else it is reclaimed.
            log.warning("claim of %s failed: %s", taken.run_id, error)
            return
        self._start(record)
        await self._done(taken)

    async def _claimed(self, taken: Taken, owner: str) -> RunRecord:
        deadline = asyncio.get_running_loop().time() + self._settings.lease
        while True:
            try:
                return await self._broker.runs.claim(taken.run_id, taken.attempt, owner, lingers=True)
            except StoreUnavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_BACKOFF)

    async def _done(self, taken: Taken) -> None:
        with contextlib.suppress(RuncastError):  # reclaimed and refused later
            await self._queue.done(taken.entry_id)

    def _start(self, record: RunRecord) -> None:
        runner = self.runners.get(record.runner)
        known = sorted(self.runners)
        execution = Execution(self._broker, record, runner, worker=self.name, known=known, files=self._files)
        execution.observation.claimed()
        task = asyncio.create_task(execution.run(), name=f"execution {record.run_id}")
        self._running[task] = execution
        self._running_gauge.inc()
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._running_gauge.dec()
        self._changed.set()

    # Beats.

    async def _beat_forever(self) -> None:
        while True:
            due = time.monotonic() + self._settings.beat
            await asyncio.sleep(self._settings.beat)
            if self._sweep:
                LOOP_LAG.observe(max(time.monotonic() - due, 0.0))
            await asyncio.gather(*(self._beat(e) for e in list(self._running.values()) if not e.done))

    async def _beat(self, execution: Execution) -> None:
        runs = self._broker.runs
        try:
            execution.heard(await runs.beat(execution.run_id, execution.owner, execution.publisher.epoch))
        except StoreUnavailable:
            metrics.BEATS_FAILED.inc()
            execution.unheard()
        except (Fenced, Sealed, RunNotFound) as error:
            await self._confirm_fenced(execution, error)
        except RuncastError as error:
            log.error("beat of %s failed: %s", execution.run_id, error)
        except Exception:
            log.exception("beat of %s failed", execution.run_id)

    async def _confirm_fenced(self, execution: Execution, error: RuncastError) -> None:
        """The publisher may have changed the epoch while the beat was under way: only another owner counts."""
        try:
            record = await self._broker.runs.get(execution.run_id)
        except RunNotFound as gone:
            execution.fenced(gone)
        except RuncastError:
            return
        else:
            if record.owner != execution.owner or record.is_ended:
                execution.fenced(error)

    # The end.

    async def _let_runs_end(self) -> None:
        limit = self._drain_s
        if self._running and limit > 0:
            log.info("draining: %d runs have %.0f s to end", len(self._running), limit)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self._running and not self._hurry.is_set():
                    self._changed.clear()
                    await _either(self._changed, self._hurry)
        for execution in self._running.values():
            execution.stop("worker_stopped", now=self._hurry.is_set())
        hurrying = asyncio.create_task(self._hurry.wait())
        try:
            while self._running and not hurrying.done():
                await asyncio.wait({*self._running, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurrying.cancel()

    async def _stop_runs(self) -> None:
        for execution in self._running.values():
            execution.stop("worker_stopped", now=True)
        while self._running:
            await asyncio.wait(set(self._running))
        await self._drop_link()

    async def _close_runners(self) -> None:
        """What a runner keeps for all its runs (a server, say) ends with the worker."""
        for name, runner in self.runners.items():
            close = getattr(runner, "aclose", None)
            if close is None:
                continue
            try:
                await close()
            except Exception:
                log.exception("closing the runner %r failed", name)


async def _result(task: asyncio.Task[Taken | None]) -> Taken | None:
    result = (await asyncio.gather(task, return_exceptions=True))[0]
    return None if isinstance(result, BaseException) else result


async def _either(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
