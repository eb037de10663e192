"""How a chat's stream stands, as the WebUI's clients ask before they come back to it. Pure."""

from __future__ import annotations

from typing import Any

from broker.records import RunRecord

__all__ = ["stream_status", "unknown_status"]

_STATES = {"completed": "completed", "cancelled": "interrupted-by-user"}
_FAILURES = {"worker_lost": "lost-worker-bookkeeping", "turn_limit": "tool_limit_reached"}


def unknown_status(stream_id: str) -> dict[str, Any]:
    """Of a run that is not known, or not any more."""
    return {"active": False, "stream_id": stream_id, "replay_available": False, "journal": None}


def stream_status(record: RunRecord, first: int, last_id: str | None) -> dict[str, Any]:
    """``first``: the first kept seq; ``last_id``: the id that the last item has in the stream, ``None``: there is none.

    ``replay_available``: something is kept, so that whoever opens the stream gets items, or is told to recover.
    """
    journal = {
        "session_id": record.session_id or "",
        "run_id": record.run_id,
        "last_seq": record.last,
        "last_event_id": last_id,
        "terminal": record.is_ended,
        "terminal_state": _state(record),
    }
    kept = 0 < first <= record.last
    return {
        "active": not record.is_ended,
        "stream_id": record.run_id,
        "replay_available": kept,
        "journal": journal,
    }


def _state(record: RunRecord) -> str:
    if record.status in _STATES:
        return _STATES[record.status]
    if not record.is_ended:
        return "running"
    code = ((record.outcome or {}).get("item") or {}).get("code")
    return _FAILURES.get(str(code), "errored")
