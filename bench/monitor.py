"""Which commands a Redis was asked for, by clients and not by scripts: its own ``MONITOR``, counted by name."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

__all__ = ["Monitor"]

_LINE = re.compile(rb'^\+[\d.]+ \[\d+ (?!lua)[^\]]*\] "([A-Za-z]+)"')
_MARK = b"bench-monitor-mark"


class Monitor:
    """``async with Monitor(port, run_id) as m``: ``await m.counts()`` is what was asked for about that run since.

    Other runs are not counted.
    """

    def __init__(self, port: int, run_id: str) -> None:
        self._port, self._run = port, run_id.encode()
        self._marks = 0

    async def __aenter__(self) -> Monitor:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 26)
        self._writer.write(b"MONITOR\r\n")
        await self._reader.readline()
        return self

    async def counts(self) -> Counter[str]:
        """Commands by name since the last call, or since entering."""
        self._marks += 1
        mark = b"%b-%d" % (_MARK, self._marks)
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(b"ECHO %b\r\n" % mark)
        found: Counter[str] = Counter()
        while mark not in (line := await self._reader.readline()):
            if self._run in line and (command := _LINE.match(line)) is not None:
                found[command[1].decode().upper()] += 1
        writer.close()
        return found

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
