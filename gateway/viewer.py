"""``GET`` and ``HEAD /v1/runs/{run_id}/stream``: one response each. Plain ASGI, ahead of FastAPI.

Order: what is wrong with the request itself (400), whether the run is known (404), whether the viewer has everything
(204), then headers at once, then frames. A store that is away is no 5xx, which would make EventSource give up for
good: it is an empty stream with ``retry:`` (docs/protocol.md, “HTTP”).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypedDict
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from broker.api import Broker
from broker.cursor import Bounds, Resume, Start, choose, parse, resolve
from broker.errors import BadRequest, RuncastError, StoreUnavailable
from broker.ids import check_id
from broker.items import Mode, parse_modes
from broker.log import LogState
from broker.records import FIRST_EPOCH
from broker.settings import Settings
from broker.viewer import PLAIN, Viewer
from gateway.formats import Format, get_format
from gateway.owner import Owner
from gateway.problems import problem_of, render
from gateway.transport import EXTENSION, StreamResponse

__all__ = ["StreamApp"]

Header = tuple[bytes, bytes]
_log = logging.getLogger("runcast.gateway")

_PREFIX, _SUFFIX = "/v1/runs/", "/stream"
_FIELDS_MAX = 100
_HEADERS: list[Header] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_FLAGS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
    "": False,
}


class _Stands(TypedDict):
    """How the run stands, as ``Hub`` takes it."""

    ended: bool
    last: int
    average: int
    epoch: int


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a viewer asks for, checked."""

    run_id: str
    modes: Mode
    format: Format
    cursor: str | None
    start: Start
    compact: bool
    cancel_token: str | None
    owns: bool


class StreamApp:
    """Serves the stream route and passes everything else on. ``get_broker`` raises ``StoreUnavailable`` while there
    is none."""

    def __init__(self, app: ASGIApp, get_broker: Callable[[], Broker], *, retry_ms: int = 2_000) -> None:
        self.app = app
        self._get_broker = get_broker
        self._retry_ms = retry_ms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (run_id := _run_id_of(scope)) is None:
            await self.app(scope, receive, send)
            return
        try:
            request = _parse(run_id, scope)
        except RuncastError as error:
            await render(problem_of(error))(scope, receive, send)
            return
        await self._stream(request, scope, receive, send)

    async def _stream(self, request: StreamRequest, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            broker = self._get_broker()
            async with asyncio.timeout(broker.settings.request_deadline):
                log = _known(broker, request) or await broker.log.state(request.run_id)
                if request.owns:
                    await Owner.check(broker, request.run_id, request.cancel_token)
        except (StoreUnavailable, TimeoutError):
            await _away(request, scope, send, self._retry_ms)
            return
        except RuncastError as error:
            problem = problem_of(error)
            if problem.status < 500:
                await render(problem)(scope, receive, send)
                return
            _log.error("the stream of run %s could not begin: %s", request.run_id, error)
            await _away(request, scope, send, self._retry_ms)
            return
        final_only = request.modes == Mode.FINAL
        bounds = Bounds(first=log.first, last=log.last, ended=log.is_ended, final_only=final_only)
        resume = resolve(request.cursor, request.run_id, bounds, request.start)
        if resume.done:
            await _answer(send, 204, [(b"x-run-id", request.run_id.encode()), (b"cache-control", b"no-store")])
        elif scope["method"] == "HEAD":
            await _answer(send, 200, _headers(request))
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
    owner = Owner(broker, request.run_id) if request.owns else None
    opening = _opening(request, log, bounds, resume, broker.settings.retry_ms)
    after = resume.after
    if bounds.final_only:
        after = max(after, bounds.last - 1 if bounds.ended else bounds.last)
    viewer = Viewer(
        request.run_id,
        format=request.format,
        modes=request.modes,
        seq=after,
        write=_nowhere,
        compact=request.compact,
    )
    expired = bounds.ended and bounds.first > bounds.last
    if expired:
        opening += request.format.cursor(request.run_id, bounds.last)
        opening += request.format.end(request.run_id, log.status, bounds.last)
    stands: _Stands = {"ended": bounds.ended, "last": bounds.last, "average": log.average, "epoch": log.epoch}

    def begin() -> bool:
        viewer.send(opening)
        if expired:
            viewer.finish("end")
        return not viewer.closed

    async def run() -> None:
        if begin():
            async with owner.attached(viewer) if owner is not None else nullcontext():
                await broker.hub.serve(viewer, **stands)

    open_response = scope.get("extensions", {}).get(EXTENSION)
    if open_response is not None:
        response: StreamResponse = open_response()
        if response.closed:
            return
        _connect(response, viewer, request, broker.settings)
        if owner is not None:
            await _until_finished(response, viewer, run)
        elif begin():
            broker.hub.host(viewer, **stands)
            response.detach()
    else:
        await _through_asgi(viewer, run, request, broker.settings.high_water, receive, send)


def _connect(response: StreamResponse, viewer: Viewer, request: StreamRequest, settings: Settings) -> None:
    viewer.write, viewer.framing, viewer.abort = response.write, response.framing, response.abort
    viewer.on_finish = response.finish
    response.viewer = viewer
    response.start(_headers(request), settings.high_water, settings.stall_limit)


async def _until_finished(response: StreamResponse, viewer: Viewer, run: Callable[[], Awaitable[None]]) -> None:
    try:
        await run()
    finally:
        viewer.finish("left")
        response.finish()


async def _through_asgi(
    viewer: Viewer,
    run: Callable[[], Awaitable[None]],
    request: StreamRequest,
    high_water: int,
    receive: Receive,
    send: Send,
) -> None:
    """For any other server: a bounded buffer between the hub and ``send``, which is that server's back-pressure."""
    outbox = _Outbox(viewer, high_water)
    viewer.write, viewer.framing = outbox.write, PLAIN
    await send({"type": "http.response.start", "status": 200, "headers": _headers(request)})

    async def pump() -> None:
        with suppress(OSError):  # how some servers say that the peer is gone
            while (body := await outbox.take()) is not None:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        viewer.finish("left")
        outbox.close()

    async def serve() -> None:
        try:
            await run()
        finally:
            viewer.finish("left")
            outbox.close()

    pumping, serving = asyncio.create_task(pump()), asyncio.create_task(serve())
    watching = asyncio.create_task(watch())

    def abort() -> None:
        pumping.cancel()  # a send that takes nothing would wait for ever

    viewer.abort = abort
    try:
        await asyncio.wait((pumping,))
    finally:
        viewer.finish("left")
        pumping.cancel()
        watching.cancel()
        results = await asyncio.gather(pumping, serving, watching, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


class _Outbox:
    """Frames that wait for ``send``. Past the high-water mark the viewer is paused, as a full socket would."""

    def __init__(self, viewer: Viewer, high_water: int) -> None:
        self._viewer, self._high = viewer, high_water
        self._frames: deque[bytes] = deque()
        self._size = 0
        self._closed = False
        self._filled = asyncio.Event()

    def write(self, frames: bytes) -> None:
        self._frames.append(frames)
        self._size += len(frames)
        self._filled.set()
        if self._size > self._high:
            self._viewer.pause()

    def close(self) -> None:
        self._closed = True
        self._filled.set()

    async def take(self) -> bytes | None:
        """Everything that waits, ``None`` after the last of it."""
        while not self._frames:
            if self._closed:
                return None
            self._filled.clear()
            await self._filled.wait()
        body = b"".join(self._frames)
        self._frames.clear()
        self._size = 0
        if self._viewer.paused:
            self._viewer.resume()
        return body


def _nowhere(_: Any) -> None:
    raise RuntimeError("this viewer has no connection yet")


def _run_id_of(scope: Scope) -> str | None:
    path: str = scope["path"]
    if scope["method"] not in ("GET", "HEAD"):
        return None
    root = scope.get("root_path", "")
    if root and path.startswith(root):
        path = path[len(root) :]
    if not (path.startswith(_PREFIX) and path.endswith(_SUFFIX)):
        return None
    run_id = path[len(_PREFIX) : -len(_SUFFIX)]
    return run_id if run_id and "/" not in run_id else None


def _parse(run_id: str, scope: Scope) -> StreamRequest:
    check_id(run_id, "run_id")
    query = _query(scope["query_string"])
    header = _header(scope, b"last-event-id")
    token = _header(scope, b"x-cancel-token") or _one(query, "cancel_token")
    return StreamRequest(
        run_id=run_id,
        modes=parse_modes(query.get("modes", ())),
        format=get_format(_one(query, "format") or "native"),
        cursor=choose(header, ",".join(query["cursor"]) if "cursor" in query else None),
        start=_start(_one(query, "from")),
        compact=_flag(query, "compact"),
        cancel_token=token or None,
        owns=_owns(_one(query, "on_disconnect"), token),
    )


def _query(raw: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError:
        raise BadRequest(f"the query has too many fields: {_FIELDS_MAX} are allowed", field="query") from None


def _header(scope: Scope, name: bytes) -> str | None:
    """A header's value; several are joined, as HTTP says, so that two cursors are not silently one."""
    values = [value for key, value in scope["headers"] if key == name]
    return b",".join(values).decode("latin-1") if values else None


def _one(query: dict[str, list[str]], name: str) -> str:
    values = query.get(name, [])
    if len(set(values)) > 1:
        raise BadRequest(f"{name} is given {len(values)} times, with different values: give it once", field=name)
    return values[0].strip() if values else ""


def _start(value: str) -> Start:
    try:
        return Start(value or "start")
    except ValueError:
        raise BadRequest(f"from={value[:64]!r} is not allowed: it is “start” or “now”", field="from") from None


def _flag(query: dict[str, list[str]], name: str) -> bool:
    value = _one(query, name).lower()
    if value not in _FLAGS:
        raise BadRequest(f"{name}={value[:64]!r} is not allowed: it is 1 or 0", field=name)
    return _FLAGS[value]


def _owns(value: str, token: str | None) -> bool:
    if value in ("", "nothing"):
        return False
    if value != "cancel":
        raise BadRequest(
            f"on_disconnect={value[:64]!r} is not allowed: it is “cancel” or “nothing”", field="on_disconnect"
        )
    if not token:
        raise BadRequest("on_disconnect=cancel needs the run's cancel token", field="cancel_token")
    return True


def _headers(request: StreamRequest) -> list[Header]:
    return [*_HEADERS, (b"x-run-id", request.run_id.encode())]


def _opening(request: StreamRequest, log: LogState, bounds: Bounds, resume: Resume, retry_ms: int) -> bytes:
    fmt, run_id = request.format, request.run_id
    frames = [fmt.opening(retry_ms)]
    if resume.reset is not None:
        # A cursor ahead of a log whose epoch changed was honest once.
        reason = "rewound" if resume.reset == "ahead" and log.epoch > FIRST_EPOCH else resume.reset
        frames.append(fmt.reset(run_id, reason))
    if resume.gap is not None:
        frames.append(fmt.gap(run_id, resume.gap, bounds.first, bounds.last))
    if resume.announce:
        frames.append(fmt.cursor(run_id, resume.after))
    return b"".join(frames)


async def _answer(send: Send, status: int, headers: list[Header]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _away(request: StreamRequest, scope: Scope, send: Send, retry_ms: int) -> None:
    """The store is away: an empty stream that asks to come back. The headers are those of any stream."""
    await send({"type": "http.response.start", "status": 200, "headers": _headers(request)})
    # Everybody is sent away at once: they need not all come back at once.
    opening = request.format.opening(int(retry_ms * random.uniform(0.5, 1.5)))
    body = b"" if scope["method"] == "HEAD" else opening
    await send({"type": "http.response.body", "body": body, "more_body": False})
