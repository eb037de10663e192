"""Asking people from a run: the answer arrives whatever is lost on the way, once, and nothing stays open behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker, StreamEntry
from broker.errors import AlreadyAnswered, Fenced, OutageTooLong, RunEnded, StoreUnavailable, TooManyAsks
from broker.items import Final, MessageDelta
from broker.records import OpenAsk
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.servers import Proxy, RedisServer, eventually
from workers.asking import StoredAsks, _Ask
from workers.execution import Execution
from workers.runner import Answer, Outcome, RunContext, RunnerFailed
from workers.scripted import ScriptedRunner
from workers.worker import Worker

Play = Callable[[RunContext], Awaitable[Any]]
CHOICES = ("once", "session", "always", "deny")


class Playing:
    """A runner that does what a test says."""

    name = "test"
    stop_grace = 2.0

    def __init__(self, play: Play) -> None:
        self._play = play

    async def run(self, context: RunContext) -> Outcome:
        outcome: Outcome = await self._play(context)
        return outcome


def _settings(url: str, tmp_path: Path, **more: Any) -> Settings:
    fast = {"beat": 0.1, "sweep": 0.2, "lease": 1.0, "worker_drain": 5.0, "block": 1.0, "input_timeout": 20.0}
    return Settings(redis_url=url, namespace=f"t{uuid4().hex[:12]}", data_dir=tmp_path, **{**fast, **more})


@pytest.fixture(params=["memory", "redis7"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    url = f"memory:{uuid4().hex}" if request.param == "memory" else request.getfixturevalue("redis7").url
    async with api.open(settings=_settings(url, tmp_path)) as opened:
        yield opened


@asynccontextmanager
async def working(broker: Broker, play: Play, *, sweep: bool = False) -> AsyncIterator[Worker]:
    worker = Worker(broker, runners={"test": Playing(play), "scripted": ScriptedRunner()}, sweep=sweep)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.drain()
        worker.drain()
        await asyncio.wait_for(task, 20)


async def _create(broker: Broker, runner: str = "test", *, approvals: Any = "yolo", **more: Any) -> str:
    request = RunRequest(runner=runner, input=RunInput(message="hello", approvals=approvals), **more)
    return (await broker.runs.create(request))[0].run_id


async def _open(broker: Broker, run_id: str, count: int = 1) -> tuple[OpenAsk, ...]:
    """The run's open asks, once there are so many."""
    async with asyncio.timeout(30):
        while True:
            try:
                found = (await broker.runs.get(run_id)).asks
            except StoreUnavailable:
                found = ()
            if len(found) == count:
                return found
            await asyncio.sleep(0.01)


async def _follow(broker: Broker, run_id: str) -> list[StreamEntry]:
    async with asyncio.timeout(20):
        return [entry async for entry in broker.stream(run_id)]


ASKING = ("approval.requested", "question.asked", "input.answered")


async def _answered(broker: Broker, run_id: str) -> str:
    """The first ask of the run that is answered, once it is."""
    async with asyncio.timeout(40):
        async for entry in broker.stream(run_id):
            if entry.type == "event" and entry.fields["name"] == "input.answered":
                return str(entry.fields["request_id"])
    raise AssertionError("nothing was answered")


def _asking(entries: list[StreamEntry]) -> list[dict[str, Any]]:
    return [e.fields for e in entries if e.type == "event" and e.fields["name"] in ASKING]


async def _approval(context: RunContext, **more: Any) -> Answer:
    payload = {"command": "rm -rf x", "description": "deletes x"}
    return await context.ask("approval", payload, **{"choices": CHOICES, "otherwise": "deny", **more})


async def _ask_once(context: RunContext) -> Final:
    answer = await _approval(context)
    return Final(metadata={"answer": [answer.value, answer.how, answer.by]})


def _answer_of(entries: list[StreamEntry]) -> list[str]:
    answer: list[str] = entries[-1].fields["metadata"]["answer"]
    return answer


# The answer.


async def test_a_person_is_asked_and_answers(broker: Broker) -> None:
    async with working(broker, _ask_once):
        run_id = await _create(broker)
        (ask,) = await _open(broker, run_id)
        await broker.runs.answer(run_id, ask.request_id, "session", principal="anna")
        entries = await _follow(broker, run_id)
    requested, answered = _asking(entries)
    assert requested["name"] == "approval.requested"
    assert (requested["command"], requested["description"]) == ("rm -rf x", "deletes x")
    assert (requested["request_id"], requested["choices"]) == (ask.request_id, list(CHOICES))
    assert (requested["free"], requested["timeout_s"], requested["expires_at"]) == (False, 20.0, ask.expires_at)
    said = {k: v for k, v in answered.items() if k not in ("ts", "component_id")}
    assert said == {
        "name": "input.answered",
        "request_id": ask.request_id,
        "kind": "approval",
        "answer": "session",
        "how": "answered",
    }
    assert _answer_of(entries) == ["session", "answered", "anna"]


async def test_a_question_with_fields_that_are_taken(broker: Broker) -> None:
    async def play(context: RunContext) -> Final:
        payload = {"question": "why?", "name": "x", "request_id": "y", "free": "z"}
        answer = await context.ask("question", payload, choices=("a", "a", "b"), free=True, otherwise="")
        return Final(metadata={"answer": [answer.value, answer.how, answer.by]})

    async with working(broker, play):
        run_id = await _create(broker)
        (ask,) = await _open(broker, run_id)
        await broker.runs.answer(run_id, ask.request_id, "because\n“so”")
        entries = await _follow(broker, run_id)
    requested, _ = _asking(entries)
    assert (requested["name"], requested["request_id"], requested["free"]) == ("question.asked", ask.request_id, True)
    assert (requested["question"], requested["choices"]) == ("why?", ["a", "b"])
    assert _answer_of(entries) == ["because\n“so”", "answered", ""]


async def test_several_are_open_at_once(broker: Broker) -> None:
    async def play(context: RunContext) -> Final:
        answers = await asyncio.gather(*(_approval(context) for _ in range(4)))
        return Final(metadata={"answer": [a.value for a in answers]})

    async with working(broker, play):
        run_id = await _create(broker)
        asks = await _open(broker, run_id, 4)
        for ask, answer in reversed(list(zip(asks, CHOICES, strict=True))):
            await broker.runs.answer(run_id, ask.request_id, answer)
        entries = await _follow(broker, run_id)
    assert sorted(_answer_of(entries)) == sorted(CHOICES)
    events = _asking(entries)
    asked = [e["request_id"] for e in events if e["name"] == "approval.requested"]
    answered = {e["request_id"]: e["answer"] for e in events if e["name"] == "input.answered"}
    assert answered == {ask.request_id: answer for ask, answer in zip(asks, CHOICES, strict=True)}
    assert len(events) == 8
    assert set(asked) == set(answered)


async def test_an_answer_that_is_faster_than_the_reply_to_asking(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = broker.runs.asks.ask
    delivered = asyncio.Event()

    async def slow(run_id: str, owner: str, epoch: int, request_id: str, **more: Any) -> Any:
        asked = await ask(run_id, owner, epoch, request_id, **more)
        await broker.runs.answer(run_id, request_id, "always")
        await asyncio.wait_for(delivered.wait(), 10)
        return asked

    answered = RunContext.answered

    def heard(self: RunContext, request_id: str, answer: Answer) -> None:
        answered(self, request_id, answer)
        delivered.set()

    monkeypatch.setattr(broker.runs.asks, "ask", slow)
    monkeypatch.setattr(RunContext, "answered", heard)
    async with working(broker, _ask_once):
        entries = await _follow(broker, await _create(broker))
    assert _answer_of(entries) == ["always", "answered", ""]
    assert [e["name"] for e in _asking(entries)] == ["approval.requested", "input.answered"]


async def test_an_answer_whose_control_entry_is_lost(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failover may lose it, and where this process follows the control stream already nobody reads it."""
    monkeypatch.setattr(Execution, "_obey", lambda self, entries: None)
    async with working(broker, _ask_once):
        run_id = await _create(broker)
        (ask,) = await _open(broker, run_id)
        await broker.runs.answer(run_id, ask.request_id, "once", principal="anna")
        assert _answer_of(await _follow(broker, run_id)) == ["once", "answered", "anna"]


async def test_a_control_entry_that_is_no_answer_harms_nobody(broker: Broker) -> None:
    async with working(broker, _ask_once):
        run_id = await _create(broker)
        (ask,) = await _open(broker, run_id)
        key = broker.keys.control(run_id)
        for d in (b"", b"\xff", b"[]", b'{"request_id":"other","answer":"once"}'):
            await broker.store.call("XADD", key, "*", "t", "input", "d", d)
        await broker.store.call("XADD", key, "*", "t", "of_later", "d", "{}")
        await broker.runs.answer(run_id, ask.request_id, "once")
        assert _answer_of(await _follow(broker, run_id)) == ["once", "answered", ""]


async def test_an_ask_that_the_store_lost_is_registered_again(broker: Broker) -> None:
    """What a failover does that lost the end of the master's writes."""
    async with working(broker, _ask_once):
        run_id = await _create(broker)
        (ask,) = await _open(broker, run_id)
        await broker.store.call("HDEL", broker.keys.run(run_id), "asks", f"ask:{ask.request_id}")
        (again,) = await _open(broker, run_id)
        assert (again.request_id, again.payload) == (ask.request_id, ask.payload)
        assert again.timeout_s < ask.timeout_s, "what is left of its time"
        await broker.runs.answer(run_id, ask.request_id, "once")
        entries = await _follow(broker, run_id)
    assert _answer_of(entries) == ["once", "answered", ""]
    assert len(_asking(entries)) == 2


# The time limit.


async def test_nobody_answers_in_time(broker: Broker) -> None:
    async def play(context: RunContext) -> Final:
        answer = await _approval(context, timeout=0.3)
        await context.emit(MessageDelta(text="on "))
        await context.stop.wait()
        return Final(metadata={"answer": [answer.value, answer.how, answer.by]})

    async with working(broker, play):
        run_id = await _create(broker)
        request_id = await _answered(broker, run_id)
        with pytest.raises(AlreadyAnswered) as refused:
            await broker.runs.answer(run_id, request_id, "once")
        assert (refused.value.answer, refused.value.how) == ("deny", "expired")
        await broker.runs.cancel(run_id)
        entries = await _follow(broker, run_id)
    assert [(e["name"], e.get("how")) for e in _asking(entries)] == [
        ("approval.requested", None),
        ("input.answered", "expired"),
    ]


async def test_the_setting_is_the_time_limit_unless_the_runner_says_one(tmp_path: Path) -> None:
    settings = _settings(f"memory:{uuid4().hex}", tmp_path, input_timeout=0.2)
    async with api.open(settings=settings) as broker, working(broker, _ask_once):
        entries = await _follow(broker, await _create(broker))
    assert _asking(entries)[0]["timeout_s"] == 0.2
    assert _answer_of(entries) == ["deny", "expired", ""]


async def test_at_the_time_limit_the_store_says_who_was_first(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is in the store, and this worker has not heard of it when the time is over."""
    monkeypatch.setattr(Execution, "_obey", lambda self, entries: None)
    monkeypatch.setattr("workers.asking.Asking._look", lambda self, ask: asyncio.sleep(0))
    ask = broker.runs.asks.ask

    async def answered(run_id: str, owner: str, epoch: int, request_id: str, **more: Any) -> Any:
        asked = await ask(run_id, owner, epoch, request_id, **more)
        await broker.runs.answer(run_id, request_id, "always", principal="anna")
        return asked

    async def play(context: RunContext) -> Final:
        answer = await _approval(context, timeout=0.5)
        return Final(metadata={"answer": [answer.value, answer.how, answer.by]})

    monkeypatch.setattr(broker.runs.asks, "ask", answered)
    async with working(broker, play):
        entries = await _follow(broker, await _create(broker))
    assert _answer_of(entries) == ["always", "answered", "anna"]
    assert [e["answer"] for e in _asking(entries) if e["name"] == "input.answered"] == ["always"]


async def test_answers_around_the_time_limit_agree_with_what_the_run_takes(broker: Broker) -> None:
    async def play(context: RunContext) -> Final:
        answers = [await _approval(context, timeout=0.05) for _ in range(12)]
        return Final(metadata={"answer": [a.value for a in answers]})

    async with working(broker, play):
        run_id = await _create(broker)
        following = asyncio.create_task(_follow(broker, run_id))
        accepted: dict[str, str] = {}
        while not following.done():
            for ask in (await broker.runs.get(run_id)).asks:
                try:
                    accepted[ask.request_id] = (await broker.runs.answer(run_id, ask.request_id, "once")).answer
                except (AlreadyAnswered, RunEnded):
                    accepted.setdefault(ask.request_id, "deny")
            await asyncio.sleep(0.035)
        events = _asking(following.result())
    answered = {e["request_id"]: e["answer"] for e in events if e["name"] == "input.answered"}
    assert len(answered) == 12
    assert {k: v for k, v in answered.items() if k in accepted} == accepted


# Stops and ends.


async def test_a_cancel_closes_what_is_open(broker: Broker) -> None:
    seen: list[Answer] = []

    async def play(context: RunContext) -> Final:
        seen.extend(await asyncio.gather(*(_approval(context) for _ in range(3))))
        seen.append(await _approval(context))
        return Final()

    async with working(broker, play):
        run_id = await _create(broker)
        asks = await _open(broker, run_id, 3)
        await broker.runs.cancel(run_id)
        entries = await _follow(broker, run_id)
    assert entries[-1].type == "cancelled"
    assert {(a.value, a.how) for a in seen} == {("deny", "stopped")}
    assert len(seen) == 4
    closed = [e["request_id"] for e in _asking(entries) if e.get("how") == "stopped"]
    assert sorted(closed) == sorted(a.request_id for a in asks), "each once, and none for what was asked after the stop"
    with pytest.raises(AlreadyAnswered, match="no longer waits"):
        await broker.runs.answer(run_id, asks[0].request_id, "once")


async def test_a_deadline_closes_what_is_open(broker: Broker) -> None:
    async with working(broker, _ask_once):
        run_id = await _create(broker, deadline_s=0.3)
        entries = await _follow(broker, run_id)
    assert entries[-1].fields["code"] == "deadline"
    assert [e.get("how") for e in _asking(entries)] == [None, "stopped"]


async def test_a_runner_that_ends_leaves_nothing_open(broker: Broker) -> None:
    async def play(context: RunContext) -> Final:
        forgotten = asyncio.create_task(_approval(context))
        context.defer(lambda: _settled(forgotten))
        await eventually(lambda: context._asking is not None and context._asking._open)
        await _open(broker, context.run_id)
        return Final()

    async def _settled(task: asyncio.Task[Answer]) -> None:
        assert (await task).how == "stopped"

    async with working(broker, play):
        entries = await _follow(broker, await _create(broker))
    assert entries[-1].type == "final"
    assert [(e["name"], e.get("how")) for e in _asking(entries)] == [
        ("approval.requested", None),
        ("input.answered", "stopped"),
    ]


async def test_a_runner_that_gives_up_waiting_closes_its_ask(broker: Broker) -> None:
    async def play(context: RunContext) -> Final:
        for _ in range(2):
            asking = asyncio.create_task(_approval(context))
            await _open(broker, context.run_id)
            asking.cancel()
            await _open(broker, context.run_id, 0)
        return Final()

    async with working(broker, play):
        entries = await _follow(broker, await _create(broker))
    names = [e["name"] for e in _asking(entries)]
    assert names == ["approval.requested", "input.answered"] * 2


async def test_more_than_may_be_open_is_a_typed_error(broker: Broker) -> None:
    async def play(context: RunContext) -> Final:
        asking = [asyncio.create_task(_approval(context)) for _ in range(100)]
        await _open(broker, context.run_id, 100)
        with pytest.raises(TooManyAsks):
            await _approval(context)
        for task in asking:
            task.cancel()
        return Final()

    async with working(broker, play):
        entries = await _follow(broker, await _create(broker))
    assert entries[-1].type == "final"
    assert len(_asking(entries)) == 200


async def _taken_over(broker: Broker, run_id: str) -> str:
    """As by a sweep. The worker lives and beats: a beat between the look and the takeover keeps the run its own."""
    async with asyncio.timeout(30):
        while (status := await broker.runs.takeover(await broker.runs.get(run_id))) is None:
            pass
    return status


async def test_a_worker_that_lost_its_run_asks_no_more(broker: Broker) -> None:
    caught: list[BaseException] = []

    async def play(context: RunContext) -> Final:
        try:
            await _approval(context)
        except Fenced as error:
            caught.append(error)
            raise
        return Final()

    async with working(broker, play):
        run_id = await _create(broker)
        (ask,) = await _open(broker, run_id)
        async with asyncio.timeout(30):
            while (await broker.runs.get(run_id)).last < 2:  # noqa: ASYNC110 - an ask is registered ahead of its item
                await asyncio.sleep(0.01)
        assert await _taken_over(broker, run_id) == "failed"
        entries = await _follow(broker, run_id)
        await eventually(lambda: caught)
        with pytest.raises(RunEnded):
            await broker.runs.answer(run_id, ask.request_id, "once")
    assert entries[-1].fields["code"] == "worker_lost"
    assert [e["name"] for e in _asking(entries)] == ["approval.requested"]


async def test_each_attempt_has_asks_of_its_own(broker: Broker) -> None:
    async with working(broker, _ask_once):
        run_id = await _create(broker, on_worker_lost="retry")
        (old,) = await _open(broker, run_id)
        assert await _taken_over(broker, run_id) == "queued"
        async with asyncio.timeout(30):
            while not (found := (await broker.runs.get(run_id)).asks) or found[0].attempt != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        with pytest.raises(AlreadyAnswered, match="earlier attempt"):
            await broker.runs.answer(run_id, old.request_id, "once")
        await broker.runs.answer(run_id, found[0].request_id, "session")
        entries = await _follow(broker, run_id)
    assert _answer_of(entries) == ["session", "answered", ""]


# The store.


async def test_the_epoch_changes_while_a_run_asks(broker: Broker) -> None:
    record = (await broker.runs.create(RunRequest(input=RunInput(message="x")), enqueue=False))[0]
    run = await broker.runs.claim(record.run_id, 1, "me")
    epochs = [1]
    asks = StoredAsks(broker.runs, run.run_id, "me", lambda: epochs[-1])
    await broker.runs.new_epoch(run.run_id, "me", 1)
    ask = _Ask("approval", {}, ("once",), False, 5.0, "deny")
    with pytest.raises(StoreUnavailable, match="epoch"):
        await asks.register(ask, 5.0)
    epochs.append(2)
    assert (await asks.register(ask, 5.0)).asked_at > 0
    other = StoredAsks(broker.runs, run.run_id, "not-me", lambda: 2)
    with pytest.raises(Fenced):
        await other.register(_Ask("approval", {}, ("once",), False, 5.0, "deny"), 5.0)


async def test_the_store_is_away_when_a_run_asks_and_when_it_is_answered(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    go, asked = asyncio.Event(), asyncio.Event()

    async def play(context: RunContext) -> Final:
        await context.emit(MessageDelta(text="first "))
        await go.wait()
        asked.set()
        return await _ask_once(context)

    settings = _settings(redis_server.url, tmp_path, lease=30.0)
    async with api.open(settings=settings) as broker, working(broker, play):
        run_id = await _create(broker)
        async with asyncio.timeout(30):
            while (await broker.runs.get(run_id)).last < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        redis_server.stop()
        go.set()
        await asyncio.wait_for(asked.wait(), 10)
        await asyncio.sleep(0.3)  # it finds nobody at the door for a while
        redis_server.start()
        (ask,) = await _open(broker, run_id)
        redis_server.restart(kill=True)
        async with asyncio.timeout(30):
            while True:
                try:
                    await broker.runs.answer(run_id, ask.request_id, "always")
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.05)
        entries = await _follow(broker, run_id)
    assert _answer_of(entries) == ["always", "answered", ""]
    assert [e["name"] for e in _asking(entries)] == ["approval.requested", "input.answered"]


async def test_the_store_is_away_at_the_time_limit(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = asyncio.Event()

    async def play(context: RunContext) -> Final:
        answer = await _approval(context, timeout=0.5)
        return Final(metadata={"answer": [answer.value, answer.how, answer.by]})

    settings = _settings(redis_server.url, tmp_path, lease=30.0)
    async with api.open(settings=settings) as broker, working(broker, play):
        ask = broker.runs.asks.ask

        async def leaves(*asked: Any, **more: Any) -> Any:
            registered = await ask(*asked, **more)
            redis_server.pause()
            monkeypatch.setattr(broker.store, "_deadline", 0.5)
            away.set()
            return registered

        monkeypatch.setattr(broker.runs.asks, "ask", leaves)
        run_id = await _create(broker)
        await asyncio.wait_for(away.wait(), 30)
        await asyncio.sleep(1.0)  # its time is over meanwhile
        redis_server.resume()
        monkeypatch.undo()
        entries = await _follow(broker, run_id)
    assert _answer_of(entries) == ["deny", "expired", ""]


async def test_a_failover_loses_an_ask_and_its_item(redis_server: RedisServer, tmp_path: Path) -> None:
    """The replica was promoted before it had either: both come back, and the answer arrives."""
    go = asyncio.Event()

    async def play(context: RunContext) -> Final:
        await go.wait()
        return await _ask_once(context)

    replica = RedisServer(tmp_path / "replica").start()
    try:
        async with Proxy(redis_server.port) as proxy:
            settings = _settings(proxy.url, tmp_path, lease=30.0)
            async with api.open(settings=settings) as broker, working(broker, play):
                run_id = await _create(broker)
                async with asyncio.timeout(30):
                    while (await broker.runs.get(run_id)).last < 1:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                await asyncio.to_thread(replica.replica_of, redis_server)
                replica.promote()
                go.set()
                (ask,) = await _open(broker, run_id)
                async with asyncio.timeout(30):
                    while (await broker.runs.get(run_id)).last < 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                redis_server.kill()
                proxy.target = replica.port
                proxy.cut()
                (again,) = await _open(broker, run_id)
                assert again.request_id == ask.request_id
                await broker.runs.answer(run_id, ask.request_id, "session")
                entries = await _follow(broker, run_id)
    finally:
        replica.kill()
    assert _answer_of(entries) == ["session", "answered", ""]
    assert [e["name"] for e in _asking(entries)] == ["approval.requested", "input.answered"]


async def test_an_outage_that_is_too_long_ends_the_run(redis_server: RedisServer, tmp_path: Path) -> None:
    caught: list[BaseException] = []
    go = asyncio.Event()

    async def play(context: RunContext) -> Final:
        await go.wait()
        try:
            await _approval(context)
        except OutageTooLong as error:
            caught.append(error)
            raise
        return Final()

    settings = _settings(redis_server.url, tmp_path, outage_limit=0.6, lease=30.0)
    async with api.open(settings=settings) as broker, working(broker, play) as worker:
        await _create(broker)
        await eventually(lambda: worker.running)
        redis_server.stop()
        go.set()
        await eventually(lambda: caught)
        await eventually(lambda: not worker.running)


async def test_a_stop_does_not_wait_for_a_store_that_is_away(redis_server: RedisServer, tmp_path: Path) -> None:
    seen: list[Answer] = []
    go = asyncio.Event()

    async def play(context: RunContext) -> Final:
        await go.wait()
        seen.append(await _approval(context))
        return Final()

    settings = _settings(redis_server.url, tmp_path, lease=30.0)
    async with api.open(settings=settings) as broker, working(broker, play) as worker:
        await _create(broker)
        await eventually(lambda: worker.running)
        redis_server.stop()
        go.set()
        await asyncio.sleep(0.4)
        (execution,) = worker._running.values()
        execution.stop("cancelled")
        await eventually(lambda: seen)
        assert (seen[0].value, seen[0].how) == ("deny", "stopped")
        redis_server.start()


async def test_without_a_store_nobody_can_be_asked() -> None:
    async def publish(item: object) -> None:
        return

    context = RunContext(
        run_id="r",
        attempt=1,
        request=RunRequest(input=RunInput(message="x")),
        session_id=None,
        settings=Settings(),
        publish=publish,
    )
    with pytest.raises(RunnerFailed) as refused:
        await _approval(context)
    assert refused.value.code == "input_unavailable"
    context.request_stop("cancelled")
    await context.close_asks()


# The scripted agent.


async def _scripted(broker: Broker, script: str, answers: list[str], **more: Any) -> list[StreamEntry]:
    async with working(broker, _ask_once):
        run_id = await _create(broker, "scripted", metadata={"script": script}, **more)
        for answer in answers:
            (ask,) = await _open(broker, run_id)
            await broker.runs.answer(run_id, ask.request_id, answer)
        return await _follow(broker, run_id)


def _text(entries: list[StreamEntry]) -> str:
    return "".join(e.fields["text"] for e in entries if e.type == "message.delta")


async def test_the_scripted_agent_asks(broker: Broker) -> None:
    entries = await _scripted(broker, "tokens=4 ask=2 question=4", ["once", "a deep blue"])
    assert _text(entries) == "w1 w2 [approval: once] w3 w4 [answer: a deep blue] "
    assert [e["name"] for e in _asking(entries)] == [
        "approval.requested",
        "input.answered",
        "question.asked",
        "input.answered",
    ]


async def test_the_scripted_agents_patience_ends(broker: Broker) -> None:
    entries = await _scripted(broker, "tokens=2 ask=0 patience=0.2", [])
    assert _text(entries) == "[approval: deny] w1 w2 "


@pytest.mark.parametrize(
    ("answers", "tools"),
    [
        (["once", "deny"], ["tool.started", "tool.completed", "tool.failed"]),
        (["session"], ["tool.started", "tool.completed", "tool.started", "tool.completed"]),
        (["deny", "deny"], ["tool.failed", "tool.failed"]),
    ],
)
async def test_its_tools_need_an_approval_where_that_was_asked_for(
    broker: Broker, answers: list[str], tools: list[str]
) -> None:
    entries = await _scripted(broker, "tokens=3 tool=2", answers, approvals="ask")
    assert [e.type for e in entries if e.type.startswith("tool.") and e.type != "tool_call.delta"] == tools
    assert entries[-1].type == "final"
