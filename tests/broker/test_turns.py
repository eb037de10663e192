"""Those that catch up take turns, and a lane of many viewers is paced: so that live viewers hardly wait for either."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from broker.api import Broker
from broker.items import Final
from broker.settings import Settings
from broker.turns import Turns
from tests.broker.test_hosting import host
from tests.broker.test_hub import Socket, b, publish, running, until
from tests.broker.test_tail import Ear, key, write

__all__ = ["b", "key"]

of_any_store = pytest.mark.parametrize("store_url", ["memory"], indirect=True)
"""What is shown here is the same with each."""


class Rounds:
    """Counts the event loop's rounds, and what is written to viewers that catch up in each."""

    def __init__(self) -> None:
        self.number = 0
        self.writes: Counter[int] = Counter()
        self._loop = asyncio.get_running_loop()
        self._tick()

    def _tick(self) -> None:
        self.number += 1
        self._handle = self._loop.call_soon(self._tick)

    def watch(self, socket: Socket) -> None:
        write: Callable[[bytes], None] = socket.viewer.write

        def counted(payload: bytes) -> None:
            if not socket.viewer.live:
                self.writes[self.number] += 1
            write(payload)

        socket.viewer.write = counted

    def stop(self) -> None:
        self._handle.cancel()


@of_any_store
async def test_a_round_of_the_event_loop_writes_one_part_to_those_that_catch_up(b: Broker, monkeypatch):
    monkeypatch.setattr("broker.chunks.PART_BYTES", 1_000)
    monkeypatch.setattr("broker.feed.PART_BYTES", 1_000)
    async with running(b) as p:
        await publish(p, 300)
        rounds = Rounds()
        late = [await host(b, p.run_id) for _ in range(10)]
        for socket in late:
            rounds.watch(socket)
        await until(lambda: all(socket.viewer.live for socket in late))
        rounds.stop()
        await p.seal(Final())
        await until(lambda: b.hub.feeds == {})
    assert all(socket.ids == list(range(1, 302)) for socket in late)
    assert rounds.writes.total() > 20, "there was something to take turns for"
    assert set(rounds.writes.values()) == {1}


@of_any_store
async def test_a_viewer_that_leaves_while_it_waits_for_its_turn_holds_up_nobody(b: Broker):
    async with running(b) as p:
        await publish(p, 20)
        first, leaving, staying = [await host(b, p.run_id) for _ in range(3)]
        await asyncio.sleep(0)  # the first has the turn, the others wait
        leaving.viewer.finish("left")
        await until(lambda: first.viewer.live and staying.viewer.live)
        assert (leaving.ids, staying.ids) == ([], list(range(1, 21)))
        await p.seal(Final())


async def test_turns_come_in_order_one_a_round_and_pass_over_whoever_was_cancelled():
    turns, rounds, got = Turns(), Rounds(), []

    async def taker(name: int) -> None:
        await turns.take()
        got.append((name, rounds.number))

    tasks = [asyncio.create_task(taker(name)) for name in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    rounds.stop()
    assert [name for name, _ in got] == [0, 2, 3]
    assert len({number for _, number in got}) == 3
    await asyncio.wait_for(turns.take(), 30)  # nobody waits: at once


@of_any_store
async def test_a_lane_is_paced_by_the_writes_that_its_reads_lead_to(b: Broker, key: bytes):
    ear, lane = Ear(b, key), b.tail._lane_of(key)
    lane.fresh.clear()
    paces = {}
    for number, weight in enumerate((1, 24, 25, 400, 4_000), 1):
        ear.subscription.weight = weight
        paces[weight] = lane._pace(lane._dispatch([(key, [(b"%d-0" % number, [b"t", b"x", b"d", b"{}"])])]))
    assert paces == pytest.approx({1: 0, 24: 0, 25: 0.001, 400: 0.016, 4_000: 0.02})


@of_any_store
async def test_what_comes_within_the_pace_goes_together(b: Broker, key: bytes):
    b.tail._settings = b.tail._settings.model_copy(update={"pace": 1.0})
    ear, batches = Ear(b, key), []
    ear.subscription.sink = lambda entries: batches.append([int(id_[:-2]) for id_, _ in entries])
    ear.subscription.weight = 1_000_000
    await write(b, key, 1, 1)
    await until(lambda: batches == [[1]])  # at once: the lane was at rest
    await write(b, key, 2, 2)
    await asyncio.sleep(0.05)
    await write(b, key, 3, 3)
    await until(lambda: len(batches) > 1)
    assert batches == [[1], [2, 3]]


@of_any_store
async def test_a_feed_weighs_what_it_has_viewers(b: Broker):
    async with running(b) as p:
        viewers = [await host(b, p.run_id) for _ in range(3)]
        await until(lambda: all(socket.viewer.live for socket in viewers))
        feed = b.hub.feeds[p.run_id]
        assert feed._subscription is not None
        assert feed._subscription.weight == 3
        viewers[0].viewer.finish("left")
        await until(lambda: b.hub.viewers == 2)
        assert feed._subscription.weight == 2
        await p.seal(Final())


def test_a_pace_of_none_is_allowed():
    assert Settings(pace=0.0).pace == 0.0
