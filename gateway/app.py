"""The factory: FastAPI for requests, plain ASGI for streams, and the broker that both use.

From the outside in: the stream route (gateway/viewer.py: it wants the bare server, and FastAPI's machinery would
double a viewer's memory), counting, the limit on bodies, FastAPI. Nothing here buffers or compresses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.api import Broker
from broker.settings import Settings
from gateway import openapi, problems
from gateway.assets import page_routes
from gateway.bodies import LimitBodies
from gateway.bus import BusFeed
from gateway.connection import Connection
from gateway.metrics import CountRequests
from gateway.routes import events, runs, service
from gateway.viewer import StreamApp

__all__ = ["Gateway", "create_app"]

_ABOUT = (
    "Carries the stream of an agent's run to every screen. Errors are application/problem+json with a stable `code`. "
    "While Redis is away requests get 503 with Retry-After; streams get an empty stream, and are to be tried again."
)


class Gateway:
    """The whole gateway as one ASGI application. ``api`` is the FastAPI part of it."""

    def __init__(self, settings: Settings, broker: Broker | None = None) -> None:
        self.connection = Connection(settings, broker)
        self.api = _api(self.connection)
        inner: ASGIApp = CountRequests(LimitBodies(self.api, settings.body_max_bytes))
        self._app: ASGIApp = StreamApp(inner, lambda: self.connection.broker, retry_ms=settings.retry_ms)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def drain(self) -> None:
        """The server is shutting down: every stream ends at a frame boundary, every wait is answered. Repeatable."""
        self.connection.drain()


def create_app(settings: Settings | None = None, broker: Broker | None = None) -> Gateway:
    """A gateway of its own. It opens the broker that ``settings`` (default: the environment's) name, or shares
    ``broker``, which its owner closes after the gateway has stopped."""
    if settings is None:
        settings = broker.settings if broker is not None else Settings()
    return Gateway(settings, broker)


def _api(connection: Connection) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with connection.running():
            yield

    api = FastAPI(
        title="Runcast",
        version=service.distribution_version(),
        description=_ABOUT,
        lifespan=lifespan,
        redirect_slashes=False,
        # FastAPI's own pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    api.state.connection = connection
    api.state.bus_feed = BusFeed()
    for module in (runs, events, service):
        api.include_router(module.router)
    api.router.routes.extend(page_routes())
    problems.install(api)
    openapi.install(api)
    return api
