"""A session as the WebUI's front ends know it. Source of the form: docs/webui.md, “Sessions”. Pure.

What Runcast has no such thing as (projects, pins, profiles …) is there as what it is without: front ends read those
fields unasked.
"""

from __future__ import annotations

from typing import Any

import msgspec

from broker.session_messages import PAGE_MAX, MessagePage
from broker.sessions import Session

__all__ = ["UNTITLED", "compact", "frame", "status_of", "whole"]

UNTITLED = "Untitled"
_WITHOUT: dict[str, Any] = {
    "workspace": "",
    "pinned": False,
    "archived": False,
    "project_id": None,
    "profile": None,
    "personality": None,
    "is_cli_session": False,
    "read_only": False,
    "source_tag": None,
    "enabled_toolsets": None,
    "context_length": 0,
    "threshold_tokens": 0,
    "last_prompt_tokens": 0,
}


def compact(session: Session) -> dict[str, Any]:
    """All but the messages. A session whose first turn has not ended counts one message: what was asked."""
    active = session.active
    asked_at = active.created if active is not None else None
    return {
        **_WITHOUT,
        "session_id": session.session_id,
        "title": session.title or UNTITLED,
        "model": session.model,
        "model_provider": session.provider,
        "message_count": max(session.message_count, 1) if active is not None else session.message_count,
        "created_at": session.created,
        "updated_at": session.updated,
        "last_message_at": session.updated if asked_at is None else asked_at,
        **session.usage,
        "estimated_cost": float(session.cost),
        "active_stream_id": None if active is None else active.run_id,
        "is_streaming": active is not None,
        "pending_user_message": None if active is None else active.message,
        "has_pending_user_message": active is not None,
        "pending_started_at": asked_at,
        "pending_attachments": [],
        "hermes_session_id": session.hermes_session_id,
    }


def status_of(session: Session) -> dict[str, Any]:
    """In few words, whether a run is open, and which."""
    known = compact(session)
    same = ("session_id", "title", "model", "workspace", "personality", "created_at", "updated_at", "active_stream_id")
    counts = {name: known[name] for name in ("input_tokens", "output_tokens", "estimated_cost")}
    return {
        **{name: known[name] for name in same},
        "message_count": session.message_count,
        "agent_running": session.active is not None,
        "profile": "default",
        "hermes_home": "",
        **counts,
        "total_tokens": counts["input_tokens"] + counts["output_tokens"],
    }


def whole(session: Session, page: MessagePage) -> dict[str, Any]:
    """With a page of its messages: those of its ended turns. ``message_count`` is how many there are of those."""
    return {
        **compact(session),
        "message_count": page.total,
        "messages": page.messages,
        "tool_calls": [],
        "_messages_truncated": page.offset > 0,
        "_messages_offset": page.offset,
        "_msg_limit_max": PAGE_MAX,
    }


def frame(event: str, payload: dict[str, Any]) -> bytes:
    """An event without an id: news that no cursor can stand at."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(payload))
