"""Connections that speak RESP2: bytes out, parsed replies in, and a deadline on every wait.

redis-py is not on this path: its high-level calls cost several times the CPU of the request itself, retry behind our
back and time blocking reads out. hiredis packs and parses; asyncio carries.

A wire is either in step (every request sent has all its replies read) or it is closed. Whatever interrupts a wait
(deadline, cancellation, a lost connection) closes it, so a reply can never reach the wrong request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, cast

import hiredis

from broker.errors import StoreUnavailable
from broker.urls import Target

__all__ = ["Arg", "ReplyError", "SocketWire", "Wire", "open_socket", "pack"]

Arg: TypeAlias = bytes | str | int | float
_NOT_YET = False  # what hiredis answers while a reply is incomplete; RESP2 has no booleans of its own


class ReplyError(Exception):
    """An error reply: ``text`` as Redis sent it, ``code`` its first word."""

    @property
    def text(self) -> str:
        return str(self.args[0]) if self.args else ""

    @property
    def code(self) -> str:
        return self.text.partition(" ")[0]


def pack(args: Sequence[Arg]) -> bytes:
    """One command as RESP."""
    packed: bytes = hiredis.pack_command(tuple(args))  # type: ignore[arg-type]  # its stub allows one argument only
    return packed


class Wire(Protocol):
    """One connection, used by one caller at a time."""

    @property
    def usable(self) -> bool:
        """Open, and in step."""

    def send(self, packed: Sequence[bytes]) -> None:
        """Write requests. A closed wire takes them and fails at ``read``."""

    async def read(self, count: int, until: float) -> list[Any]:
        """``count`` replies (error replies as ``ReplyError`` objects), before the loop's time ``until``.

        ``StoreUnavailable``: closed, or not in time; the wire is closed then, as it is on cancellation.
        """

    def close(self) -> None:
        """At once; whoever reads gets ``StoreUnavailable``."""

    async def wait_closed(self) -> None: ...


class SocketWire(asyncio.Protocol):
    """A wire over TCP, TLS or a Unix socket."""

    def __init__(self, shown: str, lost: Callable[[Wire], None]) -> None:
        self._shown = shown
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=ReplyError)
        self._replies: deque[Any] = deque()
        self._transport: asyncio.Transport | None = None
        self._broken: str | None = "not connected"
        self._waiter: asyncio.Future[None] | None = None
        self._wanted = 0
        self._gone = self._loop.create_future()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._broken = None

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _NOT_YET:
                self._replies.append(reply)
        except hiredis.ProtocolError:
            self._break("what answers there does not speak the protocol of Redis")
            return
        waiter = self._waiter
        if waiter is not None and len(self._replies) >= self._wanted and not waiter.done():
            waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(f"the connection was lost{f' ({exc})' if exc else ''}")
        if not self._gone.done():
            self._gone.set_result(None)
        self._lost(self)

    # the caller's side

    @property
    def usable(self) -> bool:
        return self._broken is None and not self._replies

    def send(self, packed: Sequence[bytes]) -> None:
        if self._broken is None and self._transport is not None:
            self._transport.write(packed[0] if len(packed) == 1 else b"".join(packed))

    async def read(self, count: int, until: float) -> list[Any]:
        if len(self._replies) < count:
            await self._wait(count, until)
        take = self._replies.popleft
        return [take() for _ in range(count)]

    async def _wait(self, count: int, until: float) -> None:
        if self._broken is not None:
            raise StoreUnavailable(f"{self._shown}: {self._broken}")
        waiter = self._waiter = self._loop.create_future()
        self._wanted = count
        timer = self._loop.call_at(until, self._break, "no answer in time")
        try:
            await waiter
        except asyncio.CancelledError:
            self._break("the request was cancelled")
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def _break(self, reason: str) -> None:
        if self._broken is None:
            self._broken = reason
            if self._transport is not None:
                self._transport.abort()
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_exception(StoreUnavailable(f"{self._shown}: {reason}"))

    def close(self) -> None:
        self._break("the connection was closed")

    async def wait_closed(self) -> None:
        if self._transport is not None:
            await asyncio.shield(self._gone)


async def open_socket(target: Target, lost: Callable[[Wire], None], until: float, *, path: str = "") -> SocketWire:
    """Connect and introduce ourselves. ``OSError`` and ``TimeoutError`` come through; ``ReplyError`` where the
    server refuses the password or the database."""
    loop = asyncio.get_running_loop()
    wire = SocketWire(target.shown, lost)
    try:
        async with asyncio.timeout_at(until):
            if target.kind == "tcp":
                await loop.create_connection(lambda: wire, target.host, target.port, ssl=target.tls)
            else:
                await loop.create_unix_connection(lambda: wire, path or target.path)
        _keep_alive(wire)
        await _introduce(wire, target, until)
    except BaseException:
        wire.close()
        raise
    return wire


def _keep_alive(wire: SocketWire) -> None:
    """Half-open peers are noticed by deadlines; this is for firewalls that forget quiet connections."""
    sock = wire._transport.get_extra_info("socket") if wire._transport else None
    if sock is not None and sock.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


async def _introduce(wire: SocketWire, target: Target, until: float) -> None:
    commands: list[tuple[Arg, ...]] = []
    if target.password:
        commands.append(("AUTH", target.username or "default", target.password))
    if target.db:
        commands.append(("SELECT", target.db))
    needed = len(commands)
    # Shown by CLIENT LIST. An account that may not do this may do everything else all the same.
    commands.append(("CLIENT", "SETNAME", "runcast"))
    wire.send([pack(command) for command in commands])
    for reply in (await wire.read(len(commands), until))[:needed]:
        if isinstance(reply, ReplyError):
            raise reply
