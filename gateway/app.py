"""The factory: FastAPI for requests, plain ASGI for streams, and the broker that both use.

From the outside in: the password where there is one (gateway/webui/gate.py), the stream route (gateway/viewer.py: it
wants the bare server, and FastAPI's machinery would double a viewer's memory), counting, the limit on bodies, FastAPI.
Nothing here buffers or compresses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from broker import tracing
from broker.api import Broker
from broker.artifact_store import ArtifactStore
from broker.exposition import introduce
from broker.settings import Settings
from gateway import openapi, problems
from gateway.assets import page_routes
from gateway.auth import trust_header
from gateway.bodies import LimitBodies
from gateway.bus import BusFeed
from gateway.chat.stream import ChatStreams
from gateway.connection import Connection
from gateway.metrics import CountRequests
from gateway.observing import ObserveRequests
from gateway.routes import (
    artifacts,
    chat,
    events,
    hermes_sessions,
    login,
    runs,
    runtime,
    service,
    sessions,
    status,
    tasks,
)
from gateway.viewer import StreamApp
from gateway.webui.channels import Channels
from gateway.webui.chat import ChatStreamApp
from gateway.webui.gate import Gate
from gateway.webui.login import Login
from gateway.webui.settings import WebuiSettings
from gateway.webui.turns import Turns
from gateway.webui.watcher import SessionWatcher

__all__ = ["Gateway", "create_app"]

_ABOUT = (
    "Carries the stream of an agent's run to every screen. Errors are application/problem+json with a stable `code`. "
    "While Redis is away requests get 503 with Retry-After; streams get an empty stream, and are to be tried again."
)


class Gateway:
    """The whole gateway as one ASGI application. ``api`` is the FastAPI part of it."""

    def __init__(self, settings: Settings, broker: Broker | None = None, webui: WebuiSettings | None = None) -> None:
        webui = webui or WebuiSettings()
        ArtifactStore(settings)  # raises here, not at the first download, where the setting names none
        self.connection = Connection(settings, broker)
        self.api = _api(self.connection, webui)
        self.always_chunked = webui.sse_chunked
        """gateway/transport.py asks."""
        inner: ASGIApp = CountRequests(LimitBodies(self.api, settings.body_max_bytes))
        turns: Turns = self.api.state.turns
        inner = ChatStreamApp(inner, lambda: self.connection.broker, turns, retry_ms=settings.retry_ms)
        inner = ChatStreams(inner, self.connection, runner=webui.chat_runner)
        self._app: ASGIApp = StreamApp(inner, lambda: self.connection.broker, retry_ms=settings.retry_ms)
        known: Login | None = self.api.state.login
        if known is not None:
            self._app = Gate(self._app, known)
        self._app = ObserveRequests(self._app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trust_header(scope, self.connection.settings.principal_header)
        await self._app(scope, receive, send)

    def drain(self) -> None:
        """The server is shutting down: every stream ends at a frame boundary, every wait is answered. Repeatable."""
        self.connection.drain()


def create_app(
    settings: Settings | None = None, broker: Broker | None = None, webui: WebuiSettings | None = None
) -> Gateway:
    """A gateway of its own. It opens the broker that ``settings`` (default: the environment's) name, or shares
    ``broker``, which its owner closes after the gateway has stopped. ``webui``: the environment's unless given."""
    if settings is None:
        settings = broker.settings if broker is not None else Settings()
    return Gateway(settings, broker, webui)


def _api(connection: Connection, webui: WebuiSettings) -> FastAPI:
    watcher = SessionWatcher(webui.hermes_home, interval=webui.watch_interval) if webui.show_cli_sessions else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        introduce()
        with tracing.tracing(connection.settings, "runcast-gateway"):
            async with connection.running(), watcher.watching() if watcher is not None else nullcontext():
                yield

    api = FastAPI(
        title="Runcast",
        version=service.distribution_version(),
        description=_ABOUT,
        lifespan=lifespan,
        redirect_slashes=False,
        # Its own spans would carry paths and queries, cancel tokens among them: gateway/observing.py makes ours.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
        # FastAPI's own pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    api.state.connection = connection
    api.state.bus_feed = BusFeed()
    api.state.channels, api.state.turns = Channels(), Turns()
    api.state.webui = webui
    api.state.session_watcher = watcher
    api.state.login = _login(connection, webui)
    for native in (runs, artifacts, runtime, tasks, events, service):
        api.include_router(native.router)
    for compatible in (hermes_sessions, login, status, sessions, chat):
        api.include_router(compatible.router, include_in_schema=False)  # docs/webui.md describes these
    api.router.routes.extend(page_routes())
    problems.install(api)
    openapi.install(api)
    return api


def _login(connection: Connection, webui: WebuiSettings) -> Login | None:
    if webui.password is None:
        return None
    password = webui.password.get_secret_value()
    return Login(password, webui.login_ttl, connection.settings, lambda: connection.broker)
