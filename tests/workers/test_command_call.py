"""One call over the command, in each of its modes: what it gives, how it ends, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker.items import Item, ToolFailed, ToolStarted
from tests.workers.drawn import events, text
from tests.workers.fake_hermes import SESSION
from workers.hermes.calls import Ask, Drive, HermesCall
from workers.hermes.command import COLUMNS, MODES, Call, RefusedCall
from workers.hermes.command_call import CommandCall
from workers.hermes.process import NotStarted
from workers.hermes.settings import HermesSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc")
FAKE = Path(__file__).with_name("fake_hermes.py")
Start = Callable[..., Awaitable[CommandCall]]


@pytest.fixture
def binary(tmp_path: Path) -> str:
    script = tmp_path / "hermes"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{FAKE}" "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture
async def start(binary: str) -> AsyncIterator[Start]:
    """Starts calls of the fake Hermes; nothing of them is left afterwards."""
    trace, started = uuid4().hex, []

    async def begin(mode: str, prompt: str, *, settings: dict[str, Any] | None = None, **call: Any) -> CommandCall:
        inherited = {**os.environ, "TRACE": trace}
        made = HermesSettings(bin=binary, **(settings or {}))
        begun = await CommandCall.start(made, Call(prompt, **call), mode=mode, inherited=inherited)
        started.append(begun)
        return begun

    yield begin
    for call in started:
        await call.aclose()
    assert _with_trace(trace) == []


def _with_trace(trace: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"TRACE={trace}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


async def _all(call: HermesCall) -> list[Item]:
    items: list[Item] = []
    async with asyncio.timeout(30):
        while (batch := await call.read()) is not None:
            items += [item for item in batch if not isinstance(item, Ask)]
    return items


@pytest.mark.parametrize("mode", MODES)
async def test_the_call_reaches_the_command_and_its_answer_comes_back(start: Start, mode: str, tmp_path: Path) -> None:
    prompt = "ECHO --help 'single' \"double\" $(x)\n  line two ┊ ╭─ \u2028end"
    call = await start(mode, prompt, model="-m", cwd=str(tmp_path), env={"MINE": "é"}, settings={"stream_args": "--v"})
    items = await _all(call)
    seen = json.loads(text(items))
    assert call.verdict() is None
    assert (call.mode, seen["prompt"], seen["cwd"]) == (mode, prompt, str(tmp_path))
    assert ("--model=-m" in seen["argv"], "--v" in seen["argv"]) == (True, mode != "quiet")
    assert seen["env"]["MINE"] == "é"
    assert seen["env"].get("COLUMNS") == (str(COLUMNS) if mode == "text" else os.environ.get("COLUMNS"))
    assert await call.read() is None


@pytest.mark.parametrize(("mode", "session"), [("stream-json", "s1"), ("text", SESSION), ("quiet", SESSION)])
async def test_what_it_told_about_itself(start: Start, mode: str, session: str) -> None:
    call = await start(mode, "LINGER")
    items = await _all(call)
    assert [event["hermes_session_id"] for event in events(items, "hermes.session")] == [session]
    told = call.told
    assert (told.session_id, told.exit_code) == (session, 0)
    # Only a record says that Hermes is done while it still runs.
    assert told.finished is (mode == "stream-json")
    if mode == "stream-json":
        assert (told.model, told.duration_ms) == ("fake", 1)
        assert told.usage is not None
        assert told.usage["input_tokens"] == 10
        assert call.stderr == ""
    else:
        assert "finished" in call.stderr
    assert told.duration_ms == (3_000.0 if mode == "text" else told.duration_ms)


@pytest.mark.parametrize(
    ("mode", "prompt", "code", "partial"),
    [
        ("stream-json", "NORESULT 0", "no_result", "partial"),
        ("stream-json", "NORESULT 1", "hermes_failed", "partial"),
        ("text", "NORESULT 1", "hermes_failed", "partial"),
        ("quiet", "NORESULT 1", "hermes_failed", ""),
        *((mode, "UNCONFIGURED", "not_configured", "") for mode in MODES),
        *((mode, "NOTHING", "empty_reply", "") for mode in MODES),
    ],
)
async def test_failures(start: Start, mode: str, prompt: str, code: str, partial: str) -> None:
    call = await start(mode, prompt)
    items = await _all(call)
    failure = call.verdict()
    assert failure is not None
    assert (failure.code, text(items)) == (code, partial)
    assert "boom" in failure.message or not prompt.startswith("NORESULT")


@pytest.mark.parametrize("mode", MODES)
async def test_a_python_that_falls_over_behind_the_last_word(start: Start, mode: str) -> None:
    """Nothing of the answer is missing, so the call succeeded."""
    call = await start(mode, "CRASH")
    assert (text(await _all(call)), call.told.exit_code) == ("done", -11 if mode != "stream-json" else 0)
    assert call.verdict() is None


async def test_notices_of_the_quiet_contract_are_warnings(start: Start) -> None:
    items = await _all(await start("quiet", "LINGER"))
    assert text(items) == "done"
    assert [event["code"] for event in events(items, "warning")] == ["tirith_unavailable"]


@pytest.mark.parametrize("mode", ["stream-json", "text"])
async def test_a_stop_lets_the_last_words_come_and_closes_the_open_call(start: Start, mode: str) -> None:
    call = await start(mode, "HANG")
    items: list[Item] = []
    while not any(isinstance(item, ToolStarted) for item in items):
        items += [item for item in await call.read() or [] if not isinstance(item, Ask)]
    call.stop()
    items += await _all(call)
    assert text(items) == "partial "
    assert [item.name for item in items if isinstance(item, ToolFailed)] == ["terminal"]
    assert call.told.exit_code == 130


async def test_a_stop_of_a_quiet_call_gives_no_answer(start: Start) -> None:
    call = await start("quiet", "HANG")
    call.stop()
    assert text(await _all(call)) == ""
    assert call.verdict() is not None


async def test_a_kill_does_not_wait_for_the_grace(start: Start) -> None:
    call = await start("stream-json", "HANG", settings={"grace": 600})
    await call.read()
    call.kill()
    async with asyncio.timeout(30):
        await _all(call)
    failure = call.verdict()
    assert failure is not None
    assert failure.code == "hermes_died"


@pytest.mark.parametrize("mode", MODES)
async def test_a_read_that_is_given_up_loses_nothing(start: Start, mode: str) -> None:
    call = await start(mode, "LINGER")
    items: list[Item] = []
    reading = True
    while reading:
        task = asyncio.ensure_future(call.read())
        await asyncio.wait({task}, timeout=0.02)
        if not task.cancel():
            batch = task.result()
            reading = batch is not None
            items += [item for item in batch or [] if not isinstance(item, Ask)]
        await asyncio.wait({task})
        assert task.cancelled() or task.done()
    assert text(items) == "done"
    assert len(events(items, "hermes.session")) == 1


async def test_the_limits_of_time_end_it(start: Start, binary: str) -> None:
    call = await start("text", "SILENT")
    drive = Drive(call, HermesSettings(bin=binary, silence=0.5))
    async with asyncio.timeout(20):
        async for _ in drive.batches():
            pass
    failure = drive.verdict()
    assert failure is not None
    assert failure.code == "hermes_silent"


async def test_what_cannot_be_passed_is_refused_before_anything_runs(start: Start) -> None:
    for prompt, mode in (("nul \0", "quiet"), ("x" * 200_000, "text"), ("ECHO [/b]", "text")):
        with pytest.raises(RefusedCall):
            await start(mode, prompt)


async def test_a_hermes_that_is_not_there_and_a_directory_that_is_not(start: Start) -> None:
    with pytest.raises(NotStarted) as missing:
        await CommandCall.start(HermesSettings(bin="/nowhere/hermes"), Call("x"), mode="text", inherited={})
    assert missing.value.missing
    with pytest.raises(NotStarted, match="nowhere"):
        await start("quiet", "ECHO", cwd="/nowhere")


async def test_standard_error_is_whole_when_the_verdict_is_asked(start: Start) -> None:
    """The session of a quiet call stands there, written just before the end."""
    for _ in range(5):
        call = await start("quiet", "ECHO")
        await _all(call)
        assert call.told.session_id == SESSION
        await call.aclose()


async def test_an_answer_to_a_question_that_nobody_asked_is_harmless(start: Start) -> None:
    call = await start("text", "ECHO")
    await call.answer("key", "yes")
    await _all(call)
    call.stop()
