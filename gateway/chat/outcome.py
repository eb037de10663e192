"""How a chat's run ended → the answer of a request that waited for it (docs/chat.md, “Without a stream”)."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from broker.answer import failure_of
from broker.errors import RuncastError
from broker.records import RunRecord
from gateway.answers import answer
from gateway.chat.replies import Style, reply_of, style_of
from gateway.problems import headers_of, problem_of, render

__all__ = ["ChatCancelled", "ChatFailed", "ChatTimedOut", "chat_answer", "chat_headers", "refused", "response_of"]

_TIME_LIMITS = frozenset({"hermes_timeout", "hermes_silent", "deadline"})


class ChatFailed(RuncastError):
    """The run was made, and gave no answer. ``reason`` is its own code."""

    code = "chat_failed"

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class ChatTimedOut(ChatFailed):
    code = "chat_timeout"


class ChatCancelled(ChatFailed):
    code = "chat_cancelled"


def response_of(record: RunRecord, style: Style) -> Response:
    """The answer of a run that has ended, or the problem that it came to."""
    outcome = record.outcome or {}
    fields = outcome.get("item") or {}
    if outcome.get("type") == "final":
        return answer(reply_of(fields, record.session_id, style), headers=chat_headers(record.run_id))
    reason = str(fields.get("code") or record.status)
    kind = ChatCancelled if record.status == "cancelled" else ChatTimedOut if reason in _TIME_LIMITS else ChatFailed
    return refused(kind(failure_of(fields), reason=reason), record.run_id)


def chat_answer(record: RunRecord) -> dict[str, Any] | UnsetType:
    """What a chat's run answered; nothing for any other run, or where it gave no answer."""
    style, outcome = style_of(record.metadata), record.outcome or {}
    if style is None or outcome.get("type") != "final":
        return UNSET
    found: dict[str, Any] = msgspec.to_builtins(reply_of(outcome.get("item") or {}, record.session_id, style))
    return found


def refused(error: RuncastError, run_id: str | None = None) -> Response:
    """The problem as all callers of a chat can read it: ``error`` has its words, as an ``error`` frame has."""
    problem = problem_of(error)
    problem.error = problem.detail
    if isinstance(error, ChatFailed):
        problem.reason = error.reason or None
    return render(problem, headers_of(error) | (chat_headers(run_id) if run_id is not None else {}))


def chat_headers(run_id: str) -> dict[str, str]:
    return {"X-Run-Id": run_id}
