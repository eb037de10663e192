"""Pauses between the requests of one relay, and requests that are made again while the service is away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from workers.remote.service import ServiceFailed
from workers.remote.settings import RemoteSettings

__all__ = ["Pace", "persist"]

T = TypeVar("T")
_GROWTH = 1.5
_BACKOFF_FIRST, _BACKOFF_LAST = 0.1, 5.0


class Pace:
    """``poll`` seconds between two polls while events come; while none do it grows, up to ``poll_max``."""

    def __init__(self, settings: RemoteSettings) -> None:
        self._first, self._last = settings.poll, max(settings.poll, settings.poll_max)
        self._next = self._first

    def after(self, *, news: bool) -> float:
        """Seconds to wait, after a poll that brought news or did not."""
        wait = self._first if news else self._next
        self._next = self._first if news else min(self._next * _GROWTH, self._last)
        return wait


async def persist(step: Callable[[], Awaitable[T]], outage: float, *, unsent_only: bool = False) -> T:
    """``step``, again while the service does not answer, for ``outage`` seconds. Raises ``ServiceFailed``.

    ``unsent_only``: not where the request may have had its effect already.
    """
    clock = asyncio.get_running_loop().time
    since, pause = clock(), _BACKOFF_FIRST
    while True:
        try:
            return await step()
        except ServiceFailed as failed:
            wait = pause * random.uniform(0.5, 1.0) if failed.wait_s is None else failed.wait_s
            if not failed.again or (unsent_only and failed.sent) or clock() + wait - since > outage:
                raise
        await asyncio.sleep(wait)
        pause = min(pause * 2, _BACKOFF_LAST)
