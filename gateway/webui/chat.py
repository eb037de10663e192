"""``GET`` and ``HEAD /api/chat/stream``: a run as the WebUI's chat events. Plain ASGI, ahead of FastAPI.

Served as the native stream is (gateway/serving.py): live viewers of a run share each rendering, and one that is slow
slows nobody. Where it goes on is decided in gateway/webui/resume.py. Every viewer gets the fence or one recovery
signal, and the response ends right behind it. A store that is away is no error, which would end an EventSource for
good: it is an empty stream with ``retry:``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from broker.api import Broker
from broker.errors import BadRequest, RuncastError, RunNotFound, StoreUnavailable
from broker.items import Mode
from broker.log import LogState
from broker.metrics import CONTROL_FRAMES
from broker.viewer import Viewer
from gateway.formats.webui import WebuiFormat
from gateway.serving import STREAM_HEADERS, Header, Serving, answer, nowhere, serve
from gateway.webui.replies import refusal
from gateway.webui.resume import Action, Asked, Log, resolve
from gateway.webui.turns import Turns

__all__ = ["ChatStreamApp"]

_PATH = "/api/chat/stream"
_FIELDS_MAX = 100
_ENDLESS = 1 << 62
_log = logging.getLogger("runcast.gateway")


class ChatStreamApp:
    """Serves the route and passes everything else on. ``get_broker`` raises ``StoreUnavailable`` while there is
    none."""

    def __init__(self, app: ASGIApp, get_broker: Callable[[], Broker], turns: Turns, *, retry_ms: int = 2_000) -> None:
        self.app = app
        self._get_broker = get_broker
        self._retry_ms = retry_ms
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_ours(scope):
            await self.app(scope, receive, send)
            return
        try:
            run_id, asked = _parse(scope)
        except ValueError:
            error = f"the query has too many fields: {_FIELDS_MAX} are allowed"
            await refusal(error, 400)(scope, receive, send)
            return
        await self._stream(run_id, asked, scope, receive, send)

    async def _stream(self, run_id: str, asked: Asked, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            broker = self._get_broker()
            async with asyncio.timeout(broker.settings.request_deadline):
                fmt = await self._turns.format_of(broker, run_id)
                state, ids = await _stands(broker, run_id, asked)
        except (RunNotFound, BadRequest):
            await refusal("stream not found", 404)(scope, receive, send)
            return
        except (StoreUnavailable, TimeoutError):
            await self._away(run_id, scope, send)
            return
        except RuncastError as error:
            _log.error("the chat stream of run %s could not begin: %s", run_id, error)
            await self._away(run_id, scope, send)
            return
        if scope["method"] == "HEAD":
            await answer(send, 200, _headers(run_id))
            return
        await serve(_serving(broker, fmt, run_id, asked, state, ids), scope, receive, send)

    async def _away(self, run_id: str, scope: Scope, send: Send) -> None:
        # Everybody is sent away at once: they need not all come back at once.
        retry = b"retry: %d\n\n" % int(self._retry_ms * random.uniform(0.5, 1.5))
        await answer(send, 200, _headers(run_id), b"" if scope["method"] == "HEAD" else retry)


def _is_ours(scope: Scope) -> bool:
    path: str = scope["path"]
    root = scope.get("root_path", "")
    return scope["method"] in ("GET", "HEAD") and path.removeprefix(root) == _PATH


def _parse(scope: Scope) -> tuple[str, Asked]:
    """The stream that is asked for, and from where. Raises ``ValueError`` where the query has too many fields."""
    query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=_FIELDS_MAX)

    def first(name: str) -> str:
        return next((value.strip() for value in query.get(name, ()) if value.strip()), "")

    header = b",".join(value for key, value in scope["headers"] if key == b"last-event-id")
    asked = Asked(
        after_event_id=first("after_event_id"),
        after_seq=first("after_seq"),
        replay=first("replay"),
        cursor=first("cursor"),
        header=header.decode("utf-8", "replace"),
    )
    return first("stream_id"), asked


async def _stands(broker: Broker, run_id: str, asked: Asked) -> tuple[LogState, dict[str, int] | None]:
    """How the log stands; of a relayed run, which of the ids that were sent are its items'."""
    if (known := _followed(broker, run_id, asked)) is not None:
        return known, None
    state = await broker.log.state(run_id)
    if not state.relayed:
        return state, None
    found = {id_: await broker.log.seq_of(run_id, id_) for id_ in asked.ids}
    return state, {id_: seq for id_, seq in found.items() if seq is not None}


def _followed(broker: Broker, run_id: str, asked: Asked) -> LogState | None:
    """How the log stands from the memory of a feed that holds all that this viewer is going to get."""
    if any(not id_.startswith(f"{run_id}:") for id_ in asked.ids):
        return None  # it may be the id of a service's item: the store knows
    wanted = resolve(asked, Log(run_id, first=1, last=_ENDLESS, ended=False)).after
    return broker.hub.state(run_id, wanted)


def _serving(
    broker: Broker, fmt: WebuiFormat, run_id: str, asked: Asked, state: LogState, ids: dict[str, int] | None
) -> Serving:
    resume = resolve(asked, Log(run_id, state.first, state.last, state.is_ended, ids))
    viewer = Viewer(run_id, format=fmt, modes=Mode.EVENTS, seq=resume.after, write=nowhere)
    if resume.action is Action.RECOVER:
        CONTROL_FRAMES.labels("gap").inc()
        signal = fmt.gap(run_id, resume.after, state.first, state.last)
        return Serving(broker, viewer, state, _headers(run_id), signal, "recovery")
    return Serving(broker, viewer, state, _headers(run_id))


def _headers(run_id: str) -> list[Header]:
    # The id comes from the request: where there is no such run, it is in no header.
    return [*STREAM_HEADERS, *([(b"x-run-id", run_id.encode())] if run_id.isascii() and run_id.isprintable() else [])]
