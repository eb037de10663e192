"""A gateway that goes away, by SIGTERM or SIGKILL, and its viewers that continue on another one. (case 12)"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.items import MessageDelta
from broker.publisher import Publisher
from broker.settings import Settings
from broker.sse import Decoder
from tests.gateways import GatewayProcess, Response, say, writing
from tests.servers import RedisServer

Pair = tuple[GatewayProcess, GatewayProcess]
DRAIN = 30.0
EXIT = 15.0
"""Nobody waits until the drain time is over: streams end at once. And something for a machine that is slow."""


@pytest.fixture(scope="module")
def settings(redis7: RedisServer) -> Settings:
    return Settings(
        redis_url=redis7.url,
        namespace=f"t{uuid4().hex[:12]}",
        partitions=4,
        heartbeat=0.5,
        retry_ms=2000,
        drain=DRAIN,
    )


@pytest.fixture
def pair(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("gateways")
    first, second = (GatewayProcess(settings, directory).start() for _ in range(2))
    yield first, second
    for process in (first, second):
        process.kill()
        assert "Traceback" not in process.log
        assert "ERROR" not in process.log


@pytest.fixture
async def broker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened


class Viewer:
    """What a client keeps over its reconnects: the last id that it dispatched, and every seq that it was given."""

    def __init__(self, run_id: str, version: str = "1.1") -> None:
        self.run_id, self.version = run_id, version
        self.last_id, self.retry = "", 0
        self.seqs: list[int] = []
        self.wires: list[Response] = []

    async def follow(self, gateway: GatewayProcess) -> Response:
        """One connection, until it ends in whatever way."""
        headers = [("Last-Event-ID", self.last_id)] if self.last_id else []
        target = f"/v1/runs/{self.run_id}/stream"
        response = await Response.open(gateway.port, target, headers=headers, version=self.version)
        decoder = Decoder(self.last_id)
        try:
            while not response.complete:
                try:
                    part = await response.part()
                except (asyncio.IncompleteReadError, ConnectionError):
                    break
                for event in decoder.feed(part):
                    if event.event == "message.delta" or event.event == "final":
                        self.seqs.append(int(event.id.rpartition(":")[2]))
                self.last_id = decoder.last_event_id
        finally:
            response.leave()
        self.retry = decoder.retry or 0
        return response


async def talk(p: Publisher, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await p.publish(MessageDelta(text=f"{random.random()} "))
        await asyncio.sleep(0.002)
    await say(p, 1, end=True)


async def test_100_live_streams_are_drained_and_go_on_elsewhere(pair: Pair, broker: Broker):
    first, second = pair
    async with writing(broker) as p, writing(broker) as q:
        stop = asyncio.Event()
        talking = [asyncio.create_task(talk(publisher, stop)) for publisher in (p, q)]
        viewers = [Viewer((p, q)[n % 2].run_id, "1.0" if n % 10 == 0 else "1.1") for n in range(100)]
        following = [asyncio.create_task(viewer.follow(first)) for viewer in viewers]
        await first.reads("runcast_viewers", 100)
        began = time.monotonic()
        first.signal(signal.SIGTERM)
        cut = await asyncio.gather(*following)
        assert await first.ended() == 0
        assert time.monotonic() - began < EXIT
        again = [asyncio.create_task(viewer.follow(second)) for viewer in viewers]
        await second.reads("runcast_viewers", 100)
        stop.set()
        await asyncio.gather(*talking)
        ends = await asyncio.gather(*again)
        last = {publisher.run_id: publisher.last for publisher in (p, q)}
    for response in cut:
        assert response.complete  # the last chunk came: the response ended, it did not break off
        assert response.frames[-1].event == "retry"
    waits = [response.frames[-1].data for response in cut]
    assert 1000 <= min(waits) < max(waits) <= 3000
    assert len(set(waits)) > 50
    assert {response.frames[-1].event for response in ends} == {"end"}
    for viewer in viewers:
        assert viewer.seqs == list(range(1, last[viewer.run_id] + 1))


async def test_an_idle_gateway_and_one_with_kept_connections_end_at_once(pair: Pair, broker: Broker):
    _, second = pair
    async with writing(broker) as p:
        await say(p, 1, end=True)
        kept = await Response.open(second.port, f"/v1/runs/{p.run_id}/stream")
        await kept.body()
        for gateway in pair:
            began = time.monotonic()
            gateway.signal(signal.SIGTERM)
            assert await gateway.ended() == 0
            assert time.monotonic() - began < EXIT
        assert await kept.closed() == b""


async def test_a_gateway_of_two_processes_drains_both(
    settings: Settings, broker: Broker, tmp_path_factory: pytest.TempPathFactory
):
    gateway = GatewayProcess(settings, tmp_path_factory.mktemp("gateway"), workers=2).start()
    async with writing(broker) as p:
        await say(p, 5)
        target = f"/v1/runs/{p.run_id}/stream"
        streams = [await Response.open(gateway.port, target) for _ in range(20)]
        for stream in streams:
            await stream.upto(5)
        began = time.monotonic()
        gateway.signal(signal.SIGTERM)
        for stream in streams:
            await stream.body()
            assert stream.frames[-1].event == "retry"
            stream.leave()
        assert await gateway.ended() == 0
        assert time.monotonic() - began < EXIT
    assert "Traceback" not in gateway.log


async def test_two_signals_are_as_good_as_one(pair: Pair, broker: Broker):
    first, _ = pair
    async with writing(broker) as p:
        viewer = Viewer(p.run_id)
        following = asyncio.create_task(viewer.follow(first))
        await first.reads("runcast_viewers", 1)
        first.signal(signal.SIGTERM)
        first.signal(signal.SIGTERM)
        response = await following
        assert response.complete
        assert response.frames[-1].event == "retry"
        assert await first.ended() == 0


async def test_a_killed_gateway_costs_nobody_an_item(pair: Pair, broker: Broker):
    first, second = pair
    async with writing(broker) as p:
        stop = asyncio.Event()
        talking = asyncio.create_task(talk(p, stop))
        viewers = [Viewer(p.run_id) for _ in range(30)]
        following = [asyncio.create_task(viewer.follow(first)) for viewer in viewers]
        await first.reads("runcast_viewers", 30)
        await asyncio.sleep(0.3)  # let it stream for a while: when it is killed is chance, and meant to be
        first.kill()
        cut = await asyncio.gather(*following)
        assert not any(response.complete for response in cut)
        again = [asyncio.create_task(viewer.follow(second)) for viewer in viewers]
        stop.set()
        await talking
        await asyncio.gather(*again)
        first.start()  # on the same port, and as good as before
        assert (await Viewer(p.run_id).follow(first)).complete
        assert [viewer.seqs for viewer in viewers] == [list(range(1, p.last + 1))] * 30
