"""Many viewers joining one busy run at random places and moments, over two gateways of which one is killed."""

from __future__ import annotations

import asyncio
import random
import re
import time
from pathlib import Path

import pytest

from broker import api
from broker.items import Final, MessageDelta
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.e2e.processes import Gateway, SseViewer, environment
from tests.servers import RedisServer

RATE, SECONDS, VIEWERS, DELAY = 1_000, 6.0, 200, 0.05
LIVE_WITHIN = 1.0


class Joiner(SseViewer):
    """Notes when it had everything that was published when it joined. Reads in bulk: 200 of them share one core with
    the publisher, and the test is to measure the gateways."""

    joined = live = 0.0
    start = target = 0
    _id = re.compile(rb"\nid: [^:\n]+:([0-9]+)\n")
    _control = re.compile(rb"\nevent: (reset|gap|cursor|end)\n")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while data := await reader.read(1 << 18):
            data = rest + data
            cut = data.rfind(b"\n\n") + 1  # a frame is never split by a chunk's framing, only by the network
            rest, data = data[cut:], data[:cut]
            self.ids.extend(map(int, self._id.findall(data)))
            self.controls.extend((name.decode(), {}) for name in self._control.findall(data))
            if self.ids:
                self.last_id = f"{self.run_id}:{self.ids[-1]}"
                if not self.live and self.ids[-1] >= self.target:
                    self.live = time.monotonic()
            if self.controls and self.controls[-1][0] == "end":
                self.ended = True
                return


@pytest.mark.alone
@pytest.mark.timeout(120)
async def test_each_viewer_is_contiguous_whole_and_soon_live(redis7: RedisServer, namespace: str, tmp_path: Path):
    env = environment(redis7.url, namespace)
    gateways = [Gateway(env, tmp_path / f"gateway{n}.log", delay=DELAY) for n in range(2)]
    try:
        for gateway in gateways:
            await gateway.ready()
        async with api.open(redis7.url, Settings(namespace=namespace)) as broker:
            await play(broker, gateways)
    finally:
        for gateway in gateways:
            gateway.kill()


async def play(broker: api.Broker, gateways: list[Gateway]) -> None:
    rng = random.Random(7)
    record, _ = await broker.runs.create(RunRequest(runner="x", input=RunInput(message="x")), enqueue=False)
    claim = await broker.runs.claim(record.run_id, record.attempt, "test")
    viewers: list[Joiner] = []
    watching: list[asyncio.Task[SseViewer]] = []
    killed = False
    async with broker.publisher(claim) as publisher:
        began = time.monotonic()
        published = 0
        while (now := time.monotonic() - began) < SECONDS:
            while published < now * RATE:
                published += 1
                await publisher.publish(MessageDelta(text=f"{published} "))
            while len(viewers) < min(VIEWERS, now / (SECONDS * 0.75) * VIEWERS):
                first = len(viewers) % 2
                ports = [gateways[first].port, gateways[1 - first].port]
                start = rng.randint(0, publisher.last)
                viewer = Joiner(record.run_id, [gateways[1].port] if killed else ports, after=start)
                viewer.joined, viewer.target = time.monotonic(), publisher.last
                viewer.start = start
                viewers.append(viewer)
                watching.append(asyncio.create_task(viewer.watch()))
            if not killed and now > SECONDS / 2:
                gateways[0].popen.kill()
                killed = True
            await asyncio.sleep(0.005)
        last = await publisher.seal(Final())
    async with asyncio.timeout(60):
        await asyncio.gather(*watching)
    assert len(viewers) == VIEWERS
    for viewer in viewers:
        assert viewer.ids == list(range(viewer.start + 1, last + 1)), (viewer.connections, viewer.controls)
        assert [c for c, _ in viewer.controls] == ["end"]
    late = sorted(v.live - v.joined for v in viewers if v.live and v.connections == 1)
    assert len(late) > VIEWERS / 4
    # Publisher, 200 viewers, two gateways and Redis share two cores here: a few may wait for the test itself.
    assert late[int(len(late) * 0.95)] < LIVE_WITHIN, late[-10:]
    assert late[-1] < 3 * LIVE_WITHIN, late[-10:]
    assert sum(v.connections > 1 for v in viewers) > VIEWERS / 10, "the killed gateway had viewers"
