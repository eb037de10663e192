"""Hosted viewers: the hub's without a task of their own. And what a feed can tell without asking the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.api import Broker
from broker.cursor import parse
from broker.errors import RunNotFound
from broker.items import Final
from broker.redis import Store
from broker.settings import Settings
from tests.broker.test_hub import Socket, publish, running, until


@pytest.fixture
async def b(store: Store, settings: Settings) -> AsyncIterator[Broker]:
    broker = Broker(store, settings)
    yield broker
    await broker.hub.aclose()
    await broker.tail.aclose()


async def host(b: Broker, run_id: str, *, after: int = 0, room: int = 1 << 30) -> Socket:
    log = await b.log.state(run_id)
    s = Socket(b, run_id, after=after, room=room)
    b.hub.host(s.viewer, ended=log.is_ended, last=log.last, average=log.average, epoch=log.epoch)
    return s


def tasks_of_viewers() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("viewer of")]


async def test_replay_live_and_end_come_in_order_and_leave_nothing_behind(b: Broker):
    async with running(b) as p:
        await publish(p, 30)
        early = await host(b, p.run_id)
        late = await host(b, p.run_id, after=10)
        await until(lambda: early.viewer.live and late.viewer.live)
        assert tasks_of_viewers() == [], "an idle viewer has no task"
        await publish(p, 30, start=31)
        await p.seal(Final())
        await until(lambda: b.hub.feeds == {})
    assert early.ids == list(range(1, 62))
    assert late.ids == list(range(11, 62))
    assert [s.viewer.reason for s in (early, late)] == ["end", "end"]
    assert all(s.got.count(b"event: end") == 1 for s in (early, late))


async def test_a_full_socket_catches_up_when_it_drains_as_often_as_it_fills(b: Broker):
    async with running(b) as p:
        slow, healthy = await host(b, p.run_id, room=200), await host(b, p.run_id)
        await until(lambda: slow.viewer.live and healthy.viewer.live)
        for turn in range(3):
            await publish(p, 100, start=turn * 100 + 1)
            await until(lambda turn=turn: len(healthy.ids) == turn * 100 + 100)  # type: ignore[misc]
            assert slow.viewer.paused
            assert len(slow.ids) < len(healthy.ids)
            slow.drain(room=200)
        await until(lambda: slow.viewer.paused)
        assert tasks_of_viewers() == [], "nor has one whose socket is full"
        slow.drain()
        await until(lambda: slow.ids == list(range(1, 301)))
        await p.seal(Final())
        await until(lambda: b.hub.viewers == 0)
    assert slow.ids == healthy.ids == list(range(1, 302))


async def test_one_that_leaves_is_forgotten_and_disturbs_nobody(b: Broker):
    async with running(b) as p:
        leaving, staying = await host(b, p.run_id), await host(b, p.run_id)
        await until(lambda: staying.viewer.live)
        leaving.viewer.finish("left")
        await until(lambda: b.hub.viewers == 1)
        await publish(p, 5)
        await until(lambda: len(staying.ids) == 5)
        staying.viewer.finish("left")
        await until(lambda: b.hub.feeds == {})
    assert leaving.ids == []


async def test_one_that_leaves_while_it_catches_up_is_forgotten(b: Broker):
    async with running(b) as p:
        await publish(p, 50)
        s = await host(b, p.run_id)
        s.viewer.finish("left")
        await until(lambda: b.hub.feeds == {} and not tasks_of_viewers())
    assert s.viewer.reason == "left"


async def test_a_draining_hub_sends_every_viewer_off(b: Broker):
    async with running(b) as p:
        s = await host(b, p.run_id)
        await until(lambda: s.viewer.live)
        b.hub.drain()
        await until(lambda: b.hub.feeds == {})
        late = await host(b, p.run_id)
    assert s.viewer.reason == late.viewer.reason == "drain"
    assert b"retry: " in s.got
    assert b"retry: " in late.got


async def test_a_viewer_that_cannot_be_served_is_cut_and_not_left_waiting(b: Broker, monkeypatch: pytest.MonkeyPatch):
    async with running(b) as p:
        await publish(p, 5)

        async def fails(*_: object) -> None:
            raise RuntimeError("a fault of ours")

        s = Socket(b, p.run_id)
        monkeypatch.setattr("broker.feed.Feed.settle", fails)
        b.hub.host(s.viewer, ended=False, last=5, epoch=1)
        await until(lambda: b.hub.feeds == {})
    assert (s.viewer.reason, s.ends) == ("failed", ["abort"])


async def test_a_followed_run_tells_how_it_stands_without_the_log(b: Broker):
    async with running(b) as p:
        assert b.hub.state(p.run_id, 0) is None, "nobody follows it"
        s = await host(b, p.run_id)
        await until(lambda: s.viewer.live)
        await publish(p, 20)
        await until(lambda: len(s.ids) == 20)
        known, stored = b.hub.state(p.run_id, 7), await b.log.state(p.run_id)
        assert known is not None
        assert (known.first, known.last, known.epoch, known.is_ended) == (1, 20, stored.epoch, False)
        assert b.hub.state(p.run_id, None) == known
        assert b.hub.state(p.run_id, 21) is None, "ahead of what this process has seen: the log knows"
        cursor = parse("-1", p.run_id)
        assert isinstance(cursor, int)
        assert b.hub.state(p.run_id, cursor) is not None
        await p.seal(Final())
        await until(lambda: b.hub.feeds == {})
        assert b.hub.state(p.run_id, 7) is None


async def test_a_window_that_lacks_the_start_does_not_speak_for_it(b: Broker):
    async with running(b) as p:
        await publish(p, 10)
        s = await host(b, p.run_id, after=10)
        await until(lambda: s.viewer.live)
        await publish(p, 5, start=11)
        await until(lambda: len(s.ids) == 5)
        assert b.hub.state(p.run_id, 9) is None
        assert b.hub.state(p.run_id, 10) is not None


async def test_the_state_of_a_log_is_that_of_its_record(b: Broker):
    with pytest.raises(RunNotFound):
        await b.log.state("run_nobody_knows")
    async with running(b) as p:
        log = await b.log.state(p.run_id)
        assert (log.first, log.last, log.bytes, log.is_ended) == (1, 0, 0, False)
        await publish(p, 3)
        await p.seal(Final())
        record, first = await b.log.bounds(p.run_id)
        log = await b.log.state(p.run_id)
    assert log == (record.status, record.epoch, record.rewound_to, first, record.last, record.bytes, False)
    assert log.is_ended
    assert log.average == record.bytes // 4
