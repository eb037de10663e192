"""Follows one run at the API server to its end: by its events, and where they are lost for good, by its status.

Newer servers keep the last events of a run and tell them again from a number on. Older ones have one subscriber, who
is not to come back: his events go to a connection that is gone, and then nowhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx

from workers.hermes.api_events import ApiEvents
from workers.hermes.api_server import Lease
from workers.hermes.calls import Batch
from workers.hermes.verdict import Failure

__all__ = ["ApiStream"]

_ALIVE = 120.0
"""Seconds without a byte after which a connection is dead. The server says each 10 (0.19: 30) that it is there."""
_CONNECT = 5.0
_TRIES = 8
_PAUSE_MAX = 4.0
_POLL = 1.0
_UNREACHABLE = 30.0
_DYING = 2.0
"""Seconds that a process may take to end after its connections did."""
_LAST_WORDS = 500


class ApiStream:
    """Give it ``batches`` once; afterwards either ``seen.end`` or ``failure`` is there."""

    def __init__(self, lease: Lease, run_id: str, seen: ApiEvents, *, poll: float = _POLL) -> None:
        self._lease, self._seen, self._poll = lease, seen, poll
        self._path = f"/v1/runs/{run_id}"
        self._forgotten = False
        self.failure: Failure | None = None

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """An empty one: something was heard that makes no item."""
        tries = 0
        while not self._over():
            heard = self._seen.heard
            async with aclosing(self._events()) as events:
                async for batch in events:
                    yield batch
            tries = 0 if self._seen.heard > heard else tries + 1
            if self._over() or await self._died() or not self._lease.abilities.remembers:
                break
            if self._forgotten or tries > _TRIES:
                break
            await asyncio.sleep(min(0.1 * 2**tries, _PAUSE_MAX))
        if not self._over():
            yield self._seen.lost()
            async with aclosing(self._polled()) as polled:
                async for batch in polled:
                    yield batch

    def _over(self) -> bool:
        return self._seen.end is not None or self.failure is not None

    async def _events(self) -> AsyncGenerator[Batch, None]:
        """One connection, until it ends or breaks."""
        headers = {"Last-Event-ID": str(self._seen.last_seq)} if self._seen.last_seq >= 0 else {}
        timeout = httpx.Timeout(_ALIVE, connect=_CONNECT, pool=None)
        client = self._lease.client
        try:
            async with client.stream("GET", f"{self._path}/events", headers=headers, timeout=timeout) as response:
                self._forgotten = response.status_code == 404
                if response.status_code != 200:
                    return
                self._seen.reconnected()
                async for chunk in response.aiter_bytes():
                    heard = self._seen.heard
                    batch = self._seen.feed(chunk)
                    if batch or self._seen.heard != heard:
                        yield batch
                    if self._seen.end is not None:
                        return
        except httpx.HTTPError:
            return

    async def _died(self) -> bool:
        if await self._lease.died(_DYING):
            last = self._lease.last_words[-_LAST_WORDS:]
            self.failure = Failure("hermes_died", f"Hermes' API server ended in the middle of the run. {last}", True)
            return True
        return False

    async def _polled(self) -> AsyncGenerator[Batch, None]:
        reached, changed = time.monotonic(), None
        while not self._over():
            status = await self._status()
            if status is not None:
                reached = time.monotonic()
                batch = self._seen.polled(status) if not self.failure else []
                if batch or status.get("updated_at") != changed:
                    yield batch
                changed = status.get("updated_at")
            elif not await self._died() and time.monotonic() - reached > _UNREACHABLE:
                where = f"the API server at {self._lease.url}"
                self.failure = Failure("hermes_died", f"{where} cannot be reached any more, nor the run there", True)
            if not self._over():
                await asyncio.sleep(self._poll)

    async def _status(self) -> dict[str, Any] | None:
        """``None`` where the server does not answer."""
        try:
            answer = await self._lease.client.get(self._path)
            if answer.status_code == 404:
                message = "Hermes' API server does not know the run any more: it was started again"
                self.failure = Failure("hermes_died", message, True)
                return {}
            status = answer.json() if answer.is_success else None
        except (httpx.HTTPError, ValueError):
            return None
        return status if isinstance(status, dict) else None
