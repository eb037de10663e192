"""``/v1/tasks``: make, list, look, and decide. The stream is served by gateway/viewer.py, as that of any run.

What a viewer sees of a task comes from its stream alone; decisions go into the store, for the worker that has the task.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Path, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from broker.errors import UnknownRequest
from broker.task_decisions import Approve, ApproveUpTo, Cancel, Decision, Edit, Reject, Retry
from broker.task_model import Change, Step, Task, status_of
from broker.task_plan import TaskRequest
from broker.task_reading import LIMIT_MAX
from gateway.answers import Answered, answer, iso
from gateway.auth import check_cancel_token, principal_of
from gateway.bodies import InputAnswer, json_body
from gateway.connection import connection_of
from gateway.openapi import Responses, json_answer, json_body_of, problems
from gateway.problems import decode_body
from gateway.routes.get import get
from gateway.routes.runs import check_idempotency_key
from gateway.task_answers import CreatedTask, DecidedTask, TaskPage, TaskView

__all__ = ["router"]

router = APIRouter(prefix="/v1/tasks", tags=["tasks"])

TaskId = Annotated[str, Path(description="1 to 128 of A-Z, a-z, 0-9, “_”, “.”, “-”")]
StepNumber = Annotated[int, Path(ge=0, description="Steps count from 1.")]
_task_decoder = msgspec.json.Decoder(TaskRequest)
_answer_decoder = msgspec.json.Decoder(InputAnswer)
_decoders: dict[type[Decision], msgspec.json.Decoder[Any]] = {
    body: msgspec.json.Decoder(body) for body in (Approve, ApproveUpTo, Cancel, Edit, Reject, Retry)
}
_DECIDED: Responses = {200: json_answer(DecidedTask, "It is kept: a worker that is away obeys it when it is back.")}
_REFUSED = problems(400, 404, 409, 413, 415, 422, 503)


@router.post(
    "",
    response_model=None,
    status_code=201,
    responses={
        201: json_answer(CreatedTask, "Made and queued."),
        200: json_answer(CreatedTask, "The same idempotency key and body were sent before: that task."),
        **problems(400, 409, 413, 415, 422, 503),
    },
    openapi_extra=json_body_of(TaskRequest),
)
async def create_task(request: Request, idempotency_key: Annotated[str | None, Header()] = None) -> Response:
    """Make a task. Without `steps` Hermes makes the plan. With `Idempotency-Key` it may be repeated."""
    check_idempotency_key(idempotency_key)
    asked: TaskRequest = decode_body(_task_decoder, await json_body(request))
    async with connection_of(request).within() as broker:
        record, created = await broker.tasks.create(
            asked, idempotency_key=idempotency_key, principal=principal_of(request)
        )
        token = await broker.runs.cancel_token(record.run_id)
    url = f"{request.scope.get('root_path', '')}/v1/tasks/{record.run_id}"
    body = CreatedTask(
        task_id=record.run_id,
        status=record.status,
        url=url,
        stream_url=f"{url}/stream",
        cancel_token=token,
        created_at=iso(record.created) or "",
    )
    return answer(body, 201 if created else 200, {"Location": url})


@get(router, "", responses={200: json_answer(TaskPage, "Newest first."), **problems(400, 422, 503)})
async def list_tasks(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 50,
    before: Annotated[str | None, Query(max_length=256, description="`next` of the page before.")] = None,
) -> Response:
    """Tasks, newest first, paged."""
    async with connection_of(request).within() as broker:
        tasks, following = await broker.tasks.page(limit=limit, before=before)
    return answer(TaskPage(tasks=[_view(request, task) for task in tasks], next=following))


@get(router, "/{task_id}", responses={200: json_answer(TaskView, "As its stream tells it."), **problems(400, 404, 503)})
async def get_task(request: Request, task_id: TaskId) -> Response:
    """A task: its plan, where each step stands, results, what it waits for, and all that happened."""
    async with connection_of(request).within() as broker:
        task = await broker.tasks.view(task_id)
    return answer(_view(request, task))


def _view(request: Request, task: dict[str, Any]) -> TaskView:
    root = request.scope.get("root_path", "")
    return msgspec.convert({**task, "stream_url": root + task["stream_url"]}, TaskView)


async def _decide(request: Request, task_id: str, body: type[Decision], step: int | None = None) -> Response:
    """Take what people say, or raise why not."""
    sent = await json_body(request) if _has_body(request) else b"{}"
    given: Decision = decode_body(_decoders[body], sent or b"{}")
    change = given.change(step, principal_of(request), time.time())
    async with connection_of(request).within() as broker:
        task = await broker.tasks.decide(task_id, change)
    return answer(
        DecidedTask(task_id=task_id, status=status_of(task), steps=[_decided(s) for s in _changed(task, change)])
    )


def _has_body(request: Request) -> bool:
    """A decision may come without one."""
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def _changed(task: Task, change: Change) -> list[Step]:
    if change.step is not None:
        return [task.steps[change.step - 1]]
    if change.what == "cancelled":
        return [step for step in task.steps if step.state == "cancelled"]
    detail = task.history[-1].detail
    numbers = detail["approved"] if change.what == "approved" else [detail["step"]]
    return [step for step in task.steps if step.n in numbers]


def _decided(step: Step) -> dict[str, Any]:
    kept = ("n", "title", "risk", "approval", "state", "revision", "approved_by", "reason")
    return {name: getattr(step, name) for name in kept}


@router.post(
    "/{task_id}/steps/{n}/approve",
    response_model=None,
    responses={**_DECIDED, **_REFUSED},
    openapi_extra=json_body_of(Approve, required=False),
)
async def approve_step(request: Request, task_id: TaskId, n: StepNumber) -> Response:
    """Approve a step, now or ahead of its turn."""
    return await _decide(request, task_id, Approve, n)


@router.post(
    "/{task_id}/steps/{n}/reject",
    response_model=None,
    responses={**_DECIDED, **_REFUSED},
    openapi_extra=json_body_of(Reject),
)
async def reject_step(request: Request, task_id: TaskId, n: StepNumber) -> Response:
    """Reject a step, with a reason. The task halts there, or goes on without it."""
    return await _decide(request, task_id, Reject, n)


@router.post(
    "/{task_id}/steps/{n}/edit",
    response_model=None,
    responses={**_DECIDED, **_REFUSED},
    openapi_extra=json_body_of(Edit),
)
async def edit_step(request: Request, task_id: TaskId, n: StepNumber) -> Response:
    """Change a step that has not been approved, or has failed or was rejected."""
    return await _decide(request, task_id, Edit, n)


@router.post(
    "/{task_id}/approve",
    response_model=None,
    responses={**_DECIDED, **_REFUSED},
    openapi_extra=json_body_of(ApproveUpTo),
)
async def approve_up_to(request: Request, task_id: TaskId) -> Response:
    """Approve every step up to a risk."""
    return await _decide(request, task_id, ApproveUpTo)


@router.post(
    "/{task_id}/retry",
    response_model=None,
    responses={**_DECIDED, **_REFUSED},
    openapi_extra=json_body_of(Retry, required=False),
)
async def retry_task(request: Request, task_id: TaskId) -> Response:
    """Have a halted task go on, with the step that it halted at."""
    return await _decide(request, task_id, Retry)


@router.post(
    "/{task_id}/cancel",
    response_model=None,
    responses={**_DECIDED, **_REFUSED, **problems(403)},
    openapi_extra=json_body_of(Cancel, required=False),
)
async def cancel_task(
    request: Request, task_id: TaskId, x_cancel_token: Annotated[str | None, Header()] = None
) -> Response:
    """End a task: what runs is stopped, what waits is not begun."""
    async with connection_of(request).within() as broker:
        await check_cancel_token(broker, task_id, x_cancel_token)
    return await _decide(request, task_id, Cancel)


@router.post(
    "/{task_id}/input",
    response_model=None,
    responses={
        200: json_answer(Answered, "It is the answer; the step's worker has it as soon as it reads."),
        **_REFUSED,
    },
    openapi_extra=json_body_of(InputAnswer),
)
async def answer_input(request: Request, task_id: TaskId) -> Response:
    """Answer what Hermes asks in the running step. The first answer counts."""
    given: InputAnswer = decode_body(_answer_decoder, await json_body(request))
    async with connection_of(request).within() as broker:
        run_id = _asking(await broker.tasks.view(task_id), given.request_id)
        settled = await broker.runs.answer(run_id, given.request_id, given.answer, principal=principal_of(request))
    return answer(Answered(run_id=run_id, request_id=settled.request_id, answer=settled.answer, status="running"))


def _asking(task: dict[str, Any], request_id: str) -> str:
    """The run that asked. Of one that is answered already the history tells it, also when the step was tried again
    since: that run says by what."""
    for step in task["steps"]:
        if any(ask["request_id"] == request_id for ask in step["asks"]):
            return str(step["run_id"])
    runs = {step["n"]: step["run_id"] for step in task["steps"]}
    for entry in reversed(task["history"]):
        detail = entry["detail"] or {}
        # An entry of an earlier version of Runcast does not say which run it was.
        run_id = detail.get("run_id") or runs.get(entry["step"])
        if run_id and entry["what"] == "input_requested" and detail.get("request_id") == request_id:
            return str(run_id)
    raise UnknownRequest(task["task_id"], request_id)


async def _no_stream(request: Request) -> Response:
    """Never reached in a whole gateway: it is what makes other methods on the stream's address a 405."""
    raise HTTPException(404)


router.add_route("/v1/tasks/{task_id}/stream", _no_stream, methods=["GET"], include_in_schema=False)
