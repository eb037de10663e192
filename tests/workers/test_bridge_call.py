"""The bridge as a process, with modules that stand in for Hermes': what is asked, told, refused, and left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker.items import (
    Cost,
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
from tests.servers import eventually
from workers.hermes import leftovers
from workers.hermes.bridge_call import BridgeCall, handshake
from workers.hermes.calls import Ask
from workers.hermes.command import Call, Unavailable
from workers.hermes.process import NotStarted
from workers.hermes.settings import HermesSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc")
STAND_IN = Path(__file__).with_name("stand_in")


class Hermes:
    """The stand-in, installed: a script that names this Python, which finds the modules."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.script = directory / "hermes"
        self.script.write_text(f"#!{sys.executable}\nraise SystemExit('only its first line is read')\n")
        self.script.chmod(self.script.stat().st_mode | stat.S_IXUSR)
        self.env = {**os.environ, "PYTHONPATH": str(STAND_IN), "PYTHONDONTWRITEBYTECODE": "1"}
        self.env.pop("HERMES_YOLO_MODE", None)
        self.calls: list[BridgeCall] = []

    def settings(self, **more: Any) -> HermesSettings:
        return HermesSettings(**{"bin": str(self.script), "grace": 5.0, **more})

    async def start(self, prompt: str, *, settings: HermesSettings | None = None, **more: Any) -> BridgeCall:
        call = await BridgeCall.start(settings or self.settings(), Call(prompt=prompt, **more), inherited=self.env)
        self.calls.append(call)
        return call

    async def run(self, prompt: str, answers: dict[str, str] | None = None, **more: Any) -> Ran:
        ran = Ran(await self.start(prompt, **more))
        async with asyncio.timeout(30):
            while (batch := await ran.call.read()) is not None:
                ran.batch += batch
                for ask in (b for b in batch if isinstance(b, Ask)):
                    await ran.call.answer(ask.key, (answers or {}).get(_subject(ask), ask.otherwise))
        return ran

    @property
    def left(self) -> set[int]:
        return set().union(*(leftovers.marked(call.process.mark) for call in self.calls))


class Ran:
    def __init__(self, call: BridgeCall) -> None:
        self.call, self.batch = call, list[Item | Ask]()

    def of(self, kind: type[Any]) -> list[Any]:
        return [item for item in self.batch if isinstance(item, kind)]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event.payload for event in self.of(Event) if event.name == name]

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.of(MessageDelta))

    @property
    def code(self) -> str | None:
        failure = self.call.verdict()
        return failure and failure.code


def _subject(ask: Ask) -> str:
    return str(ask.payload.get("command") or ask.payload.get("question"))


@pytest.fixture
async def hermes(tmp_path: Path) -> AsyncIterator[Hermes]:
    hermes = Hermes(tmp_path)
    yield hermes
    for call in hermes.calls:
        await call.aclose(patience=5.0 if call.told.finished else 0.0)
    assert not hermes.left


async def test_the_handshake(hermes: Hermes) -> None:
    hello = await handshake(hermes.settings(), inherited=hermes.env)
    assert (hello.hermes_version, hello.python, hello.lacks, hello.approvals) == ("9.9.9", sys.executable, (), True)
    assert "stream_delta_callback" in hello.callbacks


async def test_text_and_reasoning_in_order(hermes: Hermes) -> None:
    ran = await hermes.run("reason:hm say:hello say:,you")
    assert [(type(i), i.text, i.index) for i in ran.batch if isinstance(i, (MessageDelta, ReasoningDelta))] == [
        (ReasoningDelta, "hm", 0),
        (MessageDelta, "hello", 1),
        (MessageDelta, ",you", 1),
    ]
    assert ran.code is None
    assert (ran.call.told.session_id, ran.call.told.model, ran.call.told.provider) == (
        *("fresh", "default-model", "stand-in"),
    )
    assert ran.call.told.exit_code == 0


async def test_a_call_reaches_hermes_whole(hermes: Hermes, tmp_path: Path) -> None:
    more = {"model": "m", "toolsets": ("web", "files"), "max_turns": 7, "resume": "known", "cwd": str(tmp_path)}
    ran = await hermes.run("echo", **more)
    told = json.loads(ran.text)
    assert (told["model"], told["toolsets"], told["max_iterations"]) == ("m", ["web", "files"], 7)
    assert (told["session_id"], told["cwd"]) == ("known", str(tmp_path))
    assert (told["HERMES_SESSION_SOURCE"], told["yolo"]) == ("tool", "1"), "yolo is known when the tools are imported"


async def test_without_yolo_no_variable_of_the_worker_brings_it_back(hermes: Hermes) -> None:
    hermes.env["HERMES_YOLO_MODE"] = "1"
    ran = await hermes.run("echo", yolo=False)
    assert (json.loads(ran.text)["yolo"], json.loads(ran.text)["HERMES_YOLO_MODE"]) == ("", None)


async def test_a_prompt_longer_than_any_argument(hermes: Hermes) -> None:
    ran = await hermes.run("say:begun " + "–x " * 300_000 + "say:,ended")
    assert ran.text == "begun,ended"


async def test_stray_output_and_a_tool_that_reads_leave_the_stream_alone(hermes: Hermes) -> None:
    ran = await hermes.run("say:a stray:noise say:b")
    assert ran.text == "ab"
    assert not ran.events("warning")
    await ran.call.aclose(patience=5.0)
    assert ran.call.stderr.count("noise") == 2
    assert "finalized" in ran.call.stderr


async def test_tools_rounds_and_counts(hermes: Hermes) -> None:
    ran = await hermes.run("say:before tool:good tool:bad say:after")
    done, failed = ran.of(ToolCompleted)[0], ran.of(ToolFailed)[0]
    assert (done.call_id, done.name, done.duration_ms, done.component_id) == ("call_1", "good", 250.0, "tool:good")
    assert (failed.call_id, failed.error) == ("call_2", "exit code 3")
    assert [(d.round, d.text) for d in ran.of(MessageDelta)] == [(1, "before"), (2, "after")]
    assert [(u.input_tokens, u.output_tokens) for u in ran.of(Usage)] == [(100, 10), (100, 10)]
    assert ran.call.told.usage == ran.of(Usage)[-1].total
    assert ran.call.told.usage["input_tokens"] == 200


async def test_arguments_that_json_cannot_carry_cost_no_call(hermes: Hermes) -> None:
    ran = await hermes.run("odd say:x")
    assert [started.call_id for started in ran.of(ToolStarted)] == ["call_odd", "call_odder"]
    assert ran.of(ToolStarted)[0].args == {"set": "{1}"}


async def test_a_cost_that_hermes_knows(hermes: Hermes) -> None:
    ran = await hermes.run("cost:0.25 say:x")
    assert [(c.amount, c.total, c.estimated) for c in ran.of(Cost)] == [("0.25", "0.25", True)]
    assert ran.call.told.priced
    assert not (await hermes.run("say:x")).call.told.priced


async def test_text_that_was_not_streamed_is_not_lost_and_streamed_text_not_doubled(hermes: Hermes) -> None:
    assert (await hermes.run("say:a interim:b")).text == "a\n\nb"


async def test_a_compression_and_its_new_session(hermes: Hermes) -> None:
    ran = await hermes.run("say:a compress:short say:b")
    assert [(s.text, s.replaces) for s in ran.of(Summary)] == [
        ("short", {"hermes_session_id": "fresh", "in_place": False})
    ]
    assert ran.events("hermes.session")[-1]["rotated_from"] == "fresh"
    assert ran.call.told.session_id == "rotated"


async def test_an_approval_is_asked_for_and_obeyed(hermes: Hermes) -> None:
    ran = await hermes.run("approve:rm approve:dd approve:temporary", {"rm": "once", "temporary": "always"}, yolo=False)
    assert ran.text == "once;deny;deny;", "an answer that was not offered is none"
    first, _, third = ran.of(Ask)
    assert (first.kind, first.payload, first.otherwise) == (
        *("approval", {"command": "rm", "description": "dangerous"}, "deny"),
    )
    assert first.choices == ("once", "session", "always", "deny")
    assert third.choices == ("once", "session", "deny")


async def test_two_approvals_at_once(hermes: Hermes) -> None:
    ran = await hermes.run("approve_twice", {"first": "deny", "second": "session"}, yolo=False)
    assert ran.text == "deny,session"
    assert len({ask.key for ask in ran.of(Ask)}) == 2


async def test_under_yolo_nobody_is_asked_for_approval(hermes: Hermes) -> None:
    ran = await hermes.run("approve:rm")
    assert (ran.text, ran.of(Ask)) == ("yolo;", [])


async def test_questions_of_both_kinds(hermes: Hermes) -> None:
    ran = await hermes.run("clarify:Colour? clarify_new", {"Colour?": "green", "Which?": "b", "Why?": "so"})
    old, which, why = ran.of(Ask)
    assert (old.kind, old.choices, old.free) == ("question", ("red", "blue"), True)
    assert (which.choices, why.choices) == (("a", "b"), ())
    first, second = ran.text.split(";")
    assert first == "green"
    assert json.loads(second) == {"answers": {"q0": "b", "q1": "so"}, "outcome": "submitted"}


@pytest.mark.parametrize("prompt", ["approve:rm wait", "approve_twice wait", "clarify:a clarify_new wait"])
async def test_a_stop_wakes_whoever_waits_for_an_answer(hermes: Hermes, prompt: str) -> None:
    call = await hermes.start(prompt, yolo=False)
    ran = Ran(call)
    async with asyncio.timeout(20):
        while (batch := await call.read()) is not None:
            ran.batch += batch
            if ran.of(Ask):
                call.stop()
    assert ran.code == "interrupted"
    assert call.told.finished, "it came to an end by itself"
    assert "once" not in ran.text
    assert "session" not in ran.text


async def test_a_stop_keeps_what_was_said_and_needs_no_force(hermes: Hermes) -> None:
    call = await hermes.start("say:partial wait say:never")
    ran = Ran(call)
    async with asyncio.timeout(20):
        while (batch := await call.read()) is not None:
            ran.batch += batch
            if ran.text:
                call.stop()
                call.stop()
    assert (ran.text, ran.code, call.told.exit_code) == ("partial", "interrupted", 130)
    await call.aclose(patience=5.0)
    assert (call.process.exit_code, call.process.killed) == (0, 0)


async def test_a_stop_before_the_agent_is_there(hermes: Hermes) -> None:
    call = await hermes.start("say:never wait")
    call.stop()
    ran = Ran(call)
    async with asyncio.timeout(20):
        while (batch := await call.read()) is not None:
            ran.batch += batch
    assert ran.code == "interrupted"


async def test_an_agent_that_heeds_no_interrupt_is_ended(hermes: Hermes) -> None:
    call = await hermes.start("child say:up hang")
    ran = Ran(call)
    async with asyncio.timeout(25):
        while (batch := await call.read()) is not None:
            ran.batch += batch
            if ran.text:
                call.stop()
        await call.aclose()
    assert call.process.killed >= 1
    assert not hermes.left


async def test_kill_waits_for_nothing(hermes: Hermes) -> None:
    call = await hermes.start("child say:up hang", settings=hermes.settings(grace=600.0))
    while not [b for b in await call.read() or [] if isinstance(b, MessageDelta)]:
        pass
    call.kill()
    async with asyncio.timeout(30):
        while await call.read() is not None:
            pass
        await call.aclose()
    assert not hermes.left


async def test_a_bridge_that_dies(hermes: Hermes) -> None:
    ran = await hermes.run(f"child say:last die:{int(signal.SIGKILL)}")
    assert (ran.text, ran.code) == ("last", "hermes_died")
    assert ran.call.told.exit_code == -signal.SIGKILL


async def test_sigterm_from_outside_interrupts(hermes: Hermes) -> None:
    ran = await hermes.run(f"say:x die:{int(signal.SIGTERM)} wait")
    assert (ran.text, ran.code) == ("x", "interrupted")


async def test_failures_of_the_model_and_of_the_agent(hermes: Hermes) -> None:
    ran = await hermes.run("say:half fail:HTTP")
    failure = ran.call.verdict()
    assert failure is not None
    assert (failure.code, failure.message, ran.text) == ("hermes_failed", "It failed: HTTP", "half")
    assert (await hermes.run("fail:rate-limit")).code == "provider_rate_limit"
    raised = (await hermes.run("raise:oops")).call.verdict()
    assert raised is not None
    assert (raised.code, raised.message) == ("hermes_failed", "RuntimeError: oops")
    assert (await hermes.run("nothing")).code == "empty_reply"


@pytest.mark.parametrize(
    ("variable", "code", "words"),
    [
        ("STAND_IN_UNCONFIGURED", "not_configured", "hermes setup"),
        ("STAND_IN_KEYLESS", "not_configured", "there is no key: run hermes setup"),
        ("STAND_IN_BROKEN", "not_configured", "the agent cannot be made"),
        ("STAND_IN_BUSY", "hermes_session_busy", "two sessions at once are enough"),
        ("STAND_IN_APPROVES_ALL", "approvals_unavailable", "approvals.mode"),
        ("STAND_IN_NO_CONTEXT", "approvals_unavailable", "lacks"),
    ],
)
async def test_calls_that_cannot_begin(hermes: Hermes, variable: str, code: str, words: str) -> None:
    hermes.env[variable] = "1"
    ran = await hermes.run("approve:rm", yolo=False)
    failure = ran.call.verdict()
    assert failure is not None
    assert failure.code == code
    assert words in failure.message
    assert "of no interest" not in failure.message
    assert "\x1b" not in failure.message
    assert ran.text == ""


async def test_a_configuration_that_cannot_be_read_is_told(hermes: Hermes) -> None:
    """Hermes goes on with its defaults then, and says so among other things."""
    hermes.env["STAND_IN_UNCONFIGURED"] = "\x1b[33mconfig.yaml has an error in line 2\x1b[0m"
    failure = (await hermes.run("say:x")).call.verdict()
    assert failure is not None
    assert failure.code == "not_configured"
    assert failure.message.endswith("run `hermes setup`. config.yaml has an error in line 2")


async def test_an_unknown_session(hermes: Hermes) -> None:
    assert (await hermes.run("say:x", resume="gone")).code == "hermes_session_not_found"


async def test_a_callback_that_is_missing_is_told(hermes: Hermes) -> None:
    hermes.env["STAND_IN_LACKS"] = "reasoning_callback,step_callback"
    ran = await hermes.run("say:x")
    [warning] = ran.events("warning")
    assert warning["code"] == "bridge_lacks"
    assert "reasoning_callback, step_callback" in warning["message"]
    assert (ran.text, ran.call.hello.lacks) == ("x", ("reasoning_callback", "step_callback"))


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"STAND_IN_LACKS": "stream_delta_callback"}, "no stream_delta_callback"),
        ({"STAND_IN_LACKS": "run_conversation"}, "no run_conversation"),
        ({"STAND_IN_UNIMPORTABLE": "1"}, "ImportError: no module named prompt_toolkit"),
        ({"STAND_IN_DIES": "1"}, "exit code 9"),
        ({"STAND_IN_SLOW": "60"}, "HERMES_BRIDGE_HANDSHAKE"),
        ({"PYTHONPATH": ""}, "cannot be imported"),
    ],
)
async def test_a_hermes_that_cannot_be_driven(hermes: Hermes, env: dict[str, str], words: str) -> None:
    hermes.env.update(env, MARKED=uuid4().hex)
    settings = hermes.settings(bridge_handshake=2.0 if "STAND_IN_SLOW" in env else 20.0)
    with pytest.raises(Unavailable, match=words):
        await hermes.start("say:x", settings=settings)
    with pytest.raises(Unavailable, match=words):
        await handshake(settings, inherited=hermes.env)
    await eventually(lambda: not _carrying(hermes.env["MARKED"]), 5)


def _carrying(value: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if value.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


async def test_a_start_that_is_cancelled_leaves_nothing(hermes: Hermes) -> None:
    hermes.env.update(STAND_IN_SLOW="60", MARKED=uuid4().hex)
    starting = asyncio.create_task(hermes.start("say:x"))
    await eventually(lambda: len(_carrying(hermes.env["MARKED"])) >= 2, 10)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not _carrying(hermes.env["MARKED"])


async def test_what_is_not_there(hermes: Hermes, tmp_path: Path) -> None:
    with pytest.raises(NotStarted) as missing:
        await hermes.start("x", settings=hermes.settings(bin=str(tmp_path / "nothing")))
    assert missing.value.missing
    with pytest.raises(NotStarted) as directory:
        await hermes.start("x", cwd=str(tmp_path / "nowhere"))
    assert not directory.value.missing
    with pytest.raises(Unavailable, match="Python"):
        await hermes.start("x", settings=hermes.settings(python=str(tmp_path / "python")))


async def test_the_setting_names_the_python(hermes: Hermes) -> None:
    hermes.script.write_text("#!/bin/cat\n")
    with pytest.raises(Unavailable, match="HERMES_PYTHON"):
        await hermes.start("say:x")
    assert (await hermes.run("say:x", settings=hermes.settings(python=sys.executable))).text == "x"


async def test_one_line_may_be_long_and_slow_to_be_read(hermes: Hermes) -> None:
    """Back-pressure: the bridge waits while nobody reads, and nothing is lost."""
    ran = await hermes.run("long:1000000 " * 3 + "say:end")
    assert len(ran.text) == 3_000_003


WORKER = """
import asyncio, json, os, sys
from workers.hermes.bridge_call import BridgeCall
from workers.hermes.command import Call
from workers.hermes.settings import HermesSettings
async def main():
    call = await BridgeCall.start(HermesSettings(bin=sys.argv[1], grace=5.0), Call(prompt="child say:up wait"))
    while True:
        batch = await call.read()
        if any(getattr(item, "text", "") == "up" for item in batch):
            print(call.process.mark, flush=True)
            await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("who", ["worker", "supervisor"])
async def test_whoever_is_killed_nothing_is_left(hermes: Hermes, who: str) -> None:
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, str(hermes.script)),
        env=hermes.env | {"PYTHONPATH": f"{STAND_IN}:{Path.cwd()}"},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert worker.stdout is not None
        mark = (await asyncio.wait_for(worker.stdout.readline(), 20)).decode().strip()
        assert len(leftovers.marked(mark)) >= 3
        if who == "worker":
            worker.kill()
        else:
            [supervisor] = [pid for pid in leftovers.marked(mark) if b"supervisor.py" in _command(pid)]
            os.kill(supervisor, signal.SIGKILL)
        await eventually(lambda: not leftovers.marked(mark), 15)
    finally:
        if worker.returncode is None:
            worker.kill()
        await worker.wait()


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):  # it ended while we looked
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
