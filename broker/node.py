"""One server of a store: a few shared connections, requests with a deadline, connections for links."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from broker.connections import Arg, Pool, StoreConnection, exchange, pack
from broker.errors import StoreUnavailable
from broker.replies import error_of, is_spent

__all__ = ["Node", "Request"]


class Request(NamedTuple):
    """What goes to one server in one piece, and has so many replies; all keys of its commands lie in one slot."""

    commands: Sequence[Sequence[Arg]]
    packed: bytes
    replies: int

    @classmethod
    def of(cls, *commands: Sequence[Arg]) -> Request:
        return cls(commands, b"".join(map(pack, commands)), len(commands))


class Node:
    """A server under one address. ``lost`` is called whenever it was seen to be away."""

    def __init__(
        self,
        shown: str,
        make: Callable[[], StoreConnection],
        lost: Callable[[], None],
        open: Callable[[StoreConnection], Awaitable[None]] = StoreConnection.open,
    ) -> None:
        self.shown = shown
        self.doubted = False
        """The last that was heard of it is that it could not serve."""
        self._make, self._open, self._lost = make, open, lost
        self.pool = Pool(make, self._connect, lost)

    async def exchange(self, packed: bytes, count: int, until: float) -> list[Any]:
        """Send requests once and read their ``count`` replies, in order; error replies as ``ResponseError`` objects.

        ``StoreUnavailable``: not done, or nobody knows whether it was; ``lost`` was told then. ``Refused``: so was the
        connection.
        """
        try:
            replies = await self._exchange(packed, count, until)
        except StoreUnavailable:
            self.doubted = True
            self._lost()
            raise
        self.doubted = False
        return replies

    async def _exchange(self, packed: bytes, count: int, until: float) -> list[Any]:
        try:
            async with asyncio.timeout_at(until):
                connection = await self.pool.take()
                try:
                    replies = await exchange(connection, packed, count)
                    if is_spent(replies):
                        self.doubted = True
                        await connection.disconnect(nowait=True)
                finally:
                    await self.pool.give_back(connection)
        except TimeoutError:
            raise StoreUnavailable(f"{self.shown}: no answer in time") from None
        except RedisError as error:
            raise error_of(error, self.shown, "the connection was lost") from None
        return replies

    async def connect(self, until: float) -> StoreConnection:
        """A connection beside the shared ones. ``StoreUnavailable``, ``Refused``."""
        try:
            self.pool.refuse_closed()
            async with asyncio.timeout_at(until):
                connection = self._make()
                await self._connect(connection)
            if self.pool.closed:
                await connection.disconnect(nowait=True)
            self.pool.refuse_closed()
        except TimeoutError:
            self.doubted = True
            self._lost()
            raise StoreUnavailable(f"{self.shown}: no connection in time") from None
        except StoreUnavailable:
            self.doubted = True
            self._lost()
            raise
        return connection

    async def _connect(self, connection: StoreConnection) -> None:
        """``StoreUnavailable`` or ``Refused``. No time limit."""
        try:
            await self._open(connection)
        except RedisError as error:
            raise error_of(error, self.shown, "no connection") from None

    def retire(self) -> None:
        """It serves no more of this store: what is under way ends as it will."""
        for _ in range(self.pool.dead):
            self._lost()
        self.pool.retire()

    async def aclose(self) -> None:
        await self.pool.aclose()
