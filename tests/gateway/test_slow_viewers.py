"""Viewers that read little or nothing, seen from outside: what they cost, when they are cut, and what they get then."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.items import Final, MessageDelta
from broker.publisher import Publisher
from broker.settings import Settings
from tests.gateways import GatewayProcess, Response, say, until, writing
from tests.servers import RedisServer
from tests.sleepers import Sleeper, queued_by_kernel

HIGH_WATER = 64 << 10
ROOM = 650_000
"""What may wait for all viewers of the roomy gateway: some five and a half sleepers."""
WAITING = "runcast_viewers_waiting_bytes"
PAUSED = 'runcast_viewers_behind{why="paused"}'


def cut(reason: str) -> str:
    return f'runcast_viewers_cut_total{{reason="{reason}"}}'


@pytest.fixture(scope="module")
def settings(redis7: RedisServer) -> Settings:
    return Settings(
        redis_url=redis7.url,
        namespace=f"t{uuid4().hex[:12]}",
        partitions=4,
        heartbeat=0.4,
        high_water=HIGH_WATER,
        viewers_memory=ROOM,
    )


def started(settings: Settings, directory: Path, **more: object) -> GatewayProcess:
    return GatewayProcess(Settings(**settings.model_dump(exclude_unset=True) | more), directory).start()


def ended(gateway: GatewayProcess) -> None:
    gateway.kill()
    assert "Traceback" not in gateway.log
    assert "ERROR" not in gateway.log


@pytest.fixture(scope="module")
def roomy(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    gateway = started(settings, tmp_path_factory.mktemp("roomy"))
    yield gateway
    ended(gateway)


@pytest.fixture(scope="module")
def impatient(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    gateway = started(settings, tmp_path_factory.mktemp("impatient"), stall_limit=2.5, viewers_memory=8 << 20)
    yield gateway
    ended(gateway)


@pytest.fixture
async def broker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened


async def say_large(p: Publisher, count: int, size: int = 100_000) -> None:
    for n in range(count):
        await p.publish(MessageDelta(text=f"{n} ".ljust(size, "x")))
    await p.flush()


async def watching(gateway: GatewayProcess, run_id: str, after: int = 0) -> Response:
    cursor = [("Last-Event-ID", f"{run_id}:{after}")] if after else []
    return await Response.open(gateway.port, f"/v1/runs/{run_id}/stream", headers=cursor)


async def rest(gateway: GatewayProcess, run_id: str, after: int) -> list[int]:
    """What one that comes back gets, to the run's end."""
    async with await watching(gateway, run_id, after) as back:
        await back.body(20)
        return back.seqs


async def reads_over(gateway: GatewayProcess, name: str, value: float) -> None:
    """Wait until a metric is above that."""
    await until(lambda: asyncio.to_thread(lambda: gateway.number(name) > value), 20)


# Time.


async def test_one_that_takes_nothing_is_cut_between_two_frames_and_misses_nothing_when_it_comes_back(
    impatient: GatewayProcess, broker: Broker
):
    async with writing(broker) as p:
        before = impatient.number(cut("stalled"))
        sleepers = [await Sleeper.open(impatient.port, p.run_id, version=version) for version in ("1.1", "1.0")]
        healthy = await watching(impatient, p.run_id)
        await impatient.reads("runcast_viewers", 3)
        following = asyncio.create_task(healthy.body(50))
        await say_large(p, 30)
        await impatient.reads(cut("stalled"), before + 2)
        await impatient.reads("runcast_viewers", 1)
        await impatient.reads(WAITING, 0)  # nothing of them is left in the process
        await say(p, 2, end=True)
        await following
        healthy.leave()
        assert healthy.seqs == list(range(1, 34))
        for sleeper in sleepers:
            slow = await sleeper.wake()
            await slow.body()
            assert slow.complete
            last = slow.seqs[-1]
            assert slow.seqs == list(range(1, last + 1))
            assert slow.controls == []
            assert await rest(impatient, p.run_id, last) == list(range(last + 1, 34))
            slow.leave()
        assert impatient.number("runcast_viewers_reset_total") == 0


async def test_a_chat_that_is_not_read_is_told_so_in_its_last_frame(impatient: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        before = impatient.number(cut("stalled"))
        await say_large(p, 30)
        sleeper = await Sleeper.open(impatient.port, p.run_id, query="?format=chat")
        await impatient.reads(cut("stalled"), before + 1)
        woken = await sleeper.wake()
        body = await woken.body()
        assert body.endswith(b"data: [DONE]\n\n")
        assert b"was read for too long" in body
        woken.leave()


@pytest.mark.long
async def test_one_that_vanished_is_noticed_by_the_kernel(impatient: GatewayProcess, broker: Broker):
    left = 'runcast_stream_seconds_count{reason="left"}'
    async with writing(broker) as p:
        before = impatient.number(left)
        sleeper = await Sleeper.open(impatient.port, p.run_id)
        await impatient.reads("runcast_viewers", 1)
        sleeper.vanish()
        await impatient.reads("runcast_viewers", 0, 25)
        assert impatient.number(left) == before + 1
        sleeper.close()


# Memory.


async def test_a_full_one_that_is_read_goes_back_to_the_live_ones(roomy: GatewayProcess, broker: Broker):
    demoted, returned = "runcast_viewers_demoted_total", "runcast_viewers_returned_total"
    async with writing(broker) as p:
        before = roomy.number(demoted), roomy.number(returned)
        sleeper = await Sleeper.open(roomy.port, p.run_id)
        await roomy.reads("runcast_viewers", 1)
        await say_large(p, 30)
        await roomy.reads(demoted, before[0] + 1)
        await roomy.reads(PAUSED, 1)
        assert roomy.number(returned) == before[1]
        slow = await sleeper.wake()
        await slow.upto(30)
        await reads_over(roomy, returned, before[1])
        await roomy.reads(PAUSED, 0)
        reads = roomy.number("runcast_range_reads_total")
        await say(p, 5, end=True)
        await slow.body()
        assert slow.seqs == list(range(1, 37))
        assert roomy.number("runcast_range_reads_total") == reads, "what came then it got with the others"
        slow.leave()


async def test_neither_the_process_nor_the_kernel_keeps_much_more_than_the_mark(roomy: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        await say_large(p, 100)
        sleepers = [await Sleeper.open(roomy.port, p.run_id) for _ in range(4)]
        await roomy.reads(PAUSED, 4)
        queued = sorted(queued_by_kernel(roomy.port))[-4:]
        assert queued[0] > 0, "they are there"
        assert queued[-1] < 4 * HIGH_WATER
        assert 0 < roomy.number(WAITING) < 4 * (HIGH_WATER + 110_000)
        for sleeper in sleepers:
            sleeper.close()
        await roomy.reads(WAITING, 0)


async def test_when_all_together_hold_too_much_the_slowest_go_first(roomy: GatewayProcess, broker: Broker):
    """Eight that never read, each later than the one before. One reads slowly, one well."""
    async with writing(broker) as p:
        before, waiting = roomy.number(cut("memory")), 0.0
        await say_large(p, 40)
        sipping = await Sleeper.open(roomy.port, p.run_id)
        sips = asyncio.create_task(sip(sipping))
        await roomy.reads(PAUSED, 1)
        sleepers = []
        for _ in range(8):
            sleepers.append(await Sleeper.open(roomy.port, p.run_id))
            await until(partial(more_waits, roomy, waiting + 50_000, before))
            waiting = roomy.number(WAITING)
        await reads_over(roomy, cut("memory"), before)
        await say(p, 5, end=True)
        assert await rest(roomy, p.run_id, 0) == list(range(1, 47))
        whole = []
        for sleeper in sleepers:
            woken = await sleeper.wake()
            await woken.body(20)
            whole.append(woken.frames[-1].event == "end")
            last = woken.seqs[-1]
            assert woken.seqs == list(range(1, last + 1))
            if not whole[-1]:
                assert await rest(roomy, p.run_id, last) == list(range(last + 1, 47))
            woken.leave()
        # In which order exactly, tests/broker/test_backlog.py says: here the kernel decides when one stands still.
        assert (whole[0], whole[-1]) == (False, True), "whoever stood still first went, whoever did so last did not"
        assert whole.count(False) == roomy.number(cut("memory")) - before, "and nobody that reads"
        assert roomy.number(cut("stalled")) == 0
        sips.cancel()


async def more_waits(gateway: GatewayProcess, size: float, before: float) -> bool:
    """Whether so much waits, or some of it was cut meanwhile."""
    return await asyncio.to_thread(lambda: gateway.number(WAITING) >= size or gateway.number(cut("memory")) > before)


async def sip(sleeper: Sleeper) -> None:
    while await sleeper.sip(16 << 10):  # noqa: ASYNC110  # a pace, not a wait
        await asyncio.sleep(0.02)


async def test_what_ended_streams_left_behind_is_bounded_too(roomy: GatewayProcess, broker: Broker):
    """Each is written the end of a run, 300 kB in one piece, and never reads it: the hub is done with them."""
    async with writing(broker) as p:
        await say(p, Final(message={"content": "x" * 300_000}))
        before = roomy.number(cut("memory"))
        sleepers = [await Sleeper.open(roomy.port, p.run_id) for _ in range(5)]
        await reads_over(roomy, cut("memory"), before + 1)
        await until(lambda: asyncio.to_thread(lambda: roomy.number(WAITING) <= ROOM))
        await roomy.reads("runcast_viewers", 0)
        for sleeper in sleepers:
            woken = await sleeper.wake()
            await woken.body()
            assert (woken.seqs, woken.frames[-1].event) == ([1], "end")
            woken.leave()
        await roomy.reads(WAITING, 0)


async def test_a_gateway_that_shuts_down_waits_for_no_sleeper_and_gives_it_whole_frames(
    settings: Settings, broker: Broker, tmp_path: Path
):
    gateway = await asyncio.to_thread(partial(started, settings, tmp_path, drain=30.0))
    async with writing(broker) as p:
        await say_large(p, 30)
        sleepers = [await Sleeper.open(gateway.port, p.run_id) for _ in range(3)]
        await gateway.reads(PAUSED, 3)
        began = time.monotonic()
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
        assert time.monotonic() - began < 15.0
        for sleeper in sleepers:
            woken = await sleeper.wake()
            await woken.body()
            assert woken.complete
            assert woken.frames[-1].event == "retry"
            woken.leave()
    ended(gateway)
