"""One viewer on one response: opened, given to the hub, ended. What the stream routes have in common.

Under our own server frames go from the hub straight to the socket; under any other through ASGI ``send``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypedDict

from starlette.types import Receive, Scope, Send

from broker.api import Broker
from broker.log import LogState
from broker.settings import Settings
from broker.viewer import Viewer
from gateway.fallback import through_asgi
from gateway.observing import watch
from gateway.owner import Owner
from gateway.transport import EXTENSION, StreamResponse

__all__ = ["STREAM_HEADERS", "Header", "Serving", "answer", "nowhere", "serve"]

Header = tuple[bytes, bytes]

STREAM_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class _Stands(TypedDict):
    """How the run stands, as ``Hub`` takes it."""

    ended: bool
    last: int
    average: int
    epoch: int


@dataclass(frozen=True)
class Serving:
    """``viewer`` writes nowhere yet. ``opening``: its first bytes. ``over``: they are all it gets, for this reason.
    ``log``: as it was just read. ``owner``: the run is cancelled when its last viewer has left."""

    broker: Broker
    viewer: Viewer
    log: LogState
    headers: Sequence[Header]
    opening: bytes = b""
    over: str | None = None
    owner: Owner | None = None

    def begin(self) -> bool:
        """Whether there is more to come."""
        self.viewer.send(self.opening)
        if self.over is not None:
            self.viewer.finish(self.over)
        return not self.viewer.closed

    async def run(self) -> None:
        if self.begin():
            async with self.owner.attached(self.viewer) if self.owner is not None else nullcontext():
                await self.broker.hub.serve(self.viewer, **self._stands)

    def host(self) -> bool:
        """Give the viewer to the hub, which goes on by itself; False: it is over already."""
        if not self.begin():
            return False
        self.broker.hub.host(self.viewer, **self._stands)
        return True

    @property
    def _stands(self) -> _Stands:
        log = self.log
        return {"ended": log.is_ended, "last": log.last, "average": log.average, "epoch": log.epoch}


async def serve(serving: Serving, scope: Scope, receive: Receive, send: Send) -> None:
    """The whole response. Returns at its end, or as soon as the hub has taken it over."""
    viewer, settings = serving.viewer, serving.broker.settings
    await watch(viewer, serving.broker, scope)
    open_response = scope.get("extensions", {}).get(EXTENSION)
    if open_response is None:
        await through_asgi(viewer, serving.run, list(serving.headers), settings.high_water, receive, send)
        return
    response: StreamResponse = open_response()
    if response.closed:
        response.lost()  # an answer that nobody waits for is none that is missing
        return
    _connect(response, viewer, serving.headers, settings)
    if serving.owner is not None:
        await _until_finished(response, viewer, serving.run)
    elif serving.host():
        response.detach()


async def answer(send: Send, status: int, headers: Sequence[Header], body: bytes = b"") -> None:
    """A response that is no stream."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def nowhere(_: Any) -> None:
    raise RuntimeError("this viewer has no connection yet")


def _connect(response: StreamResponse, viewer: Viewer, headers: Sequence[Header], settings: Settings) -> None:
    viewer.write, viewer.framing, viewer.peer = response.write, response.framing, response
    viewer.on_finish = response.finish
    response.viewer = viewer
    response.start(list(headers), settings.high_water, settings.stall_limit)


async def _until_finished(response: StreamResponse, viewer: Viewer, run: Callable[[], Awaitable[None]]) -> None:
    try:
        await run()
    finally:
        viewer.finish("left")
        response.finish()
