"""What runs ask people: registered once, answered once, bounded, void with their attempt, over with their run."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from broker.asks import ANSWER_MAX, PAYLOAD_MAX
from broker.compact import compact
from broker.errors import (
    AlreadyAnswered,
    Fenced,
    InvalidId,
    InvalidItem,
    InvalidRequest,
    ItemTooBig,
    RunEnded,
    RunNotFound,
    Sealed,
    TooManyAsks,
    UnknownRequest,
)
from broker.items import Entry, Event, MessageDelta, encode
from broker.merge import Merger, text_of
from broker.records import OpenAsk, RunRecord, Settled, parse_ask
from broker.redis import Store
from tests.broker.registry import FENCE, Registry, delta

CHOICES = ("once", "session", "always", "deny")


@pytest.fixture
def registry(store: Store) -> Registry:
    return Registry(store)


async def ask(registry: Registry, run: RunRecord, request_id: str = "q1", **more: Any) -> Any:
    given: dict[str, Any] = {"kind": "approval", "payload": {"command": "ls"}, "choices": CHOICES, "timeout": 60.0}
    owner, epoch = more.pop("owner", run.owner), more.pop("epoch", run.epoch)
    return await registry.runs.asks.ask(run.run_id, owner, epoch, request_id, **{**given, **more})


async def control(registry: Registry, run_id: str) -> list[dict[str, Any]]:
    entries = await registry.store.call("XRANGE", registry.keys.control(run_id), "-", "+")
    return [{"t": fields[1].decode(), **json.loads(fields[3])} for _, fields in entries]


async def lost(registry: Registry, run: RunRecord) -> str | None:
    return await registry.runs.takeover(await registry.runs.get(run.run_id))


# Asking.


async def test_an_ask_stands_in_the_record_until_it_is_answered(registry: Registry) -> None:
    run = await registry.running()
    asked = await ask(registry, run, payload={"command": "rm -rf x", "description": "deletes"})
    assert asked.expires_at - asked.asked_at == pytest.approx(60, abs=1e-3)
    (found,) = (await registry.runs.get(run.run_id)).asks
    assert (found.request_id, found.kind, found.choices, found.free) == ("q1", "approval", CHOICES, False)
    assert found.payload == {"command": "rm -rf x", "description": "deletes"}
    assert (found.asked_at, found.expires_at, found.timeout_s) == (asked.asked_at, asked.expires_at, 60)
    assert await registry.news(run.run_id) == ["run.created", "run.started", "run.input_requested"]
    await registry.runs.answer(run.run_id, "q1", "once")
    assert (await registry.runs.get(run.run_id)).asks == ()
    assert (await registry.news(run.run_id))[-1] == "run.input_answered"


async def test_asking_again_is_the_same_ask(registry: Registry) -> None:
    """The reply may have been lost."""
    run = await registry.running()
    first = await ask(registry, run)
    assert await ask(registry, run, timeout=5.0) == first
    assert len((await registry.runs.get(run.run_id)).asks) == 1
    await registry.runs.answer(run.run_id, "q1", "deny")
    assert await ask(registry, run) == first, "answered meanwhile: still registered, and not opened again"
    assert (await registry.runs.get(run.run_id)).asks == ()
    assert (await registry.news(run.run_id)).count("run.input_requested") == 1


async def test_several_are_open_at_once_and_answered_in_any_order(registry: Registry) -> None:
    run = await registry.running()
    for name in ("a", "a.b", "a-b", "b"):
        await ask(registry, run, name)
    await registry.runs.answer(run.run_id, "a", "once")
    await registry.runs.answer(run.run_id, "a-b", "deny")
    assert [a.request_id for a in (await registry.runs.get(run.run_id)).asks] == ["a.b", "b"]
    await registry.runs.answer(run.run_id, "b", "once")
    assert [a.request_id for a in (await registry.runs.get(run.run_id)).asks] == ["a.b"]


async def test_only_the_owner_asks(registry: Registry) -> None:
    run = await registry.running()
    for wrong in ({"owner": "other"}, {"epoch": 2}):
        with pytest.raises(Fenced):
            await ask(registry, run, **wrong)
    queued = await registry.queued()
    with pytest.raises(Fenced):
        await ask(registry, queued, owner="")
    ended = await registry.ended()
    with pytest.raises(Sealed):
        await ask(registry, ended, owner="me")
    with pytest.raises(RunNotFound):
        await registry.runs.asks.ask("none", "me", 1, "q", kind="approval", payload={}, choices=("a",), timeout=1)
    assert (await registry.runs.get(run.run_id)).asks == ()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"choices": ()}, "nobody could answer"),
        ({"choices": ("once", " ")}, "blank"),
        ({"choices": ("x" * 1_001,)}, "characters"),
        ({"choices": ("\ud800",)}, "UTF-8"),
        ({"choices": tuple(map(str, range(65)))}, "64 choices"),
        ({"timeout": 0.0}, "time limit"),
        ({"timeout": -1.0}, "time limit"),
        ({"timeout": math.inf}, "time limit"),
        ({"timeout": math.nan}, "time limit"),
        ({"kind": "order"}, "approval or question"),
        ({"payload": {"x": object()}}, "JSON"),
    ],
)
async def test_what_cannot_be_asked(registry: Registry, more: dict[str, Any], says: str) -> None:
    run = await registry.running()
    with pytest.raises(InvalidItem, match=says):
        await ask(registry, run, **more)
    assert (await registry.runs.get(run.run_id)).asks == ()
    with pytest.raises(InvalidId):
        await ask(registry, run, "a b")


async def test_as_much_as_can_be_asked(registry: Registry) -> None:
    run = await registry.running()
    choices = tuple(f"{n:0>999}é" for n in range(64))
    await ask(registry, run, choices=choices, payload={"command": "é" * 3_000})
    assert (await registry.runs.get(run.run_id)).asks[0].choices == choices
    assert (await registry.runs.answer(run.run_id, "q1", choices[63])).answer == choices[63]


async def test_a_long_payload_is_cut_in_the_record_and_says_so(registry: Registry) -> None:
    run = await registry.running()
    await ask(registry, run, payload={"command": "x" * 3 * PAYLOAD_MAX, "description": "short", "ts": 1, "seq": 2})
    (found,) = (await registry.runs.get(run.run_id)).asks
    assert found.payload["description"] == "short"
    assert 1_000 < len(found.payload["command"]) < PAYLOAD_MAX
    assert found.payload["truncated_bytes"] > 2 * PAYLOAD_MAX
    assert set(found.payload) == {"command", "description", "truncated_bytes"}


async def test_open_asks_are_bounded(registry: Registry) -> None:
    run = await registry.running()
    for n in range(100):
        await ask(registry, run, f"q{n}")
    with pytest.raises(TooManyAsks, match="100"):
        await ask(registry, run, "one-more")
    await registry.runs.answer(run.run_id, "q7", "once")
    await ask(registry, run, "one-more")
    assert len((await registry.runs.get(run.run_id)).asks) == 100


async def test_answered_asks_are_short_and_the_oldest_are_forgotten(registry: Registry) -> None:
    run = await registry.running()
    await ask(registry, run, "stays", payload={"command": "x" * 5_000})
    for n in range(230):
        await ask(registry, run, f"q{n}", payload={"command": "x" * 5_000})
        await registry.runs.answer(run.run_id, f"q{n}", "once")
    fields = await registry.store.call("HGETALL", registry.keys.run(run.run_id))
    assert sum(name.startswith(b"ask:") for name in fields[::2]) == 200
    assert sum(map(len, fields)) < 60_000
    assert [a.request_id for a in (await registry.runs.get(run.run_id)).asks] == ["stays"]
    with pytest.raises(UnknownRequest):
        await registry.runs.answer(run.run_id, "q0", "once")
    with pytest.raises(AlreadyAnswered):
        await registry.runs.answer(run.run_id, "q229", "once")
    assert len(await control(registry, run.run_id)) <= 256


# Answering.


async def test_an_answer_reaches_the_control_stream_and_stays_in_the_record(registry: Registry) -> None:
    run = await registry.running()
    await ask(registry, run, kind="question", choices=("red",), free=True)
    text = 'é / "\n\u2028 \\ done'
    settled = await registry.runs.answer(run.run_id, "q1", text, principal="anna")
    assert settled == Settled(request_id="q1", answer=text, how="answered", by="anna", mine=True)
    (entry,) = await control(registry, run.run_id)
    assert {k: entry[k] for k in ("t", "request_id", "answer", "by")} == {
        "t": "input",
        "request_id": "q1",
        "answer": text,
        "by": "anna",
    }
    found = await registry.runs.asks.look(run.run_id, "q1")
    assert found == Settled(request_id="q1", answer=text, how="answered", by="anna")


async def test_the_first_answer_counts(registry: Registry) -> None:
    run = await registry.running()
    await ask(registry, run)
    answers = ["once", "session", "always", "deny"] * 3
    given = [registry.runs.answer(run.run_id, "q1", answer) for answer in answers]
    results = await asyncio.gather(*given, return_exceptions=True)
    won = [r for r in results if isinstance(r, Settled)]
    lost_ = [r for r in results if isinstance(r, AlreadyAnswered)]
    assert (len(won), len(lost_)) == (1, len(answers) - 1)
    assert {(r.answer, r.how) for r in lost_} == {(won[0].answer, "answered")}
    assert [e["answer"] for e in await control(registry, run.run_id)] == [won[0].answer]


@pytest.mark.parametrize("how", ["expired", "stopped"])
async def test_a_person_and_the_time_limit_race_by_the_same_rule(registry: Registry, how: Any) -> None:
    run = await registry.running()
    for name in ("late", "early"):
        await ask(registry, run, name)
    settled = await registry.runs.asks.settle(run.run_id, "late", "deny", how=how)
    assert (settled.how, settled.mine) == (how, True)
    with pytest.raises(AlreadyAnswered, match="deny") as refused:
        await registry.runs.answer(run.run_id, "late", "once")
    assert (refused.value.answer, refused.value.how) == ("deny", how)
    await registry.runs.answer(run.run_id, "early", "once", principal="anna")
    settled = await registry.runs.asks.settle(run.run_id, "early", "deny", how=how)
    assert settled == Settled(request_id="early", answer="once", how="answered", by="anna", mine=False)
    assert [e["request_id"] for e in await control(registry, run.run_id)] == ["early"], "the owner needs no telling"


@pytest.mark.parametrize(
    ("answer", "taken"),
    [(True, "once"), ("approve", "once"), ("once", "once"), (False, "deny"), ("reject", "deny"), ("always", "always")],
)
async def test_yes_and_no_to_an_approval(registry: Registry, answer: str | bool, taken: str) -> None:
    run = await registry.running()
    await ask(registry, run)
    assert (await registry.runs.answer(run.run_id, "q1", answer)).answer == taken


async def test_the_words_of_the_choices_come_first(registry: Registry) -> None:
    run = await registry.running()
    await ask(registry, run, "a", choices=("approve", "reject"))
    assert (await registry.runs.answer(run.run_id, "a", True)).answer == "approve"
    await ask(registry, run, "q", kind="question", choices=(), free=True)
    assert (await registry.runs.answer(run.run_id, "q", "approve")).answer == "approve"


@pytest.mark.parametrize("answer", ["Once", "maybe", "", " ", "once ", "\ud800"])
async def test_what_is_no_answer(registry: Registry, answer: str) -> None:
    run = await registry.running()
    await ask(registry, run)
    with pytest.raises(InvalidRequest) as refused:
        await registry.runs.answer(run.run_id, "q1", answer)
    assert refused.value.field == "answer"
    if answer.strip() and answer.isascii():
        assert "once, session, always, deny" in str(refused.value)
    assert len((await registry.runs.get(run.run_id)).asks) == 1
    assert await control(registry, run.run_id) == []


async def test_a_question_takes_any_text_only_where_it_says_so(registry: Registry) -> None:
    run = await registry.running()
    await ask(registry, run, "free", kind="question", choices=("a", "b"), free=True)
    await ask(registry, run, "bound", kind="question", choices=("a", "b"))
    with pytest.raises(InvalidRequest, match="a, b, or any text"):
        await registry.runs.answer(run.run_id, "free", True)
    with pytest.raises(InvalidRequest, match="the answers are a, b"):
        await registry.runs.answer(run.run_id, "bound", "c")
    assert (await registry.runs.answer(run.run_id, "free", " c ")).answer == " c "
    assert (await registry.runs.answer(run.run_id, "bound", "b")).answer == "b"
    await ask(registry, run, "long", kind="question", choices=(), free=True)
    with pytest.raises(ItemTooBig):
        await registry.runs.answer(run.run_id, "long", "é" * ANSWER_MAX)
    assert (await registry.runs.answer(run.run_id, "long", "x" * ANSWER_MAX)).mine


async def test_what_was_never_asked(registry: Registry) -> None:
    run = await registry.running()
    with pytest.raises(UnknownRequest, match="q1"):
        await registry.runs.answer(run.run_id, "q1", "once")
    with pytest.raises(UnknownRequest):
        await registry.runs.answer(run.run_id, "q1", True)
    with pytest.raises(RunNotFound):
        await registry.runs.answer("none", "q1", "once")
    with pytest.raises(InvalidId):
        await registry.runs.answer(run.run_id, "a b", "once")


# Ends and attempts.


async def test_a_run_that_has_ended_waits_for_nothing(registry: Registry) -> None:
    run = await registry.running()
    await ask(registry, run, "open")
    await ask(registry, run, "done")
    await registry.runs.answer(run.run_id, "done", "once")
    await registry.log.append(run.run_id, "me", 1, 1, [delta(), FENCE])
    record = await registry.runs.get(run.run_id)
    assert (record.status, record.asks) == ("completed", ())
    with pytest.raises(RunEnded, match="completed"):
        await registry.runs.answer(run.run_id, "open", "once")
    with pytest.raises(AlreadyAnswered):
        await registry.runs.answer(run.run_id, "done", "deny")


async def test_a_lost_worker_takes_its_asks_with_it(registry: Registry) -> None:
    run = await registry.running()
    await ask(registry, run)
    assert await lost(registry, run) == "failed"
    assert (await registry.runs.get(run.run_id)).asks == ()
    with pytest.raises(RunEnded, match="failed"):
        await registry.runs.answer(run.run_id, "q1", "once")


async def test_a_further_attempt_knows_nothing_of_what_was_asked_before(registry: Registry) -> None:
    run = await registry.running(on_worker_lost="retry")
    for n in range(100):
        await ask(registry, run, f"old{n}")
    assert await lost(registry, run) == "queued"
    assert (await registry.runs.get(run.run_id)).asks == ()

    async def void() -> None:
        with pytest.raises(AlreadyAnswered, match="earlier attempt") as refused:
            await registry.runs.answer(run.run_id, "old1", "once")
        assert (refused.value.answer, refused.value.how) == (None, "void")

    await void()
    again = await registry.runs.claim(run.run_id, 2, "me2")
    await void()
    await ask(registry, again, "new")
    assert [a.request_id for a in (await registry.runs.get(run.run_id)).asks] == ["new"]
    with pytest.raises(Fenced):
        await ask(registry, run, "of-the-old-worker")
    assert (await registry.runs.answer(run.run_id, "new", "once")).mine
    assert [e["request_id"] for e in await control(registry, run.run_id)] == ["new"]


async def test_a_record_of_a_careless_worker_stays_readable(registry: Registry) -> None:
    run = await registry.running()
    await ask(registry, run, "good")
    key = registry.keys.run(run.run_id)
    for name, value in {"none": None, "text": "[1]", "half": '{"attempt":1,"kind":"approval"}', "no": "\xff{"}.items():
        asks = (await registry.store.call("HGET", key, "asks")).decode()
        await registry.store.call("HSET", key, "asks", f"{asks} 1+{name}")
        if value is not None:
            await registry.store.call("HSET", key, f"ask:{name}", value.encode("latin-1"))
    assert [a.request_id for a in (await registry.runs.get(run.run_id)).asks] == ["good"]


def test_an_empty_table_of_lua_is_no_fault() -> None:
    value = b'{"attempt":1,"asked_at":1.5,"expires_at":2.5,"kind":"question","choices":{},"free":true,"payload":[]}'
    found = parse_ask("q", value)
    assert isinstance(found, OpenAsk)
    assert (found.choices, found.payload) == ((), {})


# Elsewhere.


def test_merging_and_compacting_know_nothing_of_asks() -> None:
    """A text that goes on behind an ask is one block, and no window of a compacted range swallows the ask."""
    asked = Event(name="approval.requested", payload={"request_id": "q", "command": "ls"})
    said = Event(name="input.answered", payload={"request_id": "q", "answer": "once"})
    items = [
        MessageDelta(text="a"),
        MessageDelta(text="b"),
        asked,
        said,
        MessageDelta(text="c"),
        MessageDelta(text="d"),
    ]
    encoded = [encode(item, ts=1.0) for item in items]
    entries = [Entry(seq, e.type.encode(), e.data) for seq, e in enumerate(encoded, 1)]
    small = compact(entries)
    assert [(e.seq, e.type) for e in small] == [
        (2, b"message.delta"),
        (3, b"event"),
        (4, b"event"),
        (6, b"message.delta"),
    ]
    merger = Merger()
    for item in items:
        merger.add(item)
    message = merger.message()
    assert message is not None
    assert text_of(message) == "abcd"
