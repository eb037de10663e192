"""Hermes over its API server: one run of it. Mode ``api``.

``POST /v1/runs`` starts it, its events come as a stream, and where that stream is lost for good its status is asked
for until it ends. What a run at the server cannot be told (tool sets, a turn limit, an environment) is refused before
it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import httpx

from workers.hermes.api_approvals import Approvals
from workers.hermes.api_events import ApiEvents
from workers.hermes.api_request import Begun, begin
from workers.hermes.api_server import ApiServer, Lease
from workers.hermes.api_session import Settled, settle
from workers.hermes.api_stream import ApiStream
from workers.hermes.api_verdict import judge_end
from workers.hermes.calls import Batch, Told
from workers.hermes.command import Call, RefusedCall, Unavailable
from workers.hermes.handoff import Handoff
from workers.hermes.settings import HermesSettings
from workers.hermes.verdict import Failure

__all__ = ["ApiCall"]

_POST = 5.0
"""Seconds for a request about a run that is under way."""


class ApiCall:
    """A ``HermesCall`` (see there). Cancelling ``read`` loses nothing: the next one goes on where it was.

    One batch is read ahead, no more. Hermes itself goes on: its server keeps what is not fetched yet.
    """

    mode = "api"

    def __init__(self, lease: Lease, settings: HermesSettings, call: Call, begun: Begun) -> None:
        self._lease, self._settings, self._begun = lease, settings, begun
        self._seen = ApiEvents(event_max=settings.line_max_bytes)
        self._stream = ApiStream(lease, begun.run_id, self._seen)
        self._approvals = Approvals(yolo=call.yolo)
        self._started = time.monotonic()
        self._duration_ms: float | None = None
        self._settled = Settled()
        self._stopping = False
        self._handoff: Handoff[Batch] = Handoff()
        self._in_hand: Batch = [*begun.items]
        self._pumping = asyncio.create_task(self._pump(), name="hermes api run")
        self._asides: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, server: ApiServer, settings: HermesSettings, call: Call) -> ApiCall:
        """Raises ``RefusedCall``, ``NotStarted`` and ``Unavailable``, as ``begin`` and ``ApiServer.lease`` do."""
        lease = await server.lease()
        try:
            begun = await begin(lease, call)
        except (RefusedCall, Unavailable):
            await lease.release(ended=True)
            raise
        except BaseException:
            # It may have reached the server: nobody would ever end it there.
            await lease.release(ended=False)
            raise
        return cls(lease, settings, call, begun)

    @property
    def told(self) -> Told:
        return Told(
            session_id=self._settled.session_id or self._begun.session_id,
            model=self._seen.model or self._settled.model,
            provider=self._seen.provider,
            duration_ms=self._duration_ms,
            usage=self._settled.usage,
            priced=self._settled.priced,
            finished=self._seen.end is not None,
            metadata={"hermes_run_id": self._begun.run_id},
        )

    async def read(self) -> Batch | None:
        batch = await self._handoff.take()
        if batch is None:
            await asyncio.wait({self._pumping})
            if not self._pumping.cancelled():
                self._pumping.result()  # raises what should not have happened
        return batch

    async def _pump(self) -> None:
        """Cut short, it still hands over what it has."""
        try:
            await self._hand_over()
            async with aclosing(self._stream.batches()) as batches:
                async for batch in batches:
                    self._in_hand, posts = self._approvals.read(batch)
                    await self._hand_over()
                    for post in posts:
                        await self._post("approval", post)
            self._duration_ms = round((time.monotonic() - self._started) * 1000, 3)
            if self._seen.end is not None:
                self._settled = await settle(self._lease, self._begun, self._seen)
                self._in_hand = [*self._settled.items]
        finally:
            await self._handoff.close([*self._in_hand, *self._seen.close()])

    async def _hand_over(self) -> None:
        await self._handoff.put(self._in_hand)
        self._in_hand = []

    def verdict(self) -> Failure | None:
        if self._seen.end is not None:
            return judge_end(self._seen)
        given_up = Failure("interrupted", "the run was given up: it did not stop within HERMES_GRACE", True)
        return self._stream.failure or given_up

    async def answer(self, key: str, answer: str) -> None:
        post = self._approvals.answer(key, answer)
        if post is not None:
            await self._post("approval", post)

    async def _post(self, what: str, body: dict[str, Any]) -> None:
        """The server may be gone, or the run have ended, or nothing wait: the events will say so."""
        with contextlib.suppress(httpx.HTTPError):
            await self._lease.client.post(f"/v1/runs/{self._begun.run_id}/{what}", json=body, timeout=_POST)

    def stop(self) -> None:
        if not self._stopping and not self._pumping.done():
            self._stopping = True
            self._aside(self._stop())

    async def _stop(self) -> None:
        await self._interrupt()
        await asyncio.wait({self._pumping}, timeout=self._settings.grace)
        self._pumping.cancel()

    async def _interrupt(self) -> None:
        await self._post("stop", {})
        if self._approvals.waiting:  # an agent that waits for a person hears nothing else
            await self._post("approval", {"choice": "deny", "all": True})

    def kill(self) -> None:
        """The run is given up at once, and the server ends with it, or with the runs beside it."""
        if not self._pumping.done():
            self._stopping = True
            self._pumping.cancel()
            self._aside(self._interrupt())

    def _aside(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(what, name="hermes api stop")
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)

    @property
    def stderr(self) -> str:
        """The server's own is everybody's. Where it died in this run, its last words are in the failure."""
        return ""

    async def aclose(self, *, patience: float = 0.0) -> None:
        """Cancelled, it leaves the rest to the server's end."""
        try:
            if patience and not self._pumping.done():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._drain(), patience)
            self.stop()
            await self._drain()
            if self._seen.end is None:
                await asyncio.gather(*self._asides)
        finally:
            for task in (self._pumping, *self._asides):
                task.cancel()
            await asyncio.shield(self._lease.release(ended=self._seen.end is not None))

    async def _drain(self) -> None:
        """Read on, so that what is under way can end."""
        while await self._handoff.take() is not None:
            pass
        await asyncio.wait({self._pumping})
