"""The fences that the store itself writes: of lost workers, and of runs cancelled before anybody ran them.

The scripts stamp them with the store's time, so they are made here without ``ts``.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from broker.errors import InvalidItem
from broker.items import Cancelled, Failed, decode, encode
from broker.log import RunLog
from broker.merge import Merger
from broker.records import RunRecord

__all__ = ["cancelled_fence", "lost_fence", "partial_of"]

_STAMPED = b'{"ts":1.0,'


def lost_fence(record: RunRecord, partial: dict[str, Any] | None, limit: int) -> bytes:
    """``failed {code: worker_lost}`` in at most ``limit`` bytes with its type and time."""
    message = "the worker that ran this was not heard of any more; what it had published is kept"
    fence = Failed(
        code="worker_lost", message=message, retryable=True, partial=partial, usage=record.usage, cost=record.cost
    )
    return _untimed(fence, limit)


def cancelled_fence(record: RunRecord, partial: dict[str, Any] | None, limit: int) -> bytes:
    """``cancelled`` in at most ``limit`` bytes with its type and time."""
    return _untimed(Cancelled(partial=partial, usage=record.usage, cost=record.cost), limit)


def _untimed(fence: Failed | Cancelled, limit: int) -> bytes:
    data = _encode(fence)
    if len(data) + 64 <= limit or fence.partial is None:
        return data
    # The log has the items of a partial message that no item can hold; the fence says that it was left out.
    without = _encode(replace(fence, partial=None))
    return _encode(replace(fence, partial=None, truncated_bytes=len(data) - len(without)))


def _encode(fence: Failed | Cancelled) -> bytes:
    data = encode(fence, ts=1.0).data
    assert data.startswith(_STAMPED)
    return b"{" + data[len(_STAMPED) :]


async def partial_of(log: RunLog, record: RunRecord, *, page_bytes: int, page_items: int) -> dict[str, Any] | None:
    """The merged message as far as the run had come, from what its log keeps. Reads about ``page_bytes`` at a time."""
    kept = record.last - record.first + 1
    if kept <= 0:
        return None
    page = max(1, min(page_items, page_bytes * kept // max(record.bytes, 1)))
    merger, after = Merger(), record.first - 1
    while after < record.last:
        entries = await log.read(record.run_id, after, limit=page, until=record.last)
        if not entries:
            break
        for entry in entries:
            try:
                merger.add(decode(entry.type, entry.data))
            except InvalidItem:
                continue  # of a newer worker: what this version cannot read it cannot merge
        after = entries[-1].seq
    return merger.partial()
