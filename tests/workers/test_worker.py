"""The worker: one fence each, whatever the runner, the client, the store or the operator does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from broker import api
from broker.api import Broker, StreamEntry
from broker.errors import Fenced, ItemTooBig
from broker.items import Cancelled, Failed, Final, Message, MessageDelta
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.servers import RedisServer, eventually
from workers.execution import Execution
from workers.runner import Outcome, RunContext, Runner, RunnerFailed
from workers.scripted import ScriptedRunner
from workers.worker import Worker

Play = Callable[[RunContext], Awaitable[Any]]


class Playing:
    """A runner that does what a test says."""

    name = "test"
    stop_grace = 0.3

    def __init__(self, play: Play) -> None:
        self._play = play

    async def run(self, context: RunContext) -> Outcome:
        outcome: Outcome = await self._play(context)
        return outcome


def _settings(url: str, tmp_path: Path, **more: Any) -> Settings:
    fast = {"beat": 0.1, "sweep": 0.2, "lease": 1.0, "worker_drain": 60.0, "block": 1.0, "requeue_after": 60.0}
    return Settings(redis_url=url, namespace=f"t{uuid4().hex[:12]}", data_dir=tmp_path, **{**fast, **more})


@pytest.fixture(params=["memory", "redis7"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    url = f"memory:{uuid4().hex}" if request.param == "memory" else request.getfixturevalue("redis7").url
    async with api.open(settings=_settings(url, tmp_path)) as opened:
        yield opened


@asynccontextmanager
async def working(broker: Broker, *plays: Play, sweep: bool = False, **more: Any) -> AsyncIterator[Worker]:
    runners: dict[str, Runner] = {"scripted": ScriptedRunner()}
    if plays:
        runners["test"] = Playing(plays[0])
    worker = Worker(broker, runners=runners, sweep=sweep, **more)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.drain()
        worker.drain()
        await asyncio.wait_for(task, 20)


def _request(runner: str = "test", **more: Any) -> RunRequest:
    return RunRequest(runner=runner, input=RunInput(message="hello"), **more)


async def _create(broker: Broker, runner: str = "test", **more: Any) -> str:
    record, _ = await broker.runs.create(_request(runner, **more))
    return record.run_id


async def _follow(broker: Broker, run_id: str) -> list[StreamEntry]:
    async with asyncio.timeout(40):
        return [entry async for entry in broker.stream(run_id)]


def _events(entries: list[StreamEntry]) -> list[str]:
    return [e.fields["name"] for e in entries if e.type == "event"]


async def _say(context: RunContext, *words: str) -> None:
    for word in words:
        await context.emit(MessageDelta(text=word))


async def _forever(context: RunContext) -> Final:
    await _say(context, "some ", "text")
    await context.stop.wait()
    return Final()


async def _until(state: Callable[[], Awaitable[Any]], wanted: object) -> None:
    async with asyncio.timeout(30):
        while await state() != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# Outcomes.


async def test_a_run_opens_with_its_start_and_ends_with_its_fence(broker: Broker) -> None:
    async def play(context: RunContext) -> Final:
        await _say(context, "a", "b")
        return Final(metadata={"k": "v"})

    async with working(broker, play, name="w1"):
        run_id = await _create(broker)
        entries = await _follow(broker, run_id)
    assert [e.type for e in entries] == ["event", "message.delta", "message.delta", "message", "final"]
    assert [e.seq for e in entries] == [1, 2, 3, 4, 5]
    started = entries[0].fields
    assert (started["name"], started["worker"], started["attempt"]) == ("run.started", "w1", 1)
    assert started["runner"] == "test"
    assert entries[-1].fields["message"] == entries[-2].fields["message"]
    assert (entries[-1].fields["rounds"], entries[-1].fields["metadata"]) == (1, {"k": "v"})
    record = await broker.runs.get(run_id)
    assert record.status == "completed"


async def test_a_runners_last_word_that_is_not_what_it_emitted_is_said(broker: Broker) -> None:
    """The final item's message is the merge of the run's items, or the run says that it is not."""
    words = {"role": "assistant", "content": [{"type": "text", "text": "other words"}]}

    async def play(context: RunContext) -> Final:
        await _say(context, "a", "b")
        return Final(message=words)

    async with working(broker, play):
        entries = await _follow(broker, await _create(broker))
    kinds = ["event", "message.delta", "message.delta", "event", "message", "final"]
    assert [e.type for e in entries] == kinds
    mismatch = entries[3].fields
    assert (mismatch["name"], mismatch["round"], mismatch["differs"]) == ("merge.mismatch", 1, ["text"])
    assert entries[4].fields["message"] == entries[5].fields["message"] == words


async def test_a_message_that_is_not_what_the_deltas_said_is_said_at_once(broker: Broker) -> None:
    words = {"role": "assistant", "content": [{"type": "text", "text": "A"}]}

    async def play(context: RunContext) -> Final:
        await context.emit(MessageDelta(text="a"))
        await context.emit(Message(message=words))
        await context.emit(MessageDelta(text="b", round=2))
        return Final()

    async with working(broker, play):
        entries = await _follow(broker, await _create(broker))
    kinds = ["event", "message.delta", "event", "message", "message.delta", "message", "final"]
    assert [e.type for e in entries] == kinds
    assert _events(entries) == ["run.started", "merge.mismatch"]


async def _raises(context: RunContext) -> None:
    await _say(context, "part")
    raise ValueError("broken")


async def _fails(context: RunContext) -> None:
    await _say(context, "part")
    raise RunnerFailed("my_code", "my words", retryable=True)


async def _returns_nothing(context: RunContext) -> None:
    await _say(context, "part")


async def _cancels_itself(context: RunContext) -> None:
    await _say(context, "part")
    raise asyncio.CancelledError


async def _returns_a_failure(context: RunContext) -> Failed:
    await _say(context, "part")
    return Failed(code="own", message="own words")


async def _has_no_json(context: RunContext) -> Final:
    await _say(context, "part")
    return Final(metadata={"x": object()})


async def _emits_a_fence(context: RunContext) -> Final:
    await _say(context, "part")
    await context.emit(Cancelled())
    return Final()


@pytest.mark.parametrize(
    ("play", "code"),
    [
        (_raises, "runner_error"),
        (_fails, "my_code"),
        (_returns_nothing, "no_outcome"),
        (_cancels_itself, "runner_error"),
        (_returns_a_failure, "own"),
        (_has_no_json, "invalid_outcome"),
        (_emits_a_fence, "runner_error"),
    ],
)
async def test_whatever_a_runner_does_wrong_is_one_failed_fence(broker: Broker, play: Play, code: str) -> None:
    async with working(broker, play):
        run_id = await _create(broker)
        entries = await _follow(broker, run_id)
    fence = entries[-1]
    assert (fence.type, fence.fields["code"], fence.fields["retryable"]) == ("failed", code, code == "my_code")
    assert [e.type for e in entries].count("failed") == 1
    if code != "invalid_outcome":
        assert fence.fields["partial"]["content"] == [{"type": "text", "text": "part"}]
    assert (await broker.runs.get(run_id)).status == "failed"


async def test_an_unknown_runner_lists_the_known_ones(broker: Broker) -> None:
    async with working(broker):
        entries = await _follow(broker, await _create(broker, "nix"))
    assert entries[-1].fields["code"] == "unknown_runner"
    assert "scripted" in entries[-1].fields["message"]


async def test_an_item_without_json_fails_the_run_that_emitted_it_only(broker: Broker) -> None:
    async def play(context: RunContext) -> Final:
        await _say(context, "ok")
        from broker.items import Event

        await context.emit(Event(name="bad", payload={"x": object()}))
        return Final()

    async with working(broker, play):
        entries = await _follow(broker, await _create(broker))
        assert entries[-1].fields["code"] == "runner_error"
        other = await _create(broker, "scripted", metadata={"script": "tokens=1"})
        assert (await _follow(broker, other))[-1].type == "final"


async def test_an_item_that_the_store_refuses_fails_the_run(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    append = broker.log.append

    async def refusing(*call: Any) -> int:
        if any(b"poison" in item.data for item in call[4]):
            raise ItemTooBig("too big, says the store")
        return await append(*call)

    monkeypatch.setattr(broker.log, "append", refusing)

    def last_of(run_id: str) -> Callable[[], Awaitable[int]]:
        async def last() -> int:
            return (await broker.runs.get(run_id)).last

        return last

    async def play(context: RunContext) -> Final:
        await _say(context, "good ")
        await _until(last_of(context.run_id), 2)  # in a batch of its own
        await _say(context, "poison")
        return Final()

    async with working(broker, play):
        entries = await _follow(broker, await _create(broker))
    assert [e.type for e in entries] == ["event", "message.delta", "failed"]
    assert entries[-1].fields["code"] == "item_too_big"
    assert "too big, says the store" in entries[-1].fields["message"]


async def test_the_fence_comes_before_the_cleanup_and_the_slot_is_kept_until_after_it(broker: Broker) -> None:
    fenced, cleaned, order = asyncio.Event(), asyncio.Event(), list[int]()

    async def play(context: RunContext) -> Final:
        async def slow() -> None:
            order.append(1)
            await fenced.wait()
            cleaned.set()

        async def broken() -> None:
            order.append(2)
            raise OSError("cleanup failed")

        context.defer(slow)
        context.defer(broken)
        return Final()

    async with working(broker, play, concurrency=1) as worker:
        entries = await _follow(broker, await _create(broker))
        assert entries[-1].type == "final"
        assert not cleaned.is_set()
        assert worker.running == 1
        fenced.set()
        await eventually(lambda: worker.running == 0)
    assert cleaned.is_set()
    assert order == [2, 1]


# Stops.


async def test_cancel_reaches_a_running_runner_and_keeps_the_partial_text(broker: Broker) -> None:
    async with working(broker, _forever):
        run_id = await _create(broker)
        entries = []
        async for entry in broker.stream(run_id):
            entries.append(entry)
            if entry.seq == 3:
                await broker.runs.cancel(run_id)
                await broker.runs.cancel(run_id)
    assert entries[-1].type == "cancelled"
    assert entries[-1].fields["partial"]["content"] == [{"type": "text", "text": "some text"}]
    assert (await broker.runs.get(run_id)).status == "cancelled"
    await broker.runs.cancel(run_id)


async def test_a_runner_that_ignores_its_stop_is_cancelled_after_its_grace(broker: Broker) -> None:
    ended = asyncio.Event()

    async def play(context: RunContext) -> Final:
        await _say(context, "x")
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()
        return Final()

    async with working(broker, play) as worker:
        run_id = await _create(broker)
        await eventually(lambda: worker.running == 1)
        stream = asyncio.create_task(_follow(broker, run_id))
        await asyncio.sleep(0.2)
        await broker.runs.cancel(run_id)
        entries = await stream
        assert "stop.requested" in _events(entries)
        assert entries[-1].type == "cancelled"
        await asyncio.wait_for(ended.wait(), 30)
        await eventually(lambda: worker.running == 0)


async def test_cancelled_beats_what_the_runner_returns_afterwards(broker: Broker) -> None:
    async def play(context: RunContext) -> Final:
        await context.stop.wait()
        assert context.stop_reason == "cancelled"
        return Final()

    async with working(broker, play) as worker:
        run_id = await _create(broker)
        await eventually(lambda: worker.running == 1)
        await broker.runs.cancel(run_id)
        assert (await _follow(broker, run_id))[-1].type == "cancelled"


async def test_a_run_cancelled_before_its_claim_is_not_run(broker: Broker) -> None:
    played: list[str] = []

    async def play(context: RunContext) -> Final:
        played.append(context.run_id)
        return Final()

    run_id = await _create(broker)
    await broker.runs.cancel(run_id)
    async with working(broker, play):
        assert [e.type for e in await _follow(broker, run_id)] == ["cancelled"]
        other = await _create(broker)
        await _follow(broker, other)
    assert played == [other]
    assert await broker.queue.size() == 0


async def test_a_cancel_that_the_claim_already_shows(broker: Broker) -> None:
    record, _ = await broker.runs.create(_request(), enqueue=False)
    claim = await broker.runs.claim(record.run_id, 1, "owner")
    claim = msgspec.structs.replace(claim, cancel_requested=1.0)
    await Execution(broker, claim, Playing(_raises), worker="w", known=["test"]).run()
    assert [e.type for e in await _follow(broker, record.run_id)] == ["cancelled"]


async def test_the_deadline(broker: Broker) -> None:
    async with working(broker, _forever):
        entries = await _follow(broker, await _create(broker, deadline_s=0.3))
    assert (entries[-1].type, entries[-1].fields["code"]) == ("failed", "deadline")
    assert entries[-1].fields["partial"]


# Slots and the queue.


async def test_no_more_runs_at_once_than_there_are_slots(broker: Broker) -> None:
    at_once, most = 0, 0
    both = asyncio.Event()

    async def play(context: RunContext) -> Final:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 2:
            both.set()
        await both.wait()
        await asyncio.sleep(0.05)
        at_once -= 1
        return Final()

    async with working(broker, play, concurrency=2):
        runs = [await _create(broker) for _ in range(7)]
        for run_id in runs:
            assert (await _follow(broker, run_id))[-1].type == "final"
    assert most == 2
    assert await broker.queue.size() == 0


async def test_two_workers_run_each_run_once(broker: Broker) -> None:
    played: list[str] = []

    async def play(context: RunContext) -> Final:
        played.append(context.run_id)
        return Final()

    async with working(broker, play), working(broker, play):
        runs = [await _create(broker) for _ in range(12)]
        for run_id in runs:
            await broker.queue.put(run_id, 1)  # an entry that comes twice is refused at the claim
        for run_id in runs:
            await _follow(broker, run_id)
        await _until(broker.queue.size, 0)
    assert sorted(played) == sorted(runs)


# Taken over.


async def _expire(broker: Broker, run_id: str) -> None:
    """What a sweep does once a lease is over, whatever the owner says meanwhile."""
    while await broker.runs.takeover(await broker.runs.get(run_id)) is None:
        pass  # a beat came between the read and the takeover


async def test_a_run_that_was_taken_over_stops_its_runner_and_writes_nothing_more(broker: Broker) -> None:
    seen: list[Exception] = []
    stopped = asyncio.Event()

    async def play(context: RunContext) -> Final:
        await _say(context, "x")
        await context.stop.wait()
        try:
            await context.emit(MessageDelta(text="too late"))
        except Fenced as error:
            seen.append(error)
        stopped.set()
        return Final()

    async with working(broker, play) as worker:
        run_id = await _create(broker)
        async for entry in broker.stream(run_id):
            if entry.seq == 2:
                await _expire(broker, run_id)
        await asyncio.wait_for(stopped.wait(), 30)
        await eventually(lambda: worker.running == 0)
    entries = await _follow(broker, run_id)
    assert [e.type for e in entries] == ["event", "message.delta", "failed"]
    assert entries[-1].fields["code"] == "worker_lost"
    assert len(seen) == 1


async def test_a_second_attempt_opens_with_run_restarted(broker: Broker) -> None:
    attempts: list[int] = []

    async def play(context: RunContext) -> Final:
        attempts.append(context.attempt)
        await _say(context, f"attempt {context.attempt}")
        if context.attempt == 1:
            await context.stop.wait()
        return Final()

    async with working(broker, play):
        run_id = await _create(broker, on_worker_lost="retry")
        entries = []
        async for entry in broker.stream(run_id):
            entries.append(entry)
            if entry.seq == 2:
                await _expire(broker, run_id)
    assert attempts == [1, 2]
    assert _events(entries) == ["run.started", "run.restarted", "run.started"]
    restarted = next(e for e in entries if e.type == "event" and e.fields["name"] == "run.restarted")
    assert restarted.fields["attempt"] == 2
    assert entries[-1].fields["message"]["content"] == [{"type": "text", "text": "attempt 2"}]


async def test_a_busy_run_is_never_taken_for_lost(broker: Broker) -> None:
    """A silent runner, a lease of 1 s, sweeps every 0.2 s: the beats alone keep it."""

    async def play(context: RunContext) -> Final:
        await asyncio.sleep(2.5)
        return Final()

    async with working(broker, play, sweep=True):
        assert (await _follow(broker, await _create(broker)))[-1].type == "final"


# The end of the worker.


async def test_drain_lets_runs_end_and_claims_nothing_more(broker: Broker) -> None:
    go = asyncio.Event()

    async def play(context: RunContext) -> Final:
        await go.wait()
        return Final()

    worker = Worker(broker, runners={"test": Playing(play)}, sweep=False)
    task = asyncio.create_task(worker.run())
    first = await _create(broker)
    await eventually(lambda: worker.running == 1)
    worker.drain()
    second = await _create(broker)
    await asyncio.sleep(0.3)
    assert not task.done()
    go.set()
    await asyncio.wait_for(task, 30)
    assert (await _follow(broker, first))[-1].type == "final"
    assert (await broker.runs.get(second)).status == "queued"
    async with working(broker, play):  # another worker takes what was left
        assert (await _follow(broker, second))[-1].type == "final"


async def test_drain_stops_what_does_not_end_in_time(tmp_path: Path) -> None:
    async with api.open(settings=_settings(f"memory:{uuid4().hex}", tmp_path, worker_drain=0.2)) as broker:
        worker = Worker(broker, runners={"test": Playing(_forever)}, sweep=False)
        task = asyncio.create_task(worker.run())
        run_id = await _create(broker)
        await eventually(lambda: worker.running == 1)
        worker.drain()
        await asyncio.wait_for(task, 30)
        fence = (await _follow(broker, run_id))[-1].fields
        assert (fence["code"], fence["retryable"]) == ("worker_stopped", True)
        assert fence["partial"]


async def test_a_second_drain_does_not_wait(broker: Broker) -> None:
    async def play(context: RunContext) -> Final:
        await _say(context, "x")
        await asyncio.sleep(600)
        return Final()

    worker = Worker(broker, runners={"test": Playing(play)}, sweep=False)
    task = asyncio.create_task(worker.run())
    run_id = await _create(broker)
    await eventually(lambda: worker.running == 1)
    worker.drain()
    await asyncio.sleep(0.1)
    assert not task.done()
    worker.drain()
    await asyncio.wait_for(task, 30)
    assert (await _follow(broker, run_id))[-1].fields["code"] == "worker_stopped"


async def test_a_drained_worker_leaves_neither_its_name_nor_an_entry_in_the_queue(broker: Broker) -> None:
    worker = Worker(broker, runners={"test": Playing(_forever)}, sweep=False, concurrency=1)
    task = asyncio.create_task(worker.run())
    await _create(broker)
    await eventually(lambda: worker.running == 1)
    # An entry that it took and did not get to claim: its only slot is busy, so the test takes it in its name.
    other = await _create(broker)
    link = await broker.store.link()
    taken = await broker.queue.take(link, worker.name, block_ms=100)
    await link.aclose()
    assert taken is not None
    assert taken.run_id == other
    worker.drain()
    worker.drain()
    await asyncio.wait_for(task, 30)
    assert await broker.store.call(b"XINFO", b"CONSUMERS", broker.queue.key, b"workers") == []

    async def ends(context: RunContext) -> Final:
        return Final()

    async with working(broker, ends), asyncio.timeout(30):
        assert (await _follow(broker, other))[-1].type == "final"


async def test_an_idle_worker_ends_at_once(broker: Broker) -> None:
    worker = Worker(broker, runners={}, sweep=True)
    task = asyncio.create_task(worker.run())
    await asyncio.sleep(0.2)
    worker.drain()
    await asyncio.wait_for(task, 30)


async def test_a_worker_tells_the_bus_that_it_came_and_went(broker: Broker) -> None:
    worker = Worker(broker, runners={}, sweep=False, name=f"w-{uuid4().hex}")
    task = asyncio.create_task(worker.run())
    key = broker.keys.bus(broker.keys.partition(worker.name))

    async def kinds() -> list[bytes]:
        raw = await broker.store.call(b"XRANGE", key, b"-", b"+")
        return [dict(zip(f[::2], f[1::2], strict=True))[b"kind"] for _, f in raw]

    await _until(kinds, [b"worker.started"])
    worker.drain()
    await task
    assert await kinds() == [b"worker.started", b"worker.stopped"]


# Outages.


async def test_an_outage_shorter_than_the_limit_costs_nothing(redis_server: RedisServer, tmp_path: Path) -> None:
    settings = _settings(redis_server.url, tmp_path, outage_limit=30.0, lease=1.0)
    async with api.open(settings=settings) as broker, working(broker, sweep=True):
        run_id = await _create(broker, "scripted", metadata={"script": "tokens=200 rate=60"})
        await asyncio.sleep(0.5)
        redis_server.pause()
        await asyncio.sleep(2.5)
        redis_server.resume()
        entries = await _follow(broker, run_id)
    assert entries[-1].type == "final"
    words = [e.fields["text"] for e in entries if e.type == "message.delta"]
    assert words == [f"w{i} " for i in range(1, 201)]
    assert [e.seq for e in entries] == list(range(1, len(entries) + 1))


@pytest.mark.parametrize("script", ["tokens=100000 rate=500", "tokens=9 hang=3"])
async def test_an_outage_longer_than_the_limit_stops_the_runner(
    redis_server: RedisServer, tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(redis_server.url, tmp_path, outage_limit=1.0, publisher_items=50)
    async with api.open(settings=settings) as broker, working(broker) as worker:
        await _create(broker, "scripted", metadata={"script": script})
        await eventually(lambda: worker.running == 1)
        await asyncio.sleep(0.3)
        redis_server.pause()
        monkeypatch.setattr(broker.store, "_deadline", 0.3)
        await eventually(lambda: worker.running == 0)
        redis_server.resume()


async def test_a_request_that_this_version_cannot_read_fails(broker: Broker) -> None:
    record, _ = await broker.runs.create(_request(), enqueue=False)
    claim = await broker.runs.claim(record.run_id, 1, "owner")
    claim = msgspec.structs.replace(claim, request={**claim.request, "new_field": 1})
    await Execution(broker, claim, Playing(_forever), worker="w", known=["test"]).run()
    assert (await _follow(broker, record.run_id))[-1].fields["code"] == "invalid_request"
