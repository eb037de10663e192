"""Approvals over Hermes' API server: by itself, by a person, and never another command's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from broker.items import ToolFailed
from tests.workers.api_talk import Talk, answered, approval, completed
from tests.workers.fake_api import DROP, FakeApi, delta, tool

pytestmark = pytest.mark.timeout(30)


RED, BLUE = "rm -rf red", "rm -rf blue"


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


async def test_yolo_approves_by_itself(api: FakeApi) -> None:
    started, ended = tool()
    request_id = "r1" if api.newer else ""
    api.script = [started, approval(RED, request_id), answered(1), ended, delta("ok"), completed("ok")]
    talk = await Talk(api).whole()
    assert api.runs[0].posted("approval") == [{"choice": "once"} | ({"request_id": "r1"} if api.newer else {})]
    assert (talk.asks, talk.text) == ([], "ok")


@pytest.mark.parametrize("choice", ["once", "deny", "always"])
async def test_a_person_answers(api: FakeApi, choice: str) -> None:
    started, ended = tool()
    request_id = "r1" if api.newer else ""
    api.script = [started, approval(RED, request_id), answered(1), ended, delta("ok"), completed("ok")]
    talk = await Talk(api).start(yolo=False)
    await talk.until(lambda talk: talk.asks)
    [ask] = talk.asks
    assert (ask.kind, ask.otherwise, ask.choices) == ("approval", "deny", ("once", "session", "always", "deny"))
    assert ask.payload == {"command": RED, "description": "deletes"}
    await talk.call.answer(ask.key, choice)
    await talk.call.answer(ask.key, "once")  # again: nothing waits for it
    await talk.rest()
    await talk.close()
    assert api.runs[0].posted("approval") == [{"choice": choice} | ({"request_id": "r1"} if api.newer else {})]


async def test_answers_find_their_requests(newer: FakeApi) -> None:
    started, ended = tool()
    asked = [started, started, approval(RED, "r1"), approval(BLUE, "r2")]
    newer.script = [*asked, answered(2), ended, ended, delta("ok"), completed("ok")]
    talk = await Talk(newer).start(yolo=False)
    await talk.until(lambda talk: len(talk.asks) == 2)
    await talk.call.answer(talk.asks[1].key, "once")
    await talk.call.answer(talk.asks[0].key, "something else")
    await talk.rest()
    await talk.close()
    assert newer.runs[0].posted("approval") == [
        {"choice": "once", "request_id": "r2"},
        {"choice": "deny", "request_id": "r1"},
    ]


async def test_where_two_requests_cannot_be_told_apart_both_are_denied(older: FakeApi) -> None:
    started, ended = tool()
    asked = [started, started, approval(RED), approval(BLUE)]
    older.script = [*asked, answered(1), ended, ended, delta("ok"), completed("ok")]
    talk = await Talk(older).start(yolo=False)
    await talk.until(lambda talk: talk.asks)
    await talk.until(lambda talk: ("warning", "approvals_denied") in talk.events)
    await talk.call.answer(talk.asks[0].key, "once")
    await talk.rest()
    await talk.close()
    assert len(talk.asks) == 1
    assert older.runs[0].posted("approval") == [{"choice": "deny", "all": True}]


async def test_a_late_answer_approves_no_other_command(older: FakeApi) -> None:
    started, ended = tool(error=True)
    older.script = [started, approval(RED), ended, started, approval(BLUE), answered(1), ended, completed("")]
    talk = await Talk(older).start(yolo=False)
    await talk.until(lambda talk: len(talk.asks) == 2)
    await talk.call.answer(talk.asks[0].key, "always")  # its time was up when its tool ended
    await talk.call.answer(talk.asks[1].key, "deny")
    await talk.rest()
    await talk.close()
    assert older.runs[0].posted("approval") == [{"choice": "deny"}]


@pytest.mark.parametrize("yolo", [True, False])
async def test_an_approval_that_nobody_saw(older: FakeApi, monkeypatch: pytest.MonkeyPatch, yolo: bool) -> None:
    started, _ = tool()
    waiting = {"status": "waiting_for_approval"}
    older.script = [started, DROP, waiting, answered(1), {"status": "running"}, completed("done")]
    talk = await Talk(older).whole(yolo=yolo)
    posted = older.runs[0].posted("approval")
    assert posted[0] == ({"choice": "once"} if yolo else {"choice": "deny", "all": True})
    assert (("warning", "approval_unseen") in talk.events) is not yolo
    assert talk.asks == []
    assert talk.call.verdict() is None
    assert len(talk.of(ToolFailed)) == 1, "its end was not seen"


async def test_a_stop_releases_what_waits_for_a_person(older: FakeApi) -> None:
    started, ended = tool(error=True)
    older.script = [started, approval(RED), answered(1), ended, {"event": "run.cancelled"}]
    talk = await Talk(older).start(yolo=False)
    await talk.until(lambda talk: talk.asks)
    talk.call.stop()
    await talk.rest()
    await talk.close()
    assert older.runs[0].posts == [("stop", {}), ("approval", {"choice": "deny", "all": True})]
