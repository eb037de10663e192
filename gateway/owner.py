"""Viewers that own their run: one that attached with the run's cancel token and ``on_disconnect=cancel``.

The run is cancelled if no owner came within ``disconnect_grace`` seconds after the last one left, wherever they were
attached: the counts live in the run's record. Drain, and the death of a gateway, are not leaving; a gateway that was
killed leaves its owners counted, so that such a run is never cancelled by mistake.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.api import Broker
from broker.errors import RuncastError, RunEnded, RunNotFound
from broker.runs import Owners
from broker.viewer import Viewer
from gateway.problems import Forbidden

__all__ = ["Owner"]

log = logging.getLogger("runcast.gateway")

_pending: set[asyncio.Task[None]] = set()
"""Grace periods under way. They end with the process: its death is not leaving."""


class Owner:
    def __init__(self, broker: Broker, run_id: str) -> None:
        self._broker, self._run_id = broker, run_id

    @staticmethod
    async def check(broker: Broker, run_id: str, token: str | None) -> None:
        """Raises ``Forbidden`` where the token is not this run's."""
        if token is None or not await broker.runs.check_cancel_token(run_id, token):
            raise Forbidden("this cancel token does not belong to this run: use the one that creating the run returned")

    @asynccontextmanager
    async def attached(self, viewer: Viewer) -> AsyncIterator[None]:
        """Counted in the record while the body runs. Leaving it starts the grace period, if the viewer really left."""
        came = await self._count(1)
        try:
            yield
        finally:
            if came is not None:
                left = viewer.reason in ("left", "stalled", "")
                task = asyncio.create_task(self._leave(grace=left), name=f"owner of {self._run_id} left")
                _pending.add(task)
                task.add_done_callback(_pending.discard)

    async def _count(self, step: int) -> Owners | None:
        try:
            return await self._broker.runs.count_owner(self._run_id, step)
        except RuncastError as error:
            log.warning("the owners of run %s could not be counted: %s", self._run_id, error)
            return None  # not known to be the last: nothing is cancelled

    async def _leave(self, *, grace: bool) -> None:
        left = await self._count(-1)
        if not grace or left is None or left.attached > 0:
            return
        await asyncio.sleep(self._broker.settings.disconnect_grace)
        if await self._count(0) != left:
            return  # somebody came meanwhile: whoever is the last to leave then sees to it
        try:
            await self._broker.runs.cancel(self._run_id)
            log.info("run %s is cancelled: its owner left and did not come back", self._run_id)
        except (RunEnded, RunNotFound):
            pass
        except RuncastError as error:
            log.warning("run %s could not be cancelled for its owner: %s", self._run_id, error)
