"""``/v1/runs``: create, list, look, items, result, cancel, input. The stream is served by gateway/viewer.py."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Header, Path, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from broker.admission import make_run
from broker.errors import BadRequest, InvalidRequest
from broker.items import parse_modes
from broker.requests import RunRequest
from gateway.admission import stage
from gateway.answers import (
    Answered,
    Cancelling,
    CreatedRun,
    ItemPage,
    Pending,
    Result,
    Run,
    RunPage,
    answer,
    flat_outcome,
    iso,
    item_page,
    view,
)
from gateway.auth import check_cancel_token, principal_of
from gateway.bodies import InputAnswer, json_body
from gateway.chat.outcome import chat_answer
from gateway.connection import connection_of
from gateway.openapi import json_answer, json_body_of, problems
from gateway.paging import ItemsAsked, read_page
from gateway.problems import decode_body
from gateway.routes.get import get
from gateway.waiting import wait_for_end

__all__ = ["check_idempotency_key", "router"]

router = APIRouter(prefix="/v1/runs", tags=["runs"])

SEQ_MAX = (1 << 63) - 1
RUNS_MAX = 200
ITEMS_MAX = 1_000
_decoder = msgspec.json.Decoder(RunRequest)
_answer_decoder = msgspec.json.Decoder(InputAnswer)
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}\Z")

RunId = Annotated[str, Path(description="1 to 128 of A-Z, a-z, 0-9, “_”, “.”, “-”")]
Status = Literal["queued", "running", "completed", "failed", "cancelled"]
Seq = Annotated[int | None, Query(ge=0, le=SEQ_MAX)]


def check_idempotency_key(key: str | None) -> None:
    """Raises ``BadRequest`` for one that no header should have."""
    if key is not None and not _IDEMPOTENCY_KEY.match(key):
        raise BadRequest(
            "an idempotency key is 1 to 255 printable ASCII characters without spaces", field="Idempotency-Key"
        )


@router.post(
    "",
    response_model=None,
    status_code=201,
    responses={
        201: json_answer(CreatedRun, "Created and queued."),
        200: json_answer(CreatedRun, "The same idempotency key and body were sent before: that run, and its token."),
        **problems(400, 402, 409, 413, 415, 422, 503),
    },
    openapi_extra=json_body_of(RunRequest),
)
async def create_run(request: Request, idempotency_key: Annotated[str | None, Header()] = None) -> Response:
    """Start a run. With `Idempotency-Key` the same request may be repeated after a lost answer."""
    check_idempotency_key(idempotency_key)
    asked: RunRequest = decode_body(_decoder, await json_body(request))
    asked = await stage(connection_of(request), asked)
    async with connection_of(request).within() as broker:
        record, created = await make_run(
            broker, asked, idempotency_key=idempotency_key, principal=principal_of(request)
        )
        token = await broker.runs.cancel_token(record.run_id)
    stream_url = f"{request.scope.get('root_path', '')}/v1/runs/{record.run_id}/stream"
    body = CreatedRun(
        run_id=record.run_id,
        status=record.status,
        cancel_token=token,
        stream_url=stream_url,
        created_at=iso(record.created) or "",
    )
    return answer(body, 201 if created else 200, {"Location": stream_url.removesuffix("/stream")})


@get(router, "", responses={200: json_answer(RunPage, "Newest first."), **problems(400, 422, 503)})
async def list_runs(
    request: Request,
    status: Annotated[Status | None, Query(description="Only runs that stand so.")] = None,
    session_id: Annotated[str | None, Query(max_length=128, description="Only runs of this session.")] = None,
    limit: Annotated[int, Query(ge=1, le=RUNS_MAX)] = 50,
    before: Annotated[str | None, Query(max_length=256, description="`next` of the page before.")] = None,
) -> Response:
    """Runs, newest first, paged."""
    async with connection_of(request).within() as broker:
        records, following = await broker.runs.list(status=status, session_id=session_id, limit=limit, before=before)
    return answer(RunPage(runs=[view(record) for record in records], next=following))


@get(router, "/{run_id}", responses={200: json_answer(Run, "As it stands."), **problems(400, 404, 503)})
async def get_run(request: Request, run_id: RunId) -> Response:
    """One run: status, where its log begins and ends, times, usage and cost so far, and its outcome."""
    async with connection_of(request).within() as broker:
        record, first = await broker.log.bounds(run_id)
    return answer(view(record, first))


@get(router, "/{run_id}/items", responses={200: json_answer(ItemPage, "A page."), **problems(400, 404, 422, 503)})
async def list_items(
    request: Request,
    run_id: RunId,
    after: Annotated[Seq, Query(description="Only items with a greater seq.")] = None,
    before: Annotated[Seq, Query(description="Only items with a smaller seq.")] = None,
    order: Annotated[Literal["asc", "desc"], Query()] = "asc",
    limit: Annotated[int, Query(ge=1, le=ITEMS_MAX)] = 100,
    modes: Annotated[list[str] | None, Query(description="Repeated, or separated by commas.")] = None,
) -> Response:
    """A page of the run's items, as they are stored."""
    asked = ItemsAsked(
        after=after or 0, before=before, descending=order == "desc", limit=limit, modes=parse_modes(modes or [])
    )
    async with connection_of(request).within() as broker:
        record, first = await broker.log.bounds(run_id)
        page = await read_page(broker.log, record, first, asked, budget=broker.settings.read_bytes)
    return answer(
        item_page(
            record.run_id,
            page.entries,
            following=page.following,
            complete=page.complete,
            first_seq=first,
            last_seq=record.last,
        )
    )


@get(
    router,
    "/{run_id}/result",
    responses={
        200: json_answer(Result, "It has ended: its outcome, which is the fence as an item."),
        202: json_answer(Pending, "It has not ended within `wait` seconds."),
        **problems(400, 404, 422, 503),
    },
)
async def get_result(
    request: Request,
    run_id: RunId,
    wait: Annotated[float, Query(ge=0, allow_inf_nan=False, description="Seconds to wait for the end.")] = 0.0,
) -> Response:
    """The outcome of a run, waited for if you like."""
    connection = connection_of(request)
    most = connection.settings.result_wait_max
    if wait > most:
        raise InvalidRequest(f"wait may be 0 to {most:g} seconds", field="wait")
    async with connection.within() as broker:
        record = await broker.runs.get(run_id)
    if not record.ended_ and wait > 0:
        await wait_for_end(request, connection, broker, record, wait)
        async with connection.within() as broker:
            record = await broker.runs.get(run_id)
    if not record.ended_:
        return answer(Pending(run_id=record.run_id, status=record.status), 202, {"Retry-After": "1"})
    result = Result(run_id=record.run_id, status=record.status, outcome=flat_outcome(record.outcome))
    result.answer = chat_answer(record)
    return answer(result)


@router.post(
    "/{run_id}/cancel",
    response_model=None,
    status_code=202,
    responses={
        202: json_answer(Cancelling, "Asked for; repeating it is harmless."),
        **problems(400, 403, 404, 409, 503),
    },
)
async def cancel_run(
    request: Request, run_id: RunId, x_cancel_token: Annotated[str | None, Header()] = None
) -> Response:
    """Ask for the run's end. It is durable: a worker that is away learns of it when it is back."""
    async with connection_of(request).within() as broker:
        await broker.runs.get(run_id)
        await check_cancel_token(broker, run_id, x_cancel_token)
        record = await broker.runs.cancel(run_id, principal=principal_of(request))
    return answer(Cancelling(run_id=record.run_id, status=record.status, cancel_requested=True), 202)


@router.post(
    "/{run_id}/input",
    response_model=None,
    responses={
        200: json_answer(Answered, "It is the answer; the run's worker has it as soon as it reads."),
        **problems(400, 404, 409, 413, 415, 422, 503),
    },
    openapi_extra=json_body_of(InputAnswer),
)
async def answer_input(request: Request, run_id: RunId) -> Response:
    """Answer what the run asked a person (`pending_input`, `event approval.requested`, `event question.asked`).

    The first answer counts, whoever gives it; every later one gets 409 with what it was. It is kept: a worker that is
    away finds it when it is back.
    """
    given: InputAnswer = decode_body(_answer_decoder, await json_body(request))
    async with connection_of(request).within() as broker:
        settled = await broker.runs.answer(run_id, given.request_id, given.answer, principal=principal_of(request))
    # Only a running run takes answers.
    return answer(Answered(run_id=run_id, request_id=settled.request_id, answer=settled.answer, status="running"))


async def _no_stream(request: Request) -> Response:
    """Never reached in a whole gateway: it is what makes other methods on the stream's address a 405."""
    raise HTTPException(404)


router.add_route("/v1/runs/{run_id}/stream", _no_stream, methods=["GET"], include_in_schema=False)
