"""Counters of the gateway, in the process's default registry, and the ASGI layer that counts requests.

Labels are bounded: routes by their template, never by their path.
"""

from __future__ import annotations

import time

from prometheus_client import Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "ARTIFACT_BYTES",
    "BUS_EVENTS",
    "CHATS",
    "CHATS_REFUSED",
    "LISTENERS",
    "LISTENERS_DROPPED",
    "METHODS",
    "PROBLEMS",
    "CountRequests",
    "route_of",
]

REQUESTS = Counter(
    "runcast_http_requests", "Requests answered, streams of runs left out", ["method", "route", "status"]
)
SECONDS = Histogram(
    "runcast_http_request_seconds",
    "Time to the first byte of the answer; of results that were waited for, the wait included",
    ["route"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 15, 60),
)
PROBLEMS = Counter("runcast_http_problems", "Requests that were refused or failed, those for streams too", ["code"])
BUS_EVENTS = Counter("runcast_bus_events", "Entries of the event bus that this process passed to listeners", ["family"])
ARTIFACT_BYTES = Counter("runcast_artifact_bytes_served", "Bytes of the files of runs that were downloaded")
LISTENERS = Gauge(
    "runcast_event_listeners", "Listeners of the event bus attached to this process", multiprocess_mode="livesum"
)
LISTENERS_DROPPED = Counter("runcast_event_listeners_dropped", "Listeners of the event bus cut off", ["reason"])

CHATS = Counter("runcast_chats", "Chat requests that a run was made for", ["route"])
CHATS_REFUSED = Counter("runcast_chats_refused", "Streamed chat requests that none was made for", ["route", "code"])

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class CountRequests:
    """Pure ASGI: counts each answer when its headers go out; touches no byte of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        method = scope["method"] if scope["method"] in METHODS else "other"
        began = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = route_of(scope)
                REQUESTS.labels(method, route, message["status"]).inc()
                SECONDS.labels(route).observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, counted)


def route_of(scope: Scope) -> str:
    """The template of the route that the router found: it leaves it in the scope."""
    return str(getattr(scope.get("route"), "path", "(none)"))
