"""The outermost layer: each request gets an id, which its log records and its answer have, and a span where there are
traces. It touches no body.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from broker import tracing
from broker.api import Broker
from broker.errors import RuncastError
from broker.logs import bind, unbind
from broker.viewer import Viewer
from gateway.metrics import METHODS, route_of

__all__ = ["ObserveRequests", "watch"]

_UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
"""They are asked for all day, by machines."""
_STREAMS = frozenset({"/chat/stream", "/v1/chat/stream", "/api/chat/stream"})
_STREAM = re.compile(r"/v1/(?:(runs)|tasks)/[^/]+/stream\Z")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}\Z")


class ObserveRequests:
    """``X-Request-Id`` is taken from the request, if it is a plain word, else made; answers carry it, streams excepted:
    they have ``X-Run-Id``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope["headers"])
        header = (b"x-request-id", request_id.encode())

        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start" and not _is_stream(message.get("headers", ())):
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        token = bind(request_id=request_id)
        if tracing.active() and scope["path"] not in _UNTRACED:
            await self._traced(scope, receive, identified)
        else:
            await self._app(scope, receive, identified)
        # An error that leaves is the server's to log: that record is to have the id as well.
        unbind(token)

    async def _traced(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"] if scope["method"] in METHODS else "other"
        with tracing.span(method, kind="server", parent=_traceparent(scope), http__request__method=method) as span:

            async def told(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set(http__response__status_code=message["status"])
                    if message["status"] >= 500:
                        span.fail(str(message["status"]))
                await send(message)

            try:
                await self._app(scope, receive, told)
            finally:
                # By its template: a path has ids in it, and a name is to stand for many.
                route = _stream_route(scope) or route_of(scope)
                span.rename(f"{method} {route}")
                span.set(http__route=route)


def _stream_route(scope: Scope) -> str | None:
    """Streams are served ahead of the router, which leaves its template in the scope."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    if path in _STREAMS:
        return path
    found = _STREAM.match(path)
    if found is None:
        return None
    return "/v1/runs/{run_id}/stream" if found[1] else "/v1/tasks/{task_id}/stream"


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    given = _header(headers, b"x-request-id")
    return given.decode() if given is not None and _REQUEST_ID.match(given) else secrets.token_hex(8)


def _is_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return (_header(headers, b"content-type") or b"").startswith(b"text/event-stream")


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    return next((value for key, value in headers if key == name), None)


def _traceparent(scope: Scope) -> str | None:
    """The caller's; what is none is passed over."""
    value = (_header(scope["headers"], b"traceparent") or b"").decode("latin-1").strip()
    return value if tracing.is_traceparent(value) else None


async def watch(viewer: Viewer, broker: Broker, scope: Scope) -> None:
    """Give a viewer the span that lasts as long as he looks: in the caller's trace, if he named one, else in the run's;
    the other is linked. Costs one look into the store, and nothing where there are no traces."""
    if not tracing.active():
        return
    try:
        made_by = await broker.runs.trace_of(viewer.run_id)
    except RuncastError:
        made_by = None
    here = tracing.traceparent()
    asked = _traceparent(scope) is not None or made_by is None
    parent, link = (here, made_by) if asked else (made_by, here)
    viewer.span = tracing.start_span("stream", kind="server", parent=parent, link=link)
    viewer.span.set(runcast__run_id=viewer.run_id, runcast__format=viewer.format.name, runcast__after=viewer.seq)
