"""Items of 1 MiB through one gateway, past a viewer that does not read. Redis keeps the last 64 of them.

``FLOOD_ITEMS`` says how many: 8,000 are 8 GiB, and some ten minutes on two cores.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import pytest

from broker import api
from broker.items import Final, MessageDelta
from broker.settings import Settings
from tests.cases.wire import drunk, seqs_of
from tests.gateways import GatewayProcess, Response, writing
from tests.servers import RedisServer
from tests.sleepers import Sleeper

ITEMS = int(os.environ.get("FLOOD_ITEMS", "1000"))
SIZE = (1 << 20) - 512
"""Of a text. The item, its time and its type are 1 MiB at most."""
AHEAD = 24
"""Items that the publisher may be ahead of the healthy viewer: retention must not overtake that one."""
MARGIN = 48 << 20
"""Of the gateway's memory: a read, its rendering and what is on its way to the healthy viewer, of 1 MiB items."""

_CONTROL = re.compile(rb"(?:^|\n)event: (gap|reset|end)\n")

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.timeout(7200)]


class Healthy:
    """Reads everything at once and keeps the seqs."""

    def __init__(self, stream: Response) -> None:
        self.seqs: list[int] = []
        self.bytes = 0
        self.controls: list[bytes] = []
        self._stream = stream
        self.moved = asyncio.Event()

    async def read(self) -> None:
        while part := await self._stream.part():
            self._stream.forget()
            self.bytes += len(part)
            self.seqs += seqs_of(part)
            self.controls += _CONTROL.findall(part)
            self.moved.set()

    async def reach(self, seq: int) -> None:
        while not self.seqs or self.seqs[-1] < seq:
            self.moved.clear()
            await self.moved.wait()


def used(redis: RedisServer) -> int:
    """Bytes of memory that it uses."""
    said = dict(line.split(b":", 1) for line in redis.info("memory").split() if b":" in line)
    return int(said[b"used_memory"])


def rss(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


async def test_a_flood_past_a_stalled_viewer_costs_what_waits_for_it_and_it_is_told_what_it_lost(
    tmp_path: Path, namespace: str
):
    redis = RedisServer(tmp_path / "redis", options=["--appendonly", "no"]).start()
    settings = Settings(redis_url=redis.url, namespace=namespace, partitions=4, stall_limit=7200)
    gateway = GatewayProcess(settings, tmp_path)
    await asyncio.to_thread(gateway.start)
    try:
        async with api.open(settings=settings) as broker, writing(broker) as p:
            stream = await Response.open(gateway.port, f"/v1/runs/{p.run_id}/stream", limit=4 << 20)
            healthy = Healthy(stream)
            reading = asyncio.create_task(healthy.read())
            text = "x" * SIZE
            for _ in range(50):  # what a gateway grows by once, for items of that size
                await p.publish(MessageDelta(text=text))
            await p.flush()
            await healthy.reach(50)
            before = most = rss(gateway.pid)
            stalled = await Sleeper.open(gateway.port, p.run_id, after=50)
            await gateway.reads("runcast_viewers", 2)
            began = time.monotonic()
            for n in range(ITEMS):
                await p.publish(MessageDelta(text=text))
                await asyncio.wait_for(healthy.reach(p.last - AHEAD), 60)
                most = max(most, rss(gateway.pid)) if n % 20 == 0 else most
            await p.flush()
            await healthy.reach(50 + ITEMS)
            took = time.monotonic() - began
            waiting, memory = gateway.number("runcast_viewers_waiting_bytes"), used(redis)
            woken = await stalled.wake()
            await woken.until(lambda frames: frames and frames[-1].event == "gap", 60)
            seen, gap = woken.seqs, woken.frames[-1].data
            last = await p.seal(Final())
            later, ended = await drunk(woken, 120)
            await asyncio.wait_for(reading, 60)
        print(
            f"\n{ITEMS} items, {healthy.bytes / 2**30:.2f} GiB, {took:.0f} s. Gateway: {before / 2**20:.1f} MiB before,"
            f" {most / 2**20:.1f} at most; for the stalled one {waiting / 2**20:.2f} wait. Redis: {memory / 2**20:.0f}."
            f" The stalled one had {len(seen)} items, then {gap}, then {len(later)} items."
        )
        assert ended
        assert healthy.seqs == list(range(1, last + 1))
        assert healthy.controls == [b"end"]
        assert most - before <= settings.high_water + MARGIN
        assert waiting <= settings.high_water + 2 * (1 << 20)
        assert memory <= settings.run_max_bytes * 1.5 + MARGIN
        assert seen == list(range(51, 51 + len(seen)))
        assert (gap["requested"], gap["earliest"], gap["latest"]) == (seen[-1], later[0], 50 + ITEMS)
        assert later == list(range(gap["earliest"], last + 1)), "what is kept, whole, and the end"
    finally:
        gateway.kill()
        redis.kill()
    assert "Traceback" not in gateway.log
