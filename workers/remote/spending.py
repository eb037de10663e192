"""What a runner service says of tokens and money, each time of the whole run → ``usage`` and ``cost`` items. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from broker.items import Cost, Item, Usage
from broker.merge import COUNTS
from workers.providers.usage import UsageCounter

__all__ = ["Spending"]

_NAMES = {
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
    "cache_read_tokens": ("cache_read_tokens", "cached_tokens"),
    "cache_write_tokens": ("cache_write_tokens",),
    "reasoning_tokens": ("reasoning_tokens",),
}
_MONEY = ("estimated_cost_usd", "estimated_cost", "cost_usd", "cost")


class Spending:
    def __init__(self) -> None:
        self._counter = UsageCounter()
        self._cost = Decimal(0)
        self._told = Decimal(0)
        self._last: Mapping[str, Any] = {}

    def recall(self, item: object) -> None:
        """An item of an earlier attempt."""
        if isinstance(item, Usage):
            self._counter.counts.update({name: item.total.get(name) for name in COUNTS})
        elif isinstance(item, Cost):
            self._told = Decimal(item.total)

    @property
    def spent(self) -> str:
        return f"{self._cost:f}"

    def recall_cost(self, spent: str) -> None:
        self._cost = _money({"cost": spent}, Decimal(0))

    def note(self, payload: Mapping[str, Any]) -> None:
        """Counts that come with something else: they are told by ``closing``."""
        usage = payload.get("usage")
        self._last = usage if isinstance(usage, Mapping) else payload
        self._cost = _money(self._last, self._cost)

    def counted(self, payload: Mapping[str, Any]) -> Item | None:
        """The item for a report; ``None`` where it has no other counts than the one before."""
        self.note(payload)
        return next((item for item in self._counter.set(**_counts(self._last)) if isinstance(item, Usage)), None)

    def closing(self) -> list[Item]:
        """The counts and the cost that no item has told yet."""
        items: list[Item] = [item for item in self._counter.set(**_counts(self._last)) if isinstance(item, Usage)]
        if self._cost != self._told:
            amount, self._told = self._cost - self._told, self._cost
            items.append(Cost(amount=f"{amount:f}", total=f"{self._cost:f}", estimated=True))
        return items


def _counts(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {name: next((usage[key] for key in keys if key in usage), None) for name, keys in _NAMES.items()}


def _money(usage: Mapping[str, Any], otherwise: Decimal) -> Decimal:
    """Dollars, a number or its text. What is none of them changes nothing."""
    for name in _MONEY:
        value = usage.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            continue
        try:
            amount = Decimal(str(value))
        except ArithmeticError:
            continue
        if amount.is_finite() and amount >= 0:
            return amount
    return otherwise
