"""P8: joining a finished run of 10,000 token deltas with ``compact=1``."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from bench.lab import Lab
from bench.results import Result, Row
from broker.items import Entry, MessageDelta
from broker.merge import merge_entries
from broker.sse import Decoder

__all__ = ["ROW"]

_CONTROL = {"end", "cursor"}


async def run(lab: Lab) -> Result:
    deltas = lab.size(10_000, 10_000)
    async with lab.run() as publisher:
        for number in range(deltas):
            await publisher.publish(MessageDelta(text=f"word{number} "))
        await publisher.flush()
    gateway = lab.gateway
    plain, plain_bytes = await _join(gateway.port, lab.path(publisher.run_id))
    compacted, compacted_bytes = await _join(gateway.port, lab.path(publisher.run_id, compact=1))
    result = Result()
    result.figures |= {
        "frames": f"{len(compacted)} of {len(plain)}",
        "bytes": f"{compacted_bytes} of {plain_bytes}",
    }
    result.check("plain replay is whole", [entry.seq for entry in plain] == list(range(1, deltas + 2)))
    result.check("frames ≤ 1 %", len(compacted) <= len(plain) / 100)
    result.check("bytes ≤ 1/10", compacted_bytes <= plain_bytes / 10)
    merged = _message(plain)
    result.check("the same merged message", merged is not None and merged == _message(compacted))
    result.check("the same last cursor", compacted[-1].seq == plain[-1].seq)
    return result


def _message(entries: list[Entry]) -> dict[str, Any] | None:
    return merge_entries(entries).message(1)


async def _join(port: int, path: str) -> tuple[list[Entry], int]:
    """Frames of items as entries, and the bytes of the body, until the run's end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    # HTTP/1.0: the body comes without framing, and ends with the connection.
    writer.write(f"GET {path} HTTP/1.0\r\nHost: bench\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    body = await reader.read()
    writer.close()
    entries = []
    for event in Decoder().feed(body):
        if event.event not in _CONTROL:
            fields = json.loads(event.data)
            entries.append(Entry(fields["seq"], event.event.encode(), event.data.encode()))
    return entries, len(body)


ROW = Row("P8", "join of a finished run of 10,000 token deltas, compact=1", run)
