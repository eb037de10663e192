"""The hub on real stores: replay, live, the seam, demotion, gaps, resets, the end. Every store that we speak to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from broker.api import Broker, StreamEntry
from broker.errors import RunNotFound, UnknownMode
from broker.items import Final, MessageDelta, Mode, ToolStarted
from broker.publisher import Publisher
from broker.redis import Store
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from broker.viewer import PLAIN, Viewer
from gateway.formats import get_format

REQUEST = RunRequest(runner="scripted", input=RunInput(message="hello"))


@pytest.fixture
async def b(store: Store, settings: Settings) -> AsyncIterator[Broker]:
    broker = Broker(store, settings)
    yield broker
    await broker.hub.aclose()
    await broker.tail.aclose()


@asynccontextmanager
async def running(b: Broker) -> AsyncIterator[Publisher]:
    """A run that this test has claimed, and its publisher."""
    record, _ = await b.runs.create(REQUEST, enqueue=False)
    claim = await b.runs.claim(record.run_id, record.attempt, "owner-of-this-test")
    async with b.publisher(claim) as publisher:
        yield publisher


async def publish(p: Publisher, count: int, start: int = 1) -> None:
    for n in range(start, start + count):
        await p.publish(MessageDelta(text=f"{n} "))
    await p.flush()


async def collect(b: Broker, run_id: str, **how: object) -> list[StreamEntry]:
    async with asyncio.timeout(40):
        return [entry async for entry in b.stream(run_id, **how)]  # type: ignore[arg-type]


def seqs(entries: list[StreamEntry]) -> list[int]:
    return [e.seq for e in entries if not e.control]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110  # any state at all, not one event
            await asyncio.sleep(0.002)


async def test_replay_and_live_are_one_stream(b: Broker):
    async with running(b) as p:
        await publish(p, 20)
        following = [asyncio.create_task(collect(b, p.run_id, after=k)) for k in (None, 0, 5, 20)]
        await until(lambda: b.hub.viewers == 4)
        await publish(p, 20, start=21)
        await p.seal(Final())
        got = [seqs(e) for e in await asyncio.gather(*following)]
    assert got == [list(range(first, 42)) for first in (1, 1, 6, 21)]


async def test_windows_that_hold_next_to_nothing_cost_nobody_an_item(b: Broker, settings: Settings):
    """With no memory for them each keeps its newest item, and who comes behind reads the log."""
    hub = b.hub
    hub.settings = settings.model_copy(update={"windows_memory": 0, "heartbeat": 0.1})
    async with running(b) as p, running(b) as other:
        following = [asyncio.create_task(collect(b, run.run_id, after=0)) for run in (p, p, other)]
        await until(lambda: hub.viewers == 3)
        await publish(p, 200)
        await publish(other, 50)
        windows = [hub.feeds[run.run_id].window for run in (p, other)]
        await until(lambda: [(w.seq, len(w)) for w in windows] == [(200, 1), (50, 1)])
        following.append(asyncio.create_task(collect(b, p.run_id, after=150)))
        await until(lambda: hub.viewers == 4)
        for run in (p, other):
            await publish(run, 10, start=1)
            await run.seal(Final())
        got = [seqs(e) for e in await asyncio.gather(*following)]
    assert got == [list(range(1, 212))] * 2 + [list(range(1, 62)), list(range(151, 212))]


async def test_for_every_cursor_exactly_what_follows_it(b: Broker):
    async with running(b) as p:
        await publish(p, 60)
        await p.seal(Final())
        for k in range(61):
            entries = await collect(b, p.run_id, after=f"{p.run_id}:{k}")
            assert seqs(entries) == list(range(k + 1, 62)), k
        assert await collect(b, p.run_id, after=61) == []


@pytest.mark.parametrize(
    ("cursor", "reason"), [("abc", "malformed"), ("$", "malformed"), ("other:3", "foreign"), ("RUN:99", "ahead")]
)
async def test_a_cursor_that_is_none_resets_and_starts_again(b: Broker, cursor: str, reason: str):
    async with running(b) as p:
        await publish(p, 3)
        await p.seal(Final())
        entries = await collect(b, p.run_id, after=cursor.replace("RUN", p.run_id))
    assert (entries[0].type, entries[0].fields["reason"]) == ("reset", reason)
    assert seqs(entries) == [1, 2, 3, 4]


async def test_modes_choose_what_is_shown_and_the_fence_is_always_shown(b: Broker):
    async with running(b) as p:
        await publish(p, 3)
        await p.publish(ToolStarted(call_id="c", name="terminal"))
        following = {
            m: asyncio.create_task(collect(b, p.run_id, modes=m)) for m in ("messages", "tools", "cost", "final")
        }
        await until(lambda: b.hub.viewers == 4)
        await publish(p, 1)
        await p.seal(Final())
        got = {m: [e.seq for e in await task] for m, task in following.items()}
    assert got == {"messages": [1, 2, 3, 5, 6], "tools": [4, 6], "cost": [6], "final": [6]}


async def test_unknown_modes_and_unknown_runs_are_errors(b: Broker):
    with pytest.raises(RunNotFound):
        await collect(b, "run_nobody_knows")
    with pytest.raises(UnknownMode, match="messages, tools"):
        await collect(b, "run_nobody_knows", modes="everything")


async def test_a_consumer_that_stops_early_disturbs_nobody(b: Broker):
    async with running(b) as p:
        other = asyncio.create_task(collect(b, p.run_id))
        await publish(p, 5)
        async for _ in b.stream(p.run_id):
            break
        await until(lambda: b.hub.viewers == 1)
        await publish(p, 5, start=6)
        await p.seal(Final())
        assert seqs(await other) == list(range(1, 12))
    assert b.hub.feeds == {}


async def test_a_slow_consumer_is_demoted_and_loses_nothing(b: Broker):
    async with running(b) as p:
        stream = b.stream(p.run_id)
        first = asyncio.create_task(anext(stream))
        await until(lambda: b.hub.viewers == 1)
        await publish(p, 3000)
        await p.seal(Final())
        got = [(await first).seq] + [e.seq async for e in stream]
    assert got == list(range(1, 3002))


class Socket:
    """A peer of whom the test decides whether it reads."""

    def __init__(
        self, b: Broker, run_id: str, *, after: int = 0, modes: Mode = Mode.EVENTS, room: int = 1 << 30
    ) -> None:
        self.got = b""
        self.room = room
        self.viewer = Viewer(
            run_id, format=get_format("native"), modes=modes, seq=after, write=self.write, framing=PLAIN, peer=self
        )
        self.ends: list[str] = []
        """What was asked of the connection."""

    def write(self, data: bytes) -> None:
        assert not self.viewer.closed or self.viewer.reason == "end"
        self.got += data
        self.room -= len(data)
        if self.room < 0:
            self.viewer.pause()

    def drain(self, room: int = 1 << 30) -> None:
        self.room = room
        self.viewer.resume()

    def waiting(self) -> int:
        return max(-self.room, 0)

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")

    @property
    def ids(self) -> list[int]:
        return [int(line.rsplit(b":", 1)[1]) for line in self.got.split(b"\n") if line.startswith(b"id: ")]


def serve(b: Broker, s: Socket) -> asyncio.Task[None]:
    """What the gateway does: a viewer of a run that was just found running, empty and never rewound."""
    return asyncio.create_task(b.hub.serve(s.viewer, ended=False, last=0, epoch=1))


async def test_live_viewers_of_one_kind_share_one_rendering(b: Broker, monkeypatch: pytest.MonkeyPatch):
    async with running(b) as p:
        sockets = [Socket(b, p.run_id) for _ in range(20)]
        tasks = [serve(b, s) for s in sockets]
        await until(lambda: all(s.viewer.live for s in sockets))
        fmt, calls = sockets[0].viewer.format, []
        original = fmt.items
        monkeypatch.setattr(fmt, "items", lambda *a: calls.append(1) or original(*a))
        await publish(p, 1)
        await until(lambda: all(s.ids == [1] for s in sockets))
        assert len(calls) == 1
        await p.seal(Final())
        await asyncio.gather(*tasks)
    assert all(s.got.endswith(b"\n\n") and b"event: end" in s.got for s in sockets)
    assert {s.viewer.reason for s in sockets} == {"end"}


async def test_a_full_socket_is_written_no_more_and_catches_up_when_it_drains(b: Broker):
    async with running(b) as p:
        slow, healthy = Socket(b, p.run_id, room=200), Socket(b, p.run_id)
        tasks = [serve(b, slow), serve(b, healthy)]
        await until(lambda: slow.viewer.live and healthy.viewer.live)
        await publish(p, 500)
        await until(lambda: healthy.ids == list(range(1, 501)))
        assert slow.viewer.paused
        held = slow.ids
        assert len(held) < 500
        await publish(p, 10, start=501)
        await until(lambda: len(healthy.ids) == 510)
        assert slow.ids == held, "nothing is buffered for it"
        slow.drain()
        await until(lambda: slow.ids == list(range(1, 511)))
        await p.seal(Final())
        await asyncio.gather(*tasks)
    assert slow.ids == healthy.ids == list(range(1, 512))


async def test_a_filtered_viewers_cursor_moves_past_hidden_items(b: Broker):
    async with running(b) as p:
        s = Socket(b, p.run_id, modes=Mode.TOOLS)
        task = serve(b, s)
        await until(lambda: s.viewer.live)
        await publish(p, 1100)
        await until(lambda: b"event: cursor" in s.got)
        position = s.ids[-1]
        assert 500 <= position <= 1100
        await p.seal(Final())
        await task
    assert s.ids[-1] == 1101


async def test_retention_that_overtakes_a_reader_is_told_once_and_exactly(store: Store, settings: Settings):
    store.settings = settings.model_copy(update={"run_max_items": 2})
    b = Broker(store, store.settings)
    async with running(b) as p:
        for n in range(1, 4):
            await publish(p, 1, start=n)
        await p.seal(Final())
        at_1, at_2 = [await collect(b, p.run_id, after=k) for k in (1, 2)]
    await b.tail.aclose()
    await b.hub.aclose()
    assert at_1[0].type == "gap"
    assert at_1[0].fields == {"run_id": p.run_id, "requested": 1, "earliest": 3, "latest": 4}
    assert seqs(at_1) == seqs(at_2) == [3, 4]
    assert at_2[0].type != "gap", "the last removed item as cursor is no gap"


async def test_compacted_catch_up_tells_the_same_with_fewer_items(b: Broker):
    async with running(b) as p:
        await publish(p, 1000)
        await p.seal(Final())
        plain, compacted = await collect(b, p.run_id), await collect(b, p.run_id, compact=True)
    assert len(compacted) <= 10
    text = ["".join(e.fields["text"] for e in entries if e.type == "message.delta") for entries in (plain, compacted)]
    assert text[0] == text[1]
    assert compacted[-1].seq == 1001


async def test_one_cursor_many_readers_one_read(b: Broker, monkeypatch: pytest.MonkeyPatch):
    async with running(b) as p:
        await publish(p, 200)
        await p.seal(Final())
        reads, original = [], b.log.read

        async def read(*args, **kwargs):
            reads.append(args)
            return await original(*args, **kwargs)

        monkeypatch.setattr(b.log, "read", read)
        got = await asyncio.gather(*(collect(b, p.run_id) for _ in range(50)))
    assert all(seqs(e) == list(range(1, 202)) for e in got)
    assert len(reads) == 1


async def test_viewers_joining_at_random_while_it_runs_with_a_slow_store_in_between(
    b: Broker, monkeypatch: pytest.MonkeyPatch
):
    original = b.log.read

    async def slow_read(*args, **kwargs):
        entries = await original(*args, **kwargs)
        await asyncio.sleep(0.05)  # the fault under test: time passes between history and live
        return entries

    monkeypatch.setattr(b.log, "read", slow_read)
    async with running(b) as p:
        await publish(p, 300)
        tasks = []
        for n in range(40):
            tasks.append(asyncio.create_task(collect(b, p.run_id, after=(n * 37) % (p.last + 1))))
            await publish(p, 25, start=301 + 25 * n)
        await p.seal(Final())
        got = await asyncio.gather(*tasks)
    for n, entries in enumerate(got):
        assert seqs(entries) == list(range((n * 37) % (300 + 25 * n + 1) + 1, 1302)), n


async def test_a_rewound_log_resets_those_beyond_its_end_and_nobody_else(b: Broker):
    async with running(b) as p:
        beyond, before = Socket(b, p.run_id), Socket(b, p.run_id, room=150)
        tasks = [serve(b, beyond), serve(b, before)]
        await until(lambda: beyond.viewer.live and before.viewer.live)
        await publish(p, 1)
        await until(lambda: before.viewer.paused)
        await publish(p, 9, start=2)
        await until(lambda: beyond.ids == list(range(1, 11)))
        # What a failover does: the log's end is gone, items and record alike.
        key, items = b.keys.run(p.run_id), b.keys.items(p.run_id)
        kept = await b.log.read(p.run_id, 0, limit=4)
        again = [("XADD", items, f"{e.seq}-0", "t", e.type, "d", e.data) for e in kept]
        await b.store.pipeline([("DEL", items), *again, ("HSET", key, "last", 4)], atomic=True)
        await b.runs.new_epoch(p.run_id, p.owner, p.epoch)
        await b.hub.feeds[p.run_id].verify()
        assert b"event: reset" in beyond.got
        assert b'"reason":"rewound"' in beyond.got
        before.drain()
        await until(lambda: before.ids == [1, 2, 3, 4])
        assert b"event: reset" not in before.got
        await until(lambda: beyond.ids == [*range(1, 11), 1, 2, 3, 4])
        for s in (beyond, before):
            s.viewer.finish("left")
        await asyncio.gather(*tasks)


async def test_a_takeover_that_lost_nothing_resets_nobody(b: Broker):
    record, _ = await b.runs.create(msgspec.structs.replace(REQUEST, on_worker_lost="retry"), enqueue=False)
    first = await b.runs.claim(record.run_id, record.attempt, "first")
    s = Socket(b, record.run_id)
    task = serve(b, s)
    async with b.publisher(first) as p:
        await publish(p, 5)
    assert await b.runs.takeover(await b.runs.get(record.run_id)) == "queued"
    second = await b.runs.claim(record.run_id, 2, "second")
    assert second.epoch > first.epoch
    async with b.publisher(second) as p:
        await publish(p, 5, start=6)
        await until(lambda: s.ids == list(range(1, 11)))
        await b.hub.feeds[record.run_id].verify()
        await p.seal(Final())
        await task
    assert b"event: reset" not in s.got
    assert s.ids == list(range(1, 12))


async def test_drain_ends_every_stream_at_a_frame_with_a_jittered_retry(b: Broker):
    async with running(b) as p:
        sockets = [Socket(b, p.run_id) for _ in range(30)]
        tasks = [serve(b, s) for s in sockets]
        await until(lambda: all(s.viewer.live for s in sockets))
        await publish(p, 2)
        await until(lambda: all(len(s.ids) == 2 for s in sockets))
        b.hub.drain()
        await asyncio.gather(*tasks)
        retries = {int(s.got.rsplit(b"retry: ", 1)[1]) for s in sockets}
        assert len(retries) > 5
        assert {s.viewer.reason for s in sockets} == {"drain"}
        late = Socket(b, p.run_id)
        await serve(b, late)
        assert late.viewer.reason == "drain"


async def test_heartbeats_break_a_silence_and_come_between_frames(store: Store, settings: Settings):
    b = Broker(store, settings.model_copy(update={"heartbeat": 0.1}))
    async with running(b) as p:
        s = Socket(b, p.run_id)
        task = serve(b, s)
        await until(lambda: s.got.count(b": hb\n") >= 3)
        await publish(p, 1)
        await p.seal(Final())
        await task
    await b.hub.aclose()
    await b.tail.aclose()
    assert b": hb\n\n" not in s.got
    assert s.ids == [1, 2]


async def test_a_viewer_that_takes_nothing_is_cut_in_the_end(store: Store, settings: Settings):
    b = Broker(store, settings.model_copy(update={"stall_limit": 0.2, "heartbeat": 0.2}))
    async with running(b) as p:
        s = Socket(b, p.run_id, room=10)
        task = serve(b, s)
        await until(lambda: s.viewer.live)
        await publish(p, 3)
        await asyncio.wait_for(task, 30)
    await b.hub.aclose()
    await b.tail.aclose()
    assert s.viewer.reason == "stalled"
    assert s.ends == ["close"]
    assert s.got.endswith(b"\n\n"), "between two frames"
