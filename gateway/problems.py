"""Errors on the wire: the one table code → HTTP status, and problem+json (RFC 9457).

Every error that this gateway answers, whoever raised it (the broker, FastAPI, msgspec, Starlette's router), is
``application/problem+json`` with ``type``, ``title``, ``status``, ``code``, ``detail`` and, where one part of the
request is at fault, ``field``. ``code`` is the contract; ``detail`` is for people and may change.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Literal, NamedTuple, NoReturn, get_args, get_origin

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from broker.errors import (
    AlreadyAnswered,
    BadRequest,
    CostCapReached,
    InvalidRequest,
    RuncastError,
    SessionBusy,
    StoreUnavailable,
)
from gateway import metrics

__all__ = [
    "MEDIA_TYPE",
    "PROBLEMS",
    "BodyTooLarge",
    "Forbidden",
    "Kind",
    "LoginRequired",
    "Problem",
    "UnsupportedMediaType",
    "decode_body",
    "headers_of",
    "install",
    "problem_of",
    "render",
]

_log = logging.getLogger("runcast.gateway")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = 2
"""Seconds, sent with every 503: Redis that comes back is noticed within that time."""


class Kind(NamedTuple):
    status: int
    title: str


PROBLEMS: dict[str, Kind] = {
    # The broker's codes.
    "bad_request": Kind(400, "Bad request"),
    "invalid_id": Kind(400, "Not a valid id"),
    "unknown_mode": Kind(400, "Unknown mode"),
    "invalid_item": Kind(422, "Not a valid item"),
    "invalid_request": Kind(422, "Not a valid request"),
    "item_too_big": Kind(413, "Too big"),
    "run_not_found": Kind(404, "No such run"),
    "session_not_found": Kind(404, "No such session"),
    "task_not_found": Kind(404, "No such task"),
    "unknown_step": Kind(404, "No such step"),
    "step_conflict": Kind(409, "The step is in no state for that"),
    "step_changed": Kind(409, "The step was edited meanwhile"),
    "task_ended": Kind(409, "The task has ended"),
    "task_full": Kind(409, "The task takes no more changes"),
    "task_not_halted": Kind(409, "The task is not halted"),
    "conflict": Kind(409, "Conflict"),
    "artifact_not_found": Kind(404, "No such file of this run"),
    "artifact_store_unavailable": Kind(503, "The artifact store does not answer"),
    "run_exists": Kind(409, "The run exists"),
    "idempotency_conflict": Kind(409, "The idempotency key was used with another body"),
    "run_ended": Kind(409, "The run has ended"),
    "unknown_request": Kind(404, "Nothing was asked under that id"),
    "already_answered": Kind(409, "It has its answer"),
    "too_many_asks": Kind(409, "The run waits for too many answers"),
    "session_busy": Kind(409, "The session has an open run"),
    "claim_refused": Kind(409, "Claim refused"),
    "layout_mismatch": Kind(503, "This gateway does not fit the store's layout"),
    "cost_cap": Kind(402, "The cost cap is reached"),
    "fenced": Kind(409, "The run has another owner"),
    "sealed": Kind(409, "The run is sealed"),
    "log_gap": Kind(409, "The log ends elsewhere"),
    "log_rewound": Kind(409, "The log lost items"),
    "store_unavailable": Kind(503, "The store does not answer"),
    "outage_too_long": Kind(503, "The store did not come back in time"),
    "store_error": Kind(500, "The store refused"),
    "data_dir_unusable": Kind(500, "The data directory cannot be used"),
    "internal": Kind(500, "Internal error"),
    # The gateway's own.
    "chat_failed": Kind(502, "The run gave no answer"),
    "chat_timeout": Kind(504, "The run did not end in time"),
    "chat_cancelled": Kind(409, "The run was cancelled"),
    "login_required": Kind(401, "Log in first"),
    "forbidden": Kind(403, "Forbidden"),
    "not_found": Kind(404, "No such address"),
    "method_not_allowed": Kind(405, "Method not allowed"),
    "body_too_large": Kind(413, "The body is too large"),
    "unsupported_media_type": Kind(415, "Unsupported media type"),
}
_CODE_OF_STATUS = {400: "bad_request", 403: "forbidden", 404: "not_found", 405: "method_not_allowed"}


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of every error. ``already_answered`` has the ``answer`` that came first, and ``how`` it came about;
    ``error`` repeats ``detail`` where clients of chats and of the WebUI look for it; ``reason``: the code of the run
    that gave a chat no answer; ``active_run_id``: of ``session_busy``, the run that is open."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    answer: str | None = None
    how: str | None = None
    error: str | None = None
    reason: str | None = None
    active_run_id: str | None = None


class Forbidden(RuncastError):
    """Known, but not allowed."""

    code = "forbidden"


class LoginRequired(RuncastError):
    """There is a password, and the request came without a login."""

    code = "login_required"


class BodyTooLarge(RuncastError):
    code = "body_too_large"


class UnsupportedMediaType(RuncastError):
    code = "unsupported_media_type"


def problem_of(error: RuncastError) -> Problem:
    """The body for an error of ours. A code that the table lacks is answered as ``internal``, never as a crash."""
    code = error.code if error.code in PROBLEMS else "internal"
    problem = _problem(code, str(error), field=error.field if isinstance(error, BadRequest) else None)
    if isinstance(error, AlreadyAnswered):
        problem.answer, problem.how = error.answer, error.how
    if isinstance(error, SessionBusy):
        problem.active_run_id = error.run_id
    return problem


def _problem(code: str, detail: str, *, field: str | None = None, status: int | None = None) -> Problem:
    kind = PROBLEMS[code]
    return Problem(
        type=f"urn:runcast:problem:{code}",
        title=kind.title,
        status=status or kind.status,
        code=code,
        detail=detail,
        field=field,
    )


def render(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Problem → response. A 503 says when to come back; nothing here may be cached."""
    metrics.PROBLEMS.labels(problem.code).inc()
    out = {"Cache-Control": "no-store", **(headers or {})}
    if problem.status == 503:
        out.setdefault("Retry-After", str(RETRY_AFTER))
    return Response(_dump(problem), problem.status, headers=out, media_type=MEDIA_TYPE)


def _render(request: Request, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    if request.url.path.removeprefix(request.scope.get("root_path", "")).startswith(_TELL_ERROR):
        problem.error = problem.detail
    return render(problem, headers)


def _dump(problem: Problem) -> bytes:
    try:
        return msgspec.json.encode(problem)
    except UnicodeEncodeError:  # a detail that quotes a lone surrogate of the request
        problem.detail = problem.detail.encode("utf-8", "replace").decode()
        problem.field = problem.field and problem.field.encode("utf-8", "replace").decode()
        problem.error = problem.error and problem.detail
        return msgspec.json.encode(problem)


_TELL_ERROR = ("/api/", "/chat", "/v1/chat")
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`", re.DOTALL)
_MISSING_FIELD = re.compile(r"^Object missing required field `(?P<name>[^`]*)`", re.DOTALL)
_DEEPEST = 64
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - _STEPS.keys())
_AT = re.compile(r" - at `(?P<path>[^`]*)`$")


def decode_body(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """JSON bytes → value. Raises ``BadRequest`` where it is no JSON, ``InvalidRequest`` naming the field where it does
    not fit (unknown fields included)."""
    _check_depth(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _refuse(str(error), decoder.type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is no valid JSON: {error}") from error


def _check_depth(body: bytes) -> None:
    """What this process can just read, it or another could no longer write: a bound that all keep, far below that."""
    if body.count(b"[") + body.count(b"{") <= _DEEPEST:
        return
    brackets = _STRING.sub(b"", body).translate(None, _NO_BRACKETS)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > _DEEPEST:
        raise BadRequest(f"the body is nested deeper than {_DEEPEST} levels")


def _refuse(message: str, body: Any) -> NoReturn:
    """Raises ``InvalidRequest``: the path of the field at fault, and what is allowed there where msgspec says not."""
    at = _AT.search(message)
    path = at["path"].removeprefix("$").lstrip(".") if at else ""
    named = _UNKNOWN_FIELD.match(message) or _MISSING_FIELD.match(message)
    field = ".".join(filter(None, (path, named["name"] if named else "")))[:200]
    allowed = _allowed(_type_at(body, path))
    raise InvalidRequest(message[:500] + (f"; allowed: {allowed}" if allowed else ""), field=field or None)


def _type_at(type_: Any, path: str) -> Any:
    """The type of the field at ``path`` (``input.approvals``) of a struct; None where it leads elsewhere."""
    for name in filter(None, path.split(".")):
        if not (isinstance(type_, type) and issubclass(type_, msgspec.Struct)):
            return None
        type_ = next((f.type for f in msgspec.structs.fields(type_) if f.encode_name == name), None)
    return type_


def _allowed(type_: Any) -> str:
    if get_origin(type_) is Literal:
        return ", ".join(map(str, get_args(type_)))
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return ", ".join(f.encode_name for f in msgspec.structs.fields(type_))
    return ""


def _of_validation(error: RequestValidationError) -> Problem:
    """FastAPI's findings on path, query and headers → one problem: the first, by the name that the caller used."""
    first = error.errors()[0]
    where, *names = (str(part) for part in first["loc"])
    field = ".".join(names) or where
    return _problem("invalid_request", f"{where} parameter {field!r}: {first['msg']}", field=field)


def headers_of(error: RuncastError) -> dict[str, str]:
    """What an error's answer says in its head."""
    if isinstance(error, CostCapReached):
        return {"Retry-After": str(error.retry_after)}
    kind = PROBLEMS.get(error.code)
    return {"Connection": "close"} if kind is not None and kind.status == 413 else {}


async def _on_runcast(request: Request, error: Exception) -> Response:
    assert isinstance(error, RuncastError)
    problem = problem_of(error)
    if problem.status >= 500 and not isinstance(error, StoreUnavailable):
        _log.error("%s %s failed: %s", request.method, request.url.path, error, exc_info=error)
    return _render(request, problem, headers_of(error))


async def _on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _render(request, _of_validation(error))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODE_OF_STATUS.get(error.status_code, "internal" if error.status_code >= 500 else "bad_request")
    detail = error.detail if isinstance(error.detail, str) else str(error.detail)
    if error.status_code in (404, 405):
        detail = f"{request.method} {request.url.path}: {detail}"
    return _render(request, _problem(code, detail, status=error.status_code), error.headers)


async def _on_anything(request: Request, error: Exception) -> Response:
    # Starlette raises the error again after this answer, so that the server logs it with its traceback.
    return _render(request, _problem("internal", "an unexpected error; the gateway's log has it"))


def install(app: FastAPI) -> None:
    """Make ``app`` answer every error as problem+json."""
    app.add_exception_handler(RuncastError, _on_runcast)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_anything)
