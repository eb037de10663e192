"""What a model call costs, from the price list that the package genai-prices brings along. Pure but for today's date.

Never the network: only the bundled list is read, and nothing is started that would update it. So a price is as old as
the installed package, and always an estimate: discounts, batches and tiers of service are not known here.

Counts have Runcast's meaning: ``input_tokens`` includes cache reads and writes, ``output_tokens`` includes reasoning,
``None`` is not known. One *call* of a model is priced at a time, since prices may rise with the size of one prompt.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Context, Decimal, InvalidOperation, localcontext

import genai_prices
from genai_prices.types import PriceCalculation

from broker.items import Cost, Event, Item

__all__ = ["CURRENCY", "CostMeter", "Price", "decimal_string", "price"]

CURRENCY = "USD"
"""All prices of the list are US dollars."""

_EXACT = Context(prec=80)
"""Enough for any price times any count: a total that was rounded would not be the sum of its amounts."""
_MODEL_MAX = 200
_COUNTS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "reasoning_tokens": "output_reasoning_tokens",
}
"""Our counts → the list's."""


@dataclass(frozen=True, slots=True)
class Price:
    """``amount`` is exact, finite and not negative."""

    amount: Decimal
    currency: str = CURRENCY
    estimated: bool = True


def price(
    model: str, provider: str | None, usage: Mapping[str, int | None], *, at: datetime | None = None
) -> Price | None:
    """What one call of ``model`` with these counts costs, or ``None``: not known.

    ``provider`` is who sells it: a name (``openai``, ``groq``, ``openrouter``), the base URL of its API, or ``None``:
    the vendor that the model's name points to. With a provider that the list does not have no price is known, whatever
    the model: a server of one's own does not ask the vendor's price. Nor is it for a call whose input or output was not
    counted, or whose counts contradict each other. ``at``: when it was made, now by default. Raises nothing.
    """
    if not model or len(model) > _MODEL_MAX or not is_counted(usage):
        return None
    counts = {theirs: usage.get(ours) for ours, theirs in _COUNTS.items()}
    for seller, name in _readings(model.removeprefix("models/"), provider):
        amount = _calculated(name, seller, counts, at)
        if amount is not None:
            return Price(amount)
    return None


def is_counted(usage: Mapping[str, int | None]) -> bool:
    """Both halves of the price are there. With one of them missing a sum would look like a price and be none."""
    return usage.get("input_tokens") is not None and usage.get("output_tokens") is not None


def _readings(model: str, provider: str | None) -> list[tuple[str | None, str]]:
    """Seller and model, as they may be meant. Routers write ``vendor/model``."""
    vendor, slash, rest = model.partition("/")
    if provider:
        return [(provider, model)]
    return [(None, model), (vendor, rest)] if slash and rest else [(None, model)]


def _calculated(
    model: str, seller: str | None, counts: Mapping[str, int | None], at: datetime | None
) -> Decimal | None:
    try:
        usage = genai_prices.Usage(**counts)
        with localcontext(_EXACT):
            if seller is not None and "://" in seller:
                found = genai_prices.calc_price(usage, model, provider_api_url=seller, genai_request_timestamp=at)
            else:
                found = genai_prices.calc_price(usage, model, provider_id=seller, genai_request_timestamp=at)
    except (LookupError, ValueError, ArithmeticError):
        return None
    amount = found.total_price
    return amount if amount.is_finite() and amount >= 0 and _is_listed(found, counts) else None


def _is_listed(found: PriceCalculation, counts: Mapping[str, int | None]) -> bool:
    """Some models are listed without a price of tokens, which would read as a price of 0. ``:free`` ones are free."""
    if found.model.id.endswith(":free"):
        return True
    halves = (("input_tokens", found.model_price.input_mtok), ("output_tokens", found.model_price.output_mtok))
    return all(rate is not None for name, rate in halves if counts[name])


def decimal_string(amount: Decimal) -> str:
    """Exact, without an exponent and without zeros at its end: ``0.0035``, ``12``, ``0``."""
    text = format(amount, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


class CostMeter:
    """Counts of a run's model calls → its ``cost`` items. One per run; pure.

    The amounts of all its items add up to the last ``total``, exactly, and none is negative. Where the agent itself
    says what it cost (``reported``), nothing is calculated from then on.
    """

    def __init__(self, provider: str | None = None) -> None:
        self.provider = provider
        self._calls: dict[Hashable, Decimal] = {}
        self._emitted: Decimal | None = None
        self._reported = False
        self._unknown: set[str] = set()

    @property
    def total(self) -> Decimal | None:
        """What was emitted so far; ``None``: nothing was."""
        return self._emitted

    def count(
        self,
        model: str,
        usage: Mapping[str, int | None],
        *,
        call: Hashable = 1,
        provider: str | None = None,
        at: datetime | None = None,
    ) -> list[Item]:
        """The counts of one model call so far (not of the run): what it adds. ``call`` tells the calls apart.

        An unknown model gives ``event warning {code: "price_unknown"}``, once. A call that becomes cheaper with newer
        counts gives nothing: what was emitted is not taken back.
        """
        if self._reported or not is_counted(usage):
            return []
        found = price(model, provider or self.provider, usage, at=at)
        if found is None:
            return self._not_known(model)
        with localcontext(_EXACT):
            self._calls[call] = max(found.amount, self._calls.get(call, Decimal(0)))
            return self._risen_to(sum(self._calls.values(), Decimal(0)), estimated=True, currency=found.currency)

    def reported(self, total: Decimal | float | str, *, estimated: bool, currency: str = CURRENCY) -> list[Item]:
        """What the agent says that the whole run cost so far. What is no amount of money is passed over."""
        try:
            amount = Decimal(str(total))
        except InvalidOperation:
            return []
        if not amount.is_finite() or amount < 0:
            return []
        self._reported = True
        with localcontext(_EXACT):
            return self._risen_to(amount, estimated=estimated, currency=currency)

    def _risen_to(self, total: Decimal, *, estimated: bool, currency: str) -> list[Item]:
        before = self._emitted
        if before is not None and total <= before:
            return []
        self._emitted = total
        amount = total - (before or Decimal(0))
        return [
            Cost(amount=decimal_string(amount), total=decimal_string(total), currency=currency, estimated=estimated)
        ]

    def _not_known(self, model: str) -> list[Item]:
        if model in self._unknown:
            return []
        self._unknown.add(model)
        message = f"no price is known for the model {model[:_MODEL_MAX]!r}: its tokens are counted, its cost is not"
        return [Event(name="warning", payload={"code": "price_unknown", "model": model, "message": message})]
