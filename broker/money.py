"""US dollars as whole nano-dollars: what the ledger adds up. Pure.

A price list knows fractions of a millionth of a dollar a token, and a sum of binary fractions would not be the sum.
Whole numbers are exact in Redis' counters (64 bits) and in Lua (below 2^53, nine million dollars).
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation

__all__ = ["MAX_DOLLARS", "NANO", "dollars", "nano_of", "shown"]

NANO = 1_000_000_000
MAX_DOLLARS = 1_000_000
"""No cap and no run's cost is higher: nine of them still add up exactly in Lua."""
_EXACT = Context(prec=80)


def nano_of(amount: Decimal | float | str | None) -> int | None:
    """Dollars → nano-dollars, rounded up, so that a cap is never passed by what rounding left out.

    ``None``: no amount of money between 0 and ``MAX_DOLLARS``.
    """
    try:
        exact = Decimal(str(amount))
    except InvalidOperation:
        return None
    if not exact.is_finite() or not 0 <= exact <= MAX_DOLLARS:
        return None
    return int(_EXACT.multiply(exact, Decimal(NANO)).to_integral_value(rounding=ROUND_CEILING))


def dollars(nano: int) -> Decimal:
    """Nano-dollars → dollars, exactly."""
    return Decimal(nano).scaleb(-9)


def shown(nano: int) -> str:
    """Dollars without an exponent and without zeros at the end: ``0.0035``, ``12``."""
    text = format(dollars(nano), "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"
