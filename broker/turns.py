"""Turns: one for each round of the event loop, in the order in which they were asked for.

What many do at once, each a little, would otherwise all be done in one round, and whatever comes meanwhile from a
socket would wait for all of it.
"""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Turns"]


class Turns:
    def __init__(self) -> None:
        self._taken = False
        """Somebody has this round, or the next one is being given to whoever waits."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Returns at once where nobody had this round yet; else in a round of the caller's own."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._next)
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # a caller that was cancelled is passed over
                turn.set_result(None)
                turn.get_loop().call_soon(self._next)
                return
        self._taken = False
