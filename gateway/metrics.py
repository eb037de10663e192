"""Counters of the gateway, in the process's default registry, and the ASGI layer that counts requests.

Labels are bounded: routes by their template, never by their path.
"""

from __future__ import annotations

import time

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CONTENT_TYPE", "LISTENERS", "LISTENERS_DROPPED", "CountRequests", "exposition"]

CONTENT_TYPE = CONTENT_TYPE_LATEST

REQUESTS = Counter(
    "runcast_http_requests", "Requests answered, streams of runs left out", ["method", "route", "status"]
)
SECONDS = Histogram(
    "runcast_http_request_seconds",
    "Time to the first byte of the answer; of results that were waited for, the wait included",
    ["route"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 15, 60),
)
LISTENERS = Gauge("runcast_event_listeners", "Listeners of the event bus attached to this process")
LISTENERS_DROPPED = Counter("runcast_event_listeners_dropped", "Listeners of the event bus cut off", ["reason"])

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def exposition() -> bytes:
    """Everything that this process counts, in Prometheus' text format."""
    return generate_latest(REGISTRY)


class CountRequests:
    """Pure ASGI: counts each answer when its headers go out; touches no byte of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        began = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = _route_of(scope)
                REQUESTS.labels(method, route, message["status"]).inc()
                SECONDS.labels(route).observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, counted)


def _route_of(scope: Scope) -> str:
    """The template of the route that the router found: it leaves it in the scope."""
    return str(getattr(scope.get("route"), "path", "(none)"))
