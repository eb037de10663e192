"""The OpenAPI document: bodies and answers from the types themselves, errors, and the stream route.

The stream of a run is served ahead of FastAPI (gateway/viewer.py), so it is described here by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from broker import task_decisions
from broker.items import Mode
from broker.requests import RunRequest
from broker.task_plan import TaskRequest
from gateway import answers, task_answers
from gateway.bodies import InputAnswer
from gateway.chat.bodies import ChatRequest, ChatRequestV1
from gateway.chat.replies import ChatReply, ChatReplyV1
from gateway.problems import MEDIA_TYPE, Problem

__all__ = [
    "Responses",
    "binary_answer",
    "event_stream",
    "install",
    "json_answer",
    "json_body_of",
    "problems",
    "text_answer",
]

_TYPES: tuple[Any, ...] = (
    RunRequest,
    InputAnswer,
    Problem,
    answers.CreatedRun,
    answers.Run,
    answers.RunPage,
    answers.ItemPage,
    answers.Result,
    answers.Pending,
    answers.Cancelling,
    answers.Answered,
    answers.ArtifactPage,
    answers.Health,
    answers.Capabilities,
    ChatRequest,
    ChatRequestV1,
    ChatReply,
    ChatReplyV1,
    TaskRequest,
    task_decisions.Approve,
    task_decisions.ApproveUpTo,
    task_decisions.Cancel,
    task_decisions.Edit,
    task_decisions.Reject,
    task_decisions.Retry,
    task_answers.CreatedTask,
    task_answers.DecidedTask,
    task_answers.TaskPage,
    task_answers.TaskView,
)
_TEMPLATE = "#/components/schemas/{name}"
Responses = dict[int | str, dict[str, Any]]

_WHEN = {
    400: "Bad input; `field` names the part.",
    402: "A cost cap is reached; `Retry-After` says when a new day begins.",
    403: "The cancel token is another run's.",
    404: "No such run, or it asked nothing of that id.",
    409: "The state forbids it; `code` says why.",
    413: "The body, or an item in it, is too large.",
    415: "The body is not declared as JSON.",
    422: "Well-formed, but not allowed; `field` names the part.",
    500: "An error of ours.",
    502: "The run gave no answer; `reason` says why.",
    503: "Redis does not answer. `Retry-After` says when to come back.",
    504: "The run did not end within its time limit.",
}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _TEMPLATE.format(name=name)}


def json_answer(type_: type[msgspec.Struct], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref(type_.__name__)}}}


def problems(*statuses: int) -> Responses:
    """The error answers of a route."""
    body = {MEDIA_TYPE: {"schema": _ref("Problem")}}
    return {status: {"description": _WHEN[status], "content": body} for status in statuses}


def text_answer(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}


def binary_answer(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/octet-stream": {}}}


def event_stream(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"text/event-stream": {"schema": {"type": "string"}}}}


def json_body_of(type_: type[msgspec.Struct], *, required: bool = True) -> dict[str, Any]:
    """The body that a route takes, for its ``openapi_extra``."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": _ref(type_.__name__)}}}}


def _query(name: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _stream_operation(operation_id: str, tag: str = "runs", whose: str = "run_id") -> dict[str, Any]:
    modes = [mode.name.lower() for mode in Mode if mode.name]
    text = {"type": "string"}
    return {
        "tags": [tag],
        "operationId": operation_id,
        "summary": "The run's stream, as server-sent events",
        "description": "Everything from the cursor on, then what comes, until the fence and `end`. "
        "Which cursor counts: `Last-Event-ID`, else `cursor`, else `from`, else the start. "
        "While Redis is away the answer is an empty stream, not a 5xx, so that EventSource keeps trying.",
        "parameters": [
            {"name": whose, "in": "path", "required": True, "schema": text},
            _query(
                "modes",
                {"type": "array", "items": {"type": "string", "enum": modes}},
                "What to show: repeated, or separated by commas. Default: events, which is everything.",
            ),
            _query("cursor", text, "`run_id:seq`, the last item that you have."),
            _query("from", {"type": "string", "enum": ["start", "now"]}, "Where to begin without a cursor."),
            _query("format", {"type": "string", "default": "native"}, "The wire format."),
            _query("compact", {"type": "string", "enum": ["0", "1"]}, "Join adjacent deltas while catching up."),
            _query("on_disconnect", {"type": "string", "enum": ["cancel"]}, "Own the run: needs `cancel_token`."),
            _query("cancel_token", text, "The token that creating the run returned."),
            {"name": "Last-Event-ID", "in": "header", "required": False, "schema": text},
        ],
        "responses": {
            "200": event_stream("The stream."),
            "204": {"description": "The cursor holds the fence: there is nothing to come."},
            **{str(status): body for status, body in problems(400, 403, 404, 422).items()},
        },
    }


def install(app: FastAPI) -> None:
    """Make ``app.openapi()`` return the whole document."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, components = msgspec.json.schema_components(_TYPES, ref_template=_TEMPLATE)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(components)
    paths = document.setdefault("paths", {})
    _drop_fastapis_errors(paths, schemas)
    paths["/v1/tasks/{task_id}/stream"] = {
        "get": _stream_operation("stream_task", "tasks", "task_id"),
        "head": _stream_operation("stream_task_head", "tasks", "task_id"),
    }
    paths["/v1/runs/{run_id}/stream"] = {
        "get": _stream_operation("stream_run"),
        "head": _stream_operation("stream_run_head"),
    }
    return document


def _drop_fastapis_errors(paths: dict[str, Any], schemas: dict[str, Any]) -> None:
    """FastAPI documents its own 422 wherever a route has parameters; ours are problems, described by the routes."""
    for operation in (operation for item in paths.values() for operation in item.values()):
        body = operation["responses"].get("422", {}).get("content", {})
        if "application/json" in body:
            del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
