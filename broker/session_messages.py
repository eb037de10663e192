"""The messages of a session, page by page: those of its ended runs, one after the other, oldest first.

A message's place counts from 0. Pages are taken from the end, since that is what somebody who opens a conversation
sees first; a page is bounded in messages and, roughly, in bytes, and tells where it begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from broker.errors import StoreError
from broker.ids import check_id
from broker.records import RunRecord, pairs, parse_record
from broker.sessions import Sessions
from broker.transcript import messages_of

__all__ = ["PAGE_MAX", "MessagePage", "read_messages"]

PAGE_MAX = 500
_BYTES = 8 << 20
_RUNS_AT_ONCE = 16
_ROUNDS = 3


class MessagePage(NamedTuple):
    """``messages`` are those from place ``offset`` on, of ``total``."""

    messages: list[dict[str, Any]]
    offset: int
    total: int


class _Part(NamedTuple):
    """One run's share: its messages have the places ``offset`` to ``offset + size``."""

    run_id: str
    offset: int
    size: int


async def read_messages(
    sessions: Sessions, session_id: str, *, limit: int = PAGE_MAX, before: int | None = None, until: str = ""
) -> MessagePage:
    """The last messages whose place is below ``before`` (``None``: of all), ``limit`` of them at most.

    ``until``: only what came before that run. The first message of a page is there whatever its size. A run whose
    record is gone takes its messages with it. Raises ``StoreUnavailable``, ``InvalidId``.
    """
    check_id(session_id, "session_id")
    page = MessagePage([], 0, 0)
    for _ in range(_ROUNDS):
        parts, total = await _parts(sessions, session_id, until)
        top = total if before is None else max(0, min(before, total))
        page, gone = await _page(sessions, parts, total, top, min(max(limit, 0), PAGE_MAX))
        if not gone:
            break
        for run_id in gone:  # the places of all that follow change with it
            await sessions.forget(session_id, run_id)
    return page


async def _parts(sessions: Sessions, session_id: str, until: str) -> tuple[list[_Part], int]:
    keys = sessions.keys
    ids, flat = await sessions.store.pipeline(
        [(b"ZRANGE", keys.session_runs(session_id), 0, -1), (b"HGETALL", keys.session_messages(session_id))],
        atomic=True,
    )
    counts = pairs(flat)
    parts, total = [], 0
    for run_id in ids:
        if run_id.decode() == until:
            break
        if run_id in counts:
            parts.append(_Part(run_id.decode(), total, int(counts[run_id])))
            total += parts[-1].size
    return parts, total


async def _page(
    sessions: Sessions, parts: Sequence[_Part], total: int, top: int, limit: int
) -> tuple[MessagePage, list[str]]:
    """Backwards from ``top``, and the runs among those read whose record is gone."""
    wanted = [part for part in parts if part.offset < top and part.offset + part.size > top - limit]
    found: list[dict[str, Any]] = []
    gone: list[str] = []
    offset, weight = top, 0
    while wanted and not gone:
        some, wanted = wanted[-_RUNS_AT_ONCE:], wanted[:-_RUNS_AT_ONCE]
        records = await _records(sessions, [part.run_id for part in some])
        gone = [part.run_id for part, record in zip(some, records, strict=True) if record is None]
        for part, record in zip(reversed(some), reversed(records), strict=True):
            kept = _fitting(messages_of(record) if record else [], part.size)
            for at in range(min(part.size, top - part.offset) - 1, -1, -1):
                weight += len(msgspec.json.encode(kept[at]))
                if len(found) == limit or (found and weight > _BYTES):
                    return MessagePage(found[::-1], offset, total), gone
                found.append(kept[at])
                offset = part.offset + at
    return MessagePage(found[::-1], offset, total), gone


def _fitting(messages: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """As many as the session was told of, whatever this version makes of the run: places must not move."""
    return messages[:count] + [{"role": "assistant", "content": ""}] * (count - len(messages))


async def _records(sessions: Sessions, run_ids: Sequence[str]) -> list[RunRecord | None]:
    flats = await sessions.store.pipeline([(b"HGETALL", sessions.keys.run(run_id)) for run_id in run_ids])
    return [_parsed(run_id, flat) for run_id, flat in zip(run_ids, flats, strict=True)]


def _parsed(run_id: str, flat: Sequence[bytes]) -> RunRecord | None:
    try:
        return parse_record(run_id, pairs(flat)) if flat else None
    except StoreError:
        return None
