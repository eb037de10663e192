"""``GET`` and ``HEAD /v1/runs/{run_id}/stream``: one response each. Plain ASGI, ahead of FastAPI.

Order: what is wrong with the request itself (400), whether the run is known (404), whether the viewer has everything
(204), then headers at once, then frames. A store that is away is no 5xx, which would make EventSource give up for
good: it is an empty stream with ``retry:`` (docs/protocol.md, “HTTP”).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace

from starlette.types import ASGIApp, Receive, Scope, Send

from broker.api import Broker
from broker.cursor import Bounds, Resume, Start, parse, resolve
from broker.errors import RuncastError, StoreUnavailable
from broker.items import Mode
from broker.log import LogState
from broker.metrics import CONTROL_FRAMES
from broker.records import FIRST_EPOCH
from broker.viewer import Viewer
from gateway.chat.viewer import ChatViewer, format_of_run
from gateway.formats.chat import ChatFormat
from gateway.owner import Owner
from gateway.problems import problem_of, render
from gateway.serving import STREAM_HEADERS, Header, Serving, answer, nowhere, serve
from gateway.stream_request import StreamRequest, parse_request, run_id_of

__all__ = ["StreamApp"]

_log = logging.getLogger("runcast.gateway")


class StreamApp:
    """Serves the stream route and passes everything else on. ``get_broker`` raises ``StoreUnavailable`` while there
    is none."""

    def __init__(self, app: ASGIApp, get_broker: Callable[[], Broker], *, retry_ms: int = 2_000) -> None:
        self.app = app
        self._get_broker = get_broker
        self._retry_ms = retry_ms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (run_id := run_id_of(scope)) is None:
            await self.app(scope, receive, send)
            return
        try:
            request = parse_request(run_id, scope)
        except RuncastError as error:
            await render(problem_of(error))(scope, receive, send)
            return
        await self._stream(request, scope, receive, send)

    async def _stream(self, request: StreamRequest, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            broker = self._get_broker()
            async with asyncio.timeout(broker.settings.request_deadline):
                log = _known(broker, request) or await broker.log.state(request.run_id)
                if isinstance(request.format, ChatFormat):
                    request = replace(request, format=await format_of_run(broker, request.run_id))
                if request.owns:
                    await Owner.check(broker, request.run_id, request.cancel_token)
        except (StoreUnavailable, TimeoutError):
            await _away(request, scope, receive, send, self._retry_ms)
            return
        except RuncastError as error:
            problem = problem_of(error)
            if problem.status < 500:
                await render(problem)(scope, receive, send)
                return
            _log.error("the stream of run %s could not begin: %s", request.run_id, error)
            await _away(request, scope, receive, send, self._retry_ms)
            return
        final_only = request.modes == Mode.FINAL
        bounds = Bounds(first=log.first, last=log.last, ended=log.is_ended, final_only=final_only)
        resume = resolve(request.cursor, request.run_id, bounds, request.start)
        if resume.done:
            await answer(send, 204, [(b"x-run-id", request.run_id.encode()), (b"cache-control", b"no-store")])
        elif scope["method"] == "HEAD":
            await answer(send, 200, _headers(request))
        else:
            await _serve(broker, request, log, bounds, resume, scope, receive, send)


def _known(broker: Broker, request: StreamRequest) -> LogState | None:
    """How the log stands, from the memory of a feed that holds all that this viewer is going to get."""
    if request.cursor is None:
        return broker.hub.state(request.run_id, None if request.start is Start.NOW else 0)
    seq = parse(request.cursor, request.run_id)
    return broker.hub.state(request.run_id, seq) if isinstance(seq, int) else None


async def _serve(
    broker: Broker,
    request: StreamRequest,
    log: LogState,
    bounds: Bounds,
    resume: Resume,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    fmt = request.format
    opening = _opening(request, log, bounds, resume, broker.settings.retry_ms)
    after = resume.after
    if bounds.final_only:
        after = max(after, bounds.last - 1 if bounds.ended else bounds.last)
    kind = ChatViewer if isinstance(fmt, ChatFormat) else Viewer
    viewer = kind(request.run_id, format=fmt, modes=request.modes, seq=after, write=nowhere, compact=request.compact)
    over = None
    if not fmt.goes_on and (resume.reset is not None or resume.gap is not None):
        over = "recovery"
    elif bounds.ended and bounds.first > bounds.last:  # its items expired
        if isinstance(fmt, ChatFormat):  # whose last frame is the fence, and that is gone
            opening += fmt.gap(request.run_id, resume.after, bounds.first, bounds.last)
        opening += fmt.cursor(request.run_id, bounds.last) + fmt.end(request.run_id, log.status, bounds.last)
        over = "end"
    owner = Owner(broker, request.run_id) if request.owns else None
    serving = Serving(broker, viewer, log, _headers(request), opening, over, owner)
    await serve(serving, scope, receive, send)


def _headers(request: StreamRequest) -> list[Header]:
    return [*STREAM_HEADERS, (b"x-run-id", request.run_id.encode())]


def _opening(request: StreamRequest, log: LogState, bounds: Bounds, resume: Resume, retry_ms: int) -> bytes:
    fmt, run_id = request.format, request.run_id
    frames = [fmt.opening(retry_ms)]
    if resume.reset is not None:
        # A cursor ahead of a log whose epoch changed was honest once.
        reason = "rewound" if resume.reset == "ahead" and log.epoch > FIRST_EPOCH else resume.reset
        CONTROL_FRAMES.labels("reset").inc()
        frames.append(fmt.reset(run_id, reason))
    if resume.gap is not None and (fmt.goes_on or resume.reset is None):
        CONTROL_FRAMES.labels("gap").inc()
        frames.append(fmt.gap(run_id, resume.gap, bounds.first, bounds.last))
    if resume.announce:
        frames.append(fmt.cursor(run_id, resume.after))
    return b"".join(frames)


async def _away(request: StreamRequest, scope: Scope, receive: Receive, send: Send, retry_ms: int) -> None:
    """The store is away: an empty stream that asks to come back. The headers are those of any stream.

    A chat's stream is no EventSource's, and never ends without its last frame: there it is a 503."""
    if isinstance(request.format, ChatFormat):
        away = StoreUnavailable("the run's stream cannot be read while Redis is away: come back soon")
        await render(problem_of(away))(scope, receive, send)
        return
    # Everybody is sent away at once: they need not all come back at once.
    opening = request.format.opening(int(retry_ms * random.uniform(0.5, 1.5)))
    await answer(send, 200, _headers(request), b"" if scope["method"] == "HEAD" else opening)
