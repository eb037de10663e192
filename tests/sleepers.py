"""Peers that ask for a stream and then read little, nothing, or are not there any more."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from pathlib import Path

from tests.gateways import Response

__all__ = ["Sleeper", "queued_by_kernel"]

_SO_ATTACH_FILTER = 26
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of a packet filter: keep nothing."""


class Sleeper:
    """One connection with a small receive buffer that has asked for a run's stream, and reads when it is told to."""

    def __init__(self, run_id: str, sock: socket.socket) -> None:
        self.run_id, self._sock = run_id, sock

    @classmethod
    async def open(cls, port: int, run_id: str, *, after: int = 0, version: str = "1.1", query: str = "") -> Sleeper:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 10)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", port))
        cursor = f"Last-Event-ID: {run_id}:{after}\r\n" if after else ""
        request = f"GET /v1/runs/{run_id}/stream{query} HTTP/{version}\r\nHost: gateway\r\n{cursor}\r\n"
        await loop.sock_sendall(sock, request.encode())
        return cls(run_id, sock)

    async def sip(self, size: int) -> bytes:
        """Read that many bytes at most; they are lost for ``wake``."""
        return await asyncio.get_running_loop().sock_recv(self._sock, size)

    def vanish(self) -> None:
        """From here on nothing that comes is even acknowledged, as if the machine had lost its network (Linux)."""
        program = ctypes.create_string_buffer(_DROP_ALL)
        filter_ = struct.pack("HL", 1, ctypes.addressof(program))
        self._sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)

    async def wake(self) -> Response:
        """Read from now on, and well; the head is read first."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        response = Response(*await asyncio.open_connection(sock=self._sock))
        await response.head()
        return response

    def close(self) -> None:
        self._sock.close()


def queued_by_kernel(port: int) -> list[int]:
    """Bytes that the kernel keeps for each connection of a server on 127.0.0.1, sent or not (Linux)."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(line[4].split(":")[0], 16) for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "01"]
