"""A few connections for many requests: bounded, and whoever finds none free waits in line.

Few, because a request occupies its connection for one round trip only, and servers count their clients.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from broker.errors import StoreUnavailable
from broker.wire import Wire

__all__ = ["Pool"]

_SIZE = 3


class Pool:
    """Wires, the most recently used first. A wire that is not usable when it comes back is closed and forgotten.

    A place is what entitles to a wire: there are ``_SIZE`` of them, handed over in the order of asking.
    """

    def __init__(self, connect: Callable[[float], Awaitable[Wire]], idle_lost: Callable[[], None]) -> None:
        self._connect = connect
        self._idle_lost = idle_lost
        self._idle: list[Wire] = []
        self._used: set[Wire] = set()
        self._places = _SIZE
        self._line: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def size(self) -> int:
        return len(self._idle) + self.in_use

    @property
    def in_use(self) -> int:
        """Busy with a request, or being connected."""
        return _SIZE - self._places

    @property
    def waiting(self) -> int:
        return len(self._line)

    def take_idle(self) -> Wire | None:
        """The hot path: an idle wire at once. A free place means that nobody is in line."""
        if not self._places or not self._idle or self._closed:
            return None
        self._places -= 1
        wire = self._idle.pop()
        self._used.add(wire)
        return wire

    async def take(self, until: float) -> Wire:
        """An idle wire or a new one, before the loop's time ``until``. Raises what ``connect`` raises, and
        ``StoreUnavailable`` where none came free."""
        self.refuse_closed()
        await self._take_place(until)
        try:
            wire = self._idle.pop() if self._idle else await self._connect(until)
            if self._closed:
                wire.close()
            self.refuse_closed()
        except BaseException:
            self._leave_place()
            raise
        self._used.add(wire)
        return wire

    def give_back(self, wire: Wire) -> None:
        self._used.discard(wire)
        if self._closed or not wire.usable:
            wire.close()
        else:
            self._idle.append(wire)
        self._leave_place()

    def lost(self, wire: Wire) -> None:
        """A wire's connection ended. Whoever uses it learns that from its read; an idle one is noticed here."""
        if wire in self._idle:
            self._idle.remove(wire)
            self._idle_lost()

    def refuse_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    async def aclose(self) -> None:
        """Close all; whoever waits or reads gets ``StoreUnavailable``."""
        self._closed = True
        for waiter in self._line:
            if not waiter.done():
                waiter.set_exception(StoreUnavailable("the store is closed"))
        wires = [*self._idle, *self._used]
        self._idle.clear()
        for wire in wires:
            wire.close()
        for wire in wires:
            await wire.wait_closed()

    async def _take_place(self, until: float) -> None:
        if self._places:
            self._places -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(waiter)
        try:
            async with asyncio.timeout_at(until):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._leave_place()  # it was handed to us in the moment in which we gave up
            if isinstance(error, TimeoutError):
                raise StoreUnavailable("no connection to the store came free in time") from None
            raise
        finally:
            if waiter in self._line:
                self._line.remove(waiter)

    def _leave_place(self) -> None:
        while self._line:
            waiter = self._line.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._places += 1
