"""``/api/session…`` and ``/api/sessions…``: conversations, and what happens to them, as the WebUI's front ends ask.

Errors are ``{"error": …}``. The streams get no 5xx, which would end an EventSource for good.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from broker.errors import BadRequest, RuncastError, SessionNotFound, StoreUnavailable
from broker.ids import check_id
from broker.session_messages import PAGE_MAX, MessagePage, read_messages
from broker.sessions import LIST_MAX
from gateway.bodies import json_body
from gateway.connection import Connection, connection_of
from gateway.problems import RETRY_AFTER, problem_of
from gateway.routes.get import get
from gateway.webui.channels import Channels, ListMailbox, SessionMailbox
from gateway.webui.live import LiveStream
from gateway.webui.observed import Observer
from gateway.webui.replies import refusal, reply
from gateway.webui.resume import Asked
from gateway.webui.session_view import compact, status_of, whole
from gateway.webui.watcher import SessionWatcher

__all__ = ["router"]

router = APIRouter(prefix="/api", tags=["webui"])

_LIST = 200
_NO_ID = "session_id is required"
_NOT_FOUND = "Session not found"
_body = msgspec.json.Decoder(dict[str, Any])


def _refused(error: RuncastError) -> Response:
    if isinstance(error, SessionNotFound):
        return refusal(_NOT_FOUND, 404)
    problem = problem_of(error)
    headers = {"Retry-After": str(RETRY_AFTER)} if problem.status == 503 else None
    return refusal(str(error), problem.status, headers, code=problem.code)


async def _answered(answer: Callable[[], Awaitable[Response]]) -> Response:
    try:
        return await answer()
    except RuncastError as error:
        if problem_of(error).status >= 500 and not isinstance(error, StoreUnavailable):
            raise
        return _refused(error)


@router.post("/session/new", response_model=None)
async def new_session(request: Request) -> Response:
    """A session without a run: `{session}`. Of the body `title`, `model` and `model_provider` count."""

    async def made() -> Response:
        asked = _object(await json_body(request))
        fields = {name: _text(asked, name) for name in ("title", "model", "model_provider")}
        async with connection_of(request).within() as broker:
            session = await broker.sessions.create(
                title=fields["title"], model=fields["model"], provider=fields["model_provider"]
            )
        return reply({"session": whole(session, MessagePage([], 0, 0))})

    return await _answered(made)


@get(router, "/session")
async def one_session(
    request: Request, session_id: str = "", messages: str = "1", msg_limit: str = "", msg_before: str = ""
) -> Response:
    """`{session}`, with the last messages of it: `msg_limit` of them, before the place `msg_before`."""
    if not session_id:
        return refusal(_NO_ID, 400)
    limit, before = _number(msg_limit), _number(msg_before)

    async def found() -> Response:
        async with connection_of(request).within() as broker:
            session = await broker.sessions.get(session_id)
            if messages == "0":
                return reply({"session": whole(session, MessagePage([], 0, session.message_count))})
            size = PAGE_MAX if limit is None else max(1, min(limit, PAGE_MAX))
            page = await read_messages(broker.sessions, session_id, limit=size, before=before)
        return reply({"session": whole(session, page)})

    return await _answered(found)


@get(router, "/session/status")
async def session_status(request: Request, session_id: str = "") -> Response:
    """How the session stands, in few words: what a page that nobody looks at asks now and then instead of a stream."""
    if not session_id:
        return refusal(_NO_ID, 400)

    async def found() -> Response:
        async with connection_of(request).within() as broker:
            return reply(status_of(await broker.sessions.get(session_id)))

    return await _answered(found)


@get(router, "/sessions")
async def list_sessions(request: Request, limit: str = "", before: str = "") -> Response:
    """`{sessions, next, …}`, newest first; `next` is the `before` of the next page, null at the end."""
    size = _number(limit)

    async def listed() -> Response:
        async with connection_of(request).within() as broker:
            count = _LIST if size is None else max(1, min(size, LIST_MAX))
            sessions, following = await broker.sessions.newest(limit=count, before=before or None)
            seconds, _ = await broker.store.call(b"TIME")
        rows = [compact(session) for session in sessions]
        others = [] if before else _others(request)
        if others:
            rows = sorted([*rows, *others], key=lambda row: row["updated_at"] or 0.0, reverse=True)
        return reply({"sessions": rows, "next": following, "cli_count": len(others), "server_time": int(seconds)})

    return await _answered(listed)


def _others(request: Request) -> list[dict[str, Any]]:
    """Conversations in Hermes' own store, where they are watched: the first page has them all."""
    watcher: SessionWatcher | None = request.app.state.session_watcher
    return watcher.snapshot.sessions if watcher is not None and watcher.running else []


@get(router, "/session/stream")
async def session_channel(request: Request, session_id: str = "", known_count: str = "") -> Response:
    """A session's channel, which outlives its turns. `known_count`: how many of its messages the client has."""
    if not session_id:
        return refusal(_NO_ID, 400)
    try:
        check_id(session_id, "session_id")
    except BadRequest as error:
        return _refused(error)
    mailbox = SessionMailbox(session_id, _number(known_count))

    async def open_it(viewer: _ChannelViewer) -> None:
        async with viewer.connection.within() as broker:
            viewer.key = broker.keys.session_events(session_id)
            await viewer.channels.attach(broker, viewer.key, mailbox)
            # Behind that: whatever happens from here on comes as news as well.
            mailbox.opening(await broker.sessions.find(session_id))

    return _ChannelViewer(request, mailbox, open_it).response()


@get(router, "/sessions/events")
async def sessions_changed(request: Request) -> Response:
    """`sessions_changed`, whenever the list of sessions is another one."""
    mailbox = ListMailbox()

    async def open_it(viewer: _ChannelViewer) -> None:
        async with viewer.connection.within() as broker:
            viewer.key = broker.keys.sessions("changes")
            await viewer.channels.attach(broker, viewer.key, mailbox)

    return _ChannelViewer(request, mailbox, open_it).response()


@get(router, "/sessions/{session_id}/events")
async def session_events(request: Request, session_id: str, after_event_id: str = "") -> Response:
    """The session's runs as chat events, in order: from `Last-Event-ID` on, else `after_event_id`, else live."""
    connection = connection_of(request)
    raw = request.headers.get("last-event-id", "").encode("latin-1").decode("utf-8", "replace")
    asked = Asked(after_event_id=after_event_id, header=raw)
    try:
        async with connection.within() as broker:
            await broker.sessions.get(session_id)
    except StoreUnavailable:
        return LiveStream(connection, _nothing(connection), over=lambda: True)
    except RuncastError as error:
        return _refused(error)
    state = request.app.state
    observer = Observer(broker, state.channels, state.turns, session_id, asked)
    return LiveStream(connection, observer.more, over=lambda: observer.over, leave=observer.leave)


class _ChannelViewer:
    """One viewer of a channel: attached when he is first asked for frames, so that his headers went out before."""

    def __init__(
        self,
        request: Request,
        mailbox: SessionMailbox | ListMailbox,
        open_it: Callable[[_ChannelViewer], Awaitable[None]],
    ) -> None:
        self.connection, self.channels = connection_of(request), _channels(request)
        self.key = b""
        self._mailbox, self._open = mailbox, open_it
        self._opened = self._over = False

    def response(self) -> LiveStream:
        return LiveStream(self.connection, self._more, over=lambda: self._over, leave=self._leave)

    async def _more(self) -> bytes:
        if not self._opened:
            self._opened = True
            try:
                await self._open(self)
            except RuncastError:
                return self._end()
        frames = await self._mailbox.take()
        return self._end() if self._mailbox.dropped else frames

    def _end(self) -> bytes:
        self._over = True
        return b"retry: %d\n\n" % self.connection.settings.retry_ms

    def _leave(self) -> None:
        self.channels.detach(self.key, self._mailbox)


def _channels(request: Request) -> Channels:
    channels: Channels = request.app.state.channels
    return channels


def _nothing(connection: Connection) -> Callable[[], Awaitable[bytes]]:
    async def come_back() -> bytes:
        return b"retry: %d\n\n" % connection.settings.retry_ms

    return come_back


def _object(body: bytes) -> dict[str, Any]:
    """The body's object; an empty one is ``{}``. Raises ``BadRequest``."""
    try:
        return _body.decode(body) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON object: {error}") from error


def _text(asked: Mapping[str, Any], name: str) -> str:
    """A field's text. Front ends send null, and more fields than count here."""
    value = asked.get(name)
    return value.strip()[:200] if isinstance(value, str) else ""


def _number(text: str) -> int | None:
    """``None`` for what is no number: front ends leave things blank."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None
