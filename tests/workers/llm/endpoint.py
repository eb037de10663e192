"""A model endpoint for the tests: a real HTTP server whose answers a test plays, byte by byte if it likes.

It speaks HTTP itself, so that a test decides where a connection breaks, and sees when the client lets go of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["Exchange", "FakeEndpoint", "Play", "answer", "serve", "stream"]


class Exchange:
    """One request, and its answer as far as it was played."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body: dict[str, Any] = {}
        self.sent: list[float] = []
        """When each piece was sent, by the clock of the loop's ``time.monotonic``."""
        self.gone = asyncio.Event()
        """The client has closed the connection."""
        self.gone_at = 0.0

    async def receive(self) -> bool:
        """The next request of the connection; false at its end."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        lines = head.decode().split("\r\n")
        self.path = lines[0].split()[1]
        pairs = (line.split(":", 1) for line in lines[1:] if ":" in line)
        self.headers = {name.lower(): value.strip() for name, value in pairs}
        self.body = json.loads(await self._reader.readexactly(int(self.headers["content-length"])))
        return True

    async def head(self, status: int = 200, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} X", "transfer-encoding: chunked"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def send(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))
        self.sent.append(time.monotonic())

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def reset(self) -> None:
        """Break the connection; what the client has not read is lost."""
        self._writer.transport.abort()

    async def watch(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(1024):
                pass
        self.gone_at = time.monotonic()
        self.gone.set()


Play = Callable[[Exchange], Awaitable[None]]


class FakeEndpoint:
    """``plays`` are used up in order, the last one again and again. ``exchanges`` are the requests so far."""

    def __init__(self, *plays: Play) -> None:
        self.plays = list(plays)
        self.exchanges: list[Exchange] = []
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exchange = Exchange(reader, writer)
        try:
            # One request a connection: behind it, whatever is read is the client's end.
            if await exchange.receive():
                self.exchanges.append(exchange)
                play = self.plays.pop(0) if len(self.plays) > 1 else self.plays[0]
                watching = asyncio.create_task(exchange.watch())
                with contextlib.suppress(ConnectionError):
                    await play(exchange)
                writer.close()
                await watching
        finally:
            writer.close()


@asynccontextmanager
async def serve(*plays: Play, context: ssl.SSLContext | None = None) -> AsyncIterator[FakeEndpoint]:
    endpoint = FakeEndpoint(*plays)
    server = await asyncio.start_server(endpoint._serve, "127.0.0.1", 0, ssl=context)
    scheme = "https" if context else "http"
    endpoint.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield endpoint
    finally:
        server.close()


def stream(*pieces: bytes, pace: float = 0.0, type: str = "text/event-stream") -> Play:
    """A whole streamed answer, ``pace`` seconds between its pieces."""

    async def play(exchange: Exchange) -> None:
        await exchange.head(content_type=type)
        for piece in pieces:
            await exchange.send(piece)
            await asyncio.sleep(pace)
        await exchange.end()

    return play


def answer(status: int, body: object, **headers: str) -> Play:
    """An answer that is no stream."""

    async def play(exchange: Exchange) -> None:
        await exchange.head(status, content_type="application/json", **headers)
        await exchange.send(body if isinstance(body, bytes) else json.dumps(body).encode())
        await exchange.end()

    return play
