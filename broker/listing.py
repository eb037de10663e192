"""Listing runs, newest first, page by page, over all partitions.

Each partition has its runs sorted by creation. A page merges them; where it ended is what its token says, so pages
neither skip nor repeat a run, whatever is created or expires meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import logging
import math
from collections.abc import Iterator
from typing import NamedTuple

from broker.errors import BadRequest, StoreError
from broker.ids import check_id
from broker.records import STATUSES, RunRecord, pairs, parse_record
from broker.redis import Store

__all__ = ["LIMIT_MAX", "Place", "list_runs"]

_log = logging.getLogger("runcast.runs")
LIMIT_MAX = 500
_SCAN_MAX = 10_000
"""Runs looked at for one page: a rare filter gets a short page and a token, not an endless request."""


class Place(NamedTuple):
    """Where a run stands in the order: by creation, then by id. Pages go down from here."""

    created: float
    run_id: bytes

    def token(self) -> str:
        raw = b"%b:%b" % (repr(self.created).encode(), self.run_id)
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    @classmethod
    def of_token(cls, token: str) -> Place:
        """Raises ``BadRequest`` for what is no token."""
        try:
            raw = base64.b64decode(token.encode("ascii") + b"=" * (-len(token) % 4), b"-_", validate=True)
            created, colon, run_id = raw.partition(b":")
            place = cls(float(created), run_id)
        except (UnicodeEncodeError, binascii.Error, ValueError):
            colon = b""
        if not colon or not math.isfinite(place.created):
            raise BadRequest("before is no page token: pass the value of next as it was answered", field="before")
        return place


_START = Place(math.inf, b"")


async def list_runs(
    store: Store, *, status: str | None, session_id: str | None, limit: int, before: str | None
) -> tuple[list[RunRecord], str | None]:
    """A page, and the token of the page that follows it; ``None`` where nothing does.

    Raises ``BadRequest`` (status, limit, before), ``InvalidId`` (session_id), ``StoreUnavailable``.
    """
    if status is not None and status not in STATUSES:
        raise BadRequest(f"unknown status {status[:64]!r}: it is one of {', '.join(STATUSES)}", field="status")
    if session_id is not None:
        check_id(session_id, "session_id")
    if not 1 <= limit <= LIMIT_MAX:
        raise BadRequest(f"limit is {limit}: 1 to {LIMIT_MAX} are allowed", field="limit")
    place = Place.of_token(before) if before is not None else _START
    found: list[RunRecord] = []
    scanned = 0
    while scanned < _SCAN_MAX:
        places = await _next_places(store, place, limit)
        scanned += len(places)
        matching = await _matching(store, places, status, session_id)
        for at, record in await _records(store, matching):
            found.append(record)
            if len(found) == limit:
                return found, at.token() if at != places[-1] or len(places) == limit else None
        if len(places) < limit:
            return found, None
        place = places[-1]
    return found, place.token()


async def _next_places(store: Store, place: Place, count: int) -> list[Place]:
    """The next ``count`` places below ``place``, of all partitions."""
    top = b"+inf" if math.isinf(place.created) else repr(place.created).encode()
    # Runs of the same microsecond as the last one of the page before come again, and are dropped here.
    chunk = count + 8
    commands = [
        (b"ZREVRANGEBYSCORE", store.keys.runs(p), top, b"-inf", b"WITHSCORES", b"LIMIT", 0, chunk)
        for p in range(store.keys.partitions)
    ]
    lists = [_places(flat, place) for flat in await store.pipeline(commands)]
    merged = heapq.merge(*lists, reverse=True)
    return [at for at, _ in zip(merged, range(count), strict=False)]


def _places(flat: list[bytes], below: Place) -> Iterator[Place]:
    for run_id, score in zip(flat[::2], flat[1::2], strict=True):
        place = Place(float(score), run_id)
        if place < below:
            yield place


async def _matching(store: Store, places: list[Place], status: str | None, session_id: str | None) -> list[Place]:
    if status is None and session_id is None:
        return places
    commands = [(b"HMGET", store.keys.run(at.run_id.decode()), b"status", b"session") for at in places]
    wanted = (status and status.encode(), session_id and session_id.encode())
    rows = await store.pipeline(commands)
    return [
        at
        for at, row in zip(places, rows, strict=True)
        if all(want is None or want == value for want, value in zip(wanted, row, strict=True))
    ]


async def _records(store: Store, places: list[Place]) -> list[tuple[Place, RunRecord]]:
    """The records of those that still have one. A broken one is left out and logged: it must not hide the others."""
    flats = await store.pipeline([(b"HGETALL", store.keys.run(at.run_id.decode())) for at in places])
    records = []
    for at, flat in zip(places, flats, strict=True):
        try:
            if flat:
                records.append((at, parse_record(at.run_id.decode(), pairs(flat))))
        except StoreError as error:
            _log.warning("left out of a list: %s", error)
    return records
