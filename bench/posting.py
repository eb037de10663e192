"""Requests to a peer over one kept connection: sent together, answered in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

__all__ = ["Poster", "Request"]


class Request(NamedTuple):
    method: str
    path: str
    body: str = ""
    headers: tuple[str, ...] = ()


class Poster:
    """``async with Poster(port) as poster``: ``await poster.send(requests)`` → the bodies of the answers.

    ``send`` raises ``RuntimeError`` for an answer that is no success.
    """

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Poster:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._writer.close()

    async def send(self, requests: Sequence[Request]) -> list[bytes]:
        for method, path, body, headers in requests:
            raw = body.encode()
            lines = "".join(f"{line}\r\n" for line in headers)
            head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\n{lines}Content-Length: {len(raw)}\r\n\r\n"
            self._writer.write(head.encode() + raw)
        return [await self._answer(request) for request in requests]

    async def _answer(self, request: Request) -> bytes:
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            body = await self._chunks()
        else:
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            body = await self._reader.readexactly(int(length or 0))
        if not head.startswith(b"http/1.1 2"):
            raise RuntimeError(f"{request.method} {request.path} was answered {head!r} {body!r}")
        return body

    async def _chunks(self) -> bytes:
        body = b""
        while size := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readuntil(b"\r\n")
        return body
