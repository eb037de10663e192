"""A stream that stays open and tells what happens: frames of a source, ``: keepalive`` in its silences.

Plain ASGI, nothing buffered here: the source holds what a viewer has not taken, and bounds it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.connection import Connection

__all__ = ["KEEPALIVE", "LiveStream"]

KEEPALIVE = b": keepalive\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


def _never() -> bool:
    return False


class LiveStream(Response):
    """``more`` waits for the next frames of this viewer; it is cancelled when the viewer left. ``over`` is asked
    whenever something or nothing came: once it is true, the response ends. ``leave`` is called at the end."""

    def __init__(
        self,
        connection: Connection,
        more: Callable[[], Awaitable[bytes]],
        *,
        over: Callable[[], bool] = _never,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._connection, self._more, self._over, self._leave = connection, more, over, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            if scope["method"] == "HEAD":
                await send(_chunk(b"", more=False))
            else:
                await self._serve(receive, send)
        finally:
            self._leave()

    async def _serve(self, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_left(receive))
        draining = asyncio.create_task(self._connection.draining.wait())
        coming = asyncio.ensure_future(self._more())
        try:
            while not leaving.done():
                await asyncio.wait(
                    (coming, leaving, draining),
                    timeout=self._connection.settings.heartbeat,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                frames = coming.result() if coming.done() else KEEPALIVE
                if coming.done():
                    coming = asyncio.ensure_future(self._more())
                last = self._come_back() if draining.done() else b""
                ends = draining.done() or self._over()
                async with asyncio.timeout(self._connection.settings.stall_limit):
                    await send(_chunk(frames + last, more=not ends))
                if ends:
                    return
        except TimeoutError:
            return  # it takes nothing: the server drops what is not complete
        finally:
            for task in (coming, leaving, draining):
                task.cancel()
            await asyncio.gather(coming, leaving, draining, return_exceptions=True)

    def _come_back(self) -> bytes:
        """Jittered, so that the viewers of a gateway that shuts down do not all come back at the same moment."""
        return b"retry: %d\n\n" % int(self._connection.settings.retry_ms * random.uniform(0.5, 1.5))


def _chunk(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
