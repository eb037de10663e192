"""A web server that answers as a test says, byte for byte, and counts who came."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

__all__ = ["Answer", "BadWeb", "answering", "serving"]

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""The request's head, and where its answer goes."""


class BadWeb:
    def __init__(self, pages: dict[str, Answer]) -> None:
        self.pages, self.port = pages, 0
        self.heads: list[bytes] = []
        self.sent = 0
        self.left = asyncio.Event()
        """A client closed while its answer was still being sent."""

    def url(self, path: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            path = head.split()[1].decode()
            await self.pages[path.partition("?")[0]](head, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            self.left.set()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()


def answering(body: bytes = b"", status: str = "200 OK", **headers: str) -> Answer:
    """Headers with ``_`` for ``-``; ``Content-Length`` unless it is given."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    given.setdefault("Content-Length", str(len(body)))
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)

    async def answer(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1") + body)

    return answer


@asynccontextmanager
async def serving(pages: dict[str, Answer], *, tls: ssl.SSLContext | None = None) -> AsyncIterator[BadWeb]:
    web = BadWeb(pages)
    server = await asyncio.start_server(web.serve, "127.0.0.1", 0, ssl=tls)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        server.close()
