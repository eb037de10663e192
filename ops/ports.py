"""TCP ports of this machine: free or taken, and by whom."""

from __future__ import annotations

import asyncio
import errno
import socket

__all__ = ["get_status", "is_free", "next_free"]

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


def next_free(host: str, port: int, tries: int = 50) -> int | None:
    """The first free port from ``port`` on."""
    return next((p for p in range(port, min(port + tries, 65536)) if is_free(host, p)), None)


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
