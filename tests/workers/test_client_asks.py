"""What Hermes asks the Python caller of ``chat_stream``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.workers.calling import client, streamed
from tests.workers.fake_api import KEY, FakeApi, Until, delta, tool
from tests.workers.installed import Installed
from workers.hermes.calls import Ask
from workers.hermes.command import Call, RefusedCall

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc")


@pytest.fixture
async def hermes(tmp_path: Path) -> AsyncIterator[Installed]:
    hermes = Installed(tmp_path)
    yield hermes
    assert hermes.left == []


async def test_approvals_and_questions_are_answered_by_the_caller(hermes: Installed) -> None:
    asked = []

    async def answering(ask: Ask) -> str:
        asked.append((ask.kind, ask.payload.get("command") or ask.payload.get("question")))
        return "session" if ask.kind == "approval" else "green"

    _, result = await streamed(client(hermes), "approve:rm clarify:which?", answering=answering)
    assert result.reply == "session;green;"
    assert asked == [("approval", "rm"), ("question", "which?")]


async def test_without_somebody_to_answer_tools_run_unasked_and_questions_go_unanswered(hermes: Installed) -> None:
    _, result = await streamed(client(hermes), "approve:rm clarify:which?")
    assert result.reply.startswith("yolo;[Nobody answered")


async def test_asked_for_without_somebody_to_answer_everything_is_denied(hermes: Installed) -> None:
    _, result = await streamed(client(hermes), Call("approve:rm", yolo=False))
    assert result.reply == "deny;"
    with pytest.raises(RefusedCall, match="cannot ask"):
        await client(hermes).chat(Call("x", yolo=False))


async def test_a_caller_who_takes_his_time_is_no_silence(hermes: Installed) -> None:
    async def answering(ask: Ask) -> str:
        await asyncio.sleep(1.5)
        return "once"

    _, result = await streamed(client(hermes, silence=1.0), "approve:rm", answering=answering)
    assert (result.failure, result.reply) == (None, "once;")


async def test_what_the_caller_raises_ends_the_call_and_is_raised(hermes: Installed) -> None:
    async def answering(ask: Ask) -> str:
        raise LookupError("who is that?")

    with pytest.raises(LookupError, match="who is that"):
        await streamed(client(hermes), "approve:rm wait", answering=answering)
    assert hermes.left == []


async def test_a_question_that_is_open_when_the_call_ends_is_dropped(hermes: Installed) -> None:
    dropped = asyncio.Event()

    async def answering(ask: Ask) -> str:
        try:
            await asyncio.sleep(600)
        finally:
            dropped.set()
        return "never"

    _, result = await streamed(client(hermes, timeout=3.0), "approve:rm", answering=answering)
    assert result.failure is not None
    assert result.failure.code == "hermes_timeout"
    assert dropped.is_set()


async def test_mode_api_asks_too_and_its_server_is_kept_for_the_next_call(hermes: Installed) -> None:
    asked = {"event": "approval.request", "command": "rm", "choices": ["once", "deny"], "request_id": "r1"}
    answered = Until(lambda run: bool(run.posted("approval")))
    async with FakeApi() as api:
        api.script = [delta("a"), *tool(), asked, answered, delta("b"), {"event": "run.completed", "output": "b"}]
        made = client(hermes, "api", api_url=api.url, api_key=SecretStr(KEY))

        async def answering(ask: Ask) -> str:
            return "once"

        for _ in range(2):
            _, result = await streamed(made, "x", answering=answering)
            assert (result.mode, result.transcript, result.failure) == ("api", "ab", None)
        assert [run.posted("approval")[0]["choice"] for run in api.runs] == ["once", "once"]
        await made.aclose()
