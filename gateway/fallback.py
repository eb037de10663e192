"""Streams under servers other than ours: frames go through ASGI ``send``, at a higher price each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from starlette.types import Receive, Send

from broker.viewer import PLAIN, Viewer

__all__ = ["through_asgi"]


async def through_asgi(
    viewer: Viewer,
    run: Callable[[], Awaitable[None]],
    headers: Sequence[tuple[bytes, bytes]],
    high_water: int,
    receive: Receive,
    send: Send,
) -> None:
    """For any other server: a bounded buffer between the hub and ``send``, which is that server's back-pressure."""
    outbox = _Outbox(viewer, high_water)
    viewer.write, viewer.framing = outbox.write, PLAIN
    await send({"type": "http.response.start", "status": 200, "headers": list(headers)})

    async def pump() -> None:
        with suppress(OSError):  # how some servers say that the peer is gone
            while (body := await outbox.take()) is not None:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        viewer.finish("left")
        outbox.close()

    async def serve() -> None:
        try:
            await run()
        finally:
            viewer.finish("left")
            outbox.close()

    pumping, serving = asyncio.create_task(pump()), asyncio.create_task(serve())
    watching = asyncio.create_task(watch())
    outbox.pumping, viewer.peer = pumping, outbox
    try:
        await asyncio.wait((pumping,))
    finally:
        viewer.finish("left")
        pumping.cancel()
        watching.cancel()
        outbox.clear()
        results = await asyncio.gather(pumping, serving, watching, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


class _Outbox:
    """Frames that wait for ``send``, and those in it. Past the high-water mark the viewer is paused.

    It is the viewer's ``Peer``, too.
    """

    def __init__(self, viewer: Viewer, high_water: int) -> None:
        self._viewer, self._high = viewer, high_water
        self._frames: deque[bytes] = deque()
        self._size = self._sending = 0
        self._closed = False
        self.pumping: asyncio.Task[None] | None = None
        self._filled = asyncio.Event()

    def write(self, frames: bytes) -> None:
        self._frames.append(frames)
        self._size += len(frames)
        self._filled.set()
        if self._size > self._high:
            self._viewer.pause()

    def waiting(self) -> int:
        return self._size + self._sending

    def abort(self) -> None:
        """A send that takes nothing would wait for ever."""
        if self.pumping is not None:
            self.pumping.cancel()
        self.clear()

    def clear(self) -> None:
        self._frames.clear()
        self._size = self._sending = 0

    def close(self) -> None:
        self._closed = True
        self._filled.set()

    async def take(self) -> bytes | None:
        """Everything that waits, ``None`` after the last of it. What was taken before has been sent."""
        self._sending = 0
        while not self._frames:
            if self._closed:
                return None
            self._filled.clear()
            await self._filled.wait()
        body = b"".join(self._frames)
        self.clear()
        self._sending = len(body)
        if self._viewer.paused:
            self._viewer.resume()
        return body
