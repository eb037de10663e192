"""Sessions on every kind of store: what runs make of them, whoever tells them, in whatever order, however often."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from broker.errors import BadRequest, InvalidId, SessionNotFound, StoreUnavailable
from broker.items import Encoded
from broker.records import RunRecord
from broker.redis import Store
from broker.scripts import SCRIPTS
from broker.session_follower import SessionFollower
from broker.session_messages import read_messages
from broker.sessions import Sessions
from broker.settings import Settings
from broker.tail import Tail
from tests.broker.registry import Registry, request
from tests.gateways import until
from tests.servers import RedisServer


def final(text: str = "done", **fields: Any) -> Encoded:
    message = {"role": "assistant", "content": [{"type": "text", "text": text}], "model": "m-2"}
    body = {"ts": 2.0, "component_id": "agent", "message": message, "rounds": 1, **fields}
    return Encoded("final", json.dumps(body, separators=(",", ":")).encode())


def failed(partial: Any = None) -> Encoded:
    body = {"ts": 2.0, "component_id": "agent", "code": "provider_error", "message": "no", "partial": partial}
    return Encoded("failed", json.dumps(body, separators=(",", ":")).encode())


class Play(Registry):
    """A registry whose runs belong to one session of this test alone."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.sid = f"s-{uuid4().hex}"

    @property
    def sessions(self) -> Sessions:
        return self.runs.sessions

    async def begun(self, message: str = "hello", **fields: Any) -> RunRecord:
        run_id = f"r-{uuid4().hex}"
        record, _ = await self.runs.create(request(message, session_id=self.sid, **fields), run_id=run_id)
        return await self.runs.claim(record.run_id, record.attempt, "me")

    async def over(self, run: RunRecord, fence: Encoded | None = None, *, fold: bool = True) -> RunRecord:
        await self.log.append(run.run_id, "me", 1, 1, [fence or final()])
        ended = await self.runs.get(run.run_id)
        if fold:
            await self.sessions.fold(ended)
        return ended

    async def told(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Name, run and data of the channel's entries."""
        entries = await self.store.call("XRANGE", self.keys.session_events(self.sid), "-", "+")
        dicts = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in entries]
        return [(e[b"name"].decode(), e[b"run"].decode(), json.loads(e[b"d"])) for e in dicts]

    async def changes(self) -> list[tuple[str, str, int]]:
        entries = await self.store.call("XRANGE", self.keys.sessions("changes"), "-", "+")
        dicts = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in entries]
        return [(e[b"session"].decode(), e[b"reason"].decode(), int(e[b"version"])) for e in dicts]

    async def ttl(self, key: bytes) -> int:
        return int(await self.store.call("PTTL", key))


@pytest.fixture
def play(store: Store) -> Play:
    return Play(store)


# Beginnings and ends.


async def test_the_first_run_makes_its_session(play: Play) -> None:
    run = await play.begun("  build\nthe   thing ")
    session = await play.sessions.get(play.sid)
    assert (session.title, session.message_count, session.created) == ("build the thing", 0, run.created)
    assert session.active is not None
    assert (session.active.run_id, session.active.message) == (run.run_id, "  build\nthe   thing ")
    assert [name for name, _, _ in await play.told()] == ["server_turn_started"]
    assert await play.changes() == [(play.sid, "run_started", 1)]


async def test_a_run_without_a_session_makes_none(play: Play) -> None:
    record = await play.queued()
    assert await play.sessions.fold(record) is False
    assert (await play.sessions.newest())[0] == []


async def test_an_end_is_counted_once_whoever_tells_it(play: Play) -> None:
    usage = {"input_tokens": 7, "output_tokens": 2, "cache_read_tokens": None}
    run = await play.begun()
    fence = final("yes", usage=usage, cost={"total": "0.0012", "currency": "USD"}, hermes_session_id="h1")
    ended = await play.over(run, fence)
    assert [await play.sessions.fold(ended) for _ in range(3)] == [False] * 3
    session = await play.sessions.get(play.sid)
    assert (session.message_count, session.active, session.model) == (2, None, "m-2")
    assert (session.usage["input_tokens"], session.usage["output_tokens"]) == (7, 2)
    assert session.usage["cache_read_tokens"] == 0
    assert (session.cost, session.hermes_session_id) == (Decimal("0.0012"), "h1")
    assert session.updated == ended.ended
    assert [(n, r) for n, r, _ in await play.told()] == [
        ("server_turn_started", run.run_id),
        ("session-updated", run.run_id),
    ]
    assert [reason for _, reason, _ in await play.changes()] == ["run_started", "run_ended"]


async def test_concurrent_tellers_tell_once(play: Play) -> None:
    ended = await play.over(await play.begun(), fold=False)
    news = await asyncio.gather(*(play.sessions.fold(ended) for _ in range(8)))
    assert sorted(news) == [False] * 7 + [True]
    assert (await play.sessions.get(play.sid)).message_count == 2
    assert len(await play.told()) == 2


async def test_an_end_may_be_told_before_its_beginning(play: Play) -> None:
    queued, _ = await play.runs.create(request(session_id=play.sid), run_id=f"r-{uuid4().hex}")
    await play.store.call("DEL", *[f(play.sid) for f in (play.keys.session, play.keys.session_runs)])
    await play.store.call("DEL", play.keys.session_open(play.sid))
    await play.runs.claim(queued.run_id, 1, "me")
    ended = await play.over(queued)
    assert await play.sessions.fold(queued) is False
    session = await play.sessions.get(play.sid)
    assert (session.message_count, session.active, session.updated) == (2, None, ended.ended)


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_the_order_of_tellers_the_session_is_the_same(play: Play, seed: int) -> None:
    """Stale records, repeats and several tellers at once: each run is counted once, and told of at most once."""
    draw = random.Random(seed)
    tellings: list[RunRecord] = []
    for n in range(5):
        begun = await play.begun(f"q{n}")
        tellings += [begun, begun]
        if n % 2:
            ended = await play.over(begun, final(usage={"input_tokens": 10}), fold=False)
            tellings += [ended, ended]
    if draw.random() < 0.5:
        await forgotten(play)
    draw.shuffle(tellings)
    for start in range(0, len(tellings), 4):
        await asyncio.gather(*map(play.sessions.fold, tellings[start : start + 4]))
    session = await play.sessions.get(play.sid)
    assert (session.message_count, session.usage["input_tokens"]) == (4, 20)
    assert session.active is not None
    assert (session.active.message, len(await play.sessions.runs_of(play.sid))) == ("q0", 5)
    told = [(name, run) for name, run, _ in await play.told()]
    assert len(told) == len(set(told))
    assert [name for name, _ in told].count("session-updated") == 2
    assert [s.session_id for s in (await play.sessions.newest())[0]] == [play.sid]


async def forgotten(play: Play) -> None:
    """Everything that anybody ever told of the session is lost."""
    keys = play.keys
    every = (keys.session, keys.session_runs, keys.session_open, keys.session_messages, keys.session_events)
    await play.store.pipeline([("DEL", *[key_of(play.sid) for key_of in every]), ("DEL", keys.sessions("index"))])


async def test_a_teller_who_died_before_the_index_is_made_up_for(play: Play) -> None:
    run = await play.begun()
    await play.store.call("DEL", play.keys.sessions("index"))
    assert await play.sessions.fold(run) is False
    assert [s.session_id for s in (await play.sessions.newest())[0]] == [play.sid]


async def test_a_session_that_cannot_be_told_keeps_no_run_from_being_made(play: Play) -> None:
    await play.store.call("SET", play.keys.session(play.sid), "not a hash")
    run = await play.begun()
    assert (await play.runs.get(run.run_id)).status == "running"


async def test_the_newest_run_names_the_hermes_session(play: Play) -> None:
    first, second = await play.begun(), await play.begun()
    await play.over(second, final(hermes_session_id="newer"))
    await play.over(first, final(hermes_session_id="older"))
    assert (await play.sessions.get(play.sid)).hermes_session_id == "newer"
    await play.over(await play.begun(), failed())  # it names none
    assert (await play.sessions.get(play.sid)).hermes_session_id == "newer"


async def test_reading_mends_what_nobody_told(play: Play) -> None:
    run = await play.begun()
    await play.over(run, final("yes"), fold=False)
    session = await play.sessions.get(play.sid)
    assert (session.active, session.message_count) == (None, 2)
    assert (await play.told())[-1][2] == {"message_count": 2}


async def test_a_list_mends_too(play: Play) -> None:
    await play.over(await play.begun(), fold=False)
    (listed,), _ = await play.sessions.newest()
    assert (listed.active, listed.message_count) == (None, 2)


# Kept and forgotten.


async def test_a_session_is_kept_while_a_run_is_open(play: Play) -> None:
    first, second = await play.begun(), await play.begun()
    keys = [f(play.sid) for f in (play.keys.session, play.keys.session_runs, play.keys.session_events)]
    await play.over(first)
    assert [await play.ttl(key) for key in keys] == [-1, -1, -1]
    await play.over(second)
    record_ttl = play.store.settings.record_ttl * 1000
    assert all(0 < left <= record_ttl for left in [await play.ttl(key) for key in keys])
    await play.begun()
    assert [await play.ttl(key) for key in keys] == [-1, -1, -1]


async def test_a_run_whose_record_is_gone_leaves_its_session(play: Play) -> None:
    first = await play.over(await play.begun("one"))
    await play.over(await play.begun("two"))
    await play.store.call("DEL", play.keys.run(first.run_id))
    page = await read_messages(play.sessions, play.sid)
    assert [m["content"] for m in page.messages] == ["two", "done"]
    assert (page.offset, page.total) == (0, 2)
    assert (await play.sessions.get(play.sid)).message_count == 2
    assert await play.sessions.runs_of(play.sid) == [page.messages[0]["run_id"]]


async def test_an_open_run_that_vanished_is_forgotten_in_time(play: Play) -> None:
    run = await play.begun()
    await play.store.call("DEL", play.keys.run(run.run_id))
    await play.sessions.get(play.sid)
    assert await play.sessions.runs_of(play.sid) == [run.run_id], "it may be about to be made"
    long_ago = run.created - play.store.settings.requeue_after - 5
    await play.store.call("ZADD", play.keys.session_open(play.sid), long_ago, run.run_id)
    assert (await play.sessions.get(play.sid)).active is None
    assert await play.sessions.runs_of(play.sid) == []
    assert await play.ttl(play.keys.session(play.sid)) > 0


async def test_an_expired_session_leaves_the_list(play: Play) -> None:
    await play.begun()
    await play.store.call("DEL", play.keys.session(play.sid))
    assert (await play.sessions.newest())[0] == []
    assert await play.store.call("ZCARD", play.keys.sessions("index")) == 0
    with pytest.raises(SessionNotFound):
        await play.sessions.get(play.sid)


# Reservations.


async def test_of_several_that_start_a_turn_one_gets_the_session(play: Play) -> None:
    ids = [f"r-{uuid4().hex}" for _ in range(6)]
    answers = await asyncio.gather(*(play.sessions.reserve(play.sid, run_id) for run_id in ids))
    assert answers.count(None) == 1
    winner = ids[answers.index(None)]
    assert set(answers) == {None, winner}
    assert await play.sessions.reserve(play.sid, winner) is None, "the winner may ask again"
    assert await play.told() == [], "there is nothing to look at yet"
    assert await play.ttl(play.keys.session(play.sid)) > 0, "nobody may ever make it"
    record, _ = await play.runs.create(request(session_id=play.sid), run_id=winner)
    assert [(n, r) for n, r, _ in await play.told()] == [("server_turn_started", winner)]
    assert await play.sessions.reserve(play.sid, ids[0] + "x") == winner
    await play.runs.claim(record.run_id, 1, "me")
    await play.over(record, fold=False)
    assert await play.sessions.reserve(play.sid, ids[0] + "x") is None, "its run has ended, told or not"


async def test_a_released_reservation_frees_the_session(play: Play) -> None:
    assert await play.sessions.reserve(play.sid, "a") is None
    assert await play.sessions.reserve(play.sid, "b") == "a"
    await play.sessions.release(play.sid, "a")
    assert await play.sessions.reserve(play.sid, "b") is None


async def test_a_reservation_of_a_dead_process_lapses(play: Play) -> None:
    assert await play.sessions.reserve(play.sid, "dead") is None
    assert await play.sessions.reserve(play.sid, "b") == "dead"
    held = play.keys.session_open(play.sid)
    since = float(await play.store.call("ZSCORE", held, "dead"))
    await play.store.call("ZADD", held, since - play.store.settings.requeue_after - 5, "dead")
    assert await play.sessions.reserve(play.sid, "b") is None


async def test_releasing_a_run_that_was_made_does_nothing(play: Play) -> None:
    run = await play.begun()
    await play.sessions.release(play.sid, run.run_id)
    session = await play.sessions.get(play.sid)
    assert session.active is not None
    assert session.active.run_id == run.run_id


# Sessions of their own, titles, notes.


async def test_a_session_made_ahead_of_its_runs(play: Play) -> None:
    made = await play.sessions.create(model="m-1", provider="p")
    assert made.session_id.startswith("ses_")
    assert (made.title, made.model, made.provider, made.message_count) == ("", "m-1", "p", 0)
    assert (await play.sessions.newest())[0] == [], "an empty one is in nobody's list"
    play.sid = made.session_id
    await play.begun("hello")
    assert [s.session_id for s in (await play.sessions.newest())[0]] == [made.session_id]
    again = await play.sessions.create(made.session_id, model="other")
    assert (again.model, again.created) == ("m-1", made.created)


async def test_a_title_given_stays(play: Play) -> None:
    await play.sessions.create(play.sid, title="Plans")
    await play.begun("hello")
    assert (await play.sessions.get(play.sid)).title == "Plans"
    await play.sessions.rename(play.sid, " Other\nplans ")
    assert (await play.sessions.get(play.sid)).title == "Other plans"
    assert (await play.told())[-1] == ("title", "", {"title": "Other plans"})
    assert [reason for _, reason, _ in await play.changes()] == ["session_new", "run_started", "session_title"]
    with pytest.raises(BadRequest):
        await play.sessions.rename(play.sid, " ")
    with pytest.raises(SessionNotFound):
        await play.sessions.rename(play.sid + "x", "t")
    with pytest.raises(InvalidId):
        await play.sessions.get("a b")


async def test_a_marked_note_is_told_once_and_in_order(play: Play) -> None:
    await play.begun()
    marks = ["3 10-0", "3 10-1", "3 10-1", "3 9-5", "4 9-5", "3 11-0"]
    told = [await play.sessions.note(play.sid, "bg_task_complete", {"n": m}, mark=m) for m in marks]
    assert told == [True, True, False, False, True, True]
    assert [d["n"] for name, _, d in await play.told() if name == "bg_task_complete"] == [
        "3 10-0",
        "3 10-1",
        "4 9-5",
        "3 11-0",
    ]


# Pages.


async def test_pages_of_messages_join_into_the_whole(play: Play) -> None:
    whole: list[str] = []
    for n in range(9):
        run = await play.begun(f"q{n}")
        if n % 3 == 1:
            await play.over(run, failed({"role": "assistant", "content": [{"type": "text", "text": f"part{n}"}]}))
            whole += [f"q{n}", f"part{n}", "no"]
        else:
            await play.over(run, final(f"a{n}"))
            whole += [f"q{n}", f"a{n}"]
    await play.begun("pending")
    for limit in (1, 2, 3, 4, 7, 50):
        found: list[str] = []
        before: int | None = None
        while before != 0:
            page = await read_messages(play.sessions, play.sid, limit=limit, before=before)
            assert page.total == len(whole)
            assert len(page.messages) == min(limit, len(whole) if before is None else before)
            found = [m["content"] for m in page.messages] + found
            before = page.offset
        assert found == whole
    assert (await play.sessions.get(play.sid)).message_count == len(whole)


async def test_messages_before_a_run(play: Play) -> None:
    await play.over(await play.begun("one"))
    second = await play.begun("two")
    await play.over(await play.begun("three"))
    await play.over(second)
    page = await read_messages(play.sessions, play.sid, until=second.run_id)
    assert ([m["content"] for m in page.messages], page.total) == (["one", "done"], 2)


async def test_lists_are_newest_first_and_paged(play: Play) -> None:
    ids = []
    for _ in range(7):
        play.sid = f"s-{uuid4().hex}"
        ids.append(play.sid)
        await play.begun()
    play.sid = ids[0]
    await play.over((await play.runs.list(session_id=ids[0]))[0][0])
    expected = [ids[0], *ids[:0:-1]]
    for limit in (1, 3, 7, 50):
        found: list[str] = []
        before: str | None = None
        while True:
            page, before = await play.sessions.newest(limit=limit, before=before)
            found += [s.session_id for s in page]
            if before is None:
                break
        assert found == expected
    with pytest.raises(BadRequest):
        await play.sessions.newest(limit=0)
    with pytest.raises(BadRequest):
        await play.sessions.newest(before="?")


# Whoever follows the bus.


@asynccontextmanager
async def following(play: Play, count: int = 1) -> AsyncIterator[None]:
    """So many gateways' followers, each with lanes of its own."""
    tails = [Tail(play.store, play.store.settings) for _ in range(count)]
    tasks = [asyncio.create_task(SessionFollower(play.runs, tail).run_forever()) for tail in tails]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(tail.aclose() for tail in tails))


async def lost_to_session(play: Play) -> RunRecord:
    """A run whose maker died before its session learned of it."""
    made, _ = await play.runs.create(request("left behind", session_id=play.sid), run_id=f"r-{uuid4().hex}")
    await forgotten(play)
    assert await play.sessions.find(play.sid) is None
    return made


async def test_followers_mend_and_tell_once(play: Play) -> None:
    made = await lost_to_session(play)
    async with following(play, 3):
        await until(lambda: play.sessions.find(play.sid))
        await play.runs.claim(made.run_id, 1, "me")
        await play.over(made, final("yes"), fold=False)
        await until_told(play, 2)
        await play.bus.announce("session.title", "x", {"title": "Named"}, session_id=play.sid)
        await play.bus.announce("task.completed", "job", {"status": "ok", "summary": "built"}, session_id=play.sid)
        await play.bus.announce("task.completed", "job", {"status": "no"}, session_id="nobody-knows-it")
        await until_told(play, 4)
    told = await play.told()
    assert sorted(name for name, _, _ in told) == [
        "bg_task_complete",
        "server_turn_started",
        "session-updated",
        "title",
    ]
    (task_told,) = [d for name, _, d in told if name == "bg_task_complete"]
    assert task_told.pop("event_id")
    assert task_told == {"task_id": "job", "status": "ok", "summary": "built"}
    assert (await play.sessions.get(play.sid)).title == "Named"


async def until_told(play: Play, count: int) -> None:
    async def are_told() -> bool:
        return len(await play.told()) >= count

    await until(are_told)


async def test_a_follower_takes_up_where_the_last_one_stood(play: Play) -> None:
    async with following(play):
        await play.over(await play.begun("one"), fold=False)
        await until_told(play, 2)
        partition = play.keys.partition((await play.sessions.runs_of(play.sid))[0])
        followed = play.keys.sessions("followed")
        newest = (await play.store.call("XREVRANGE", play.keys.bus(partition), "+", "-", "COUNT", 1))[0][0]

        async def is_kept() -> bool:
            return bool(await play.store.call("HGET", followed, partition) == newest)

        await until(is_kept)
    await play.over(await play.begun("two"), fold=False)  # nobody follows
    async with following(play):
        await until_told(play, 4)
    assert (await play.sessions.get(play.sid)).message_count == 4


async def test_a_follower_that_fell_behind_the_bus_looks_at_the_runs(play: Play) -> None:
    """More happens than the bus keeps while it is busy with one entry."""
    async with following(play):
        await play.begun("one")
        await until_told(play, 1)
        made, _ = await play.runs.create(request("lost", session_id=play.sid), run_id=f"r-{uuid4().hex}")
        bus = play.keys.bus(play.keys.partition(made.run_id))
        noise = ("XADD", bus, "*", "kind", "worker.started", "run_id", "", "session_id", "", "d", "{}")
        await play.runs.claim(made.run_id, 1, "me")
        fence = final()
        p = play.keys.partition(made.run_id)
        keys = [play.keys.run(made.run_id), play.keys.items(made.run_id), play.keys.control(made.run_id)]
        keys += [play.keys.live(p), bus]
        ended = ("EVAL", SCRIPTS["append"].source, len(keys), *keys, made.run_id, "me", 1, 1, fence.type, fence.data)
        await play.store.pipeline([ended, ("XTRIM", bus, "MAXLEN", 0), noise], atomic=True)
        await until(lambda: _ended_there(play, made.run_id))


@pytest.mark.parametrize("trimmed", [False, True])
async def test_one_run_that_cannot_be_told_keeps_no_other_waiting(
    play: Play, monkeypatch: pytest.MonkeyPatch, trimmed: bool
) -> None:
    """Neither behind it on the bus, nor in the index that stands for a bus that was trimmed."""
    monkeypatch.setattr(play.keys, "partition", lambda run_id: 0)
    bad, good = await play.begun("bad"), await play.begun("good")
    for run in (bad, good):
        await play.over(run, fold=False)
    await forgotten(play)
    if trimmed:
        await play.store.call("XTRIM", play.keys.bus(0), "MAXLEN", 0)
        await play.bus.announce("worker.started", "w", {})
    told = play.runs.turns.told

    async def tell(record: RunRecord) -> None:
        if record.run_id == bad.run_id:
            raise RecursionError
        await told(record)

    monkeypatch.setattr(play.runs.turns, "told", tell)
    async with following(play):
        await until(lambda: _ended_there(play, good.run_id))


async def _ended_there(play: Play, run_id: str) -> bool:
    """The session was told, by somebody else than this reader."""
    return bool(await play.store.call("HEXISTS", play.keys.session_messages(play.sid), run_id))


async def test_a_bus_that_was_trimmed_is_made_up_for(play: Play) -> None:
    made = await lost_to_session(play)
    partition = play.keys.partition(made.run_id)
    bus = play.keys.bus(partition)
    await play.store.call("HSET", play.keys.sessions("followed"), partition, "1-1")
    await play.store.call("XTRIM", bus, "MAXLEN", 0)
    await play.store.call("XADD", bus, "*", "kind", "worker.started", "run_id", "", "session_id", "", "d", "{}")
    tail = Tail(play.store, play.store.settings)
    await SessionFollower(play.runs, tail).catch_up()
    await tail.aclose()
    session = await play.sessions.get(play.sid)
    assert session.active is not None
    assert session.active.run_id == made.run_id


async def test_what_is_wrong_with_an_entry_stops_nobody(play: Play) -> None:
    await play.begun()
    bus = play.keys.bus(0)
    async with following(play):
        for kind, run_id, session_id, d in (
            (b"run.created", b"no such\xff run", b"s", b"{}"),
            (b"session.title", b"", play.sid.encode(), b"[1]"),
            (b"session.title", b"", b"no/id", b'{"title":"x"}'),
            (b"task.completed", b"", play.sid.encode(), b"\xff"),
            (b"session.title", b"", play.sid.encode(), b'{"title":"at last"}'),
        ):
            fields = (b"kind", kind, b"run_id", run_id, b"session_id", session_id, b"d", d)
            await play.store.call("XADD", bus, "*", *fields)
        await until_told(play, 3)
    assert (await play.sessions.get(play.sid)).title == "at last"


async def answers(store: Store) -> bool:
    with contextlib.suppress(StoreUnavailable):
        await store.call("PING")
        return True
    return False


async def test_a_follower_waits_out_an_outage(redis_server: RedisServer, namespace: str) -> None:
    settings = Settings(redis_url=redis_server.url, namespace=namespace, partitions=2, block=0.3)
    store = await Store.connect(redis_server.url, settings)
    play = Play(store)
    try:
        async with following(play):
            run = await play.begun()
            redis_server.restart()
            await until(lambda: answers(store))
            await play.over(run, fold=False)
            await until_told(play, 2)
    finally:
        await store.aclose()
