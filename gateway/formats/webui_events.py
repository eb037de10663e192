"""What an item is called in the WebUI's chats, and what it carries there. Pure: an item and its chat, nothing else, so
that a replay, on whatever gateway, gives what was live.

Counts are tokens, costs US dollars, durations and times seconds. Every payload has ``session_id``: the id that the
client opened the chat with, whatever session Hermes itself is in by now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from broker.items import (
    Cancelled,
    Cost,
    Event,
    Failed,
    Message,
    MessageDelta,
    Raw,
    ReasoningDelta,
    StreamItem,
    Summary,
    ToolCompleted,
    ToolFailed,
    ToolStarted,
    Usage,
)
from broker.transcript import plain_message

__all__ = ["Chat", "Named", "cancelled", "failed", "named", "recovery", "spent"]

PREVIEW_MAX = 4_000
"""Characters of a tool's result: enough to look at. The whole of it is in the run's items."""

_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")

_ERROR_TYPES = {
    "empty_reply": "no_response",
    "provider_auth": "auth_mismatch",
    "provider_rate_limit": "rate_limit",
    "turn_limit": "tool_limit_reached",
    "worker_lost": "interrupted",
    "worker_stopped": "interrupted",
    "interrupted": "interrupted",
}
_HINTS = {
    "no_response": "Check the model and the provider's key, then send the message again.",
    "auth_mismatch": "Check the provider's key, or choose another model.",
    "rate_limit": "Wait a moment, then send the message again.",
    "tool_limit_reached": "Send “continue” to go on from here.",
    "interrupted": "What had come until then is kept. Send the message again to go on.",
}
_OTHERWISE = "Send the message again, or choose another model."

_OWN_NAMES = frozenset(
    {
        "bg_task_complete",
        "compressing",
        "context_status",
        "goal",
        "goal_continue",
        "pending_steer_leftover",
        "state_saved",
        "title",
        "title_status",
        "todo_state",
    }
)
"""Events that are called the same here and there."""


@dataclass(frozen=True, slots=True)
class Chat:
    """What the payloads of one run's events have in common."""

    run_id: str = ""
    session_id: str = ""
    before: Mapping[str, float] = field(default_factory=dict)
    """What the session's earlier turns used, in the fields of ``spent``: clients take counts for the session's."""


class Named(NamedTuple):
    event: str
    payload: dict[str, Any]


def named(item: StreamItem | Raw, chat: Chat) -> Named | None:
    """The event for an item that is no fence; ``None``: it has no name in the WebUI."""
    mapping = _BY_CLASS.get(type(item))
    return None if mapping is None else mapping(item, chat)


def spent(usage: Mapping[str, Any] | None, cost: Mapping[str, Any] | None, chat: Chat) -> dict[str, Any]:
    """Counts and cost of the session so far. What the run does not tell is left out, so that it wipes nothing."""
    counts = {name: n + chat.before.get(name, 0) for name in _COUNTS if isinstance(n := (usage or {}).get(name), int)}
    dollars = _dollars((cost or {}).get("total"))
    if dollars is None:
        return counts
    return {**counts, "estimated_cost": round(dollars + chat.before.get("estimated_cost", 0.0), 9)}


def metering(chat: Chat, usage: dict[str, Any]) -> Named:
    """Tokens a second are not measured: ``tps`` is null, and ``tps_available`` says so."""
    fields = {"session_id": chat.session_id, "usage": usage, "tps": None, "tps_available": False, "estimated": False}
    return Named("metering", fields)


def failed(fence: Failed, chat: Chat) -> Named:
    type_ = _ERROR_TYPES.get(fence.code, "error")
    fields = {"type": type_, "code": fence.code, "message": fence.message, "hint": _HINTS.get(type_, _OTHERWISE)}
    return Named("apperror", {**fields, "retryable": fence.retryable, **_whose(chat)})


def cancelled(fence: Cancelled, chat: Chat) -> Named:
    fields = {"type": "cancelled", "status": "cancelled", "code": fence.code, "message": fence.message}
    return Named("cancel", {**fields, **_whose(chat)})


def recovery(chat: Chat, message: str) -> Named:
    """Not an item: what the client has is not to be gone on from. It is to look at the session instead."""
    hint = "The conversation is loaded again."
    fields = {"type": "interrupted", "recovery_control": True, "message": message, "hint": hint}
    return Named("apperror", {**fields, **_whose(chat)})


def _whose(chat: Chat) -> dict[str, Any]:
    return {"session_id": chat.session_id, "stream_id": chat.run_id}


def _token(item: MessageDelta, chat: Chat) -> Named | None:
    # Only the first of several answers is the chat's: texts are joined blindly there.
    return Named("token", {"text": item.text}) if not item.choice else None


def _reasoning(item: ReasoningDelta, chat: Chat) -> Named | None:
    return Named("reasoning", {"text": item.text}) if item.text and not item.choice else None


def _interim(item: Message, chat: Chat) -> Named | None:
    blocks = item.message.get("content")
    calls = isinstance(blocks, list) and any(isinstance(b, dict) and b.get("type") == "tool_call" for b in blocks)
    if item.choice or not (calls or item.interim):
        return None
    return Named("interim_assistant", {"text": plain_message(item.message)["content"], "already_streamed": True})


def _tool(item: ToolStarted, chat: Chat) -> Named:
    preview = item.preview if isinstance(item.preview, str) else ""
    fields = {"event_type": "tool.started", "name": item.name, "preview": preview, "args": _object(item.args)}
    return Named("tool", {**fields, "tid": item.call_id, "session_id": chat.session_id})


def _tool_complete(item: ToolCompleted | ToolFailed, chat: Chat) -> Named:
    is_error = isinstance(item, ToolFailed)
    said = item.error if isinstance(item, ToolFailed) else item.result
    fields = {"event_type": "tool.completed", "name": item.name, "preview": _preview(said), "args": _object(item.args)}
    duration = None if item.duration_ms is None else round(item.duration_ms / 1000, 3)
    whose = {"tid": item.call_id, "session_id": chat.session_id}
    return Named("tool_complete", {**fields, **whose, "is_error": is_error, "duration": duration})


def _usage(item: Usage, chat: Chat) -> Named:
    return metering(chat, spent(item.total or {name: getattr(item, name) for name in _COUNTS}, None, chat))


def _cost(item: Cost, chat: Chat) -> Named:
    return metering(chat, spent(None, {"total": item.total}, chat))


def _summary(item: Summary, chat: Chat) -> Named:
    # The conversation goes on under the id that the client has: what Hermes calls it since is no business of his.
    return Named("compressed", {"session_id": chat.session_id, "new_session_id": chat.session_id})


def _event(item: Event, chat: Chat) -> Named | None:
    mapping = _EVENTS.get(item.name)
    if mapping is not None:
        return mapping(item.payload, chat)
    if item.name in _OWN_NAMES:
        return Named(item.name, {**item.payload, "session_id": chat.session_id})
    return None


def _approval(asked: Mapping[str, Any], chat: Chat) -> Named:
    fields = {"description": "", "command": "", **asked, "approval_id": asked.get("request_id"), "pending_count": 1}
    return Named("approval", {**fields, "run_id": chat.run_id, "session_id": chat.session_id})


def _clarify(asked: Mapping[str, Any], chat: Chat) -> Named:
    fields = {
        "question": "",
        **asked,
        "choices_offered": asked.get("choices", []),
        "clarify_id": asked.get("request_id"),
    }
    times = {"timeout_seconds": asked.get("timeout_s"), "expires_at": asked.get("expires_at")}
    return Named("clarify", {**fields, **times, "run_id": chat.run_id, "session_id": chat.session_id})


def _warning(said: Mapping[str, Any], chat: Chat, type_: str = "") -> Named:
    type_ = type_ or str(said.get("code") or "warning")
    message = str(said.get("message") or said.get("reason") or type_)
    return Named("warning", {**said, "type": type_, "message": message, "session_id": chat.session_id})


def _todos(said: Mapping[str, Any], chat: Chat) -> Named:
    todos = said.get("todos", said.get("items"))
    return Named(
        "todo_state", {**said, "todos": todos if isinstance(todos, list) else [], "session_id": chat.session_id}
    )


_EVENTS: dict[str, Callable[[Mapping[str, Any], Chat], Named]] = {
    "approval.requested": _approval,
    "question.asked": _clarify,
    "warning": _warning,
    "retry": lambda said, chat: _warning(said, chat, "retry"),
    "fallback": lambda said, chat: _warning(said, chat, "fallback"),
    "limit": lambda said, chat: _warning(said, chat, "limit"),
    "run.restarted": lambda said, chat: _warning(
        {**said, "message": "The run begins again from the start: what it had said before does not count."},
        chat,
        "restarted",
    ),
    "todo": _todos,
}
_BY_CLASS: dict[type, Callable[[Any, Chat], Named | None]] = {
    MessageDelta: _token,
    ReasoningDelta: _reasoning,
    Message: _interim,
    ToolStarted: _tool,
    ToolCompleted: _tool_complete,
    ToolFailed: _tool_complete,
    Usage: _usage,
    Cost: _cost,
    Summary: _summary,
    Event: _event,
}


def _object(args: Any) -> dict[str, Any]:
    """A client reads its fields by name. What is no object stands under a name of its own."""
    if isinstance(args, dict):
        return args
    return {} if args is None or args is UNSET or args == "" else {"input": args}


def _preview(said: Any) -> str:
    text = said if isinstance(said, str) else "" if said is None else msgspec.json.encode(said).decode()
    return text if len(text) <= PREVIEW_MAX else text[:PREVIEW_MAX] + "…"


def _dollars(total: Any) -> float | None:
    try:
        return None if total is None else float(total)
    except (TypeError, ValueError):
        return None
