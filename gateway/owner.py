"""Viewers that own their run: one that attached with the run's cancel token and ``on_disconnect=cancel``.

The run is cancelled if no owner came within ``disconnect_grace`` seconds after the last one left, wherever they were
attached: who is there stands beside the run's record (broker/owners.py). Drain, and the death of a gateway, are not
leaving. Owners that a dead gateway had hold up nothing: they count until it has not been heard of for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count

from broker.api import Broker
from broker.errors import RuncastError, RunEnded, RunNotFound, StoreUnavailable
from broker.owners import Roll
from broker.viewer import Viewer
from gateway.problems import Forbidden

__all__ = ["Owner"]

log = logging.getLogger("runcast.gateway")

_AWAY_PAUSE = 1.0
_pending: set[asyncio.Task[None]] = set()
"""Grace periods under way. They end with the process: its death is not leaving."""
_numbers = count(1)


class Owner:
    def __init__(self, broker: Broker, run_id: str) -> None:
        self._broker, self._run_id = broker, run_id
        self._name = f"{broker.tail.process}.{next(_numbers)}"
        self._came = False

    @staticmethod
    async def check(broker: Broker, run_id: str, token: str | None) -> None:
        """Raises ``Forbidden`` where the token is not this run's."""
        if token is None or not await broker.runs.check_cancel_token(run_id, token):
            raise Forbidden("this cancel token does not belong to this run: use the one that creating the run returned")

    @asynccontextmanager
    async def attached(self, viewer: Viewer) -> AsyncIterator[None]:
        """On the roll while the body runs. Leaving it starts the grace period, if the viewer really left."""
        staying = asyncio.create_task(self._stay(), name=f"owner of {self._run_id}")
        try:
            yield
        finally:
            staying.cancel()
            left = viewer.reason in ("left", "stalled", "memory", "")
            task = asyncio.create_task(self._leave(staying, grace=left), name=f"owner of {self._run_id} left")
            _pending.add(task)
            task.add_done_callback(_pending.discard)

    async def _stay(self) -> None:
        """Be on the roll, and say so again and again."""
        owners = self._broker.owners
        while True:
            try:
                await (owners.stay if self._came else owners.come)(self._run_id, self._name)
                self._came = True
            except RunNotFound:
                return
            except RuncastError as error:
                log.warning("an owner of run %s is not on its roll: %s", self._run_id, error)
            await asyncio.sleep(owners.refresh)

    async def _leave(self, staying: asyncio.Task[None], *, grace: bool) -> None:
        await asyncio.gather(staying, return_exceptions=True)  # else it might come after it has left
        with suppress(RuncastError):  # then it counts until it is stale
            await self._broker.owners.leave(self._run_id, self._name)
        if not grace:
            return
        try:
            if await self._nobody_is_left():
                await self._broker.runs.cancel(self._run_id)
                log.info("run %s is cancelled: its owner left and did not come back", self._run_id)
        except (RunEnded, RunNotFound):
            pass
        except RuncastError as error:
            log.warning("run %s could not be cancelled for its owner: %s", self._run_id, error)

    async def _nobody_is_left(self) -> bool:
        """Whether the grace passes with no owner there and none coming. Whoever lives, or leaves later, sees to it."""
        owners, loop = self._broker.owners, asyncio.get_running_loop()
        over = loop.time() + self._broker.settings.disconnect_grace
        before = await self._roll()
        while True:
            others = before.fresh(self._others(before))
            if not others and loop.time() >= over:
                return True
            await asyncio.sleep(owners.refresh * 1.5 if others else over - loop.time())
            now = await self._roll()
            if now.arrivals != before.arrivals or any(now.there.get(name) != at for name, at in others.items()):
                return False
            before = now

    def _others(self, roll: Roll) -> dict[str, float]:
        return {name: at for name, at in roll.there.items() if name != self._name}

    async def _roll(self) -> Roll:
        while True:
            try:
                return await self._broker.owners.roll(self._run_id)
            except StoreUnavailable:
                await asyncio.sleep(_AWAY_PAUSE)
