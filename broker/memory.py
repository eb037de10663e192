"""``memory:`` — fakeredis behind the same wire as a real server, one per name and process.

For unit tests and for platforms without a server. Nothing outlives the process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from broker.errors import StoreUnavailable
from broker.wire import ReplyError

__all__ = ["MemoryWire", "open_memory"]

_servers: dict[str, Any] = {}
_CODES = {"NoScriptError": "NOSCRIPT", "ExecAbortError": "EXECABORT", "ReadOnlyError": "READONLY"}


async def open_memory(name: str) -> MemoryWire:
    """A connection to the in-process server of that name, which is made when first asked for."""
    # fakeredis takes a third of a second to import: only who uses it pays.
    from fakeredis import FakeServer
    from fakeredis.aioredis import FakeAsyncRedisConnection

    server = _servers.get(name)
    if server is None:
        server = _servers[name] = FakeServer(version=(7,), server_type="redis")
    connection: Any = FakeAsyncRedisConnection(server=server, protocol=2, socket_timeout=None, driver_info=None)
    await connection.connect()
    return MemoryWire(connection, f"memory:{name}")


class MemoryWire:
    """See ``wire.Wire``; the same rule: whatever interrupts a wait closes it."""

    def __init__(self, connection: Any, shown: str) -> None:
        self._connection = connection
        self._shown = shown
        self._closed = False
        self._pending = 0

    @property
    def usable(self) -> bool:
        return not self._closed and self._pending == 0

    def send(self, packed: Sequence[bytes]) -> None:
        if self._closed:
            return
        for chunk in packed:
            # A request is run in here, or blocks in a task of fakeredis; its reply waits in a queue.
            self._connection._sock.sendall(chunk)
            self._pending += 1

    async def read(self, count: int, until: float) -> list[Any]:
        if self._closed:
            raise StoreUnavailable(f"{self._shown}: the connection was closed")
        try:
            async with asyncio.timeout_at(until):
                replies = [await self._one() for _ in range(count)]
        except TimeoutError:
            self.close()
            raise StoreUnavailable(f"{self._shown}: no answer in time") from None
        except BaseException:
            self.close()
            raise
        self._pending = 0
        return replies

    async def _one(self) -> Any:
        reply = await self._connection._sock.responses.get()
        if self._closed:
            raise StoreUnavailable(f"{self._shown}: the connection was closed")
        return _plain(reply)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        sock = self._connection._sock
        if sock is not None:
            sock.responses.put_nowait(None)  # wakes a reader, who then sees that it was closed

    async def wait_closed(self) -> None:
        with contextlib.suppress(Exception):
            await self._connection.disconnect(nowait=True)


def _plain(reply: Any) -> Any:
    """fakeredis's reply in the shape that a RESP2 server's has."""
    if isinstance(reply, Exception):
        return ReplyError(_text(reply))
    if isinstance(reply, dict):
        return [_plain(part) for pair in reply.items() for part in pair]
    if isinstance(reply, (list, tuple, set)):
        return [_plain(part) for part in reply]
    if isinstance(reply, bool):
        return int(reply)
    if isinstance(reply, float):
        return repr(reply).encode()
    return reply.encode() if isinstance(reply, str) else reply


def _text(error: Exception) -> str:
    """fakeredis raises redis-py's errors, which have the code cut off."""
    text = str(error)
    if text.startswith("The XGROUP subcommand requires the key to exist"):
        return f"NOGROUP {text}"  # also its answer to XREADGROUP where there is no key
    code = text.partition(" ")[0]
    if code.isupper():
        return text
    return f"{_CODES.get(type(error).__name__, 'ERR')} {text}"
