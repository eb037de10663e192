"""``POST /chat/stream`` and ``/v1/chat/stream``: a run is made and served in the chat format. Plain ASGI, ahead of
FastAPI.

Served as every other stream is (gateway/serving.py), so a caller that is slow slows nobody, and one that leaves changes
nothing: the run goes on. What is wrong is said with a status while nothing was sent yet, in a frame from then on.
"""

from __future__ import annotations

import logging

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.api import Broker
from broker.errors import RuncastError, StoreUnavailable
from broker.items import Mode
from broker.log import LogState
from broker.records import RunRecord
from gateway import metrics
from gateway.auth import principal_of
from gateway.bodies import LimitBodies, json_body
from gateway.chat.bodies import parse_chat, run_request
from gateway.chat.outcome import refused
from gateway.chat.replies import Style
from gateway.chat.starting import begin
from gateway.chat.viewer import ChatViewer, chat_format
from gateway.connection import Connection
from gateway.problems import problem_of
from gateway.serving import STREAM_HEADERS, Serving, nowhere, serve

__all__ = ["CHAT_STREAMS", "ChatStreams"]

CHAT_STREAMS = {"/chat/stream": Style.LEGACY, "/v1/chat/stream": Style.V1}
_log = logging.getLogger("runcast.gateway")


class ChatStreams:
    """Serves the two routes and passes everything else on. ``runner`` makes the runs."""

    def __init__(self, app: ASGIApp, connection: Connection, *, runner: str) -> None:
        self.app = app
        self._connection, self._runner = connection, runner
        self._limited = LimitBodies(self._answer, connection.settings.body_max_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["type"] == "http" and scope["method"] == "POST" and _path(scope) in CHAT_STREAMS
        await (self._limited if ours else self.app)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _path(scope)
        try:
            broker, record = await self._begin(Request(scope, receive), CHAT_STREAMS[path])
        except ClientDisconnect:
            return
        except RuncastError as error:
            metrics.CHATS_REFUSED.labels(path, error.code).inc()
            if not isinstance(error, StoreUnavailable) and problem_of(error).status >= 500:
                _log.error("POST %s failed: %s", path, error, exc_info=error)
            await refused(error)(scope, receive, send)
        else:
            metrics.CHATS.labels(path).inc()
            await serve(_serving(broker, record), scope, receive, send)

    async def _begin(self, request: Request, style: Style) -> tuple[Broker, RunRecord]:
        asked = parse_chat(await json_body(request), style)
        wanted = run_request(asked, style, self._runner)
        return await begin(self._connection, wanted, principal=principal_of(request))


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _serving(broker: Broker, record: RunRecord) -> Serving:
    """From the start: the run is new, whatever has become of it since."""
    viewer = ChatViewer(record.run_id, format=chat_format(record), modes=Mode.EVENTS, seq=0, write=nowhere)
    log = LogState(record.status, record.epoch, record.rewound_to, record.first, record.last, record.bytes)
    return Serving(broker, viewer, log, [*STREAM_HEADERS, (b"x-run-id", record.run_id.encode())])
