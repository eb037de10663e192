"""Runs at Hermes' API server that break off, are lost, stopped or killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.items import ToolCompleted, ToolFailed, ToolStarted
from tests.servers import eventually
from tests.workers.api_talk import STOPPED, Talk, completed
from tests.workers.fake_api import DROP, FakeApi, Until, delta, tool
from workers.hermes import api_stream

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(params=[True, False], ids=["newer", "older"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[FakeApi]:
    async with FakeApi(newer=request.param) as serving:
        yield serving


@pytest.fixture
async def newer() -> AsyncIterator[FakeApi]:
    async with FakeApi() as serving:
        yield serving


@pytest.fixture
async def older() -> AsyncIterator[FakeApi]:
    async with FakeApi(newer=False) as serving:
        yield serving


async def test_a_broken_stream_is_taken_up_where_it_was(newer: FakeApi) -> None:
    newer.script = [delta("one "), DROP, delta("two "), DROP, *tool(), delta("three"), completed("three")]
    talk = await Talk(newer).whole()
    assert talk.text == "one two three"
    assert [len(talk.of(type_)) for type_ in (ToolStarted, ToolCompleted)] == [1, 1]
    assert newer.runs[0].subscriptions[0] is None
    assert talk.events == [("hermes.session", None)]
    assert talk.call.verdict() is None


@pytest.mark.parametrize(
    ("before", "output", "text"),
    [
        (["one "], "one two", "one two"),
        ([" one two\n"], "one two", " one two\n"),
        (["one "], "another", "one \n\nanother"),
        ([], "whole", "whole"),
    ],
)
async def test_a_stream_that_is_lost_is_replaced_by_the_status(
    older: FakeApi, before: list[str], output: str, text: str
) -> None:
    older.script = [*map(delta, before), DROP, completed(output)]
    talk = await Talk(older).whole()
    assert talk.text == text
    assert talk.events.count(("warning", "stream_lost")) == 1
    assert len(older.runs[0].subscriptions) == 1, "a second subscriber would take events from nobody"
    assert talk.call.verdict() is None
    assert talk.call.told.usage is not None


async def test_a_run_that_the_server_forgot(api: FakeApi) -> None:
    api.script = [delta("one "), Until(lambda run: False)]
    talk = await Talk(api).start()
    await talk.until(lambda talk: talk.text)
    api.forget()
    await talk.rest()
    await talk.close()
    failure = talk.call.verdict()
    assert failure is not None
    assert (failure.code, failure.retryable, talk.text) == ("hermes_died", True, "one ")


async def test_a_server_that_vanished(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_stream, "_UNREACHABLE", 0.2)
    monkeypatch.setattr(api_stream, "_TRIES", 2)
    monkeypatch.setattr(api_stream, "_POLL", 0.05)
    api.script = [delta("one "), Until(lambda run: False)]
    talk = await Talk(api).start()
    await talk.until(lambda talk: talk.text)
    await api.vanish()
    await talk.rest()
    await talk.close()
    failure = talk.call.verdict()
    assert failure is not None
    assert (failure.code, failure.retryable) == ("hermes_died", True)
    assert "cannot be reached" in failure.message


async def test_a_stop_interrupts_the_run_and_keeps_its_text(api: FakeApi) -> None:
    started, ended = tool()
    api.script = [delta("one "), started, STOPPED, {**ended, "error": True}, {"event": "run.cancelled"}]
    talk = await Talk(api).start()
    await talk.until(lambda talk: talk.of(ToolStarted))
    talk.call.stop()
    talk.call.stop()
    await talk.rest()
    assert len(talk.of(ToolFailed)) == 1
    await talk.close()
    assert (talk.text, api.runs[0].posted("stop")) == ("one ", [{}])
    assert talk.call.told.finished


async def test_a_run_that_does_not_stop_is_given_up_after_the_grace(api: FakeApi) -> None:
    started, _ = tool()
    api.script = [delta("one "), started, Until(lambda run: False)]
    talk = await Talk(api, grace=0.2).start()
    await talk.until(lambda talk: talk.of(ToolStarted))
    talk.call.stop()
    await talk.rest()
    await talk.close()
    assert talk.text == "one "
    assert len(talk.of(ToolFailed)) == 1
    failure = talk.call.verdict()
    assert failure is not None
    assert failure.code == "interrupted"
    assert not talk.call.told.finished


async def test_a_kill_does_not_wait_for_the_server(api: FakeApi) -> None:
    api.script = [delta("one "), Until(lambda run: False)]
    talk = await Talk(api, grace=60.0).start()
    await talk.until(lambda talk: talk.text)
    talk.call.kill()
    await talk.rest()
    await talk.close()
    assert api.runs[0].posted("stop") == [{}]


async def test_closing_waits_as_long_as_it_is_told_to(api: FakeApi) -> None:
    released = asyncio.Event()
    api.script = [delta("one "), Until(lambda run: released.is_set()), completed("one")]
    talk = await Talk(api).start()
    await talk.until(lambda talk: talk.text)
    closing = asyncio.create_task(talk.close(patience=20.0))
    await eventually(lambda: api.runs[0].subscriptions)
    released.set()
    async with api._changed:
        api._changed.notify_all()
    await closing
    assert api.runs[0].posts == []
    assert talk.call.told.finished


async def test_a_read_that_is_cancelled_loses_nothing(api: FakeApi) -> None:
    words = [f"w{n} " for n in range(60)]
    api.script = [*map(delta, words), completed("".join(words))]
    talk = await Talk(api).start()
    while True:
        reading = asyncio.ensure_future(talk.call.read())
        await asyncio.sleep(0)
        if not reading.done():
            reading.cancel()
            reading = asyncio.ensure_future(talk.call.read())
        if (batch := await reading) is None:
            break
        talk._keep(batch)
    await talk.close()
    assert talk.text == "".join(words)


async def test_what_keeps_the_connection_alive_is_no_sign_of_life(api: FakeApi) -> None:
    api.keepalive = 0.02
    api.script = [delta("one "), Until(lambda run: False)]
    talk = await Talk(api).start()
    await talk.until(lambda talk: talk.text)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(talk.call.read(), 0.3)
    talk.call.kill()
    await talk.close()
