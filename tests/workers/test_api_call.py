"""One call over Hermes' API server, against a server of the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.items import Cost, Event, MessageDelta, ToolCompleted, ToolStarted, Usage
from tests.workers.api_talk import Talk, completed
from tests.workers.fake_api import FakeApi, Until, delta, tool
from workers.hermes.api_call import ApiCall
from workers.hermes.command import Call, RefusedCall, Unavailable
from workers.hermes.process import NotStarted

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


async def test_a_run_with_a_tool(api: FakeApi) -> None:
    api.script = [delta("Let "), delta("me."), *tool(), delta("\n\nDone"), delta(".\n"), completed("Done.")]
    talk = await Talk(api).whole("the prompt")
    assert api.runs[0].body == {"input": "the prompt"}
    assert talk.text == "Let me.\n\nDone.\n"
    assert [item.round for item in talk.of(MessageDelta)] == [1, 1, 2, 2]
    [started], [ended] = talk.of(ToolStarted), talk.of(ToolCompleted)
    assert started.call_id == ended.call_id
    assert (started.preview, ended.duration_ms) == ("ls", 250.0)
    assert talk.call.verdict() is None
    told = talk.call.told
    assert (told.session_id, told.finished) == ("run_1", True)
    assert told.usage is not None
    assert (told.usage["input_tokens"], told.usage["output_tokens"]) == (100, 20)
    assert talk.events == [("hermes.session", None)]


@pytest.mark.parametrize("prompt", ["--help", 'it\'s "so"\n\u2028$(id)\0', "漢字 😀 " * 40_000])
async def test_a_prompt_goes_through_as_it_is(newer: FakeApi, prompt: str) -> None:
    newer.script = [delta("hi"), completed("hi")]
    await Talk(newer).whole(prompt)
    assert newer.runs[0].body == {"input": prompt}


async def test_what_a_run_cannot_have_is_refused_before_it_starts(api: FakeApi) -> None:
    for options in ({"toolsets": ["web"]}, {"max_turns": 3}, {"env": {"A": "b"}}, {"cwd": "/tmp"}):
        with pytest.raises(RefusedCall) as refused:
            await Talk(api).start(**options)
        assert refused.value.code == "unsupported_option"
        assert "HERMES_MODE=bridge" in str(refused.value)
    with pytest.raises(RefusedCall) as refused:
        await Talk(api).start("half a \ud800 character")
    assert refused.value.code == "invalid_prompt"
    assert not api.runs


async def test_a_model_is_chosen_where_the_server_can(newer: FakeApi, older: FakeApi) -> None:
    newer.script = older.script = [delta("hi"), completed("hi")]
    await Talk(newer).whole(model="big", provider="acme")
    assert newer.runs[0].body == {"input": "hello", "model": "big", "provider": "acme"}
    for options in ({"model": "big"}, {"provider": "acme"}, {"model": "routed", "provider": "acme"}):
        older.models = ["hermes-agent", "routed"]
        with pytest.raises(RefusedCall, match="model"):
            await Talk(older).start(**options)
    await Talk(older).whole(model="routed")
    assert [run.body for run in older.runs] == [{"input": "hello", "model": "routed"}]


async def test_a_session_that_is_not_there_is_not_begun(api: FakeApi) -> None:
    with pytest.raises(RefusedCall) as refused:
        await Talk(api).start(resume="no/such")
    assert refused.value.code == "hermes_session_not_found"
    assert not api.runs


async def test_a_newer_server_remembers_by_itself(newer: FakeApi) -> None:
    newer.script = [delta("hi"), completed("hi")]
    newer.sessions["old"] = {}
    newer.tips["old"] = "tip"
    talk = await Talk(newer).whole(resume="old")
    assert newer.runs[0].body == {"input": "hello", "session_id": "old"}
    session = next(item for item in talk.of(Event) if item.name == "hermes.session")
    assert session.payload == {"hermes_session_id": "tip", "rotated_from": "old"}
    assert talk.call.told.session_id == "tip"


async def test_an_older_server_is_told_what_was_said(older: FakeApi) -> None:
    older.script = [delta("hi"), completed("hi")]
    older.sessions["old"] = {}
    older.messages["old"] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "tool", "content": "{}"},
        {"role": "assistant", "content": "three"},
    ]
    talk = await Talk(older).whole("four", resume="old")
    history = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two\n\nthree"}]
    assert older.runs[0].body == {"input": "four", "session_id": "old", "conversation_history": history}
    assert ("warning", "history_without_tools") in talk.events


@pytest.mark.parametrize(
    ("answer", "raised", "said"),
    [
        ((400, {"error": {"message": "No user message", "code": None}}), RefusedCall, "No user message"),
        ((413, {}), RefusedCall, "too long"),
        ((404, {}), Unavailable, "no such runs"),
        ((429, {"error": {"message": "Too many"}}), NotStarted, "Too many"),
        ((503, b"<html>"), NotStarted, "503"),
        ((202, {}), Unavailable, "names no run"),
    ],
)
async def test_a_server_that_takes_no_run(newer: FakeApi, answer: Any, raised: type[Exception], said: str) -> None:
    newer.refuses = answer
    with pytest.raises(raised, match=said):
        await Talk(newer).start()


async def test_a_wrong_key_and_a_server_that_is_not_there(newer: FakeApi) -> None:
    with pytest.raises(Unavailable, match="HERMES_API_KEY"):
        await Talk(newer, key="wrong").start()
    await newer.vanish()
    with pytest.raises(NotStarted, match="does not answer") as error:
        await Talk(newer).start()
    assert not error.value.missing


async def test_what_the_session_knows_is_added(api: FakeApi) -> None:
    before = {"input_tokens": 5, "output_tokens": 1, "cache_read_tokens": 0, "estimated_cost_usd": 0.25}
    after = {"input_tokens": 75, "output_tokens": 21, "cache_read_tokens": 30, "estimated_cost_usd": 0.35}
    api.sessions["old"] = before
    api.script = [delta("hi"), Until(lambda run: api.sessions["old"] is after), completed("hi")]
    talk = await Talk(api).start(resume="old")
    await talk.until(lambda talk: talk.text)
    api.sessions["old"] = after = {**after, "model": "the-model", "reasoning_tokens": 7, "ended_at": 1.0}
    api.tips["old"] = "new"
    api.script = []
    async with api._changed:
        api._changed.notify_all()
    await talk.rest()
    await talk.close()
    [usage] = talk.of(Usage)
    assert usage.total == {
        "input_tokens": 100,
        "output_tokens": 20,
        "cache_read_tokens": 30,
        "cache_write_tokens": 0,
        "reasoning_tokens": 7,
    }
    [cost] = talk.of(Cost)
    assert (cost.amount, cost.total, cost.estimated) == ("0.10", "0.10", True)
    assert (talk.call.told.model, talk.call.told.priced, talk.call.told.session_id) == ("the-model", True, "new")
    assert talk.of(Event)[-1].payload == {"hermes_session_id": "new", "rotated_from": "old"}


async def test_counts_of_another_run_in_the_session_are_not_taken(api: FakeApi) -> None:
    api.script = [delta("hi"), completed("hi")]
    api.sessions["run_1"] = {"input_tokens": 900, "output_tokens": 20, "cache_read_tokens": 30}
    talk = await Talk(api).whole()
    [usage] = talk.of(Usage)
    assert (usage.input_tokens, usage.cache_read_tokens) == (100, None)


async def test_two_calls_share_a_server_and_its_client(api: FakeApi) -> None:
    api.script = [delta("hi"), completed("hi")]
    talk = Talk(api)
    calls = [await ApiCall.start(talk.server, talk.settings, Call("x")) for _ in range(5)]
    clients = {id(call._lease.client) for call in calls}
    for call in calls:
        await call.aclose(patience=5.0)
    await talk.server.aclose()
    assert len(clients) == 1
    with pytest.raises(NotStarted, match="stopped"):
        await talk.server.lease()
