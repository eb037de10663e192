"""A day's books as a value: what was spent, what is held back, by whom, and the caps. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import NamedTuple

from broker.errors import StoreError

__all__ = ["Account", "Budget", "Caps", "date_of", "parse_budget"]

_EPOCH = date(1970, 1, 1)
_COUNTS = ("spent", "reserved", "runs", "unknown", "refused", "input_tokens", "output_tokens")


class Caps(NamedTuple):
    """Nano-dollars a day; ``None``: no cap."""

    total: int | None
    principal: int | None

    @property
    def set(self) -> bool:
        return self.total is not None or self.principal is not None


class Account(NamedTuple):
    """``spent`` and ``reserved`` in nano-dollars. ``unknown``: of the ``runs``, those whose cost is not known, so that
    their reservation was booked."""

    spent: int = 0
    reserved: int = 0
    runs: int = 0
    unknown: int = 0
    refused: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class Budget(NamedTuple):
    """One day. ``principals``: by name, whoever has anything in the books of that day."""

    day: date
    caps: Caps
    total: Account
    principals: dict[str, Account]


def date_of(day: int) -> date:
    """Days since 1970-01-01 → the date."""
    return _EPOCH + timedelta(days=day)


def parse_budget(day: int, caps: Caps, known: Mapping[bytes, bytes]) -> Budget:
    """The day's hash → its books. Raises ``StoreError`` where somebody else wrote into it."""
    total: dict[str, int] = {}
    principals: dict[str, dict[str, int]] = {}
    try:
        for field, value in known.items():
            name, colon, principal = field.decode("utf-8", "replace").partition(":")
            if name in _COUNTS:
                account = principals.setdefault(principal, {}) if colon else total
                account[name] = int(value)
    except ValueError as error:
        raise StoreError(f"the books of {date_of(day)} are broken: {error}") from error
    return Budget(date_of(day), caps, Account(**total), {name: Account(**a) for name, a in sorted(principals.items())})
