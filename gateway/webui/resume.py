"""Where a viewer of the WebUI's streams goes on: one decision for all of them, pure.

Three things are kept apart. *Presence*: did the client ask to resume at all; presence alone decides which part of the
request counts. *Validity*: does that part name a place in this log. *Provenance*: which part it was. A cursor that is
present and not valid is never a fresh start that skips something: it replays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

__all__ = ["Action", "Asked", "Log", "Position", "Resume", "Route", "Source", "resolve", "run_in"]

_INTEGER = re.compile(r"([+-]?)0*([0-9]+)\Z", re.ASCII)
_DIGITS_MAX = 40
"""More digits than any log has items: enough to be ahead, and no work for whoever sends ten thousand of them."""


class Route(Enum):
    CHAT = "/api/chat/stream"
    SESSION = "/api/sessions/{id}/events"


class Source(Enum):
    """Which part of the request counts."""

    NOTHING = "nothing"
    AFTER_EVENT_ID = "after_event_id"
    AFTER_SEQ = "after_seq"
    REPLAY = "replay"
    HEADER = "Last-Event-ID"
    CURSOR = "cursor"


class Action(Enum):
    FOLLOW = "follow"
    """Everything behind ``after``, then what comes."""
    RECOVER = "recover"
    """One recovery signal and the end: an honest answer would have to begin before what is kept."""
    SNAPSHOT = "snapshot"
    """One snapshot of the session, then what comes."""
    LIVE = "live"
    """What comes from now on."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says about its place, as it was sent. A part that is blank is not there."""

    after_event_id: str = ""
    after_seq: str = ""
    replay: str = ""
    cursor: str = ""
    header: str = ""

    def __post_init__(self) -> None:
        for name in ("after_event_id", "after_seq", "replay", "cursor", "header"):
            object.__setattr__(self, name, getattr(self, name).strip())

    @property
    def ids(self) -> list[str]:
        """The parts that may be ids of a runner service's own."""
        return list(dict.fromkeys(filter(None, (self.after_event_id, self.header, self.cursor))))


@dataclass(frozen=True, slots=True)
class Log:
    """A run's log: ``first`` kept seq (``last + 1`` where nothing is kept), ``last`` seq, and whether it has its fence.

    ``ids``: of a run that was relayed from a runner service, the seqs of those of ``Asked.ids`` that are items of it;
    ``None``: a run of our own, whose ids are all ``run:seq``.
    """

    run_id: str
    first: int
    last: int
    ended: bool
    ids: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """``requested``: presence. ``seq``: validity, the last item that the client has; ``None``: no valid cursor."""

    requested: bool
    seq: int | None
    source: Source


@dataclass(frozen=True, slots=True)
class Resume:
    """What to do, and ``position``: why."""

    action: Action
    after: int
    position: Position


def resolve(asked: Asked, log: Log | None, route: Route = Route.CHAT) -> Resume:
    """The decision. ``log``: of the run that is asked for (``CHAT``), or that the cursor names and that is one of the
    session (``SESSION``; ``None``: there is no such run).

    Which part counts on the chat stream, the first that is present:

    | part | a run of our own | a run relayed from a runner service |
    |---|---|---|
    | ``after_event_id`` | ``run:n`` → n; with nothing in front of a colon → a readable ``after_seq``; else no valid cursor | a readable ``after_seq`` (*) → that seq; an id of the service → its item; ``run:n`` → n; else no valid cursor |
    | ``after_seq`` | n; unreadable → 0 | the same |
    | ``replay`` | no valid cursor, whatever it says | the same |
    | ``Last-Event-ID`` | ``run:n`` → n; else no valid cursor | an id of the service → its item; ``run:n`` → n; else no valid cursor |
    | ``cursor`` | is not looked at | as ``Last-Event-ID`` |

    n below 0 is 0. (*) Where it is the very number at the end of an id of the service that came with it, a browser took
    it from there, and it counts the service's events: then the id's item.

    What follows, on the chat stream:

    | cursor | answer |
    |---|---|
    | none; not valid; ahead of the log | from the start |
    | the fence | the fence once more |
    | else | what follows it |
    | and that would begin before the first item that is kept | one recovery signal, nothing else |

    On a session's events the header counts, else ``after_event_id``:

    | cursor | answer |
    |---|---|
    | none | live |
    | ``run:n`` of a run of the session, 0 < n, not ahead, nothing missing behind it | what follows it, the fence included |
    | else | one snapshot, then live |
    """  # noqa: E501
    if route is Route.SESSION:
        return _session(asked, log)
    assert log is not None
    position = _position(asked, log)
    after = position.seq or 0
    if after > log.last:
        after = 0
    if log.ended and after == log.last and after > 0:
        after -= 1
    action = Action.FOLLOW if after + 1 >= log.first else Action.RECOVER
    return Resume(action, after, position)


def run_in(asked: Asked) -> str | None:
    """The run that the cursor of a session's viewer names; ``None``: there is no cursor, or it names none."""
    return (asked.header or asked.after_event_id).rpartition(":")[0] or None


def _session(asked: Asked, log: Log | None) -> Resume:
    raw = asked.header or asked.after_event_id
    source = Source.HEADER if asked.header else Source.AFTER_EVENT_ID
    if not raw:
        return Resume(Action.LIVE, 0, Position(False, None, Source.NOTHING))
    seq = _of_id(raw, log) if log is not None else None
    if log is None or seq is None or not 0 < seq <= log.last or seq + 1 < log.first:
        return Resume(Action.SNAPSHOT, 0, Position(True, None, source))
    return Resume(Action.FOLLOW, seq, Position(True, seq, source))


def _position(asked: Asked, log: Log) -> Position:
    if asked.after_event_id:
        return _explicit(asked, log)
    if asked.after_seq:
        return Position(True, max(_integer(asked.after_seq) or 0, 0), Source.AFTER_SEQ)
    if asked.replay:
        return Position(True, None, Source.REPLAY)
    if asked.header:
        return Position(True, _of_id(asked.header, log), Source.HEADER)
    if asked.cursor and log.ids is not None:
        return Position(True, _of_id(asked.cursor, log), Source.CURSOR)
    return Position(False, None, Source.NOTHING)


def _explicit(asked: Asked, log: Log) -> Position:
    """``after_event_id`` is there, and maybe ``after_seq`` with it."""
    raw, paired = asked.after_event_id, _integer(asked.after_seq)
    pairs = log.ids is not None or not raw.rpartition(":")[0]
    if paired is not None and pairs and not _counts_for(raw, paired, log):
        return Position(True, max(paired, 0), Source.AFTER_SEQ)
    return Position(True, _of_id(raw, log), Source.AFTER_EVENT_ID)


def _counts_for(raw: str, paired: int, log: Log) -> bool:
    """Whether the number is that of the service's id beside it, and no seq of ours."""
    return log.ids is not None and raw in log.ids and _integer(raw.rpartition(":")[2]) == paired


def _of_id(raw: str, log: Log) -> int | None:
    if log.ids is not None and raw in log.ids:
        return log.ids[raw]
    run, colon, tail = raw.rpartition(":")
    seq = _integer(tail) if colon and run == log.run_id else None
    return None if seq is None else max(seq, 0)


def _integer(text: str) -> int | None:
    match = _INTEGER.match(text.strip())
    if match is None:
        return None
    sign, digits = match.groups()
    value = int(digits) if len(digits) <= _DIGITS_MAX else 10**_DIGITS_MAX
    return -value if sign == "-" else value
