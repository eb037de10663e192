"""Hands what one task reads to another, one batch at a time: the reader reads no faster than it is taken from."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

__all__ = ["Handoff"]

T = TypeVar("T")


class Handoff(Generic[T]):
    """``put`` waits while something lies there. ``take`` gives ``None`` behind the end; cancelled, it loses nothing."""

    def __init__(self) -> None:
        self._held: list[T] = []
        self._closed = False
        self._changed = asyncio.Condition()

    async def put(self, what: T) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._held)
            self._held.append(what)
            self._changed.notify_all()

    async def take(self) -> T | None:
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._held) or self._closed)
            if not self._held:
                return None
            self._changed.notify_all()
            return self._held.pop()

    async def close(self, last: T) -> None:
        """``last`` comes, behind what lies there, and then nothing more."""
        async with self._changed:
            self._held.insert(0, last)
            self._closed = True
            self._changed.notify_all()
