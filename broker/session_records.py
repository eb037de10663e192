"""A session's record: the hash that session.lua keeps, as a value, and what a run's record says to it. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec

from broker.errors import StoreError
from broker.hermes_ids import looks_like_hermes
from broker.records import RunRecord
from broker.transcript import messages_of, title_of

__all__ = [
    "ActiveRun",
    "Session",
    "Spent",
    "asked",
    "beginning",
    "ending",
    "fields",
    "parse_session",
    "spent_by",
    "without",
]

_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
_NANO = Decimal(1_000_000_000)


class ActiveRun(msgspec.Struct, kw_only=True, frozen=True):
    """The run of a session that is open: the oldest of them. ``message`` is what was asked."""

    run_id: str
    status: str
    message: str
    created: float


class Spent(NamedTuple):
    """Counts of tokens, and the cost in US dollars."""

    usage: dict[str, int]
    cost: Decimal


class Session(msgspec.Struct, kw_only=True, frozen=True):
    """A session as it stood when it was read. Times are in seconds, by the store's clock.

    ``message_count``: of its ended runs. ``usage``: counts of all ended runs together; ``cost`` likewise, US dollars.
    ``hermes_session_id``: the newest that a run of it named; the next run resumes there.
    """

    session_id: str
    title: str
    created: float
    updated: float
    message_count: int
    model: str | None = None
    provider: str | None = None
    hermes_session_id: str | None = None
    usage: dict[str, int] = {}
    cost: Decimal = Decimal(0)
    active: ActiveRun | None = None


def spent_by(known: Mapping[bytes, bytes]) -> Spent:
    """What the ended runs of a session used, all together, from the fields of its hash."""
    return Spent({name: int(known.get(name.encode(), 0)) for name in _COUNTS}, int(known.get(b"cost_nano", 0)) / _NANO)


def without(spent: Spent, record: RunRecord) -> Spent:
    """The same but for one of those runs."""
    flat = _counts_of(record)
    mine = dict(zip(flat[::2], flat[1::2], strict=True))
    usage = {name: max(count - mine.get(name, 0), 0) for name, count in spent.usage.items()}
    return Spent(usage, max(spent.cost - mine.get("cost_nano", 0) / _NANO, Decimal(0)))


def parse_session(session_id: str, known: Mapping[bytes, bytes], active: ActiveRun | None = None) -> Session:
    """The hash's fields → the session. Raises ``StoreError`` where somebody else wrote into it."""

    def text(name: bytes) -> str | None:
        return known[name].decode("utf-8", "replace") if known.get(name) else None

    try:
        spent = spent_by(known)
        return Session(
            session_id=session_id,
            title=text(b"title") or "",
            created=float(known[b"created"]),
            updated=float(known[b"updated"]),
            message_count=max(int(known[b"message_count"]), 0),
            model=text(b"model"),
            provider=text(b"provider"),
            hermes_session_id=text(b"hermes_session_id"),
            usage=spent.usage,
            cost=spent.cost,
            active=active,
        )
    except (KeyError, ValueError) as error:
        raise StoreError(f"the record of session {session_id!r} is broken: {type(error).__name__}: {error}") from error


def fields(**given: object) -> list[Any]:
    """FIELDS of session.lua: what has a value."""
    return [part for name, value in given.items() if value for part in (name, str(value))]


def asked(request: Mapping[str, Any]) -> str:
    """What a run's request asks."""
    return str((request.get("input") or {}).get("message") or "")


def beginning(record: RunRecord) -> list[Any]:
    """The arguments of ``begin``."""
    return [repr(record.created), *_described(record, None)]


def ending(record: RunRecord) -> list[Any]:
    """The arguments of ``end``."""
    item: dict[str, Any] = (record.outcome or {}).get("item") or {}
    counts = _counts_of(record)
    ended = record.created if record.ended is None else record.ended
    lingers = "lingers" if record.lingers else ""
    known = [repr(record.created), repr(ended), len(messages_of(record)), _hermes_of(record, item), lingers]
    return [*known, len(counts) // 2, *counts, *_described(record, item.get("message"))]


def _hermes_of(record: RunRecord, item: Mapping[str, Any]) -> str:
    """The session of Hermes that the run named. Where Hermes no longer knows the one that the session had, the next run
    is to begin a new one instead of failing like this one. Not where the session is that very one: it was asked for."""
    named = str(item.get("hermes_session_id") or "")
    if item.get("code") != "hermes_session_not_found":
        return named
    own = "hermes_session_id" not in record.metadata and not looks_like_hermes(str(record.session_id))
    return "-" if own else ""


def _described(record: RunRecord, message: object) -> list[Any]:
    request = record.request.get("input") or {}
    answered = message.get("model") if isinstance(message, Mapping) else None
    title, model = title_of(request.get("message")), answered or request.get("model")
    return fields(title=title, model=model, provider=request.get("provider"))


def _counts_of(record: RunRecord) -> Sequence[Any]:
    item: dict[str, Any] = (record.outcome or {}).get("item") or {}
    return _counts(item.get("usage") or record.usage, item.get("cost") or record.cost)


def _counts(usage: object, cost: object) -> Sequence[Any]:
    """Names and whole numbers: what a run adds to its session's. What is not known adds nothing."""
    found: list[Any] = []
    for name in _COUNTS:
        value = usage.get(name) if isinstance(usage, Mapping) else None
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 53:
            found += [name, value]
    nano = _nano(cost) if isinstance(cost, Mapping) and cost.get("currency", "USD") == "USD" else 0
    return [*found, "cost_nano", nano] if nano else found


def _nano(cost: Mapping[str, Any]) -> int:
    try:
        total = Decimal(str(cost.get("total", cost.get("amount"))))
    except InvalidOperation:
        return 0
    return int(total * _NANO) if total.is_finite() and 0 < total < 1_000_000 else 0
