"""Streams as the cases look at them: opened at a cursor, read to their end, and their seqs without decoding."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence

from tests.gateways import GatewayProcess, Response

__all__ = ["drunk", "ended", "opened", "seqs_of", "target"]

_ITEM = re.compile(rb"(?:^|\n)id: [^:\n]+:([0-9]+)\nevent: (?!cursor\n)")


def target(run_id: str, query: str = "") -> str:
    return f"/v1/runs/{run_id}/stream" + (f"?{query}" if query else "")


def seqs_of(wire: bytes) -> list[int]:
    """The seqs of the items in a body, in the order in which they came. Fast: for bodies of many megabytes."""
    return [int(seq) for seq in _ITEM.findall(wire)]


async def drunk(stream: Response, timeout: float = 60.0) -> tuple[list[int], bool]:
    """Read a chunked stream to its body's end, or to where it breaks off: → the seqs of its whole parts, and whether
    it had the run's end. Keeps no more."""
    seqs: list[int] = []
    end = False
    async with asyncio.timeout(timeout):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while part := await stream.part():
                stream.forget()
                seqs += seqs_of(part)
                end = end or b"event: end\n" in part[-512:]
    return seqs, end


async def opened(
    gateway: GatewayProcess, run_id: str, after: int | str | None = None, query: str = "", *, version: str = "1.1"
) -> Response:
    """A stream, its head read. ``after``: a seq, or a whole ``Last-Event-ID``."""
    headers: Sequence[tuple[str, str]] = ()
    if after is not None:
        headers = [("Last-Event-ID", f"{run_id}:{after}" if isinstance(after, int) else after)]
    return await Response.open(gateway.port, target(run_id, query), headers=headers, version=version)


async def ended(
    gateway: GatewayProcess, run_id: str, after: int | str | None = None, query: str = "", *, timeout: float = 30.0
) -> Response:
    """A stream to its proper end."""
    async with await opened(gateway, run_id, after, query) as stream:
        await stream.body(timeout)
    return stream
