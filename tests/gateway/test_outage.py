"""Redis goes away, before, during and around the end of streams, and comes back. (cases 6 and 9)"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from broker import api
from broker.api import Broker
from broker.items import MessageDelta
from broker.settings import Settings
from tests.gateways import Frame, GatewayProcess, Response, say, until, writing
from tests.servers import Proxy, RedisServer

HB = Frame(":", "hb")


def settings_for(url: str, namespace: str) -> Settings:
    return Settings(
        redis_url=url,
        namespace=namespace,
        partitions=4,
        heartbeat=0.25,
        block=0.5,
        request_deadline=1.0,
        retry_ms=300,
    )


@pytest.fixture
def gateway(redis_server: RedisServer, namespace: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    process = GatewayProcess(settings_for(redis_server.url, namespace), tmp_path).start()
    yield process
    process.kill()
    assert "Traceback" not in process.log


@pytest.fixture
async def broker(redis_server: RedisServer, namespace: str) -> AsyncIterator[Broker]:
    settings = settings_for(redis_server.url, namespace).model_copy(update={"request_deadline": 10.0})
    async with api.open(settings=settings) as opened:
        yield opened


async def refused_kindly(gateway: GatewayProcess, run_id: str) -> None:
    """A stream gets 200, ``retry:`` and the end, since a 5xx would end an EventSource for good; requests get 503."""
    began = time.monotonic()
    path = f"/v1/runs/{run_id}"
    streams = [_empty_stream(gateway, f"{path}/stream", version) for version in ("1.1", "1.0")]
    requests = [_unavailable(gateway, target) for target in (path, "/v1/runs", f"{path}/items")]
    await asyncio.gather(*streams, *requests, _head(gateway, f"{path}/stream"))
    assert time.monotonic() - began < 15


async def _empty_stream(gateway: GatewayProcess, target: str, version: str) -> None:
    async with await Response.open(gateway.port, target, version=version) as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        await stream.body()
        assert [f.event for f in stream.frames] == [":", "retry"]
        assert 150 <= stream.frames[1].data <= 450


async def _head(gateway: GatewayProcess, target: str) -> None:
    async with await Response.open(gateway.port, target, method="HEAD") as head:
        assert head.status == 200


async def _unavailable(gateway: GatewayProcess, target: str) -> None:
    async with await Response.open(gateway.port, target) as answer:
        problem = json.loads(await answer.body())
    assert (answer.status, problem["code"]) == (503, "store_unavailable")
    assert int(answer.headers["retry-after"]) > 0


async def test_a_redis_that_is_away_is_no_5xx_to_a_stream(
    gateway: GatewayProcess, broker: Broker, redis_server: RedisServer
):
    async with writing(broker) as p:
        await say(p, 3)
        redis_server.stop()
        await refused_kindly(gateway, p.run_id)
        redis_server.start()
        async with await Response.open(gateway.port, f"/v1/runs/{p.run_id}/stream") as stream:
            await stream.upto(3)
            await say(p, 1, end=True)
            await stream.body()
            assert stream.seqs == [1, 2, 3, 4, 5]


async def test_a_redis_that_hangs_is_no_5xx_to_a_stream(
    gateway: GatewayProcess, broker: Broker, redis_server: RedisServer
):
    async with writing(broker) as p:
        await say(p, 1, end=True)
        redis_server.pause()
        await refused_kindly(gateway, p.run_id)
        redis_server.resume()
        async with await Response.open(gateway.port, f"/v1/runs/{p.run_id}/stream") as stream:
            await stream.body()
            assert stream.seqs == [1, 2]


async def test_a_gateway_starts_without_redis_and_serves_when_it_is_there(
    redis_server: RedisServer, namespace: str, tmp_path: Path
):
    redis_server.stop()
    gateway = GatewayProcess(settings_for(redis_server.url, namespace), tmp_path).start()
    try:
        await refused_kindly(gateway, "run_1")
        redis_server.start()
        async with api.open(settings=gateway.settings) as broker, writing(broker) as p:
            await say(p, 1, end=True)
            async with asyncio.timeout(40):
                while True:
                    async with await Response.open(gateway.port, f"/v1/runs/{p.run_id}/stream") as stream:
                        await stream.body()
                        if stream.seqs:
                            break
                    await asyncio.sleep(0.1)
            assert stream.seqs == [1, 2]
    finally:
        gateway.kill()
    assert "Traceback" not in gateway.log


Outage = tuple[Callable[[RedisServer], object], Callable[[RedisServer], object]]
OUTAGES: dict[str, Outage] = {
    "stopped": (RedisServer.stop, RedisServer.start),
    "killed": (RedisServer.kill, RedisServer.start),
    "hanging": (RedisServer.pause, RedisServer.resume),
}


@pytest.mark.parametrize("kind", OUTAGES)
async def test_open_streams_outlive_an_outage_exactly(
    gateway: GatewayProcess, broker: Broker, redis_server: RedisServer, kind: str
):
    """Live, filtered, and one that waits for the first item of another run: silence but for heartbeats, then what
    follows."""
    go, come = OUTAGES[kind]
    async with writing(broker) as p, writing(broker) as q:
        await say(p, 20)
        live = await Response.open(gateway.port, f"/v1/runs/{p.run_id}/stream")
        final = await Response.open(gateway.port, f"/v1/runs/{p.run_id}/stream?modes=final")
        early = await Response.open(gateway.port, f"/v1/runs/{q.run_id}/stream")
        streams = [live, final, early]
        await live.upto(20)
        go(redis_server)
        for _ in range(30):
            await p.publish(MessageDelta(text="x "))  # taken, and stored once Redis is back
        began = time.monotonic()
        for stream in streams:  # several heartbeats, and as long as several reads that find nothing
            seen = stream.frames.count(HB)
            await stream.until(
                lambda frames, seen=seen: frames.count(HB) >= seen + 8 and time.monotonic() - began > 1.5
            )
        come(redis_server)
        await say(p, 1, end=True)
        await say(q, 2, end=True)
        for stream in streams:
            await stream.body(40)
            assert [f.event for f in stream.controls if f.event != "cursor"] == ["end"]
            stream.leave()
    assert live.seqs == list(range(1, 53))
    assert final.seqs == [52]
    assert early.seqs == [1, 2, 3]


@pytest.mark.parametrize("before", [True, False])
async def test_the_fence_arrives_though_the_connection_is_cut_around_it(
    redis_server: RedisServer, namespace: str, tmp_path: Path, broker: Broker, before: bool
):
    async with Proxy(redis_server.port) as proxy:
        gateway = GatewayProcess(settings_for(proxy.url, namespace), tmp_path)
        await asyncio.to_thread(gateway.start)
        try:
            async with writing(broker) as p:
                await say(p, 5)
                stream = await Response.open(gateway.port, f"/v1/runs/{p.run_id}/stream")
                await stream.upto(5)
                if before:
                    proxy.refuse = True
                    proxy.cut()
                await say(p, 5, end=True)
                if not before:
                    proxy.refuse = True
                    proxy.cut()
                refused = proxy.accepted
                reading = asyncio.create_task(stream.body(40))
                # Refused a few times, unless the fence was through already.
                await until(lambda: reading.done() or proxy.accepted >= refused + 3)
                proxy.refuse = False
                await reading
                assert stream.seqs == list(range(1, 12))
                stream.leave()
        finally:
            gateway.kill()


async def test_200_idle_viewers_outlive_a_long_silence_on_few_connections(
    gateway: GatewayProcess, broker: Broker, redis_server: RedisServer
):
    async with writing(broker) as p, writing(broker) as other:
        viewers = [await Response.open(gateway.port, f"/v1/runs/{p.run_id}/stream") for _ in range(200)]
        await gateway.reads("runcast_viewers", 200)
        for viewer in (viewers[0], viewers[-1]):  # many blocking reads come back empty meanwhile
            await viewer.until(lambda frames: frames.count(HB) >= 12)
        clients = redis_server.command("CLIENT", "LIST")
        assert isinstance(clients, bytes)
        assert clients.count(b"\n") <= 2 * (gateway.settings.lanes + 3) + 2  # the gateway's, the test's, this one
        random.shuffle(viewers)
        for viewer in viewers[:100]:
            viewer.leave()
        await say(p, 3)
        await say(other, 1, end=True)
        await gateway.reads("runcast_viewers", 100)
        await say(p, 1, end=True)
        for viewer in viewers[100:]:
            await viewer.body()
            assert viewer.seqs == [1, 2, 3, 4, 5]
            viewer.leave()
