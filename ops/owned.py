"""A run that this process makes and publishes itself: ``runcast import`` and ``runcast replay --into``.

It is created under a queue that no worker reads and claimed at once, so it is a run like any other: it beats, can be
cancelled, and is fenced by the sweeps where this process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from broker.api import Broker
from broker.errors import RuncastError, StoreUnavailable
from broker.items import Cancelled, Failed, Item, Raw
from broker.merge import Merger
from broker.records import RunRecord
from broker.requests import RunInput, RunRequest
from ops.exits import Exit
from ops.follow import Interrupts
from ops.terminal import Terminal

__all__ = ["RUNNER", "OwnedRun", "own_run", "publish"]

RUNNER = "import"


class OwnedRun:
    """The claim and the publisher of one run. ``stopped`` is set when it was cancelled or is no longer ours."""

    def __init__(self, broker: Broker, record: RunRecord) -> None:
        self._broker = broker
        self.run_id, self._owner = record.run_id, record.owner
        self.publisher = broker.publisher(record)
        self.stopped = asyncio.Event()
        self.cancelled = False
        self.sealed = False
        self._merger = Merger()

    async def publish(self, item: Item | Raw) -> None:
        await self.publisher.publish(item)
        self._merger.add(item)

    async def seal(self, fence: Item | Raw) -> int:
        """Write the fence and wait until it is stored."""
        await self.publisher.publish(fence)
        await self.publisher.flush()
        self.sealed = True
        return self.publisher.last

    async def fail(self, code: str, message: str) -> None:
        """End the run where nothing else did: as cancelled if that was asked for, else as failed."""
        if self.sealed:
            return
        seen = self._merger
        partial, usage, cost = seen.partial(), seen.usage, seen.cost
        if self.cancelled:
            await self.seal(Cancelled(partial=partial, usage=usage, cost=cost))
        else:
            await self.seal(Failed(code=code, message=message, partial=partial, usage=usage, cost=cost))

    async def beat_forever(self, interval: float) -> None:
        """Keep the lease, learn of a cancel, and tell the publisher what the store holds."""
        while True:
            try:
                beat = await self._broker.runs.beat(self.run_id, self._owner, self.publisher.epoch)
            except StoreUnavailable:
                pass  # the publisher rides the outage out; the lease is not counted while the store is away
            except RuncastError:
                if await self._lost():
                    self.stopped.set()
                    return
            else:
                self.publisher.observe(beat)
                if beat.cancel_requested:
                    self.cancelled = True
                    self.stopped.set()
            await asyncio.sleep(interval)

    async def _lost(self) -> bool:
        """A refused beat may have met a change of epoch: only another owner, or no record, is a loss."""
        try:
            record = await self._broker.runs.get(self.run_id)
        except StoreUnavailable:
            return False
        except RuncastError:
            return True
        return record.owner != self._owner or record.ended_


@asynccontextmanager
async def own_run(
    broker: Broker,
    *,
    run_id: str | None,
    session_id: str | None = None,
    metadata: dict[str, str] | None = None,
    what: str,
) -> AsyncIterator[OwnedRun]:
    """Create and claim a run. Left without a fence it gets a ``failed`` one. Raises ``RunExists``, ``InvalidId``."""
    request = RunRequest(runner=RUNNER, input=RunInput(message=what), session_id=session_id, metadata=metadata or {})
    record, _ = await broker.runs.create(request, run_id=run_id, enqueue=False)
    claimed = await broker.runs.claim(record.run_id, record.attempt, f"{RUNNER}-{secrets.token_hex(8)}")
    run = OwnedRun(broker, claimed)
    beating = asyncio.create_task(run.beat_forever(broker.settings.beat))
    try:
        yield run
    finally:
        beating.cancel()
        await asyncio.wait({beating})
        with contextlib.suppress(Exception):
            await run.fail("interrupted", "the publisher of this run went away")
        await broker.ledger.try_settle(run.run_id)
        await run.publisher.aclose()


async def publish(terminal: Terminal, run: OwnedRun, interrupts: Interrupts, work: Coroutine[Any, Any, Exit]) -> Exit:
    """Do ``work``, which publishes into ``run``, until it ends, a signal comes, or somebody stops the run."""
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(run.stopped.wait())
    either = asyncio.ensure_future(asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED))
    try:
        arrived = await interrupts.race(either)
        if working.done():
            return working.result()
        await _end(working)
        return await (_stopped(terminal, run) if arrived is None else _interrupted(terminal, run, arrived))
    finally:
        await _end(working, stopping, either)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _interrupted(terminal: Terminal, run: OwnedRun, arrived: signal.Signals) -> Exit:
    if not run.sealed:
        await run.fail("interrupted", f"the publisher was stopped by {arrived.name}")
        terminal.warn(f"interrupted: {run.run_id} is sealed as failed")
    return Exit.INTERRUPTED if arrived is signal.SIGINT else Exit.TERMINATED


async def _stopped(terminal: Terminal, run: OwnedRun) -> Exit:
    if run.cancelled:
        await run.fail("cancelled", "")
        terminal.warn(f"{run.run_id} was cancelled: the rest is not published")
        return Exit.CANCELLED
    terminal.error(f"{run.run_id} belongs to somebody else by now: the rest is not published")
    return Exit.CONFLICT
