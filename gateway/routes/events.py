"""``/v1/events``: the event bus, live, as server-sent events.

A listener gets what happens while it listens; there is no id to resume from. Like a run's stream it gets no 5xx:
EventSource would give up for good.
"""

from __future__ import annotations

import asyncio
import random
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from broker.errors import RuncastError
from gateway.bus import BusFeed, Listener, parse_kinds
from gateway.connection import Connection
from gateway.formats import FORMATS
from gateway.openapi import event_stream, problems
from gateway.routes.get import get

__all__ = ["EventStream", "router"]

router = APIRouter(prefix="/v1", tags=["events"])

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


@get(router, "/events", responses={200: event_stream("Events from now on."), **problems(400, 422)})
async def listen(
    request: Request,
    kinds: Annotated[list[str] | None, Query(description="`run.*`, `run.created`, …: repeated, or by commas.")] = None,
    session_id: Annotated[str | None, Query(max_length=128, description="Only events of this session.")] = None,
) -> Response:
    """The event bus: each frame is named by its kind, its data is `{kind, run_id?, session_id?, ts, …}`.

    A listener that does not keep up is ended with `event: end` and `{"reason": "too_slow"}`.
    """
    listener = Listener(parse_kinds(kinds or []), session_id or None)
    return EventStream(request.app.state.connection, request.app.state.bus_feed, listener)


class EventStream(Response):
    """One listener's response: plain ASGI, nothing buffered but the listener's own bounded queue."""

    def __init__(self, connection: Connection, feed: BusFeed, listener: Listener) -> None:
        super().__init__()
        self._connection = connection
        self._feed = feed
        self._listener = listener
        self._format = FORMATS["native"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        await send(_chunk(self._format.opening(self._connection.settings.retry_ms)))
        leaving = asyncio.create_task(_left(receive))
        try:
            await self._serve(send, leaving)
        finally:
            self._feed.detach(self._listener)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

    async def _serve(self, send: Send, leaving: asyncio.Task[None]) -> None:
        """Until the listener left, was dropped, or the process drains. A send that takes no byte for ``stall_limit``
        seconds is given up: the queue behind it was already."""
        try:
            async with self._connection.within() as broker:
                await self._feed.attach(broker, self._listener)
        except RuncastError:
            # Jittered, so that all listeners of an outage do not come back at the same moment.
            await send(_chunk(self._come_back(), more=False))
            return
        draining = asyncio.create_task(self._connection.draining.wait())
        try:
            last = b""
            while not leaving.done():
                frames = await self._next(leaving, draining)
                last = self._farewell(draining.done())
                async with asyncio.timeout(self._connection.settings.stall_limit):
                    await send(_chunk(frames + last, more=not last))
                if last:
                    return
        except TimeoutError:
            self._listener.drop("stalled")
        finally:
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)

    async def _next(self, *ends: asyncio.Task[object]) -> bytes:
        """The frames that wait, as soon as there are any or something ended; a heartbeat after silence."""
        filled = asyncio.create_task(self._listener.filled())
        try:
            done, _ = await asyncio.wait(
                (filled, *ends), timeout=self._connection.settings.heartbeat, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            filled.cancel()
        return self._listener.take() if done else self._format.heartbeat

    def _farewell(self, draining: bool) -> bytes:
        if self._listener.dropped is not None:
            return b'event: end\ndata: {"reason":"%b"}\n\n' % self._listener.dropped.encode()
        return self._come_back() if draining else b""

    def _come_back(self) -> bytes:
        return self._format.retry(int(self._connection.settings.retry_ms * random.uniform(0.5, 1.5)))


def _chunk(body: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
