"""Run ids: what an id may look like, and making new ones that sort by the time of their making."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from zlib import crc32

from broker.errors import InvalidId

__all__ = ["IdMaker", "check_id"]

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z", re.ASCII)
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TICKS = 1 << 16


def check_id(value: str, field: str = "run_id") -> str:
    """``value``, a run or session id. Raises ``InvalidId``, naming ``field`` and what is allowed."""
    if not isinstance(value, str) or not _ID.match(value):
        raise InvalidId(
            f"{str(value)[:64]!r} is no {field}: 1 to 128 of A-Z, a-z, 0-9, “_”, “.” and “-” are allowed", field=field
        )
    return value


def _base32(number: int, length: int) -> str:
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in reversed(range(length)))


class IdMaker:
    """Makes ``run_`` and 26 characters: 48 bits of milliseconds, 16 bits that count within one, 64 random bits.
    ``prefix`` stands for ``run_`` where other things get such ids.

    Ids of one maker increase strictly, even where the clock steps back; those of several makers sort by their
    clocks. The time in an id is for sorting only: nothing is ever decided by it.
    """

    def __init__(self, clock: Callable[[], float] = time.time, *, prefix: str = "run_") -> None:
        self._clock, self._prefix = clock, prefix
        self._last = 0

    def __call__(self) -> str:
        return self._next(secrets.randbits(64))

    def in_partition(self, partition: int, partitions: int) -> str:
        """An id whose ``crc32 mod partitions`` is ``partition``; draws its random part until it fits."""
        stem = self._stem()
        start = crc32(stem.encode())
        while True:
            tail = _base32(secrets.randbits(64), 13)
            if crc32(tail.encode(), start) % partitions == partition:
                return stem + tail

    def _next(self, random: int) -> str:
        return self._stem() + _base32(random, 13)

    def _stem(self) -> str:
        tick = int(self._clock() * 1000) * _TICKS
        self._last = max(tick + secrets.randbits(12), self._last + 1)
        return self._prefix + _base32(self._last, 13)
