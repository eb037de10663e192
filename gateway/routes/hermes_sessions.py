"""``/api/sessions/gateway/stream``: the conversations in Hermes' own store, as they change, and the probe of it.

What the probe says is about this stream alone: the other streams are always there, and it says that too.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.connection import connection_of
from gateway.routes.get import get
from gateway.webui.live import LiveStream
from gateway.webui.replies import reply
from gateway.webui.watcher import SessionWatcher

__all__ = ["router"]

router = APIRouter(prefix="/api", tags=["webui"])

FALLBACK_POLL_MS = 30_000
_FIRST_LOOK = 2.0
_YES = frozenset({"1", "true", "yes"})


@get(router, "/sessions/gateway/stream")
async def gateway_stream(request: Request, probe: str = "") -> Response:
    """Each frame is the whole list: `sessions_changed {sessions}`, at once and after every change.

    `probe=1` answers how it stands as JSON instead. 404: it is not switched on; 503: the store cannot be read.
    """
    watcher: SessionWatcher | None = request.app.state.session_watcher
    if watcher is not None:
        await watcher.looked(_FIRST_LOOK)
    status, stands = _stands(watcher)
    if probe.strip().lower() in _YES:
        return reply(stands, status)
    if watcher is None or status != 200:
        return reply({"error": stands["error"]}, status)
    connection = connection_of(request)
    return LiveStream(connection, _Newest(watcher).more, over=lambda: not watcher.running)


def _stands(watcher: SessionWatcher | None) -> tuple[int, dict[str, Any]]:
    """The status and the probe's answer. There is a watcher where the operator wants one."""
    running = watcher is not None and watcher.running
    status, error = (404, "agent sessions not enabled") if watcher is None else (503, "watcher not started")
    return 200 if running else status, {
        "enabled": watcher is not None,
        "ok": running,
        "watcher_running": running,
        "fallback_poll_ms": FALLBACK_POLL_MS,
        **({} if running else {"error": error}),
        "scope": "gateway_sessions",
        "session_stream_available": True,
        "session_stream_path": "/api/session/stream",
    }


class _Newest:
    """One viewer's position: what he was shown last."""

    def __init__(self, watcher: SessionWatcher) -> None:
        self._watcher, self._version = watcher, 0

    async def more(self) -> bytes:
        snapshot = await self._watcher.after(self._version)
        self._version = snapshot.version
        return snapshot.frame
