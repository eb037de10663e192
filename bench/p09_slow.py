"""P9: 20 viewers that never read, while 60 MiB are published: memory, the healthy viewers, and who comes back."""

from __future__ import annotations

import asyncio
import re
import socket
from statistics import median

from bench.lab import Lab, paced
from bench.processes import Process
from bench.results import Result, Row
from bench.sink import Seen, Sink, Spec
from broker.items import MessageDelta
from broker.settings import Settings

__all__ = ["ROW"]

_SLOW, _HEALTHY = 20, 5
_TEXT = "x" * 16_000
_ID = re.compile(rb"id: [^\n]*:(\d+)\n")
_MIB = 1 << 20


async def run(lab: Lab) -> Result:
    result = Result()
    items = lab.size(3_932, 200)
    gateway = lab.fresh()
    alone, beside, grown = [], [], 0
    for turn in range(lab.size(3, 1)):
        lab.tell("healthy viewers alone")
        seen, _ = await _publish(lab, gateway, items, slow=0, result=result)
        alone.append(seen.quantile(0.99))
        before = gateway.rss()
        lab.tell(f"with {_SLOW} viewers that never read")
        seen, more = await _publish(lab, gateway, items, slow=_SLOW, result=result, before=before)
        beside.append(seen.quantile(0.99))
        grown = grown if turn else more  # later turns find what the first has grown by
    allowed = _SLOW * Settings.model_fields["high_water"].default + 16 * _MIB
    result.figures |= {
        "published MiB": round(items * len(_TEXT) / _MIB, 1),
        "grown MiB": round(grown / _MIB, 1),
        "p99 ms alone": round(median(alone) * 1e3, 1),
        "p99 ms beside": round(median(beside) * 1e3, 1),
    }
    result.check("memory grew by at most viewers × high water + 16 MiB", grown <= allowed)
    ratios = [b / a for a, b in zip(alone, beside, strict=True)]
    result.at_most("healthy p99 / without the slow ones", median(ratios), 1.5)
    lab.let_go(gateway)
    return result


async def _publish(
    lab: Lab, gateway: Process, items: int, *, slow: int, result: Result, before: int = 0
) -> tuple[Seen, int]:
    async with lab.run() as publisher:
        path = lab.path(publisher.run_id)
        sleepers = [_Sleeper(gateway.port, path) for _ in range(slow)]
        async with Sink(Spec(gateway.port, [path] * _HEALTHY, items, timeout=120)) as sink:
            most = 0
            async for number in paced(items, 0.0025):
                await publisher.publish(MessageDelta(text=_TEXT))
                if number % 100 == 0:
                    most = max(most, gateway.rss())
            seen = await sink.seen()
            most = max(most, gateway.rss())
    result.check("healthy viewers got everything, in order", seen.complete == _HEALTHY and not seen.disorder)
    if slow:
        lab.tell("the slow ones come back")
        got = await asyncio.gather(*(s.come_back() for s in sleepers))
        result.check("every slow viewer that resumed got everything", all(seq == items + 1 for seq in got))
    return seen, most - before


class _Sleeper:
    """A viewer that reads nothing until it wakes up; half of them then resume on a new connection."""

    made = 0

    def __init__(self, port: int, path: str) -> None:
        _Sleeper.made += 1
        self._resumes = _Sleeper.made % 2 == 0
        self._port, self._path = port, path
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self._sock.connect(("127.0.0.1", port))
        self._sock.sendall(f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
        self._seq = 0

    async def come_back(self) -> int:
        """The last seq that it has in the end; 0 where something is missing or came twice."""
        reader, writer = await asyncio.open_connection(sock=self._sock)
        if self._resumes:
            await self._follow(reader, enough=20)
            writer.transport.abort()
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            cursor = f"Last-Event-ID: {self._path.split('/')[3]}:{self._seq}"
            writer.write(f"GET {self._path} HTTP/1.1\r\nHost: bench\r\n{cursor}\r\n\r\n".encode())
        whole = await self._follow(reader)
        writer.close()
        return self._seq if whole else 0

    async def _follow(self, reader: asyncio.StreamReader, enough: int = 1 << 60) -> bool:
        """Read whole frames until the end, or until there are ``enough``."""
        rest, count = b"", 0
        while count < enough and (received := await asyncio.wait_for(reader.read(1 << 18), 60)):
            rest += received
            cut = rest.rfind(b"\n\n") + 2
            seqs = [int(seq) for seq in _ID.findall(rest[:cut])] if cut > 1 else []
            if seqs and seqs != list(range(self._seq + 1, self._seq + 1 + len(seqs))):
                return False
            count += len(seqs)
            self._seq = seqs[-1] if seqs else self._seq
            if cut > 1:
                if b"event: end\n" in rest[max(cut - 512, 0) : cut]:
                    return True
                rest = rest[cut:]
        return count >= enough


ROW = Row("P9", "20 viewers that never read + 60 MiB published", run)
