"""``/api/chat/…``, ``/api/approval/…``, ``/api/clarify/…``: a turn begins, is stopped, waits for people. The stream
itself is served by gateway/webui/chat.py. The shapes are the WebUI's (docs/webui.md, “Turns”)."""

from __future__ import annotations

import logging
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from broker.admission import make_run
from broker.asks import Kind
from broker.errors import BadRequest, RunEnded, RunNotFound, SessionBusy, SessionNotFound
from broker.items import Entry
from broker.records import RunRecord
from gateway.admission import stage
from gateway.auth import principal_of
from gateway.bodies import json_body
from gateway.connection import connection_of
from gateway.problems import Forbidden, decode_body
from gateway.routes.get import get
from gateway.webui.bodies import ApprovalAnswer, Cancel, ChatStart, ClarifyAnswer, request_of
from gateway.webui.chat_status import stream_status, unknown_status
from gateway.webui.open_asks import Standing, answer_ask, open_asks
from gateway.webui.replies import refusal, reply

__all__ = ["router"]

router = APIRouter(prefix="/api", tags=["webui"])

Text = Annotated[str, Query()]
Body = TypeVar("Body")
BUSY = "session already has an active stream"
"""In these words: clients look for them."""

_log = logging.getLogger("runcast.gateway")
_START, _CANCEL = msgspec.json.Decoder(ChatStart), msgspec.json.Decoder(Cancel)
_APPROVAL, _CLARIFY = msgspec.json.Decoder(ApprovalAnswer), msgspec.json.Decoder(ClarifyAnswer)


def _named(value: str | None, name: str) -> str:
    """Raises ``BadRequest`` where it is left out."""
    if not (value := (value or "").strip()):
        raise BadRequest(f"{name} is required", field=name)
    return value


@get(router, "/chat/stream/status")
async def chat_status(request: Request, stream_id: Text = "") -> Response:
    """Whether the run goes on, and how far its log goes. An unknown one is no error: it is not active."""
    async with connection_of(request).within() as broker:
        try:
            record, first = await broker.log.bounds(stream_id.strip())
            last = await broker.log.read_back(record.run_id, None, limit=1)
        except (RunNotFound, BadRequest):
            return reply(unknown_status(stream_id))
    return reply(stream_status(record, first, _last_id(record, last)))


def _last_id(record: RunRecord, last: list[Entry]) -> str | None:
    if not last:
        return f"{record.run_id}:{record.last}" if record.last else None
    source = msgspec.json.decode(last[0].data).get("source_id") if record.source is not None else None
    return source if isinstance(source, str) and source else f"{record.run_id}:{last[0].seq}"


@router.post("/chat/start", response_model=None)
async def chat_start(request: Request) -> Response:
    """`{session_id, message, model…}` → `{stream_id, session_id, …}`: a run, and the session is its until it ends.

    409 with `active_stream_id` while another run of the session is open: of several starts at once, one wins.
    """
    start: ChatStart = decode_body(_START, await json_body(request))
    session_id = _named(start.session_id, "session_id")
    async with connection_of(request).within() as broker:
        session = await broker.sessions.find(session_id)
    if session is None:
        raise SessionNotFound(session_id)
    asked = await stage(connection_of(request), request_of(start, session, request.app.state.webui.chat_runner))
    async with connection_of(request).within() as broker:
        try:
            record, _ = await make_run(broker, asked, principal=principal_of(request), busy="refuse")
        except SessionBusy as busy:
            return refusal(BUSY, 409, active_stream_id=busy.run_id, session_id=session_id)
        session = await broker.sessions.get(session_id)
    return reply(
        {
            "stream_id": record.run_id,
            "session_id": session_id,
            "turn_id": record.run_id,
            "pending_started_at": record.created,
            "title": session.title,
            "effective_model": asked.input.model,
            "effective_model_provider": asked.input.provider,
        }
    )


@router.post("/chat/cancel", response_model=None)
async def chat_cancel(request: Request, stream_id: Text = "") -> Response:
    """`stream_id` in the query or the body → `{ok, cancelled, stream_id}`.

    It is asked for, durably: the stream's `cancel` says that it is done. `cancelled` is false where there is nothing to
    stop, and true once more for a turn that was stopped in this way.
    """
    if not stream_id and await request.body():
        given: Cancel = decode_body(_CANCEL, await json_body(request))
        stream_id = given.stream_id or ""
    return await _cancel(request, stream_id)


@router.get("/chat/cancel", response_model=None)
async def chat_cancel_by_get(request: Request, stream_id: Text = "") -> Response:
    """The same, as the WebUI's page asks it."""
    if request.headers.get("sec-fetch-site") == "cross-site":
        raise Forbidden("another site's page may not stop a turn")
    return await _cancel(request, stream_id)


async def _cancel(request: Request, stream_id: str) -> Response:
    run_id = _named(stream_id, "stream_id")
    async with connection_of(request).within() as broker:
        try:
            await broker.runs.cancel(run_id, principal=principal_of(request))
            cancelled = True
        except (RunNotFound, RunEnded):
            cancelled = False
    return reply({"ok": True, "cancelled": cancelled, "stream_id": run_id})


@get(router, "/approval/pending")
async def approval_pending(request: Request, session_id: Text = "") -> Response:
    """The oldest approval that the session waits for, and how many there are."""
    return await _pending(request, session_id, "approval", "approval_id")


@get(router, "/clarify/pending")
async def clarify_pending(request: Request, session_id: Text = "") -> Response:
    """The oldest question that the session waits for, and how many there are."""
    return await _pending(request, session_id, "question", "clarify_id")


async def _pending(request: Request, session_id: str, kind: Kind, id_name: str) -> Response:
    session_id = _named(session_id, "session_id")
    async with connection_of(request).within() as broker:
        found = await open_asks(broker, session_id, kind)
    first = _shown(found[0], session_id, id_name) if found else None
    return reply({"pending": first, "pending_count": len(found)})


def _shown(standing: Standing, session_id: str, id_name: str) -> dict[str, Any]:
    ask = standing.ask
    known = {id_name: ask.request_id, "request_id": ask.request_id, "run_id": standing.run_id, "session_id": session_id}
    choices = {"choices": list(ask.choices), "choices_offered": list(ask.choices), "free": ask.free}
    times = {"requested_at": ask.asked_at, "expires_at": ask.expires_at, "timeout_seconds": ask.timeout_s}
    return {**ask.payload, **known, **choices, **times}


@router.post("/approval/respond", response_model=None)
async def approval_respond(request: Request) -> Response:
    """`{session_id, approval_id, choice}` → `{ok, choice}`: the choice that counts.

    `stale_cleared`: nobody waits for this one any more; `choice` is then what was decided, by whomever. 409, `ok` is
    false: that one is not known, and another one is open, which this answer is not meant for.
    """
    given: ApprovalAnswer = decode_body(_APPROVAL, await json_body(request))
    session_id, choice = _named(given.session_id, "session_id"), given.word
    wanted = (given.approval_id or "").strip()
    async with connection_of(request).within() as broker:
        done = await answer_ask(broker, session_id, "approval", wanted, choice, principal=principal_of(request))
        if done.settled is None and await open_asks(broker, session_id, "approval"):
            error = "this approval is not known any more, and another one is open"
            return refusal(error, 409, ok=False, choice=choice, stale=True)
    if done.mine:
        return reply({"ok": True, "choice": choice})
    if done.settled is None:
        return reply({"ok": True, "choice": choice, "stale_cleared": True})
    return reply({"ok": True, "choice": done.settled.answer, "stale_cleared": True, "how": done.settled.how})


@router.post("/clarify/respond", response_model=None)
async def clarify_respond(request: Request) -> Response:
    """`{session_id, clarify_id, response}` → `{ok, response}`. 409 with `stale`: nobody waits for it any more."""
    given: ClarifyAnswer = decode_body(_CLARIFY, await json_body(request))
    session_id, text = _named(given.session_id, "session_id"), given.text
    wanted = (given.clarify_id or "").strip()
    async with connection_of(request).within() as broker:
        done = await answer_ask(broker, session_id, "question", wanted, text, principal=principal_of(request))
    if done.mine or (done.settled is not None and (done.settled.answer, done.settled.how) == (text, "answered")):
        return reply({"ok": True, "response": text})
    known = {} if done.settled is None else {"response": done.settled.answer, "how": done.settled.how}
    error = "nobody waits for this answer any more: the agent went on"
    return reply({"ok": False, "error": error, "stale": True, **known}, 409)


async def _no_stream(request: Request) -> Response:
    """Never reached in a whole gateway: it is what makes other methods on the stream's address a 405."""
    raise HTTPException(404)


router.add_route("/api/chat/stream", _no_stream, methods=["GET"], include_in_schema=False)
