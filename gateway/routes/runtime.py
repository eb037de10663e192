"""``POST /chat`` and ``/v1/chat``: a run is made, and its answer waited for. The streams of both are served by
gateway/chat/stream.py, and only described here."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from broker.api import Broker
from broker.errors import StoreUnavailable
from broker.records import RunRecord
from gateway import metrics
from gateway.answers import Pending, answer
from gateway.auth import principal_of
from gateway.bodies import json_body
from gateway.chat.bodies import ChatRequest, ChatRequestV1, parse_chat, run_request
from gateway.chat.outcome import refused, response_of
from gateway.chat.replies import ChatReply, ChatReplyV1, Style
from gateway.chat.starting import begin
from gateway.connection import Connection, connection_of
from gateway.openapi import event_stream, json_answer, json_body_of, problems
from gateway.waiting import wait_for_end

__all__ = ["router"]

router = APIRouter(tags=["chat"])

_AWAY_PAUSE = 1.0
_REFUSALS = problems(400, 402, 404, 409, 413, 415, 422, 503)
_FAILURES = problems(400, 402, 404, 409, 413, 415, 422, 502, 503, 504)


@router.post(
    "/chat",
    response_model=None,
    responses={200: json_answer(ChatReply, "The answer."), **_FAILURES},
    openapi_extra=json_body_of(ChatRequest),
)
async def chat(request: Request) -> Response:
    """Ask, and wait for the answer. `X-Run-Id` names the run that gives it."""
    return await _answered(request, Style.LEGACY)


@router.post(
    "/v1/chat",
    response_model=None,
    responses={200: json_answer(ChatReplyV1, "The answer."), **_FAILURES},
    openapi_extra=json_body_of(ChatRequestV1),
)
async def chat_v1(request: Request) -> Response:
    """Ask, and wait for the answer. `X-Run-Id` names the run that gives it."""
    return await _answered(request, Style.V1)


async def _answered(request: Request, style: Style) -> Response:
    """A caller that leaves changes nothing: the run goes on, and its answer is at ``/v1/runs/{run_id}/result``."""
    connection = connection_of(request)
    asked = parse_chat(await json_body(request), style)
    wanted = run_request(asked, style, request.app.state.webui.chat_runner)
    broker, record = await begin(connection, wanted, principal=principal_of(request))
    metrics.CHATS.labels(request.scope["route"].path).inc()
    while not record.is_ended:
        if not await wait_for_end(request, connection, broker, record, None):
            return answer(Pending(run_id=record.run_id, status=record.status), 202)  # nobody reads it
        if connection.draining.is_set():
            where = f"GET /v1/runs/{record.run_id}/result?wait=60 at another"
            return refused(StoreUnavailable(f"this gateway is shutting down; the run goes on: {where}"), record.run_id)
        broker, record = await _look(connection, broker, record)
    return response_of(record, style)


async def _look(connection: Connection, broker: Broker, record: RunRecord) -> tuple[Broker, RunRecord]:
    """The run as it stands. While the store is away, as it stood: the wait outlasts that."""
    try:
        async with connection.within() as broker:
            return broker, await broker.runs.get(record.run_id)
    except StoreUnavailable:
        await asyncio.sleep(_AWAY_PAUSE)
        return broker, record


async def _elsewhere() -> Response:
    """Never reached in a whole gateway."""
    raise HTTPException(404)


for _path, _body in (("/chat/stream", ChatRequest), ("/v1/chat/stream", ChatRequestV1)):
    router.post(
        _path,
        response_model=None,
        summary="Ask, and see the answer as it comes",
        description="Frames of `token`, then one of `done` and `error`, then `[DONE]`. `X-Run-Id` names the run; a "
        "connection that was lost is taken up with `GET /v1/runs/{run_id}/stream?format=chat` and its last id.",
        responses={200: event_stream("The frames."), **_REFUSALS},
        openapi_extra=json_body_of(_body),
    )(_elsewhere)
