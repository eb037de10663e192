"""Token counts of one response: what a provider reports, in whatever way → ``usage`` items with deltas and totals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.items import Cache, Item, Usage
from broker.merge import COUNTS

__all__ = ["UsageCounter"]


class UsageCounter:
    """Counts in our meaning (``input_tokens`` with the cached ones, ``output_tokens`` with the reasoning).

    Each field counts for itself: what a report leaves out, or has as null, stays as it was. A cumulative count that
    shrinks makes a negative delta, so the deltas always sum up to the last total.
    ``before`` holds the totals of the run's earlier rounds, which the items' ``total`` includes.
    """

    def __init__(self, before: Mapping[str, int | None] | None = None) -> None:
        self.before: Mapping[str, int | None] = before or {}
        self.counts: dict[str, int | None] = dict.fromkeys(COUNTS)
        """What this response has used so far; None: never reported."""
        self._cache_told = False

    def set(
        self,
        *,
        input_tokens: Any = None,
        output_tokens: Any = None,
        cache_read_tokens: Any = None,
        cache_write_tokens: Any = None,
        reasoning_tokens: Any = None,
    ) -> list[Item]:
        """Counts since the response began. Nothing is emitted where nothing changed."""
        values = (input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens)
        counts, deltas = self.counts, {}
        for name, value in zip(COUNTS, values, strict=True):
            if value is not None and (count := _count(value)) is not None and count != counts[name]:
                deltas[name] = count - (counts[name] or 0)
        return self._emit(deltas)

    def add(
        self,
        *,
        input_tokens: Any = None,
        output_tokens: Any = None,
        cache_read_tokens: Any = None,
        cache_write_tokens: Any = None,
        reasoning_tokens: Any = None,
    ) -> list[Item]:
        """Counts since the last report."""
        values = (input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens)
        told = {n: count for n, v in zip(COUNTS, values, strict=True) if (count := _count(v)) is not None}
        return self._emit({n: count for n, count in told.items() if count or self.counts[n] is None})

    def _emit(self, deltas: dict[str, int]) -> list[Item]:
        if not deltas:
            return []
        for name, delta in deltas.items():
            self.counts[name] = (self.counts[name] or 0) + delta
        known: dict[str, Any] = {n: deltas.get(n, 0) for n in COUNTS if self.counts[n] is not None}
        total = {n: self._total(n) for n in COUNTS} if self.before else dict(self.counts)
        items: list[Item] = [Usage(**known, total=total)]
        cached = self.counts["cache_read_tokens"]
        if cached and not self._cache_told:
            self._cache_told = True
            items.append(Cache(status="hit", tokens=cached))
        return items

    def _total(self, name: str) -> int | None:
        count, before = self.counts[name], self.before.get(name)
        return before if count is None else count + (before or 0)


def _count(value: Any) -> int | None:
    """A count as a provider may write it; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < 2**53 and value == int(value) else None
