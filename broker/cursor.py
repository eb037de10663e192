"""Cursors: ``run_id:seq``, where a viewer stands; and the resume decision as a table of cases.

Source of the rules: docs/protocol.md, “SSE, native format”. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

__all__ = ["Bounds", "Resume", "Start", "choose", "format_cursor", "parse", "resolve"]

_SEQ = re.compile(r"[0-9]{1,19}\Z", re.ASCII)
_START = frozenset({"-1", "0"})


class Start(Enum):
    """Where a viewer without a cursor begins."""

    START = "start"
    NOW = "now"


@dataclass(frozen=True, slots=True)
class Bounds:
    """A run's log: ``first`` kept seq (``last + 1`` where nothing is kept), ``last`` seq, and whether it is sealed."""

    first: int
    last: int
    ended: bool
    final_only: bool = False
    """The viewer wants the fence alone, so items that retention removed before it are no loss to it."""


@dataclass(frozen=True, slots=True)
class Resume:
    """What to do for a viewer: send what is named, in the order of the fields, then everything after ``after``."""

    after: int
    done: bool = False
    """The viewer holds the fence: answer 204."""
    reset: str | None = None
    """Send ``reset`` with this reason first: malformed, foreign or ahead."""
    gap: int | None = None
    """Send ``gap`` with this as ``requested``."""
    announce: bool = False
    """Send ``cursor`` with the present position (``from=now``)."""


def format_cursor(run_id: str, seq: int) -> str:
    return f"{run_id}:{seq}"


def choose(header: str | None, query: str | None) -> str | None:
    """The cursor that counts. The header first: EventSource reconnects to its old URL, query and all."""
    for value in (header, query):
        if value is not None and value.strip():
            return value.strip()
    return None


def parse(raw: str, run_id: str) -> int | str:
    """A cursor → the seq in it, or the reason why it is none: ``malformed`` or ``foreign``."""
    if raw in _START:
        return 0
    run, colon, tail = raw.rpartition(":")
    if not colon or not _SEQ.match(tail):
        return "malformed"
    if run != run_id:
        return "foreign" if ":" not in run else "malformed"
    return int(tail)


def resolve(raw: str | None, run_id: str, bounds: Bounds, start: Start = Start.START) -> Resume:
    """The resume decision.

    | cursor | answer |
    |---|---|
    | none, from=now | announce the position, then what comes |
    | none; ``-1``, ``0``, ``run:0`` | from the start |
    | malformed, foreign, ahead of the log | reset, then from the start |
    | the fence | 204 |
    | before what retention kept | gap, then what is kept |
    | else | what follows it |
    """
    if raw is None and start is Start.NOW:
        # An ended run has nothing to come but its fence, which everybody gets while it is kept.
        position = bounds.last - 1 if bounds.ended else bounds.last
        return Resume(after=max(position, bounds.first - 1, 0), announce=True)
    parsed: int | str = 0 if raw is None else parse(raw, run_id)
    if isinstance(parsed, int) and parsed > bounds.last:
        parsed = "ahead"
    reset = parsed if isinstance(parsed, str) else None
    after = parsed if isinstance(parsed, int) else 0
    if bounds.ended and after == bounds.last and after > 0:
        return Resume(after=after, done=True)
    needed = after + 1
    if needed < bounds.first and not (bounds.final_only and bounds.first <= bounds.last):
        return Resume(after=bounds.first - 1, reset=reset, gap=after)
    return Resume(after=max(after, bounds.first - 1), reset=reset)
