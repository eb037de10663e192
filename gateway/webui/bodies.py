"""The bodies of the WebUI's requests about turns. Its clients send more fields than we know: those are left aside."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from broker.errors import BadRequest, InvalidRequest
from broker.requests import RunRequest
from broker.sessions import Session

__all__ = ["ApprovalAnswer", "Cancel", "ChatStart", "ClarifyAnswer", "request_of"]

CHOICES = ("once", "session", "always", "deny")


class ChatStart(msgspec.Struct, kw_only=True):
    """A turn. ``model_provider`` belongs to ``model``. ``runner``, ``metadata`` and ``approvals`` are ours."""

    session_id: str | None = None
    message: str | None = None
    model: str | None = None
    model_provider: str | None = None
    attachments: list[Any] | None = None
    toolsets: list[str] | None = None
    runner: str | None = None
    metadata: dict[str, str] | None = None
    approvals: Literal["ask", "yolo"] = "ask"


class Cancel(msgspec.Struct, kw_only=True):
    stream_id: str | None = None


class ApprovalAnswer(msgspec.Struct, kw_only=True):
    """``approval_id`` left out: the oldest that is open."""

    session_id: str | None = None
    approval_id: str | None = None
    choice: str | None = None

    @property
    def word(self) -> str:
        """Raises ``BadRequest``, naming what is allowed."""
        choice = self.choice or "deny"
        if choice not in CHOICES:
            raise BadRequest(f"{choice[:64]!r} is no choice: the choices are {', '.join(CHOICES)}", field="choice")
        return choice


class ClarifyAnswer(msgspec.Struct, kw_only=True):
    """``clarify_id`` left out: the oldest that is open. The answer has three names in the clients that there are."""

    session_id: str | None = None
    clarify_id: str | None = None
    response: str | None = None
    answer: str | None = None
    choice: str | None = None

    @property
    def text(self) -> str:
        """Raises ``BadRequest`` where there is none."""
        text = next((value for value in (self.response, self.answer, self.choice) if value is not None), "").strip()
        if not text:
            raise BadRequest("response is required", field="response")
        return text


def _files(attachments: list[Any]) -> dict[str, Any]:
    """Files for the workspace where all of them are such, else what only a service that is relayed to can read."""
    ours = all(isinstance(a, dict) and a.keys() & {"url", "content_base64"} for a in attachments)
    return {"artifacts" if ours else "attachments": attachments} if attachments else {}


def request_of(start: ChatStart, session: Session, runner: str) -> RunRequest:
    """A turn → the run that is asked for. What the turn leaves open (model, provider) is the session's.

    Raises ``BadRequest`` where there is no message, ``InvalidRequest`` for what is no request.
    """
    message = (start.message or "").strip()
    if not message:
        raise BadRequest("message is required", field="message")
    fields = {
        "runner": start.runner or runner,
        "input": {
            "message": message,
            "model": start.model or session.model,
            "provider": start.model_provider if start.model else start.model_provider or session.provider,
            "toolsets": start.toolsets,
            "approvals": start.approvals,
            **_files(start.attachments or []),
        },
        "session_id": session.session_id,
        "metadata": start.metadata or {},
    }
    try:
        return msgspec.convert(fields, RunRequest)
    except msgspec.ValidationError as error:
        _, _, path = str(error).partition(" - at `$")
        raise InvalidRequest(str(error), field=path.strip(".`") or None) from error
