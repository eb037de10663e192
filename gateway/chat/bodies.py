"""The bodies of chat requests, and the run that each asks for. Pure.

Source of the forms: docs/chat.md, “The request”. There is one request, the legacy one: a v1 body is converted to it,
and from there on both are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from broker.errors import BadRequest, InvalidRequest
from broker.requests import RunRequest
from gateway.chat.replies import STYLE_KEY, Style
from gateway.problems import decode_body

__all__ = ["ChatMessage", "ChatRequest", "ChatRequestV1", "legacy_of", "named_as_here", "parse_chat", "run_request"]


class ChatRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /chat`` and ``/chat/stream``. ``toolsets`` may be names joined by commas; what in ``metadata`` is
    no text goes on as its JSON."""

    message: str
    session_id: str | None = None
    model: str | None = None
    provider: str | None = None
    toolsets: list[str] | str | None = None
    artifacts: list[Any] | None = None
    metadata: dict[str, Any] | None = None


class ChatMessage(msgspec.Struct, kw_only=True, frozen=True):
    """One message of a v1 request. ``content`` is text, or parts of which each has ``type: "text"`` and ``text``."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatRequestV1(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /v1/chat`` and ``/v1/chat/stream``: ``messages``, of which the last user's is asked, or
    ``message``."""

    messages: list[ChatMessage] | None = None
    message: str | None = None
    session_id: str | None = None
    model: str | None = None
    provider: str | None = None
    toolsets: list[str] | str | None = None
    artifacts: list[Any] | None = None
    metadata: dict[str, Any] | None = None


_legacy = msgspec.json.Decoder(ChatRequest)
_v1 = msgspec.json.Decoder(ChatRequestV1)


def parse_chat(body: bytes, style: Style) -> ChatRequest:
    """The JSON body → the request. Raises ``BadRequest``, ``InvalidRequest``, naming the field."""
    given: ChatRequest = decode_body(_legacy, body) if style is Style.LEGACY else legacy_of(decode_body(_v1, body))
    return given


def legacy_of(given: ChatRequestV1) -> ChatRequest:
    """v1 → legacy. Raises ``InvalidRequest`` where it has no prompt, or two."""
    fields = {name: getattr(given, name) for name in ChatRequest.__struct_fields__ if name != "message"}
    if given.messages is None:
        if given.message is None:
            raise InvalidRequest("there is no prompt: give messages, or message", field="messages")
        return ChatRequest(message=given.message, **fields)
    if given.message is not None:
        raise InvalidRequest("give messages or message, not both", field="message")
    return ChatRequest(message=_prompt(given.messages), **fields)


def _prompt(messages: list[ChatMessage]) -> str:
    for place in reversed(range(len(messages))):
        if messages[place].role == "user":
            return _text(messages[place].content, f"messages[{place}].content")
    raise InvalidRequest("none of the messages is the user's: the last one with role “user” is asked", field="messages")


def _text(content: str | list[dict[str, Any]] | None, field: str) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = [part.get("text") for part in content if part.get("type", "text") == "text"]
    if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(
            "only parts of type “text”, each with its text, are taken: files go into artifacts", field=field
        )
    return "".join(map(str, texts))


def run_request(asked: ChatRequest, style: Style, runner: str) -> RunRequest:
    """The run that is asked for, unchecked beyond its types: it never gets a second attempt.

    Raises ``InvalidRequest``, naming the field as it is called here.
    """
    toolsets = asked.toolsets
    if isinstance(toolsets, str):
        toolsets = [name.strip() for name in toolsets.split(",") if name.strip()]
    fields = {
        "runner": runner,
        "input": {
            "message": asked.message,
            "model": asked.model or None,
            "provider": asked.provider or None,
            "toolsets": toolsets,
            "artifacts": asked.artifacts,
        },
        "session_id": asked.session_id or None,
        "metadata": {**_texts(asked.metadata or {}), STYLE_KEY: style.value},
        "on_worker_lost": "fail",
    }
    with named_as_here():
        try:
            return msgspec.convert(fields, RunRequest)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `$")
            raise InvalidRequest(reason, field=path.strip(".`") or None) from error


def _texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """A run's metadata is text."""
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in metadata.items()
        if value is not None
    }


@contextmanager
def named_as_here() -> Iterator[None]:
    """Where a run is refused for its ``input.message``, the chat is for its ``message``."""
    try:
        yield
    except BadRequest as error:
        error.field = error.field and error.field.removeprefix("input.")
        raise
