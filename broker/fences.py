"""The fences that the store itself writes: of lost workers, and of runs cancelled before anybody ran them.

The scripts stamp them with the store's time, so they are made here without ``ts``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from broker.errors import InvalidItem
from broker.items import Cancelled, Event, Failed, Raw, StreamItem, decode, encode
from broker.log import RunLog
from broker.merge import Merger
from broker.records import RunRecord
from broker.steps import Steps

__all__ = ["NOTHING", "Seen", "cancelled_fence", "lost_fence", "seen_of"]

_STAMPED = b'{"ts":1.0,'


class Seen(NamedTuple):
    """What the log of a run says that has no fence: the merged message so far, what came before it (``broker.steps``),
    and the newest session of Hermes that it named."""

    partial: dict[str, Any] | None = None
    steps: Sequence[dict[str, Any]] = ()
    hermes_session_id: str | None = None


NOTHING = Seen()


def lost_fence(record: RunRecord, seen: Seen, limit: int) -> bytes:
    """``failed {code: worker_lost}`` in at most ``limit`` bytes with its type and time."""
    message = "the worker that ran this was not heard of any more; what it had published is kept"
    fence = Failed(code="worker_lost", message=message, retryable=True)
    return _untimed(_filled(fence, record, seen), limit)


def cancelled_fence(record: RunRecord, seen: Seen, limit: int) -> bytes:
    """``cancelled`` in at most ``limit`` bytes with its type and time."""
    return _untimed(_filled(Cancelled(), record, seen), limit)


def _filled(fence: Failed | Cancelled, record: RunRecord, seen: Seen) -> Failed | Cancelled:
    spent = {"usage": record.usage, "cost": record.cost}
    return replace(
        fence,
        partial=seen.partial,
        steps=list(seen.steps) or UNSET,
        hermes_session_id=seen.hermes_session_id,
        **spent,
    )


def _untimed(fence: Failed | Cancelled, limit: int) -> bytes:
    """What does not fit is left out: the steps, then the partial message. The log has the items of both."""
    data = _encode(fence)
    if len(data) + 64 > limit and fence.steps is not UNSET:
        fence = replace(fence, steps=UNSET)
        data = _encode(fence)
    if len(data) + 64 <= limit or fence.partial is None:
        return data
    without = _encode(replace(fence, partial=None))
    return _encode(replace(fence, partial=None, truncated_bytes=len(data) - len(without)))


def _encode(fence: Failed | Cancelled) -> bytes:
    data = encode(fence, ts=1.0).data
    assert data.startswith(_STAMPED)
    return b"{" + data[len(_STAMPED) :]


async def seen_of(log: RunLog, record: RunRecord, *, page_bytes: int, page_items: int) -> Seen:
    """How far the run had come, from what its log keeps. Reads about ``page_bytes`` at a time."""
    kept = record.last - record.first + 1
    if kept <= 0:
        return NOTHING
    page = max(1, min(page_items, page_bytes * kept // max(record.bytes, 1)))
    merger, after = Merger(), record.first - 1
    steps, hermes = Steps(merger), None
    while after < record.last:
        entries = await log.read(record.run_id, after, limit=page, until=record.last)
        if not entries:
            break
        for entry in entries:
            try:
                item = decode(entry.type, entry.data)
            except InvalidItem:
                continue  # of a newer worker: what this version cannot read it cannot merge
            merger.add(item)
            steps.add(item, 0.0)
            hermes = _hermes_of(item) or hermes
        after = entries[-1].seq
    return Seen(merger.partial(), steps.told(), hermes)


def _hermes_of(item: StreamItem | Raw) -> str | None:
    if not isinstance(item, Event) or item.name != "hermes.session":
        return None
    named = item.payload.get("hermes_session_id")
    return named if isinstance(named, str) and named else None
