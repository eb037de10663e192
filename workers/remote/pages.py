"""What a runner service answers → events, each with an id of its own, and the cursor to go on from. Pure.

The shape: ``{"events": [{"event_id"?, "seq"?, "event" or "type", "payload" or "data", "terminal"?}, …], "cursor"?}``.
An event without ``payload`` and ``data`` is its own payload. Ids and cursors are opaque: nothing is read from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Page", "ServiceEvent", "Started", "Status", "read_page", "read_started", "read_status"]

_ID = re.compile(r"[!-~](?:[ -~]{0,254}[!-~])?")
"""What can travel as an SSE id and come back in a header; append.lua has the same rule."""
_RUN_ID_MAX = 200
_COMPLETED = frozenset({"completed", "complete", "done", "success", "succeeded"})
_FAILED = frozenset({"failed", "error", "expired"})
_CANCELLED = frozenset({"cancelled", "canceled"})


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """``id`` is what viewers get as the event's id. ``terminal``: the service says that nothing follows."""

    id: str
    name: str
    payload: Mapping[str, Any]
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """``cursor``: what to ask with next, ``None`` where the service has not given one yet."""

    events: tuple[ServiceEvent, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Started:
    """``cursor``: where the service wants to be asked from, passed on as it is."""

    run_id: str
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """``state``: ``running``, ``completed``, ``failed`` or ``cancelled``."""

    state: str
    message: str


def read_started(answer: Mapping[str, Any]) -> Started | None:
    """The answer to ``POST /v1/runs``; ``None`` where it names no run that could be asked for."""
    run_id = answer.get("run_id") or answer.get("stream_id")
    usable = isinstance(run_id, str) and len(run_id) <= _RUN_ID_MAX and _ID.fullmatch(run_id)
    return Started(str(run_id), _cursor(answer.get("cursor"))) if usable else None


def read_status(answer: Mapping[str, Any]) -> Status:
    """The answer to ``GET /v1/runs/{id}``. What is not known to be an end is none."""
    said = str(answer.get("terminal_state") or answer.get("status") or "").strip().lower()
    message = str(answer.get("message") or answer.get("error") or "")
    for state, words in (("completed", _COMPLETED), ("failed", _FAILED), ("cancelled", _CANCELLED)):
        if said in words:
            return Status(state, message)
    return Status("running", message)


def read_page(answer: Mapping[str, Any], run_id: str, cursor: str | None, count: int) -> Page:
    """The answer to a request for the events behind ``cursor``; ``count`` events of the run lie before it.

    An event's id is its ``event_id`` or ``id``; else ``run_id:seq``, with the service's run id and seq; else the same
    with its place in the run. The next cursor is the answer's ``cursor``; else the last event's seq, else its id; else
    it stays what it was.
    """
    listed = answer.get("events")
    entries = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    events = tuple(_event(entry, run_id, count + place) for place, entry in enumerate(entries, 1))
    following = _cursor(answer.get("cursor"))
    if following is None and events:
        following = _cursor(entries[-1].get("seq")) or events[-1].id
    return Page(events, following if following is not None else cursor)


def _event(entry: Mapping[str, Any], run_id: str, place: int) -> ServiceEvent:
    name = str(entry.get("event") or entry.get("type") or "message")
    payload = next((entry[key] for key in ("payload", "data") if key in entry), entry)
    if not isinstance(payload, Mapping):
        payload = {"data": payload}
    return ServiceEvent(_id(entry, run_id, place), name, payload, entry.get("terminal") is True)


def _id(entry: Mapping[str, Any], run_id: str, place: int) -> str:
    for given in (entry.get("event_id"), entry.get("id")):
        id_ = _cursor(given)
        if id_ is not None and _ID.fullmatch(id_):
            return id_
    seq = entry.get("seq")
    known = isinstance(seq, int) and not isinstance(seq, bool) and seq >= 0
    return f"{run_id}:{seq if known else place}"


def _cursor(value: Any) -> str | None:
    """Text, or a number as text. Anything else, and the empty text, is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None
