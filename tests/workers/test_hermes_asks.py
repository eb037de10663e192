"""What Hermes asks in a run of the runner ``hermes``: shown to people, answered, expired, stopped, impossible."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from broker.api import StreamEntry
from broker.asks import Asks
from broker.errors import TooManyAsks
from broker.items import Event, Item, MessageDelta, Raw
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.servers import eventually
from tests.workers.fake_api import KEY, FakeApi, Until, delta, tool
from tests.workers.hermes_stage import HermesStage, Said, on_stage
from tests.workers.installed import Installed
from workers.hermes.runner import HermesRunner
from workers.runner import RunContext

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc"),
    pytest.mark.timeout(60),
]
ASKED = ("approval.requested", "question.asked")


@pytest.fixture
def hermes(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def is_asked(entry: StreamEntry) -> bool:
    return entry.type == "event" and entry.fields["name"] in ASKED


async def answered(stage: HermesStage, prompt: str, *answers: str, **more: Any) -> Said:
    """The run, its asks answered in their order."""
    left, said = list(answers), Said()
    run_id = await stage.create(prompt, approvals="ask", **more)
    async for entry in stage.watch(run_id):
        said.append(entry)
        if is_asked(entry):
            await stage.broker.runs.answer(run_id, entry.fields["request_id"], left.pop(0), principal="anna")
    assert left == []
    return said


@pytest.mark.parametrize("answer", ["once", "session", "always", "deny"])
async def test_an_approval(hermes: Installed, tmp_path: Path, answer: str) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        said = await answered(stage, "approve:rm", answer)
    [asked], [told] = said.events(*ASKED), said.events("input.answered")
    assert (asked["name"], asked["command"], asked["description"]) == ("approval.requested", "rm", "dangerous")
    assert (asked["choices"], asked["free"]) == (["once", "session", "always", "deny"], False)
    assert (told["request_id"], told["answer"], told["how"]) == (asked["request_id"], answer, "answered")
    assert (said.outcome, said.text) == ("final", f"{answer};")


async def test_a_question(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        said = await answered(stage, "clarify:which?", "green")
    [asked] = said.events(*ASKED)
    assert (asked["name"], asked["question"], asked["choices"], asked["free"]) == (
        *("question.asked", "which?", ["red", "blue"], True),
    )
    assert said.text == "green;"


async def test_two_that_wait_at_once_each_get_their_own_answer(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        run_id = await stage.create("approve_twice", approvals="ask")
        said = Said()
        async for entry in stage.watch(run_id):
            said.append(entry)
            if is_asked(entry) and len(asked := said.events(*ASKED)) == 2:
                for ask in reversed(asked):
                    answer = "session" if ask["command"] == "first" else "deny"
                    await stage.broker.runs.answer(run_id, ask["request_id"], answer)
    assert said.text == "session,deny"


async def test_nobody_answers(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path, broker={"input_timeout": 1.0}) as stage:
        said = await stage.run("approve:rm say:and clarify:which?", approvals="ask")
    told = [(fields["kind"], fields["how"]) for fields in said.events("input.answered")]
    assert told == [("approval", "expired"), ("question", "expired")]
    assert said.events("input.answered")[0]["answer"] == "deny"
    assert said.text.startswith("deny;and[Nobody answered")
    assert said.outcome == "final"


async def test_waiting_for_a_person_is_no_silence(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path, silence=1.0, broker={"input_timeout": 2.0}) as stage:
        said = await stage.run("approve:rm", approvals="ask")
    assert (said.outcome, said.text) == ("final", "deny;")


async def test_a_run_that_is_stopped_while_it_asks(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        run_id = await stage.create("say:partial approve:rm wait", approvals="ask")
        said = Said()
        async for entry in stage.watch(run_id):
            said.append(entry)
            if is_asked(entry):
                await stage.broker.runs.cancel(run_id)
        assert said.outcome == "cancelled"
        [told] = said.events("input.answered")
        assert (told["how"], told["answer"]) == ("stopped", "deny")
        assert "once" not in said.text
        assert (await stage.broker.runs.get(run_id)).asks == ()
        await eventually(lambda: hermes.left == [], 20)


async def test_past_the_limit_of_a_run_nobody_is_asked_any_more(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path, timeout=2.5) as stage:
        run_id = await stage.create("approve:rm", approvals="ask")
        said = await stage.follow(run_id)
        assert said.outcome == "hermes_timeout"
        assert len(said.events(*ASKED)) == len(said.events("input.answered")) == 1
        assert (await stage.broker.runs.get(run_id)).asks == ()


async def test_what_was_asked_when_hermes_died_is_closed(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        run_id = await stage.create("say:partial approve:rm", approvals="ask")
        said = Said()
        async for entry in stage.watch(run_id):
            said.append(entry)
            if is_asked(entry):
                hermes.kill("bridge.py")
        assert said.outcome == "hermes_died"
        assert len(said.events("input.answered")) == 1
        assert (await stage.broker.runs.get(run_id)).asks == ()


async def test_yolo_asks_nobody(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        said = await stage.run("approve:rm")
    assert (said.text, said.events(*ASKED)) == ("yolo;", [])


@pytest.mark.parametrize(
    ("env", "settings"),
    [({"PYTHONPATH": ""}, {}), ({}, {"mode": "text"}), ({}, {"mode": "stream-json"}), ({}, {"stream_args": "--x"})],
)
async def test_where_nobody_can_be_asked_nothing_is_started(
    hermes: Installed, tmp_path: Path, env: dict[str, str], settings: dict[str, Any]
) -> None:
    hermes.env.update(env)
    async with on_stage(hermes, tmp_path, **settings) as stage:
        said = await stage.run("ECHO", approvals="ask")
    assert (said.outcome, said.text, hermes.asked) == ("approvals_unavailable", "", [])


async def test_more_than_may_be_asked_at_once_is_denied_and_said(
    hermes: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Asks.ask

    async def refusing(self: Asks, run_id: str, *more: Any, payload: Any, **named: Any) -> Any:
        if payload["command"] == "second":
            raise TooManyAsks("so many are not kept")
        return await ask(self, run_id, *more, payload=payload, **named)

    monkeypatch.setattr(Asks, "ask", refusing)
    async with on_stage(hermes, tmp_path) as stage:
        said = await answered(stage, "approve_twice", "session")
    assert said.text == "session,deny"
    [warning] = said.events("warning")
    assert (warning["code"], said.outcome) == ("not_asked", "final")
    assert "'deny'" in warning["message"]
    assert "so many are not kept" in warning["message"]


async def test_over_the_api_server(hermes: Installed, tmp_path: Path) -> None:
    asking = {"event": "approval.request", "command": "rm", "choices": ["once", "deny"], "request_id": "r1"}
    script = [delta("a"), *tool(), asking, Until(lambda run: bool(run.posted("approval"))), delta("b")]
    async with FakeApi() as api:
        api.script = [*script, {"event": "run.completed", "output": "b"}]
        settings: dict[str, Any] = {"mode": "api", "api_url": api.url, "api_key": SecretStr(KEY)}
        async with on_stage(hermes, tmp_path, **settings) as stage:
            said = await answered(stage, "x", "once")
        assert (said.outcome, said.text) == ("final", "ab")
        assert [post["choice"] for post in api.runs[0].posted("approval")] == ["once"]


async def test_a_runner_without_a_store_denies_and_says_so(hermes: Installed) -> None:
    """``RunContext`` without asks, as another program that runs the runner may make it."""
    emitted: list[Item | Raw] = []

    async def publish(item: Item | Raw) -> None:
        emitted.append(item)

    request = RunRequest(input=RunInput(message="approve:rm", approvals="ask"))
    context = RunContext(run_id="r", attempt=1, request=request, session_id=None, settings=Settings(), publish=publish)
    async with asyncio.timeout(30):
        await HermesRunner(hermes.settings(), environ=hermes.env).run(context)
        await context.clean_up()
    assert "".join(item.text for item in emitted if isinstance(item, MessageDelta)) == "deny;"
    warnings = [item.payload["code"] for item in emitted if isinstance(item, Event) and item.name == "warning"]
    assert warnings == ["not_asked"]
    assert hermes.left == []
