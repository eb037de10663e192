"""The bridge with the real Hermes, both builds, against a model server of the tests.

What ``matrix.py``, ``kills.py`` and ``test_hermes_resume.py`` show in every mode as well is ``long`` here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker.items import (
    Cache,
    Event,
    Item,
    MessageDelta,
    ReasoningDelta,
    Summary,
    ToolCompleted,
    ToolFailed,
    ToolStarted,
    Usage,
)
from tests.e2e.hermes import BUILDS, NEEDS_LINUX, environ_of, hermes_binary, pids, processes
from tests.fake_model import AFTER_TOOL, BEFORE_TOOL, CUT, PLAIN, SLOW, THOUGHTS, FakeModel
from tests.servers import eventually
from workers.hermes.bridge_call import BridgeCall, handshake
from workers.hermes.calls import Ask
from workers.hermes.command import Call
from workers.hermes.settings import HermesSettings
from workers.hermes.verdict import Failure

pytestmark = [NEEDS_LINUX, pytest.mark.timeout(180)]


class Bridge:
    """Calls of one build, in one home."""

    def __init__(self, binary: str, home: Path, model: FakeModel) -> None:
        self.settings = HermesSettings(bin=binary, bridge_handshake=90.0)
        self.home, self.model = home, model
        self.trace = uuid4().hex
        self.env = environ_of(home, self.trace)
        self.calls: list[BridgeCall] = []

    async def start(self, prompt: str, **more: Any) -> BridgeCall:
        call = await BridgeCall.start(self.settings, Call(prompt=prompt, **more), inherited=self.env)
        self.calls.append(call)
        return call

    async def run(self, prompt: str, *answers: str, **more: Any) -> Ran:
        """Answers to the asks in their order; then no more is asked than that."""
        ran, left = Ran(await self.start(prompt, **more)), list(answers)
        async for batch in ran.batches():
            for ask in (b for b in batch if isinstance(b, Ask)):
                await ran.call.answer(ask.key, left.pop(0))
        assert left == []
        return ran


class Ran:
    def __init__(self, call: BridgeCall) -> None:
        self.call = call
        self.timed: list[tuple[float, Item | Ask]] = []

    async def batches(self) -> AsyncIterator[list[Item | Ask]]:
        async with asyncio.timeout(120):
            while (batch := await self.call.read()) is not None:
                self.timed += [(time.monotonic(), item) for item in batch]
                yield batch

    def of(self, *kinds: type[Any]) -> list[Any]:
        return [item for _, item in self.timed if isinstance(item, kinds)]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event.payload for event in self.of(Event) if event.name == name]

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.of(MessageDelta))

    @property
    def failure(self) -> Failure:
        failure = self.call.verdict()
        assert failure is not None
        return failure


def _there(path: Path) -> bool:
    return path.exists()


@pytest.fixture(scope="module", params=[pytest.param("0.19.0", marks=pytest.mark.long), "0.22.2"], ids=["0.19", "0.22"])
def hermes(request: pytest.FixtureRequest) -> str:
    return hermes_binary(BUILDS[request.param])


@pytest.fixture
async def bridge(hermes: str, home: Path, model: FakeModel) -> AsyncIterator[Bridge]:
    bridge = Bridge(hermes, home, model)
    yield bridge
    for call in bridge.calls:
        await call.aclose(patience=20.0 if call.told.finished else 0.0)
    assert not processes(bridge.trace)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """What dangerous commands of these tests remove: nothing else is named in them."""
    for name in ("1", "2"):
        (tmp_path / "victim" / name).mkdir(parents=True)
    return tmp_path / "victim"


async def test_the_handshake(bridge: Bridge) -> None:
    hello = await handshake(bridge.settings, inherited=bridge.env)
    assert (hello.lacks, hello.approvals) == ((), True)
    assert hello.hermes_version[0].isdigit()


@pytest.mark.long
async def test_a_plain_answer_word_by_word(bridge: Bridge) -> None:
    ran = await bridge.run("Say something PLAIN")
    reply = bridge.model.replies[-1]
    assert ran.text == PLAIN
    assert ran.call.verdict() is None
    early = [at for at, item in ran.timed if isinstance(item, MessageDelta) and at < reply.pieces[-1][0]]
    assert len(early) >= len(reply.pieces) / 2
    assert ran.events("hermes.session") == [{"hermes_session_id": ran.call.told.session_id, "model": "fake-model"}]
    assert ran.call.told.provider == "custom"
    assert not ran.events("warning")


@pytest.mark.long
async def test_reasoning_is_no_text(bridge: Bridge) -> None:
    ran = await bridge.run("REASON about it")
    assert "".join(item.text for item in ran.of(ReasoningDelta)).strip() == THOUGHTS.strip()
    assert ran.text == PLAIN
    assert [{i.index for i in ran.of(kind)} for kind in (ReasoningDelta, MessageDelta)] == [{0}, {1}]


async def test_a_tool_round(bridge: Bridge) -> None:
    ran = await bridge.run("Use a TOOL please")
    assert ran.text == f"{BEFORE_TOOL}\n\n{AFTER_TOOL}"
    assert {i.round for i in ran.of(MessageDelta)} == {1, 2}
    [started], [done] = ran.of(ToolStarted), ran.of(ToolCompleted)
    assert (started.call_id, started.name, started.args) == ("call_1", "terminal", {"command": "echo tool-output"})
    assert (done.call_id, done.component_id) == ("call_1", "tool:terminal")
    assert "tool-output" in done.result
    assert done.duration_ms > 0
    assert [u.input_tokens for u in ran.of(Usage)] == [1_000, 1_000]
    assert [c.tokens for c in ran.of(Cache)] == [100, 100]
    assert ran.call.told.usage["output_tokens"] == 80
    order = [type(i) for _, i in ran.timed if isinstance(i, (MessageDelta, Usage, ToolStarted, ToolCompleted))]
    assert order.index(Usage) < order.index(ToolStarted), "each model call is counted when it ends"


@pytest.mark.long
async def test_several_tools_one_of_which_fails(bridge: Bridge) -> None:
    ran = await bridge.run("Use MANYTOOLS")
    assert [(s.call_id, s.name) for s in ran.of(ToolStarted)] == [
        *(("call_1", "terminal"), ("call_2", "read_file"), ("call_3", "terminal")),
    ]
    assert {d.call_id for d in ran.of(ToolCompleted)} == {"call_1", "call_2"}
    assert [(f.call_id, f.error) for f in ran.of(ToolFailed)] == [("call_3", "exit code 3")]


@pytest.mark.long
async def test_yolo_runs_what_is_dangerous(bridge: Bridge, victim: Path) -> None:
    ran = await bridge.run(f"Remove it: DANGER {victim}")
    assert ran.call.verdict() is None
    assert ran.of(Ask) == []
    assert not _there(victim)


@pytest.mark.long
@pytest.mark.parametrize(("answer", "removed"), [("once", True), ("deny", False)])
async def test_asked_hermes_obeys(bridge: Bridge, victim: Path, answer: str, removed: bool) -> None:
    ran = await bridge.run(f"Remove it: DANGER {victim}", answer, yolo=False)
    [ask] = ran.of(Ask)
    assert (ask.kind, ask.payload["command"]) == ("approval", f"rm -rf {victim}")
    assert {"once", "session", "deny"} <= set(ask.choices)
    assert _there(victim) is not removed
    assert ran.call.verdict() is None


async def test_each_dangerous_command_is_asked_for(bridge: Bridge, victim: Path) -> None:
    """However many run at once, and though each runs in a thread of its own."""
    ran = await bridge.run(f"Remove both: TWODANGERS {victim}", "deny", "once", yolo=False)
    assert sorted(ask.payload["command"] for ask in ran.of(Ask)) == [f"rm -rf {victim}/{n}" for n in (1, 2)]
    assert (_there(victim / "1"), _there(victim / "2")) == (True, False)


async def test_a_subagent_approves_nothing_by_itself(bridge: Bridge, victim: Path) -> None:
    """Hermes itself refuses its subagents what is dangerous (``delegation.subagent_auto_approve``)."""
    ran = await bridge.run(f"DANGER {victim} DELEGATE", yolo=False)
    assert _there(victim)
    assert [s.name for s in ran.of(ToolStarted)] == ["delegate_task"], "its tools are not the agent's"
    told = [e for e in ran.of(Event) if e.name == "hermes.subagent"]
    assert {"start", "tool", "complete"} <= {e.payload["what"] for e in told}
    assert all(e.component_id.startswith("subagent:") for e in told)
    assert ran.text == f"{BEFORE_TOOL}\n\n{AFTER_TOOL}", "its words are not the agent's"
    [done] = ran.of(ToolCompleted, ToolFailed)
    assert AFTER_TOOL.split("\n")[0] in str(done.result), "its result came within this turn"


async def test_approvals_that_the_configuration_takes_away(bridge: Bridge, victim: Path, tmp_path: Path) -> None:
    config = (bridge.home / "config.yaml").read_text()
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text(config.replace("approvals: {timeout: 3}", 'approvals: {mode: "off"}'))
    bridge.env["HERMES_HOME"] = str(home)
    ran = await bridge.run(f"DANGER {victim}", yolo=False)
    assert ran.failure.code == "approvals_unavailable"
    assert _there(victim)


@pytest.mark.long
async def test_a_question_waits_for_its_answer(bridge: Bridge) -> None:
    ran = await bridge.run("Please ASK me", "green")
    [ask] = ran.of(Ask)
    assert (ask.kind, ask.payload["question"], ask.choices, ask.free) == (
        *("question", "Which colour?", ("red", "blue"), True),
    )
    [done] = ran.of(ToolCompleted)
    assert "green" in str(done.result)


@pytest.mark.long
@pytest.mark.parametrize(
    ("prompt", "code", "retryable", "words"),
    [
        ("Answer ERR401", "provider_auth", False, "401"),
        ("Answer ERR429", "provider_rate_limit", True, "429"),
    ],
)
async def test_errors_of_the_provider(bridge: Bridge, prompt: str, code: str, retryable: bool, words: str) -> None:
    ran = await bridge.run(prompt)
    assert (ran.failure.code, ran.failure.retryable, ran.text) == (code, retryable, "")
    assert words in ran.failure.message
    assert (code == "provider_rate_limit") == bool(ran.events("retry"))


@pytest.mark.long
async def test_an_empty_answer(bridge: Bridge) -> None:
    ran = await bridge.run("Be EMPTY")
    assert (ran.failure.code, ran.text) == ("empty_reply", "")
    assert "explainer." not in ran.failure.message


@pytest.mark.long
async def test_an_answer_that_broke_off_goes_on(bridge: Bridge) -> None:
    ran = await bridge.run(f"Be CUT {uuid4().hex}")
    assert ran.call.verdict() is None
    assert ran.text == f"{CUT}{PLAIN}"


@pytest.mark.long
async def test_a_turn_limit(bridge: Bridge) -> None:
    ran = await bridge.run("Use a TOOL", max_turns=1)
    assert ran.failure.code == "turn_limit"
    assert "No reply" not in ran.text


@pytest.mark.long
async def test_a_stop_in_the_answer_keeps_what_was_said(bridge: Bridge) -> None:
    ran = Ran(await bridge.start("Be SLOW"))
    async for _ in ran.batches():
        if len(ran.of(MessageDelta)) >= 3:
            ran.call.stop()
    assert ran.failure.code == "interrupted"
    assert SLOW.startswith(ran.text.strip())
    assert ran.call.told.finished, "Hermes came to an end by itself"


@pytest.mark.long
async def test_a_stop_inside_a_tool(bridge: Bridge) -> None:
    ran = Ran(await bridge.start("Start a SLEEPTOOL"))
    async for batch in ran.batches():
        if any(isinstance(item, ToolStarted) for item in batch):
            await eventually(lambda: pids(bridge.trace, "sleep 60"), 20)
            ran.call.stop()
    assert ran.failure.code == "interrupted"
    assert len(ran.of(ToolFailed, ToolCompleted)) == 1
    await ran.call.aclose()
    assert not processes(bridge.trace)


async def test_a_stop_while_a_person_is_asked(bridge: Bridge, victim: Path) -> None:
    ran = Ran(await bridge.start(f"DANGER {victim}", yolo=False))
    async for _ in ran.batches():
        if ran.of(Ask):
            ran.call.stop()
    assert ran.failure.code == "interrupted"
    assert _there(victim)


@pytest.mark.parametrize("who", ["bridge.py", "supervisor.py"])
async def test_sigkill_leaves_nothing(bridge: Bridge, who: str) -> None:
    ran = Ran(await bridge.start("Start a SLEEPTOOL"))
    async for batch in ran.batches():
        if any(isinstance(item, ToolStarted) for item in batch):
            await eventually(lambda: pids(bridge.trace, "sleep 60"), 20)
            without = "supervisor.py" if who == "bridge.py" else "\0"
            for pid in pids(bridge.trace, who, without=without):
                os.kill(pid, signal.SIGKILL)
    assert ran.failure.code in ("hermes_died", "no_result", "interrupted")
    assert who != "bridge.py" or ran.failure.code == "hermes_died"
    await eventually(lambda: not processes(bridge.trace), 20)


@pytest.mark.long
async def test_a_session_goes_on_and_an_unknown_one_is_an_error(bridge: Bridge, tmp_path: Path) -> None:
    marker = uuid4().hex
    first = await bridge.run(f"Remember {marker} PLAIN")
    await first.call.aclose(patience=20)
    second = await bridge.run("Second PLAIN", resume=first.call.told.session_id, cwd=str(tmp_path))
    assert second.call.told.session_id == first.call.told.session_id
    assert marker in str(bridge.model.conversations[-1]), "the model sees the first prompt"
    missing = await bridge.run("PLAIN", resume="20200101_000000_abcdef")
    assert missing.failure.code == "hermes_session_not_found"


async def test_a_prompt_longer_than_an_argument(bridge: Bridge) -> None:
    prompt = "--help " + "wörd \u2028" * 25_000 + " PLAIN"
    assert len(prompt.encode()) > 200_000
    ran = await bridge.run(prompt)
    assert ran.text == PLAIN
    assert bridge.model.prompts[-1].endswith(prompt.strip()[-100_000:])


async def test_a_hermes_that_is_not_set_up(bridge: Bridge, tmp_path: Path) -> None:
    for name in [n for n in bridge.env if n.endswith(("_API_KEY", "_TOKEN"))]:
        del bridge.env[name]
    bridge.env.update(HERMES_HOME=str(tmp_path / "empty"), HOME=str(tmp_path))
    ran = await bridge.run("PLAIN")
    assert ran.failure.code == "not_configured"
    assert "hermes setup" in ran.failure.message


@pytest.mark.parametrize("in_place", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_a_compressed_context(bridge: Bridge, tmp_path: Path, in_place: bool) -> None:
    home = tmp_path / "home"
    home.mkdir()
    options = "threshold: 0.5, protect_first_n: 1, protect_last_n: 2, target_ratio: 0.01"
    config = (bridge.home / "config.yaml").read_text()
    (home / "config.yaml").write_text(f"{config}compression: {{{options}, in_place: {str(in_place).lower()}}}\n")
    bridge.env["HERMES_HOME"] = str(home)
    ran = await bridge.run("Do COMPRESS")
    [summary] = ran.of(Summary)
    first, *others = ran.events("hermes.session")
    assert summary.text
    assert summary.replaces == {"hermes_session_id": first["hermes_session_id"], "in_place": in_place}
    assert [s["rotated_from"] for s in others] == ([] if in_place else [first["hermes_session_id"]])
    assert ran.call.told.session_id == (others or [first])[-1]["hermes_session_id"]
