"""``/api/sessions/{id}/events``: every cursor, holes, several runs, several kinds of ends, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker.api import Broker
from broker.items import Encoded, MessageDelta, encode
from broker.settings import Settings
from gateway.app import Gateway
from tests.gateway.conftest import Play, Script, serving
from tests.gateways import Response, until
from tests.webui.wire import Block, blocks_of, ids_of, text_of

FENCE = 4
"""The last seq of a run that ``turn`` plays to its end."""


@pytest.fixture(params=["memory", "redis7"])
def memory_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Of each kind of store: every test below runs on both."""
    memory = request.param == "memory"
    return Settings(
        redis_url=f"memory:{uuid4().hex}" if memory else request.getfixturevalue("redis7").url,
        namespace=f"t{uuid4().hex[:12]}",
        data_dir=tmp_path / "data",
        partitions=4,
        block=0.3,
        heartbeat=0.1,
        retry_ms=300,
    )


@pytest.fixture
async def port(gateway: Gateway) -> AsyncIterator[int]:
    async with serving(gateway) as address:
        yield int(address.rpartition(":")[2])


@pytest.fixture
def sid() -> str:
    return f"s-{uuid4().hex}"


async def turn(play: Play, sid: str, name: str, *, end: bool = True) -> Script:
    """Three deltas and, with ``end``, the fence."""
    run: Script = await play(f"ask {name}", session_id=sid)
    await run.say(f"{name}1 ", f"{name}2 ", f"{name}3 ")
    if end:
        await run.end()
    return run


async def observe(port: int, sid: str, header: str | None = None, after: str | None = None) -> Response:
    query = "" if after is None else f"?after_event_id={after}"
    headers = [] if header is None else [("Last-Event-ID", header)]
    stream = await Response.open(port, f"/api/sessions/{sid}/events{query}", headers=headers)
    assert stream.status == 200
    return stream


async def upto(stream: Response, seq: str, timeout: float = 30.0) -> list[Block]:
    return await read(stream, lambda blocks: seq in ids_of(blocks), timeout)


async def read(stream: Response, true: Any, timeout: float = 30.0) -> list[Block]:
    async with asyncio.timeout(timeout):
        while not true(blocks := blocks_of(stream.wire)):
            assert not stream.complete, f"it ended with {blocks}"
            await stream.part()
    return blocks


async def attached(stream: Response) -> None:
    """It is live: nothing else would break the silence so often. Once it is broken sooner, where the store is slow."""
    await read(stream, lambda blocks: sum(b.comment == "keepalive" for b in blocks) >= 3)


def ids(run: Script, first: int, last: int = FENCE) -> list[str]:
    return [f"{run.id}:{seq}" for seq in range(first, last + 1)]


def snapshots(blocks: Sequence[Block]) -> list[Any]:
    found = [b for b in blocks if b.event == "session_snapshot"]
    assert all(b.id is None for b in found)
    return [b.data["session"] for b in found]


# Live.


async def test_without_a_cursor_there_is_only_what_comes(port: int, play: Play, sid: str) -> None:
    await turn(play, sid, "old")
    run = await turn(play, sid, "a", end=False)
    async with await observe(port, sid) as stream:
        await attached(stream)
        await run.say("live ")
        await run.end()
        blocks = blocks_of(await stream.body())
    assert text_of(blocks) == "live "
    assert ids_of(blocks) == [f"{run.id}:4", f"{run.id}:5"]
    assert [b.event for b in blocks if b.event] == ["token", "done", "metering", "stream_end"]
    assert blocks[-1].retry == 300, "the next turn is worth coming back for"
    (done,) = [b.data for b in blocks if b.event == "done"]
    assert [m["content"] for m in done["session"]["messages"]] == ["ask old", "done", "ask a", "done"]
    assert done["session"]["session_id"] == sid


async def test_a_session_at_rest_waits_for_its_next_run(port: int, play: Play, sid: str) -> None:
    await turn(play, sid, "old")
    async with await observe(port, sid) as stream:
        await attached(stream)
        run = await turn(play, sid, "new")
        blocks = blocks_of(await stream.body())
    assert ids_of(blocks) == ids(run, 1)
    assert text_of(blocks) == "new1 new2 new3 "


async def test_a_session_without_any_run(port: int, play: Play, broker: Broker) -> None:
    sid = (await broker.sessions.create()).session_id
    async with await observe(port, sid) as stream:
        await attached(stream)
        run = await turn(play, sid, "first")
        assert ids_of(blocks_of(await stream.body())) == ids(run, 1)


async def test_runs_that_begin_while_it_attaches_are_not_missed(port: int, play: Play, sid: str) -> None:
    for _ in range(10):
        await turn(play, sid, "old")
        opening = asyncio.create_task(observe(port, sid))
        run = await turn(play, sid, "new")
        async with await opening as stream:
            if not (shown := await _ended_or_quiet(stream)):
                continue  # the run had ended before the viewer came
        assert shown == ids(run, int(shown[0].rpartition(":")[2]))


async def _ended_or_quiet(stream: Response) -> list[str]:
    await read(stream, lambda blocks: blocks, 5)
    if not ids_of(blocks_of(stream.wire)):
        return []
    return ids_of(blocks_of(await stream.body()))


# Cursors.


async def test_every_cursor_gets_the_rest_and_the_later_runs(port: int, play: Play, sid: str) -> None:
    first, second = await turn(play, sid, "a"), await turn(play, sid, "b")
    live = await turn(play, sid, "c", end=False)
    whole = [*ids(first, 1), *ids(second, 1), *ids(live, 1, 3)]
    for place, cursor in enumerate(whole, 1):
        header, after = (cursor, None) if place % 2 else (None, cursor)
        async with await observe(port, sid, header, after) as stream:
            blocks = await (attached(stream) if place == len(whole) else upto(stream, whole[-1])) or []
            assert ids_of(blocks) == whole[place:], cursor
            assert not snapshots(blocks)
    async with await observe(port, sid, whole[0]) as stream:
        await upto(stream, whole[-1])
        await live.end()
        blocks = blocks_of(await stream.body())
    assert ids_of(blocks) == [*whole[1:], f"{live.id}:4"]
    assert text_of(blocks) == "a2 a3 b1 b2 b3 c1 c2 c3 "
    assert [b.event for b in blocks].count("stream_end") == 3


async def test_at_the_end_of_the_last_run_it_waits(port: int, play: Play, sid: str) -> None:
    last = await turn(play, sid, "a")
    async with await observe(port, sid, f"{last.id}:{FENCE}") as stream:
        await attached(stream)
        run = await turn(play, sid, "b")
        blocks = blocks_of(await stream.body())
    assert ids_of(blocks) == ids(run, 1)
    assert not snapshots(blocks)


async def test_the_header_beats_the_query(port: int, play: Play, sid: str) -> None:
    first = await turn(play, sid, "a")
    run = await turn(play, sid, "b", end=False)
    async with await observe(port, sid, f"{run.id}:2", f"{first.id}:1") as stream:
        assert ids_of(await upto(stream, f"{run.id}:3")) == [f"{run.id}:3"]
    async with await observe(port, sid, "  ", f"{run.id}:1") as stream:
        assert ids_of(await upto(stream, f"{run.id}:3")) == ids(run, 2, 3)
    async with await observe(port, sid, "garbage", f"{run.id}:1") as stream:
        assert snapshots(await read(stream, len))


BAD = "{run}:4 {run}:99999999999999999999 {run}:0 {run}:-2 {run}: {run}:x {run} 7 0 :3 é:1 {run}:1:2 {other}:1 no:1"


@pytest.mark.parametrize("cursor", BAD.split())
async def test_a_cursor_that_is_no_good_gets_one_snapshot_and_then_live(
    port: int, play: Play, sid: str, cursor: str
) -> None:
    other = await turn(play, sid + "x", "other")
    await turn(play, sid, "old")
    run = await turn(play, sid, "a", end=False)
    async with await observe(port, sid, cursor.format(run=run.id, other=other.id)) as stream:
        await attached(stream)
        await run.say("live ")
        await run.end()
        blocks = blocks_of(await stream.body())
    (snapshot,) = snapshots(blocks)
    assert blocks[0].event == "session_snapshot"
    assert (snapshot["session_id"], snapshot["active_stream_id"], snapshot["message_count"]) == (sid, run.id, 2)
    assert snapshot["pending_user_message"] == "ask a"
    assert ids_of(blocks) == ids(run, 4, 5)


async def trim(broker: Broker, run: Script, first: int) -> None:
    await broker.store.call("XTRIM", broker.keys.items(run.id), "MINID", f"{first}-0")
    await broker.store.call("HSET", broker.keys.run(run.id), "first", first)


async def test_a_hole_behind_the_cursor(port: int, play: Play, broker: Broker, sid: str) -> None:
    run = await turn(play, sid, "a", end=False)
    await trim(broker, run, 3)
    for seq, is_hole in ((1, True), (2, False)):
        async with await observe(port, sid, f"{run.id}:{seq}") as stream:
            await attached(stream)
            blocks = blocks_of(stream.wire)
            assert len(snapshots(blocks)) == is_hole, seq
            assert ids_of(blocks) == ([] if is_hole else [f"{run.id}:3"]), seq


@pytest.mark.parametrize("gone", ["head", "items", "record"])
async def test_a_hole_in_a_later_run(port: int, play: Play, broker: Broker, sid: str, gone: str) -> None:
    first, second = await turn(play, sid, "a"), await turn(play, sid, "b")
    live = await turn(play, sid, "c", end=False)
    if gone == "head":
        await trim(broker, second, 2)
    else:
        await broker.store.call("DEL", broker.keys.items(second.id))
        if gone == "record":
            await broker.store.call("DEL", broker.keys.run(second.id))
    async with await observe(port, sid, f"{first.id}:2") as stream:
        await attached(stream)
        await live.end()
        blocks = blocks_of(await stream.body())
    assert len(snapshots(blocks)) == 1
    assert ids_of(blocks) == [*ids(first, 3), f"{live.id}:4"]


async def rewind(broker: Broker, run: Script, last: int) -> None:
    """What a failover may do: the store as it was when the log ended at ``last``."""
    key = broker.keys.items(run.id)
    entries = await broker.store.call("XRANGE", key, "-", f"{last}-0")
    await broker.store.call("DEL", key)
    for entry_id, fields in entries:
        await broker.store.call("XADD", key, entry_id, *fields)
    await broker.store.call("HSET", broker.keys.run(run.id), "last", last)


async def test_a_log_that_loses_its_end_under_a_viewer(port: int, play: Play, broker: Broker, sid: str) -> None:
    run = await turn(play, sid, "a", end=False)
    async with await observe(port, sid, f"{run.id}:1") as stream:
        await upto(stream, f"{run.id}:3")
        await attached(stream)
        await rewind(broker, run, 2)
        epoch, last = await broker.runs.new_epoch(run.id, run.record.owner, run.record.epoch)
        assert last == 2
        await broker.hub.feeds[run.id].verify()
        await read(stream, snapshots)
        await broker.log.append(run.id, run.record.owner, epoch, 3, [encode(MessageDelta(text="again "), ts=1.5)])
        await until(lambda: broker.runs.get(run.id))
        blocks = await read(stream, lambda bs: ids_of(bs).count(f"{run.id}:3") == 2)
    assert [b.event for b in blocks if b.event] == ["token", "token", "session_snapshot", "token"]


# Ids of another service.


def relayed(text: str, source: str, seq: int) -> Encoded:
    data = f'{{"ts":1.5,"component_id":"agent","source_id":"{source}","round":1,"index":0,"text":"{text}"}}'
    return Encoded("message.delta", data.encode())


async def relay(play: Play, broker: Broker, sid: str, *sources: str) -> Script:
    run: Script = await play("ask", session_id=sid)
    await broker.runs.keep_source(run.id, run.record.owner, run.record.epoch, "there")
    items = [relayed(source, source, n) for n, source in enumerate(sources, 1)]
    await broker.log.append(run.id, run.record.owner, run.record.epoch, 1, items)
    return run


async def test_a_relayed_runs_own_ids(port: int, play: Play, broker: Broker, sid: str) -> None:
    await turn(play, sid, "a")
    await relay(play, broker, sid, "ev:1", "ev:2", "ev:3")
    async with await observe(port, sid, "ev:1") as stream:
        assert ids_of(await upto(stream, "ev:3")) == ["ev:2", "ev:3"]
    async with await observe(port, sid, "ev:9") as stream:
        assert snapshots(await read(stream, len))


async def test_an_id_that_two_relayed_runs_have_says_nothing(port: int, play: Play, broker: Broker, sid: str) -> None:
    await (await relay(play, broker, sid, "ev:1", "ev:2")).end()
    await relay(play, broker, sid, "ev:1")
    async with await observe(port, sid, "ev:1") as stream:
        assert snapshots(await read(stream, len))
    async with await observe(port, sid, "ev:2") as stream:
        assert not snapshots(await upto(stream, "ev:1"))


# Viewers that are slow, or leave.


async def test_a_viewer_that_does_not_read_holds_up_nobody(port: int, play: Play, broker: Broker, sid: str) -> None:
    run: Script = await play("ask", session_id=sid)
    async with await observe(port, sid) as stream:
        await attached(stream)
        for _ in range(40):
            await run.say(*["x" * 20_000] * 20)  # 16 MB, and not a byte of it read
        (viewer,) = broker.hub.feeds[run.id].viewers
        await until(lambda: viewer.paused)
        await run.end()
        assert ids_of(blocks_of(await stream.body(30))) == ids(run, 1, 801)


async def test_nothing_is_left_of_viewers_that_leave(gateway: Gateway, port: int, play: Play, broker: Broker) -> None:
    sids = [f"s-{uuid4().hex}" for _ in range(3)]
    runs = [await turn(play, sid, "a", end=False) for sid in sids[:2]]
    await turn(play, sids[2], "a")
    streams = [await observe(port, sid, header) for sid in sids for header in (None, "garbage")]
    for stream in streams:
        await attached(stream)
    assert {run.id for run in runs} == set(broker.hub.feeds)
    channels = gateway.api.state.channels
    assert channels.followed == 3
    for stream in streams:
        stream.leave()
    await until(lambda: not broker.hub.feeds and not channels.followed)


async def test_a_shutdown_ends_it_between_two_blocks(gateway: Gateway, play: Play, sid: str) -> None:
    run = await turn(play, sid, "a", end=False)
    async with serving(gateway) as address:
        stream = await observe(int(address.rpartition(":")[2]), sid, f"{run.id}:1")
        await upto(stream, f"{run.id}:3")
        gateway.drain()
        blocks = blocks_of(await stream.body())
        stream.leave()
    assert blocks[-1].retry is not None
    assert ids_of(blocks) == ids(run, 2, 3)
