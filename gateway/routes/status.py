"""``/api/status``: that this is a server which the WebUI's clients can use, and which streams they may open."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from broker.errors import RuncastError
from gateway.connection import Connection
from gateway.routes.get import get
from gateway.routes.service import distribution_version
from gateway.webui.replies import reply
from gateway.webui.watcher import SessionWatcher

__all__ = ["router"]

router = APIRouter(prefix="/api", tags=["webui"])


@get(router, "/status")
async def status(request: Request) -> Response:
    """200 always: whether Redis answers is said in `store`, since clients take a 503 for a server that is being set
    up. `sse` and `session_sse` are true, for the streams are always there; `gateway_sse` is the optional one's state.
    """
    watcher: SessionWatcher | None = request.app.state.session_watcher
    store = await _store_answers(request.app.state.connection)
    return reply(
        {
            "status": "ok" if store else "degraded",
            "version": distribution_version(),
            "server": "runcast",
            "initialized": True,
            "setup_mode": False,
            "authenticated": True,  # or the request would not have come so far
            "auth_enabled": request.app.state.login is not None,
            "sse": True,
            "session_sse": True,
            "gateway_sse": watcher is not None and watcher.running,
            "store": store,
        }
    )


async def _store_answers(connection: Connection) -> bool:
    try:
        async with connection.within() as broker:
            await broker.store.call("PING")
    except RuncastError:
        return False
    return True
