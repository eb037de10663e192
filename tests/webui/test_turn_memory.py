"""What a gateway keeps of the turns that were looked at: read once, bounded, and shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.errors import RunNotFound
from broker.items import Entry, Final, Mode, encode
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from gateway.formats.webui import WebuiFormat
from gateway.webui.turns import MESSAGES_BYTES, MESSAGES_MAX, Turns
from tests.webui.wire import blocks_of


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with api.open(settings=Settings(redis_url=f"memory:{uuid4().hex}", partitions=1)) as opened:
        yield opened


async def made(broker: Broker, session_id: str | None, message: str, answer: str = "") -> str:
    """A run of the session; ended where it has an answer."""
    request = RunRequest(runner="nobody", input=RunInput(message=message), session_id=session_id)
    record, _ = await broker.runs.create(request, enqueue=False)
    if answer:
        claim = await broker.runs.claim(record.run_id, 1, "owner")
        async with broker.publisher(claim) as p:
            await p.publish(Final(message={"role": "assistant", "content": [{"type": "text", "text": answer}]}))
            await p.flush()
    return record.run_id


def session_of(fmt: WebuiFormat) -> dict[str, object]:
    fence = encode(Final(), ts=1.0)
    done, *_ = blocks_of(fmt.items(b"run", [Entry(1, b"final", fence.data)], Mode.EVENTS))
    session: dict[str, object] = done.data["session"]
    return session


async def test_a_run_is_read_once(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    run_id = await made(broker, None, "hello")
    turns = Turns()
    first, second = await asyncio.gather(turns.format_of(broker, run_id), turns.format_of(broker, run_id))
    assert first is second
    monkeypatch.setattr(broker.runs, "get", None)
    assert await turns.format_of(broker, run_id) is first


async def test_the_end_names_the_model_that_was_asked_for(broker: Broker):
    asked = RunInput(message="hello", model="small", provider="p")
    record, _ = await broker.runs.create(RunRequest(runner="nobody", input=asked, session_id="s"), enqueue=False)
    session = session_of(await Turns().format_of(broker, record.run_id))
    assert (session["model"], session["model_provider"]) == ("small", "p")


async def test_what_the_session_used_before_is_known(broker: Broker):
    for n in (1, 2):
        run_id = await made(broker, "s", f"q{n}")
        claim = await broker.runs.claim(run_id, 1, "owner")
        async with broker.publisher(claim) as p:
            await p.publish(Final(usage={"input_tokens": 10 * n, "output_tokens": n}, cost={"total": f"0.{n}"}))
            await p.flush()
    before = {"input_tokens": 10, "output_tokens": 1, "estimated_cost": 0.1}
    assert (await Turns().format_of(broker, run_id))._turn.chat.before == before, "its own is not counted twice"
    later = await Turns().format_of(broker, await made(broker, "s", "q3"))
    assert later._turn.chat.before == {"input_tokens": 30, "output_tokens": 3, "estimated_cost": 0.3}
    assert (await Turns().format_of(broker, await made(broker, "t", "q")))._turn.chat.before == {}


async def test_an_unknown_run_is_none(broker: Broker):
    with pytest.raises(RunNotFound):
        await Turns().format_of(broker, "unknown")


async def test_long_conversations_are_told_by_their_newest_messages(broker: Broker):
    for n in range(4):
        await made(broker, "s", f"q{n}", f"a{n} ".ljust(MESSAGES_BYTES // 3, "x"))
    session = session_of(await Turns().format_of(broker, await made(broker, "s", "last")))
    messages = session["messages"]
    assert isinstance(messages, list)
    assert [m["content"][:4].strip() for m in messages] == ["q2", "a2 x", "q3", "a3 x", "last"]
    assert (session["_messages_offset"], session["message_count"]) == (4, 9)


async def test_many_messages_are_told_by_the_newest(broker: Broker):
    for n in range(MESSAGES_MAX // 2 + 3):
        await made(broker, "s", f"q{n}", f"a{n}")
        await broker.sessions.find("s")  # as every gateway does that follows the bus
    session = session_of(await Turns().format_of(broker, await made(broker, "s", "last")))
    messages = session["messages"]
    assert isinstance(messages, list)
    assert (len(messages), messages[0]["content"], session["_messages_offset"]) == (MESSAGES_MAX + 1, "q3", 6)


async def test_what_is_kept_is_bounded(broker: Broker):
    turns = Turns(limit_bytes=3_000)
    ids = [await made(broker, None, "x" * 1_000) for _ in range(4)]
    formats = [await turns.format_of(broker, run_id) for run_id in ids]
    assert await turns.format_of(broker, ids[3]) is formats[3]
    assert await turns.format_of(broker, ids[2]) is formats[2]
    assert await turns.format_of(broker, ids[0]) is not formats[0]
    one_long = await made(broker, None, "x" * 10_000)
    assert await turns.format_of(broker, one_long) is await turns.format_of(broker, one_long)
