"""TCP ports of this machine: free or taken, and by whom."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

from broker.errors import Conflict, InvalidRequest
from gateway.server import bind

__all__ = ["get_status", "is_free", "listen", "listen_near"]

_TAKEN = frozenset({errno.EADDRINUSE, errno.EACCES})


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now. 0 (any port) always is. Raises ``OSError`` for a foreign host."""
    if port == 0:
        return True
    for family, kind, proto, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno in _TAKEN:
                    return False
                raise
    return True


def listen(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """A listening socket that a child may inherit; port 0 takes any.

    Raises ``Conflict`` where the port is in use, ``InvalidRequest`` where this process cannot listen there at all.
    """
    try:
        return bind(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            why = error.strerror or str(error)
            raise InvalidRequest(
                f"cannot listen on {host}, port {port} ({why}): --host takes an address of this machine, such as "
                "127.0.0.1 or 0.0.0.0; ports below 1024 may need privileges",
                field="host",
            ) from None
    raise Conflict(f"port {port} on {host} is in use: stop what listens there, or choose another one with {option}")


def listen_near(host: str, port: int, tries: int = 50) -> socket.socket:
    """``listen`` on the first free port from ``port`` on."""
    for other in range(port, min(port + tries, 65536)):
        with contextlib.suppress(Conflict):
            return listen(host, other)
    raise Conflict(f"the ports {port} to {port + tries - 1} on {host} are all in use: choose another one with --port")


async def get_status(host: str, port: int, path: str, timeout: float = 1.0) -> int | None:
    """The status of ``GET path``, or ``None`` where nothing answers HTTP within ``timeout`` seconds."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                words = (await reader.readline()).split()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else None
