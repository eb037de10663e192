"""One run of a session at a time, on every kind of store: who waits, who is next, whoever dies on the way."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from uuid import uuid4

import pytest

from broker.errors import ClaimRefused, SessionBusy, SessionNotFound
from broker.hermes_ids import looks_like_hermes
from broker.items import Encoded, Event, Failed, MessageDelta, ToolCompleted, ToolStarted, encode
from broker.records import RunRecord
from broker.redis import Store
from broker.runs import Busy
from broker.session_messages import read_messages
from broker.settings import Settings
from tests.broker.registry import request
from tests.broker.test_sessions import Play, failed, final, following
from tests.gateways import until


class Line(Play):
    """Its runs are in one session of this test alone, and wait for each other."""

    async def made(self, message: str = "hello", busy: Busy = "wait", **fields: Any) -> str:
        asked = request(message, session_id=self.sid, **fields)
        record, _ = await self.runs.create(asked, run_id=f"r-{uuid4().hex}", busy=busy)
        return record.run_id

    async def waits(self, *run_ids: str) -> list[bool]:
        return [(await self.runs.get(run_id)).waits for run_id in run_ids]

    async def queue_of(self) -> list[str]:
        """What the queue holds, oldest first."""
        entries = await self.store.call("XRANGE", self.queue.key, "-", "+")
        return [dict(zip(flat[::2], flat[1::2], strict=True))[b"run"].decode() for _, flat in entries]

    async def claimed(self, run_id: str, *, lingers: bool = False) -> RunRecord:
        return await self.runs.claim(run_id, 1, "me", lingers=lingers)

    async def done(self, run_id: str) -> None:
        """As a worker ends a run and has nothing to clear up."""
        await self.log.append(run_id, "me", 1, 1, [final()])
        await self.runs.turns.try_over(run_id)


@pytest.fixture
def settings(request: pytest.FixtureRequest, store_url: str, namespace: str) -> Settings:
    """``request.param``: the lease, where a test waits for its end."""
    lease = getattr(request, "param", 60.0)
    return Settings(redis_url=store_url, namespace=namespace, partitions=4, requeue_after=0.05, lease=lease, block=0.3)


@pytest.fixture
def line(store: Store) -> Line:
    return Line(store)


async def test_runs_of_a_session_begin_one_after_the_other(line: Line) -> None:
    ids = [await line.made(f"m{n}") for n in range(4)]
    assert await line.waits(*ids) == [False, True, True, True]
    for at, run_id in enumerate(ids):
        assert await line.queue_of() == ids[: at + 1], "those that wait are in no queue"
        for other in ids[at + 1 :]:
            with pytest.raises(ClaimRefused, match="earlier runs of its session"):
                await line.claimed(other)
        await line.claimed(run_id)
        assert (await line.waits(*ids))[at + 1 :] == [True] * (3 - at)
        await line.done(run_id)
    assert (await line.sessions.get(line.sid)).message_count == 8


async def test_other_sessions_do_not_wait(line: Line) -> None:
    await line.made()
    line.sid = f"s-{uuid4().hex}"
    assert await line.waits(await line.made()) == [False]


async def test_the_next_waits_until_its_worker_has_cleared_up(line: Line) -> None:
    first, second = await line.made(), await line.made()
    await line.claimed(first, lingers=True)
    await line.done(first)
    await line.runs.turns.try_over(first)
    assert (await line.sessions.get(line.sid)).message_count == 2, "it has ended all the same"
    assert await line.waits(second) == [True]
    await line.runs.turns.leave(first, "somebody else")
    assert await line.waits(second) == [True]
    await line.runs.turns.leave(first, "me")
    assert await line.waits(second) == [False]
    await line.runs.turns.leave(first, "me")
    assert (await line.queue_of()).count(second) == 1


async def test_a_run_that_has_not_ended_leaves_nothing(line: Line) -> None:
    first, second = await line.made(), await line.made()
    await line.claimed(first, lingers=True)
    await line.runs.turns.leave(first, "me")
    assert await line.waits(second) == [True]


@pytest.mark.parametrize("settings", [0.4], indirect=True)
async def test_a_worker_that_never_clears_up_holds_the_session_for_a_lease(line: Line) -> None:
    first, second = await line.made(), await line.made()
    await line.claimed(first, lingers=True)
    await line.done(first)
    record = await line.runs.get(first)
    assert record.ended is not None
    if await line.runs.turns.advance(line.sid) is not None:
        now, micros = await line.store.call("TIME")
        assert int(now) + int(micros) / 1e6 - record.ended >= 0.4, "not before its lease is over"
    await until(lambda: swept(line, second))
    assert await line.queue_of() == [first, second]


async def swept(line: Line, run_id: str) -> bool:
    """A sweep's part in it; whether that run may begin by now."""
    record = await line.runs.get(run_id)
    await line.runs.mend([record])
    return not (await line.waits(run_id))[0]


async def test_whoever_died_between_two_steps_is_made_up_for(line: Line) -> None:
    first, second = await line.made(), await line.made()
    await line.claimed(first)
    await line.log.append(first, "me", 1, 1, [final(hermes_session_id="h-1")])  # and dies
    assert await line.waits(second) == [True]
    await until(lambda: swept(line, second))
    assert await line.sessions.resumes(line.sid) == "h-1", "the session knew before the next could begin"


async def test_who_took_the_turn_and_died_before_he_admitted_his_run(line: Line) -> None:
    record, _ = await line.runs.create(request(session_id=line.sid), enqueue=False)
    await line.store.call("HSET", line.keys.run(record.run_id), "waits", 1)
    turn = await line.sessions.enter(line.sid)
    assert turn is not None
    assert turn.run_id == record.run_id
    await until(lambda: swept(line, record.run_id))
    assert await line.queue_of() == [record.run_id]


async def test_who_admitted_a_run_and_died_before_he_queued_it(line: Line) -> None:
    first, second = await line.made(), await line.made()
    await line.claimed(first)
    await line.log.append(first, "me", 1, 1, [final()])
    await line.sessions.fold(await line.runs.get(first))
    await line.sessions.enter(line.sid)
    args = [second, "", 1, "admitted"]
    assert (await line.script("beat", second, *args))[4] == 1
    assert (await line.script("beat", second, *args))[4] == 0, "one alone is to queue it"

    async def is_queued() -> bool:
        await line.runs.mend([await line.runs.get(second)])
        return second in await line.queue_of()

    await until(is_queued)


async def test_gateways_let_the_next_begin_where_nobody_else_does(line: Line) -> None:
    first, second, third = [await line.made() for _ in range(3)]
    async with following(line, 2):
        await line.claimed(first)
        await line.log.append(first, "me", 1, 1, [final()])
        await until(lambda: may_begin(line, second))
        await line.claimed(second)
        await line.log.append(second, "me", 1, 1, [failed()])
        await until(lambda: may_begin(line, third))
    assert await line.queue_of() == [first, second, third]


async def may_begin(line: Line, run_id: str) -> bool:
    """And somebody has put it into the queue."""
    return run_id in await line.queue_of() and not (await line.waits(run_id))[0]


async def test_a_run_that_waits_is_cancelled_at_once(line: Line) -> None:
    first, second, third = [await line.made() for _ in range(3)]
    cancelled = await line.runs.cancel(second)
    assert (cancelled.status, cancelled.waits) == ("cancelled", False)
    assert await line.waits(first, third) == [False, True]
    await line.claimed(first)
    await line.done(first)
    assert await line.waits(third) == [False]
    assert await line.queue_of() == [first, third]


async def test_the_cancel_of_one_that_is_queued_lets_the_next_begin(line: Line) -> None:
    first, second = await line.made(), await line.made()
    await line.runs.cancel(first)
    assert await line.waits(second) == [False]


async def test_the_turn_of_a_lost_run_passes_on(line: Line) -> None:
    first, second = await line.made(), await line.made()
    record = await line.claimed(first, lingers=True)
    assert await line.runs.takeover(record) == "failed"
    assert await line.waits(second) == [False], "nobody is there who would clear up"


async def test_what_a_lost_run_had_done_is_kept(line: Line) -> None:
    """Its rounds and tools with the fence that others write for it, and the session of Hermes for the next run."""
    run_id = await line.made()
    await line.claimed(run_id)
    items = [
        Event(name="hermes.session", payload={"hermes_session_id": "h-1"}),
        MessageDelta(text="one "),
        ToolStarted(call_id="c1", name="read"),
        ToolCompleted(call_id="c1", name="read", result="all"),
        Event(name="hermes.session", payload={"hermes_session_id": "h-2", "rotated_from": "h-1"}),
        MessageDelta(text="two ", round=2),
    ]
    await line.log.append(run_id, "me", 1, 1, [encode(item, ts=float(at)) for at, item in enumerate(items, 1)])
    assert await line.runs.takeover(await line.runs.get(run_id)) == "failed"
    messages = (await read_messages(line.sessions, line.sid)).messages
    assert [(m["role"], m["content"]) for m in messages[:-1]] == [
        ("user", "hello"),
        ("assistant", "one "),
        ("tool", "all"),
        ("assistant", "two "),
    ]
    assert (messages[-1]["error_type"], messages[2]["timestamp"]) == ("worker_lost", 4.0)
    assert await line.sessions.resumes(line.sid) == "h-2"


async def test_a_further_attempt_keeps_the_turn(line: Line) -> None:
    first, second = await line.made(on_worker_lost="retry"), await line.made()
    assert await line.runs.takeover(await line.claimed(first, lingers=True)) == "queued"
    assert await line.waits(first, second) == [False, True]
    await line.runs.claim(first, 2, "other")
    await line.runs.turns.leave(first, "me")  # the old worker, awake again
    assert await line.waits(second) == [True]


async def test_a_run_that_waits_for_none_is_waited_for(line: Line) -> None:
    """Those that do not ask to wait begin at once; those that do wait for the ones that are older."""
    first = await line.made(busy="overlap")
    second, third = await line.made(), await line.made(busy="overlap")
    assert await line.waits(first, second, third) == [False, True, False]
    await line.claimed(third)
    await line.done(third)
    assert await line.waits(second) == [True]
    await line.claimed(first)
    await line.done(first)
    assert await line.waits(second) == [False]


@pytest.mark.parametrize("busy", ["wait", "overlap"])
async def test_refused_while_another_one_is_open(line: Line, busy: Busy) -> None:
    first = await line.made(busy=busy)
    with pytest.raises(SessionBusy) as refused:
        await line.made(busy="refuse")
    assert refused.value.run_id == first
    await line.claimed(first)
    await line.log.append(first, "me", 1, 1, [final()])  # told by nobody
    second = await line.made(busy="refuse")
    assert await line.waits(second) == [False]
    assert await line.queue_of() == [first, second]


async def test_not_refused_but_waiting_while_a_worker_clears_up(line: Line) -> None:
    first = await line.made()
    await line.claimed(first, lingers=True)
    await line.done(first)
    second = await line.made(busy="refuse")
    assert await line.waits(second) == [True]
    await line.runs.turns.leave(first, "me")
    assert await line.waits(second) == [False]


async def test_a_refused_request_with_a_key_may_be_repeated(line: Line) -> None:
    asked = request(session_id=line.sid)
    first, created = await line.runs.create(asked, idempotency_key="k", busy="refuse")
    again, repeated = await line.runs.create(asked, idempotency_key="k", busy="refuse")
    assert (again.run_id, created, repeated) == (first.run_id, True, False)
    with pytest.raises(SessionBusy):
        await line.runs.create(asked, idempotency_key="k2", busy="refuse")
    await line.claimed(first.run_id)
    await line.done(first.run_id)
    assert (await line.runs.create(asked, idempotency_key="k", busy="refuse"))[0].run_id == first.run_id
    assert (await line.runs.create(asked, idempotency_key="k2", busy="refuse"))[1]


async def test_a_run_that_could_not_be_made_leaves_the_session_free(line: Line) -> None:
    async def refuse(run_id: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await line.runs.create(request(session_id=line.sid), busy="refuse", before=refuse)
    assert await line.waits(await line.made(busy="refuse")) == [False]


async def test_a_reservation_of_a_dead_process_holds_up_nobody_for_long(line: Line) -> None:
    assert await line.sessions.reserve(line.sid, "dead") is None
    run_id = await line.made()
    assert await line.waits(run_id) == [True]
    await until(lambda: swept(line, run_id))


async def test_of_many_at_once_each_has_its_turn(line: Line) -> None:
    """Made, ended and told in any order by many: never two at a time, and in the order in which they were made."""
    draw = random.Random(7)
    order: list[str] = []
    running = 0

    async def work() -> None:
        nonlocal running
        while len(order) < 12:
            for run_id in await line.queue_of():
                try:
                    await line.claimed(run_id, lingers=draw.random() < 0.5)
                except ClaimRefused:
                    continue
                if run_id in order:
                    continue  # this claim was repeated
                order.append(run_id)
                running += 1
                assert running == 1
                await asyncio.sleep(0)
                running -= 1
                await line.done(run_id)
                await line.runs.turns.leave(run_id, "me")
            await asyncio.sleep(0.001)

    made = asyncio.gather(*(line.made(f"m{n}") for n in range(12)))
    await asyncio.wait_for(asyncio.gather(made, work(), work()), 40)
    created = {run_id: (await line.runs.get(run_id)).created for run_id in order}
    assert sorted(order[2:], key=created.__getitem__) == order[2:], "but for those that were made while one began"


# Hermes' sessions.


async def test_a_session_of_hermes_is_adopted(line: Line) -> None:
    own = "20260806_142233_a1b2c3"
    assert (await line.sessions.adopt(own)).hermes_session_id == own
    await line.sessions.adopt(own)
    assert await line.sessions.resumes(own) == own
    line.sid = own
    run = await line.begun()
    await line.over(run, final(hermes_session_id="20260806_150000_ffffff"))
    assert (await line.sessions.adopt(own)).hermes_session_id == "20260806_150000_ffffff"
    assert (await line.sessions.newest())[0][0].session_id == own


async def test_ours_is_adopted_as_it_is_and_others_are_unknown(line: Line) -> None:
    made = await line.sessions.create()
    assert (await line.sessions.adopt(made.session_id)).hermes_session_id is None
    with pytest.raises(SessionNotFound):
        await line.sessions.adopt("something-else")


@pytest.mark.parametrize(
    "session_id",
    [
        "20260806_142233_a1b2c3",
        "20260806_142233_a1b2c3d4",
        "api_1764445312_a1b2c3d4",
        "api-0123456789abcdef",
        "run_0123456789abcdef0123456789abcdef",
        "cron_job-1_20260806_142233",
        "bg_142233_a1b2c3",
        "3f2b8c1e-0d4a-4b6e-9f3a-1c2d3e4f5a6b",
    ],
)
def test_ids_that_hermes_makes(session_id: str) -> None:
    assert looks_like_hermes(session_id)
    assert not looks_like_hermes(session_id + "/")


@pytest.mark.parametrize("session_id", ["ses_038har20ng2x31cpq89q1wq0sr", "run_01jx", "20260806", "mine", "default"])
def test_ids_that_it_does_not_make(session_id: str) -> None:
    assert not looks_like_hermes(session_id)


async def test_a_session_that_hermes_no_longer_knows_is_begun_anew(line: Line) -> None:
    await line.over(await line.begun(), final(hermes_session_id="h-1"))
    gone = failed_with("hermes_session_not_found", hermes_session_id="h-1")
    await line.over(await line.begun(metadata={"hermes_session_id": "h-0"}), gone)
    assert await line.sessions.resumes(line.sid) == "h-1", "another one was asked for"
    await line.over(await line.begun(), gone)
    assert await line.sessions.resumes(line.sid) is None
    line.sid = "20260806_142233_a1b2c4"
    await line.sessions.adopt(line.sid)
    await line.over(await line.begun(), gone)
    assert await line.sessions.resumes(line.sid) == line.sid, "it is the very one that was asked for"


def failed_with(code: str, **fields: Any) -> Encoded:
    return encode(Failed(code=code, message="no", **fields), ts=2.0)
