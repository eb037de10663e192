"""What every settings object demands of its numbers, whatever else a field says: that they end. Pure.

An infinite or absurd duration passes a check like “more than 0” and fails much later: as an expiry that no server
takes, as a wait that never returns.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ValidationInfo, field_validator
from pydantic_settings import BaseSettings

__all__ = ["LONGEST", "MOST", "SHORTEST", "FiniteSettings"]

LONGEST = 3_153_600_000.0
"""Seconds: a hundred years. In milliseconds it is still exact in the scripts of a server."""
SHORTEST = 0.001
"""Seconds. What is shorter is none to a server that counts in milliseconds."""
MOST = 2**53
"""Up to here a server's scripts count exactly."""


class FiniteSettings(BaseSettings):
    """Settings whose durations are 0, or ``SHORTEST`` to ``LONGEST`` seconds, and whose counts and sizes are at most
    ``MOST``. A field may allow less."""

    shares: ClassVar[frozenset[str]] = frozenset()
    """Fields that are numbers, but no durations: whatever their own bounds allow."""

    @field_validator("*")
    @classmethod
    def _ends(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name in cls.shares:
            return value
        if isinstance(value, float) and not (value == 0 or SHORTEST <= abs(value) <= LONGEST):
            raise ValueError(f"is 0, or at least {SHORTEST} and at most {LONGEST:.0f}")
        if isinstance(value, int) and abs(value) > MOST:
            raise ValueError(f"is at most {MOST}")
        return value
