"""Upstreams for a proxy's tests: what they do with a connection is the test's, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

__all__ = ["Asked", "Peer", "serving"]


class Asked:
    """A request as it came: its first line, its headers in order, its body with the framing taken off."""

    def __init__(self, line: str, headers: list[tuple[str, str]]) -> None:
        self.line, self.headers = line, headers
        self.body = b""

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


class Peer:
    """One connection of the proxy. ``continues``: whether ``asked`` says that it wants a body."""

    continues = True

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def head(self) -> Asked:
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        return Asked(first, [(key, value.strip()) for key, _, value in (line.partition(":") for line in lines)])

    async def asked(self) -> Asked:
        """The whole request."""
        asked = await self.head()
        if self.continues and asked.all("expect"):
            await self.say(b"HTTP/1.1 100 Continue\r\n\r\n")
        if asked.all("transfer-encoding") == ["chunked"]:
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                asked.body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
        for length in asked.all("content-length"):
            asked.body = await self.reader.readexactly(int(length))
        return asked

    async def say(self, wire: bytes) -> None:
        self.writer.write(wire)
        await self.writer.drain()

    async def left(self, timeout: float = 30.0) -> bytes:
        """Once the proxy has closed its side: what it still sent."""
        rest = b""
        async with asyncio.timeout(timeout):
            with contextlib.suppress(ConnectionError):
                while part := await self.reader.read(1 << 16):
                    rest += part
        return rest


@contextlib.asynccontextmanager
async def serving(
    each: Callable[[Peer], Awaitable[None]],
    *,
    port: int = 0,
    context: ssl.SSLContext | None = None,
    high_water: int = 1 << 16,
) -> AsyncIterator[int]:
    """The port of an upstream that calls ``each`` with every connection, and closes it then. Leaving waits for all of
    them, and raises what they raised."""
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=high_water)
        try:
            await each(Peer(reader, writer))
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", port, ssl=context)
    try:
        yield int(server.sockets[0].getsockname()[1])
    except BaseException:
        for task in tasks:
            task.cancel()
        raise
    finally:
        server.close()
        async with asyncio.timeout(40):
            told = await asyncio.gather(*tasks, return_exceptions=True)
    for failure in told:
        if isinstance(failure, Exception):
            raise failure
