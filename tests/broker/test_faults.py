"""What must not happen quietly: a feed that nothing follows any more, a wake that came too early, a poll for ever."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from broker.api import Broker
from broker.chunks import Chunk
from broker.errors import RuncastError, RunNotFound, StoreError
from broker.items import Entry, Final, MessageDelta, Mode
from broker.viewer import PLAIN, Viewer
from gateway.formats import get_format
from tests.broker.test_hub import Socket, b, publish, running, serve, until

__all__ = ["b"]


async def test_who_joins_while_a_wake_is_under_way_is_woken_for_too(b: Broker, monkeypatch: pytest.MonkeyPatch):
    """The first wake's reply is late: the lane reads again before it, without the second run."""
    pipeline, late, sent = b.store.pipeline, asyncio.Event(), 0

    async def delayed(commands: Any, **how: Any) -> Any:
        nonlocal sent
        replies = await pipeline(commands, **how)
        if commands[0][0] == "XADD" and b":wake:" in bytes(commands[0][1]):
            sent += 1
            if sent == 1:
                await late.wait()
        return replies

    prefix = b.keys.items("x")
    lane = b.tail._lane_of(prefix)
    monkeypatch.setattr(b.tail, "_lane_of", lambda _: lane)
    got: dict[bytes, float] = {}

    def follow(key: bytes) -> None:
        b.tail.subscribe(key, b"0-0", lambda _: got.setdefault(key, time.monotonic()))

    follow(prefix + b"1")
    await until(lambda: lane._blocked)
    monkeypatch.setattr(b.store, "pipeline", delayed)
    before = lane._wake_id
    follow(prefix + b"2")
    await until(lambda: lane._wake_id != before and lane._blocked)
    follow(prefix + b"3")
    late.set()
    began = time.monotonic()
    await b.store.call("XADD", prefix + b"3", "1-0", "t", "t", "d", "{}")
    await until(lambda: got)
    assert got[prefix + b"3"] - began < b.settings.block * 0.9


async def test_a_batch_that_cannot_be_sent_on_ends_its_viewers_instead_of_holding_them(b: Broker):
    async with running(b) as p:
        s = Socket(b, p.run_id)
        task = serve(b, s)
        await until(lambda: s.viewer.live)
        key = b.keys.items(p.run_id)
        # A hole that no retention makes: somebody else has written to the stream.
        commands = [("XADD", key, f"{n}-0", "t", "event", "d", "{}") for n in (1, 3)]
        await b.store.pipeline(commands, atomic=True)
        async with asyncio.timeout(30):
            await task
        assert s.viewer.reason == "failed"
        await until(lambda: not b.hub.feeds)


async def test_a_feed_whose_last_viewer_left_while_it_was_verified_is_left_alone(
    b: Broker, monkeypatch: pytest.MonkeyPatch
):
    async with running(b) as p:
        s = Socket(b, p.run_id)
        task = serve(b, s)
        await publish(p, 5)
        await until(lambda: s.ids == [1, 2, 3, 4, 5])
        feed = b.hub.feeds[p.run_id]
        state = b.log.state

        async def late(run_id: str) -> Any:
            found = await state(run_id)
            s.viewer.finish("left")
            await task
            return found._replace(last=1)

        monkeypatch.setattr(b.log, "state", late)
        await feed.verify()
        assert feed._suspect is None
        assert not feed.following


async def test_a_rewind_is_seen_for_a_viewer_ahead_of_the_tail(b: Broker):
    async with running(b) as p:
        await publish(p, 3)
        s = Socket(b, p.run_id)
        task = serve(b, s)
        await until(lambda: s.ids == [1, 2, 3])
        ahead = Socket(b, p.run_id)
        ahead.viewer.seq = 10  # it resumed where the tail has not come to yet
        ahead_task = serve(b, ahead)
        await until(lambda: ahead.viewer.live)
        await publish(p, 2, start=4)
        await until(lambda: s.ids == [1, 2, 3, 4, 5])
        feed = b.hub.feeds[p.run_id]
        await feed.verify()
        assert not feed.following  # 6..10 are gone, and may be sent again
        await b.runs.new_epoch(p.run_id, p.owner, p.epoch)
        await until(lambda: b"event: reset" in ahead.got)
        await until(lambda: feed.following)
        assert b"event: reset" not in s.got
        await until(lambda: ahead.ids == [1, 2, 3, 4, 5])
        for one in (s, ahead):
            one.viewer.finish("left")
        await asyncio.gather(task, ahead_task)


async def test_one_run_at_fault_does_not_silence_the_others(b: Broker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(b.hub.settings, "__dict__", {**b.hub.settings.__dict__, "heartbeat": 0.05})
    async with running(b) as bad, running(b) as good:
        sockets = [Socket(b, bad.run_id), Socket(b, good.run_id)]
        tasks = [serve(b, s) for s in sockets]
        await until(lambda: all(s.viewer.live for s in sockets))
        b.hub.feeds[bad.run_id].tick = None  # type: ignore[assignment, method-assign]
        await until(lambda: sockets[1].got.count(b": hb\n") > 1)
        for s in sockets:
            s.viewer.finish("left")
        await asyncio.gather(*tasks)


async def test_a_consumer_hears_of_a_run_that_vanished_and_of_a_fault(b: Broker, monkeypatch: pytest.MonkeyPatch):
    async def consume(run_id: str) -> int:
        return len([entry async for entry in b.stream(run_id)])

    async with running(b) as p:
        await publish(p, 3)
        task = asyncio.create_task(consume(p.run_id))
        await until(lambda: p.run_id in b.hub.feeds)
        b.hub.feeds[p.run_id].abandon("gone")
        with pytest.raises(RunNotFound):
            await task

        async def refused(*_: Any, **__: Any) -> Any:
            raise StoreError("refused")

        await p.publish(MessageDelta(text="x"))
        await p.seal(Final())
        monkeypatch.setattr(b.log, "read", refused)
        with pytest.raises(RuncastError, match="refused"):
            await consume(p.run_id)


def test_what_a_chunk_keeps_of_its_renderings_is_bounded():
    entries = [Entry(n, b"message.delta", b'{"ts":1.0,"text":"x"}') for n in range(1, 101)]
    chunk = Chunk(0, entries)
    native = get_format("native")
    for modes in range(1, 64):
        viewer = Viewer("r", format=native, modes=Mode(modes), seq=0, write=lambda _: None, framing=PLAIN)
        got = list(chunk.behind(viewer, 0, lambda v, part: native.items(b"r", part, v.modes)))
        assert got
    assert sum(map(len, chunk._rendered.values())) <= 2 * chunk.size + 512 * len(entries)
