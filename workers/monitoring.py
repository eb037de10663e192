"""A worker's own port: ``/metrics``, ``/healthz``, ``/readyz``. Off unless a port is set.

It is served by the worker's event loop: a worker that hangs does not answer, which is what ``/healthz`` is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Generator

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker.exposition import CONTENT_TYPE, exposition
from broker.logs import unbound

__all__ = ["MonitoringPort", "monitored"]

_JSON = "application/json"


class MonitoringPort:
    """ASGI. ``ready`` says why the worker takes no runs, or ``None`` where it does."""

    def __init__(self, ready: Callable[[], str | None]) -> None:
        self._ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, media_type, body = self._answer(scope["method"], scope["path"])
        headers = [(b"content-type", media_type.encode()), (b"content-length", b"%d" % len(body))]
        start: Message = {"type": "http.response.start", "status": status}
        await send({**start, "headers": [*headers, (b"cache-control", b"no-store")]})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        if method not in ("GET", "HEAD"):
            return 405, _JSON, _said("error", "GET and HEAD are answered here")
        match path:
            case "/metrics":
                return 200, CONTENT_TYPE, exposition()
            case "/healthz":
                return 200, _JSON, _said("status", "ok")
            case "/readyz":
                why = self._ready()
                return (200, _JSON, _said("status", "ready")) if why is None else (503, _JSON, _said("status", why))
            case _:
                return 404, _JSON, _said("error", "here are /metrics, /healthz and /readyz")


def _said(name: str, value: str) -> bytes:
    return json.dumps({name: value}).encode()


class _Server(uvicorn.Server):
    """uvicorn's, which leaves the signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@contextlib.asynccontextmanager
async def monitored(listener: socket.socket | None, ready: Callable[[], str | None]) -> AsyncIterator[None]:
    """Serve on ``listener`` while inside; ``None``: nowhere. It is closed at the end."""
    if listener is None:
        yield
        return
    server = _Server(_config(MonitoringPort(ready)))
    serving = asyncio.create_task(server.serve([listener]), name="monitoring port", context=unbound())
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
        server_header=False,
    )
