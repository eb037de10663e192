"""Hermes' counters of a whole call, again and again → usage and cost items. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.items import Cache, Item, Usage
from workers.prices import CostMeter

__all__ = ["Counts"]

_PLAIN = {
    "output_tokens": "output",
    "cache_read_tokens": "cache_read",
    "cache_write_tokens": "cache_write",
    "reasoning_tokens": "reasoning",
}
"""Our name → the bridge's. Hermes' output includes reasoning, as ours does."""


class Counts:
    """``usage`` is what the call used so far, in our meaning; ``None``: nothing was counted."""

    def __init__(self) -> None:
        self.usage: dict[str, int | None] | None = None
        self._seen: Mapping[str, int | None] = {}
        self._meter = CostMeter()

    @property
    def priced(self) -> bool:
        """Hermes knew a price, if only that of nothing."""
        return self._meter.total is not None

    def add(self, record: Mapping[str, Any]) -> list[Item]:
        counts = _ours(record)
        delta = {name: _risen(self._seen.get(name), count) for name, count in counts.items()}
        self._seen = counts
        items: list[Item] = []
        if any(delta.values()):
            total = {name: _sum((self.usage or {}).get(name), more) for name, more in delta.items()}
            self.usage = total
            counted: dict[str, Any] = dict(delta)
            items.append(Usage(**counted, total=total))
        if hit := delta["cache_read_tokens"]:
            items.append(Cache(status="hit", tokens=hit))
        return items + self._cost(record)

    def _cost(self, record: Mapping[str, Any]) -> list[Item]:
        status, cost = record.get("cost_status"), record.get("cost")
        if status not in ("actual", "estimated", "included") or not isinstance(cost, (int, float)):
            return []  # Hermes counts 0 where it knows no price
        return self._meter.reported(cost, estimated=status == "estimated")


def _ours(record: Mapping[str, Any]) -> dict[str, int | None]:
    """``input`` leaves out what was read from and written to the cache; ``prompt``, where it is there, has all."""
    counts = {ours: _count(record.get(theirs)) for ours, theirs in _PLAIN.items()}
    whole = _count(record.get("prompt"))
    if whole is None and (fresh := _count(record.get("input"))) is not None:
        whole = fresh + (counts["cache_read_tokens"] or 0) + (counts["cache_write_tokens"] or 0)
    return {"input_tokens": whole, **counts}


def _risen(before: int | None, now: int | None) -> int | None:
    """A counter that fell was set back: all that it has is new."""
    if now is None:
        return None
    return now - before if before is not None and now >= before else now


def _sum(before: int | None, more: int | None) -> int | None:
    return before if more is None else (before or 0) + more


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
