"""redis-py's connections as the store uses them, and a few of them shared by many requests.

Only redis-py's lower half is used: packed bytes go out, raw RESP2 replies come in. Its own retries, health checks,
timers and maintenance notifications are off, so that a request is sent once and takes as long as its caller allows.

A connection is either in step (every request sent has all its replies read) or it is closed. redis-py closes it where
a wait is interrupted (a deadline, a cancellation, a loss), so a reply can never reach the wrong request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import hiredis
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig

from broker.errors import StoreUnavailable
from broker.urls import Target

__all__ = ["Arg", "Pool", "StoreConnection", "exchange", "make", "pack", "reply_text"]

Arg: TypeAlias = bytes | str | int | float
_READ = 1 << 18
"""Bytes taken from asyncio at once: all that it buffers, as each round costs more than what it copies."""
_SIZE = 3


def pack(args: Sequence[Arg]) -> bytes:
    """One command as RESP."""
    packed: bytes = hiredis.pack_command(tuple(args))  # type: ignore[arg-type]  # its stub allows one argument only
    return packed


def reply_text(error: RedisError) -> str | None:
    """An error reply as the server sent it (redis-py cuts the code off); None where the error is no reply."""
    if isinstance(error.__cause__, RedisError):
        error = error.__cause__  # what went wrong while a Unix socket was connected comes wrapped
    if error.status_code:
        return f"{error.status_code} {error}"
    return str(error) if isinstance(error, ResponseError) else None


async def exchange(connection: StoreConnection, packed: bytes, count: int) -> list[Any]:
    """Send requests and read their ``count`` replies, in order; error replies as ``ResponseError`` objects.

    ``RedisError`` for whatever ends the connection: a loss, bytes that are no RESP, LOADING. No time limit.
    """
    await connection.send_packed_command((packed,), check_health=False)
    read = connection.read_response
    replies: list[Any] = []
    for _ in range(count):
        try:
            replies.append(await read(disable_decoding=True))
        except ResponseError as error:
            replies.append(error)
    return replies


class StoreConnection(AbstractConnection):
    """What the store wants of any connection of redis-py, beside one of its classes as a further base."""

    async def open(self) -> None:
        """Connect and introduce ourselves, once. ``RedisError``; no time limit."""
        await self.connect()  # type: ignore[no-untyped-call]

    @property
    def alive(self) -> bool:
        """Connected, and as far as the event loop has heard, so is the other side. (A lost connection that was reset
        is not at its end for redis-py's ``can_read``.)"""
        reader, writer = self._reader, self._writer
        return reader is not None and writer is not None and not (reader.at_eof() or writer.transport.is_closing())

    async def disconnect(self, nowait: bool = False, *args: Any, **kwargs: Any) -> None:
        """At once: nothing that is still unsent is sent, and TLS does not wait for the other side's farewell. Whoever
        reads gets a ``ConnectionError``. With ``nowait`` it does not suspend."""
        self._abort()
        await super().disconnect(nowait, *args, **kwargs)

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """Neither does it connect behind our back, nor write to a lost connection (on uvloop a ``RuntimeError``)."""
        if not self.alive:
            await self.disconnect(nowait=True)
            raise Disconnected("closed by the other side")
        await super().send_packed_command(command, check_health)

    def abort(self) -> None:
        """End it from outside, in this very step: whoever reads from it gets a ``ConnectionError``."""
        self._abort()

    def _abort(self) -> None:
        if self._writer is not None:
            # CPython's transport of a TLS connection that is lost already has no protocol any more, and says so thus.
            with contextlib.suppress(AttributeError):
                self._writer.transport.abort()


class _Tcp(StoreConnection, Connection):
    pass


class _Tls(StoreConnection, SSLConnection):
    pass


class _Unix(StoreConnection, UnixDomainSocketConnection):
    pass


async def _introduce(connection: AbstractConnection) -> None:
    await connection.on_connect()
    # Shown by CLIENT LIST. An account that may not do this may do everything else all the same.
    with contextlib.suppress(ResponseError):
        await connection.send_command("CLIENT", "SETNAME", "runcast")
        await connection.read_response()


async def _introduce_to_a_master(connection: AbstractConnection) -> None:
    await _introduce(connection)
    # Sentinels may be late: a server that is none any more would answer reads as if nothing had happened.
    await connection.send_command("ROLE")
    role = await connection.read_response(disable_decoding=True)
    if role[0] != b"master":
        raise Disconnected("it is no master (any more)")


def make(target: Target, path: str = "") -> StoreConnection:
    """A connection that is not connected yet. ``path`` is that of the socket, where it is one in the file system."""
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": None,
        "socket_connect_timeout": None,
        "socket_read_size": _READ,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        "driver_info": None,
    }
    if target.kind == "memory":
        # fakeredis takes a third of a second to import: only who uses it pays.
        from broker.memory import MemoryConnection

        return MemoryConnection(target.path, **options)
    options |= {
        "db": target.db,
        "username": target.username or None,
        "password": target.password or None,
        "redis_connect_func": _introduce_to_a_master if target.master else _introduce,
    }
    if target.kind != "tcp":
        return _Unix(path=path, **options)
    if target.tls is None:
        return _Tcp(host=target.host, port=target.port, **options)
    secure = _Tls(host=target.host, port=target.port, **options)
    secure.ssl_context.context = target.tls  # made and checked once, with the URL
    return secure


class Pool(ConnectionPool):
    """A few connections for many requests; whoever finds none free waits in line.

    Few, because a request occupies its connection for one round trip only, and servers count their clients.

    The line is a semaphore's in front of redis-py's pool, which refuses where it is full. redis-py's own waiting pool
    lets newcomers overtake: under load someone in line is overtaken until its deadline, and a wake-up that meets a
    cancelled waiter is lost.
    """

    def __init__(
        self,
        make: Callable[[], StoreConnection],
        connect: Callable[[StoreConnection], Awaitable[None]],
        lost: Callable[[], None],
    ) -> None:
        super().__init__(max_connections=_SIZE, protocol=2)
        self._make = make
        self._connect = connect
        self._lost = lost
        self._places = asyncio.Semaphore(_SIZE)
        self.waiting = 0
        self.closed = False

    @property
    def size(self) -> int:
        """Connections, idle and in use."""
        return self.in_use + sum(one.alive for one in self._idle)

    @property
    def in_use(self) -> int:
        """Busy with a request, or being connected."""
        return len(self._in_use_connections)

    @property
    def dead(self) -> int:
        """Idle connections that were lost, until someone takes one: from then on ``lost`` has been told of it."""
        return sum(bool(one.is_connected) and not one.alive for one in self._idle)

    @property
    def _idle(self) -> list[StoreConnection]:
        return cast(list[StoreConnection], self._available_connections)

    async def take(self) -> StoreConnection:
        """A connected connection. Raises what ``connect`` raises, and ``StoreUnavailable`` once the pool is closed."""
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        try:
            self.refuse_closed()
            connection: StoreConnection = await self.get_connection()  # type: ignore[no-untyped-call]
        except BaseException:
            self._places.release()
            raise
        return connection

    async def give_back(self, connection: StoreConnection) -> None:
        """Must follow every ``take``; a connection that is closed by then will be connected anew. Never suspends."""
        try:
            if self.closed:
                await connection.disconnect(nowait=True)
            await self.release(connection)
        finally:
            self._places.release()

    def refuse_closed(self) -> None:
        if self.closed:
            raise StoreUnavailable("the store is closed")

    def retire(self) -> None:
        """Take no more requests; those under way end as they will. Whoever waits in line gets an error."""
        self.closed = True
        for connection in self._idle:
            connection.abort()

    async def aclose(self) -> None:
        """Close all; whoever waits or reads gets an error."""
        self.closed = True
        await super().aclose()

    # redis-py's hooks

    def make_connection(self) -> StoreConnection:
        return self._make()

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        """Connected, in step and, as far as one can know, not lost meanwhile: a server that was restarted between two
        requests costs the second one a connect, and does not fail it."""
        assert isinstance(connection, StoreConnection)
        if connection.is_connected:
            if connection.alive and not await connection.can_read():
                return
            self._lost()
            await connection.disconnect(nowait=True)
        await self._connect(connection)
        if self.closed:
            await connection.disconnect(nowait=True)
            self.refuse_closed()
