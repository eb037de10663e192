"""Labels of metrics whose values come from elsewhere, kept few. Pure.

A label's value is a time series for ever. Where somebody else chooses the values (codes of a runner, kinds of the bus,
an agent's currency), the first so many are taken as they are, and whatever comes later is ``other``.
"""

from __future__ import annotations

import re

__all__ = ["OTHER", "FewLabels"]

OTHER = "other"
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


class FewLabels:
    """``labels(value)`` → the value, or ``other``: it is no plain word, or there are ``limit`` others by now."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        if len(self._known) >= self._limit or (value and not _PLAIN.match(value)):
            return OTHER
        self._known.add(value)
        return value
