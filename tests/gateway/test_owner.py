"""Viewers that own their run (``on_disconnect=cancel``), over two gateways. Nobody else's leaving does anything."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.items import Cancelled
from broker.publisher import Publisher
from broker.settings import Settings
from tests.gateways import GatewayProcess, Response, say, until, writing
from tests.servers import RedisServer

GRACE = 1.2


@pytest.fixture(scope="module")
def settings(redis7: RedisServer) -> Settings:
    return Settings(
        redis_url=redis7.url,
        namespace=f"t{uuid4().hex[:12]}",
        partitions=4,
        heartbeat=0.3,
        disconnect_grace=GRACE,
        drain=2.0,
    )


@pytest.fixture(scope="module")
def gateways(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GatewayProcess]]:
    started = [GatewayProcess(settings, tmp_path_factory.mktemp("gateway")).start() for _ in range(2)]
    yield started
    for process in started:
        process.kill()
        assert "Traceback" not in process.log


@pytest.fixture
async def broker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened


async def own(gateway: GatewayProcess, broker: Broker, p: Publisher, *, header: bool = False) -> Response:
    """Attach as an owner; returns when the record counts it."""
    before = (await broker.owners.roll(p.run_id)).arrivals
    token = await broker.runs.cancel_token(p.run_id)
    query = "?on_disconnect=cancel" + ("" if header else f"&cancel_token={token}")
    headers = [("X-Cancel-Token", token)] if header else []
    stream = await Response.open(gateway.port, f"/v1/runs/{p.run_id}/stream{query}", headers=headers)
    assert stream.status == 200

    async def counted() -> bool:
        return (await broker.owners.roll(p.run_id)).arrivals > before

    await until(counted)
    return stream


async def asked(broker: Broker, p: Publisher) -> bool:
    return (await broker.runs.get(p.run_id)).cancel_requested is not None


async def cancelled(broker: Broker, p: Publisher) -> None:
    await until(lambda: asked(broker, p), GRACE + 30)


async def count(broker: Broker, p: Publisher, attached: int) -> None:
    async def counted() -> bool:
        return len((await broker.owners.roll(p.run_id)).there) == attached

    await until(counted)


@pytest.mark.parametrize("header", [True, False])
async def test_a_run_whose_owner_stays_away_is_cancelled_once_the_grace_is_over(
    gateways: list[GatewayProcess], broker: Broker, header: bool
):
    async with writing(broker) as p:
        watching = await Response.open(gateways[1].port, f"/v1/runs/{p.run_id}/stream")
        await say(p, 2)
        owner = await own(gateways[0], broker, p, header=header)
        await owner.upto(2)
        left = asyncio.get_running_loop().time()
        owner.leave()
        await cancelled(broker, p)
        assert asyncio.get_running_loop().time() - left >= GRACE * 0.9
        await say(p, Cancelled())
        await watching.body()
        assert watching.frames[-1].data["status"] == "cancelled"
        watching.leave()


@asynccontextmanager
async def back_in_time(gateways: list[GatewayProcess], broker: Broker) -> AsyncIterator[tuple[Publisher, Response]]:
    """A run whose owner left, and is back on the other gateway before the grace is over: with a further run where the
    machine was too slow for that."""
    for _ in range(10):
        async with writing(broker) as p:
            owner = await own(gateways[0], broker, p)
            left = time.monotonic()
            owner.leave()
            await count(broker, p, 0)
            again = await own(gateways[1], broker, p)
            if time.monotonic() - left < GRACE * 0.9:
                yield p, again
                return
            again.leave()
    raise AssertionError("it was never back in time")


async def test_an_owner_that_comes_back_elsewhere_in_time_keeps_its_run(gateways: list[GatewayProcess], broker: Broker):
    async with back_in_time(gateways, broker) as (p, again):
        await asyncio.sleep(GRACE * 1.5)  # the first grace is over by now: that nothing happened is what is tested
        assert not await asked(broker, p)
        again.leave()
        await cancelled(broker, p)


async def test_the_grace_counts_from_the_last_leaving(gateways: list[GatewayProcess], broker: Broker):
    """The owner is back on another gateway and leaves again shortly before the first grace is over."""
    async with back_in_time(gateways, broker) as (p, again):
        await asyncio.sleep(GRACE * 0.6)
        left = time.monotonic()
        again.leave()
        await cancelled(broker, p)
        assert time.monotonic() - left >= GRACE * 0.9


async def test_one_of_two_owners_may_leave(gateways: list[GatewayProcess], broker: Broker):
    async with writing(broker) as p:
        first, second = await own(gateways[0], broker, p), await own(gateways[0], broker, p)
        first.leave()
        await count(broker, p, 1)
        await asyncio.sleep(GRACE * 0.6)
        left = time.monotonic()
        second.leave()
        await cancelled(broker, p)
        assert time.monotonic() - left >= GRACE * 0.9


async def test_other_viewers_may_leave_with_the_token_or_without(gateways: list[GatewayProcess], broker: Broker):
    async with writing(broker) as p:
        token = await broker.runs.cancel_token(p.run_id)
        for query in ("", f"?cancel_token={token}", "?on_disconnect=nothing", "?cancel_token=wrong"):
            stream = await Response.open(gateways[0].port, f"/v1/runs/{p.run_id}/stream{query}")
            assert stream.status == 200
            stream.leave()
        await gateways[0].reads("runcast_viewers", 0)
        assert (await broker.owners.roll(p.run_id)).arrivals == 0
        assert not await asked(broker, p)


@pytest.mark.parametrize("token", ["wrong", "", "é", "of another run"])
async def test_a_wrong_token_is_refused(gateways: list[GatewayProcess], broker: Broker, token: str):
    async with writing(broker) as p, writing(broker) as other:
        if token == "of another run":
            token = await broker.runs.cancel_token(other.run_id)
        headers = [("X-Cancel-Token", token.encode().decode("latin-1"))]
        target = f"/v1/runs/{p.run_id}/stream?on_disconnect=cancel"
        async with await Response.open(gateways[0].port, target, headers=headers) as answer:
            assert answer.status == (403 if token else 400)
            await answer.body()
        assert (await broker.owners.roll(p.run_id)).arrivals == 0


async def test_the_end_of_a_run_is_no_leaving(gateways: list[GatewayProcess], broker: Broker):
    async with writing(broker) as p:
        owner = await own(gateways[0], broker, p)
        await say(p, 1, end=True)
        await owner.body()
        owner.leave()
        await count(broker, p, 0)
        assert (await broker.runs.get(p.run_id)).status == "completed"


async def test_neither_drain_nor_the_death_of_a_gateway_is_leaving(
    settings: Settings, gateways: list[GatewayProcess], broker: Broker, tmp_path_factory: pytest.TempPathFactory
):
    drained, killed = (GatewayProcess(settings, tmp_path_factory.mktemp("more")).start() for _ in range(2))
    async with writing(broker) as p, writing(broker) as q:
        by_drain, by_death = await own(drained, broker, p), await own(killed, broker, q)
        drained.signal(signal.SIGTERM)
        await by_drain.body()
        assert await drained.ended() == 0
        assert "Traceback" not in drained.log
        killed.kill()
        await asyncio.sleep(GRACE * 1.5)
        assert not await asked(broker, p)
        assert not await asked(broker, q)
        assert len((await broker.owners.roll(p.run_id)).there) == 0
        # Back on another gateway, they own their runs as before.
        for run in (p, q):
            (await own(gateways[0], broker, run)).leave()
        await cancelled(broker, p)
        await until(lambda: asked(broker, q), GRACE + 8)
    by_death.leave()
