"""Pages of a run's items: bounded in items, in bytes, and in what is scanned for a filtered page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.items import Entry, Mode, modes_of
from broker.runs import RunRecord

__all__ = ["ItemsAsked", "Page", "read_page"]

_FIRST_READ = 32
_SCAN_MAX = 10_000


class Reads(Protocol):
    """What a page needs of ``RunLog``."""

    async def read(self, run_id: str, after: int, *, limit: int, until: int | None = None) -> list[Entry]: ...
    async def read_back(self, run_id: str, before: int | None, *, limit: int) -> list[Entry]: ...


@dataclass(frozen=True, slots=True)
class ItemsAsked:
    """Items with ``after`` < seq < ``before``, from the one end or the other."""

    after: int
    before: int | None
    descending: bool
    limit: int
    modes: Mode


@dataclass(slots=True)
class Page:
    """``following``: the seq to go on from; None where nothing can follow, which is what ``complete`` says."""

    entries: list[Entry] = field(default_factory=list)
    following: int | None = None
    complete: bool = False


async def read_page(log: Reads, record: RunRecord, first: int, asked: ItemsAsked, *, budget: int) -> Page:
    """Reads at most ``limit`` visible items and little more than ``budget`` bytes.

    Items may be of any size, so the first read is short and each next one as long as what was seen so far allows.
    Raises ``RunNotFound``, ``StoreUnavailable``.
    """
    page = Page()
    top = record.last + 1 if asked.before is None else min(asked.before, record.last + 1)
    bottom = max(asked.after, first - 1)
    at = top if asked.descending else bottom
    scanned = weight = 0
    while len(page.entries) < asked.limit and weight < budget and scanned < _SCAN_MAX:
        room = top - 1 - at if not asked.descending else at - 1 - bottom
        count = min(room, _next_read(scanned, weight, budget))
        if asked.modes & Mode.EVENTS:
            count = min(count, asked.limit - len(page.entries))
        if count <= 0:
            break
        entries = await _read(log, record.run_id, at, count, descending=asked.descending, top=top, bottom=bottom)
        if not entries:  # retention took them meanwhile
            at = bottom + 1 if asked.descending else top - 1
            break
        taken = _take(entries, asked.modes, asked.limit - len(page.entries))
        page.entries += [entry for entry in taken if asked.modes & modes_of(entry.type)]
        at = taken[-1].seq
        scanned += len(taken)
        weight += sum(len(entry.data) for entry in taken)
    return _close(page, record, asked, at=at, top=top, bottom=bottom)


def _next_read(scanned: int, weight: int, budget: int) -> int:
    if not scanned:
        return _FIRST_READ
    return max(1, min(scanned * 2, (budget - weight) * scanned // max(weight, 1)))


async def _read(
    log: Reads, run_id: str, at: int, count: int, *, descending: bool, top: int, bottom: int
) -> list[Entry]:
    if descending:
        return [entry for entry in await log.read_back(run_id, at, limit=count) if entry.seq > bottom]
    return await log.read(run_id, at, limit=count, until=top - 1)


def _take(entries: Sequence[Entry], modes: Mode, room: int) -> Sequence[Entry]:
    """Entries up to the one that fills the page."""
    for number, entry in enumerate(entries, 1):
        room -= bool(modes & modes_of(entry.type))
        if not room:
            return entries[:number]
    return entries


def _close(page: Page, record: RunRecord, asked: ItemsAsked, *, at: int, top: int, bottom: int) -> Page:
    if asked.descending:
        page.complete = at - 1 <= bottom
    else:
        # More may come behind the end of a run that goes on, unless the caller's own bound lies before it.
        page.complete = at + 1 >= top and (
            record.ended_ or (asked.before is not None and asked.before <= record.last + 1)
        )
    page.following = None if page.complete else at
    return page
