"""``memory:`` — fakeredis, one server per name and process.

For unit tests and for platforms without a server. Nothing outlives the process.
"""

from __future__ import annotations

from typing import Any

from fakeredis import FakeServer
from fakeredis.aioredis import FakeAsyncRedisConnection
from redis.exceptions import ConnectionError, ResponseError

from broker.connections import StoreConnection

__all__ = ["MemoryConnection"]

_servers: dict[str, FakeServer] = {}


class MemoryConnection(StoreConnection, FakeAsyncRedisConnection):  # type: ignore[misc]  # theirs differ in types
    """A connection to the in-process server of that name, which is made when first asked for."""

    def __init__(self, name: str, **options: Any) -> None:
        server = _servers.get(name)
        if server is None:
            server = _servers[name] = FakeServer(version=(7,), server_type="redis")
        super().__init__(server=server, **options)

    @property
    def alive(self) -> bool:
        return bool(self.is_connected)

    def _abort(self) -> None:
        if self._sock is not None:
            self._sock._response_available.set()  # wakes a reader, who then sees that it was closed

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            reply = await super().read_response(*args, **options)
        except ResponseError as error:
            raise _plain(error) from None
        if not self.is_connected:
            raise ConnectionError("closed")
        return _plain(reply)


def _plain(reply: Any) -> Any:
    """fakeredis's reply in the shape that a RESP2 server's has."""
    if isinstance(reply, ResponseError):
        # Its answer to XREADGROUP where there is no key.
        if str(reply).startswith("The XGROUP subcommand requires the key to exist"):
            return ResponseError(str(reply), status_code="NOGROUP")
        return reply
    if isinstance(reply, dict):
        return [_plain(part) for pair in reply.items() for part in pair]
    if isinstance(reply, (list, tuple, set)):
        return [_plain(part) for part in reply]
    if isinstance(reply, bool):
        return int(reply)
    if isinstance(reply, float):
        return repr(reply).encode()
    return reply.encode() if isinstance(reply, str) else reply
