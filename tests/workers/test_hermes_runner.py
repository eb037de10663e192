"""The runner ``hermes`` over a command that behaves like it: outcomes, stops, back-pressure, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker, StreamEntry
from broker.items import Final, Item, MessageDelta, Raw
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.servers import eventually
from workers.hermes import leftovers
from workers.hermes.runner import HermesRunner
from workers.hermes.settings import HermesSettings
from workers.runner import RunContext, RunnerFailed
from workers.worker import Worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc")
FAKE = Path(__file__).with_name("fake_hermes.py")


@pytest.fixture
def binary(tmp_path: Path) -> str:
    script = tmp_path / "hermes"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{FAKE}" "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    settings = Settings(redis_url=f"memory:{uuid4().hex}", data_dir=tmp_path, beat=0.2, worker_drain=1.0)
    async with api.open(settings=settings) as opened:
        yield opened


@pytest.fixture
async def worker(broker: Broker, binary: str) -> AsyncIterator[Worker]:
    """A worker with the fake Hermes; nothing of it is left afterwards."""
    trace = uuid4().hex
    runner = HermesRunner(HermesSettings(bin=binary), environ={**os.environ, "TRACE": trace})
    worker = Worker(broker, runners={"hermes": runner}, sweep=False)
    task = asyncio.create_task(worker.run())
    yield worker
    worker.drain()
    await asyncio.wait_for(task, 30)
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


async def _create(broker: Broker, message: str, **more: Any) -> str:
    record, _ = await broker.runs.create(RunRequest(input=RunInput(message=message, **more)))
    return record.run_id


async def _run(broker: Broker, message: str, **more: Any) -> list[StreamEntry]:
    run_id = await _create(broker, message, **more)
    async with asyncio.timeout(30):
        return [entry async for entry in broker.stream(run_id)]


def _text(entries: list[StreamEntry]) -> str:
    return "".join(e.fields["text"] for e in entries if e.type == "message.delta")


async def test_the_request_reaches_the_command_and_the_workers_secrets_do_not(
    broker: Broker, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = "ECHO --help -q 'single' \"double\" $(x)\nline two\u2028end"
    entries = await _run(broker, prompt, model="-m", toolsets=["a", "b"], max_turns=4)
    assert entries[-1].type == "final"
    seen = json.loads(_text(entries))
    assert seen["prompt"] == prompt
    assert {"--model=-m", "--toolsets=a,b", "--max-turns=4", "--yolo"} <= set(seen["argv"])
    assert "RUNCAST_REDIS_URL" not in seen["env"]
    assert entries[-1].fields["hermes_session_id"] == "s1"
    assert entries[-1].fields["usage"]["input_tokens"] == 10


async def test_the_fence_does_not_wait_for_hermes_to_end(broker: Broker, worker: Worker, tmp_path: Path) -> None:
    go = tmp_path / "go"
    entries = await _run(broker, f"LINGER {go}")
    assert entries[-1].type == "final"
    assert worker.running == 1
    go.touch()
    await eventually(lambda: worker.running == 0)
    assert go.with_suffix(".gone").exists(), "it was left to end by itself, not stopped"


async def test_a_cancelled_run_leaves_no_process_and_keeps_its_text(broker: Broker, worker: Worker) -> None:
    run_id = await _create(broker, "HANG")
    types = []
    async for entry in broker.stream(run_id):
        types.append(entry.type)
        if entry.type == "tool.started":
            await broker.runs.cancel(run_id)
    assert types[-1] == "cancelled"
    assert types.count("tool.failed") == 1
    fence = (await broker.runs.get(run_id)).outcome
    assert fence is not None
    assert fence["item"]["partial"]["content"][0] == {"type": "text", "text": "partial "}
    assert fence["item"]["hermes_session_id"] == "s1"
    await eventually(lambda: worker.running == 0, 15)


@pytest.mark.parametrize(
    ("message", "code", "partial"),
    [
        ("NORESULT 0", "no_result", True),
        ("NORESULT 1", "hermes_failed", True),
        ("UNCONFIGURED", "not_configured", False),
        ("EMPTY", "empty_reply", False),
    ],
)
async def test_failures(broker: Broker, worker: Worker, message: str, code: str, partial: bool) -> None:
    fence = (await _run(broker, message))[-1]
    assert (fence.type, fence.fields["code"]) == ("failed", code)
    assert bool(fence.fields["partial"]) is partial
    assert "message.delta" in (e.type for e in await _run(broker, message)) or not partial


@pytest.mark.parametrize(
    ("message", "code"),
    [("nul \0 inside", "invalid_prompt"), ("x" * 200_000, "prompt_too_long")],
)
async def test_a_prompt_that_no_argument_can_carry_is_refused(
    broker: Broker, worker: Worker, message: str, code: str
) -> None:
    fence = (await _run(broker, message))[-1]
    assert (fence.type, fence.fields["code"]) == ("failed", code)


async def test_approvals_that_nobody_could_give_are_refused(broker: Broker, worker: Worker) -> None:
    assert (await _run(broker, "ECHO", approvals="ask"))[-1].fields["code"] == "approvals_unavailable"


async def test_a_line_of_five_megabytes_is_split_into_items_that_fit(broker: Broker, worker: Worker) -> None:
    entries = await _run(broker, "BIG")
    assert _text(entries) == "é" * (5 << 19)
    assert entries[-1].type == "final"
    assert all(len(e.data) <= broker.settings.item_max_bytes for e in entries)


async def test_a_hermes_that_is_not_there(broker: Broker) -> None:
    runner = HermesRunner(HermesSettings(bin="/nowhere/hermes"))
    with pytest.raises(RunnerFailed) as failed:
        await runner.run(_context("PLAIN", []))
    assert failed.value.code == "hermes_not_found"
    assert "HERMES_BIN" in failed.value.message


class _Slow(list[Any]):
    """Takes items only while open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()

    async def publish(self, item: Item | Raw) -> None:
        await self.open.wait()
        self.append(item)


def _context(message: str, emitted: list[Any]) -> RunContext:
    async def publish(item: Item | Raw) -> None:
        if isinstance(emitted, _Slow):
            await emitted.publish(item)
        else:
            emitted.append(item)

    request = RunRequest(input=RunInput(message=message))
    return RunContext(run_id="r", attempt=1, request=request, session_id=None, settings=Settings(), publish=publish)


async def test_hermes_is_read_no_faster_than_its_items_are_taken(binary: str, tmp_path: Path) -> None:
    """4 MB of output; nothing is taken: Hermes stands still in its pipe, and goes on when something is."""
    slow = _Slow()
    written = tmp_path / "written"
    context = _context(f"FLOOD {written}", slow)
    running = asyncio.create_task(HermesRunner(HermesSettings(bin=binary)).run(context))
    await asyncio.sleep(1.0)
    assert slow == []
    assert not written.exists()
    slow.open.set()
    assert isinstance(await asyncio.wait_for(running, 20), Final)
    assert len([i for i in slow if isinstance(i, MessageDelta)]) == 20_000
    assert written.exists()
    await context.clean_up()


async def test_a_hurried_cleanup_kills_without_grace(binary: str) -> None:
    context = _context("HANG", [])
    running = asyncio.create_task(HermesRunner(HermesSettings(bin=binary, grace=60)).run(context))
    await eventually(lambda: context.hermes_session_id is not None)
    context.hurry = True
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(30):
        await context.clean_up()


@pytest.mark.parametrize(
    ("name", "value"), [("HERMES_MODE", "telepathy"), ("HERMES_GRACE", "1"), ("HERMES_STREAM_ARGS", "'open")]
)
def test_settings_that_are_wrong_say_so(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=name.removeprefix("HERMES_").lower()):
        HermesSettings()


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BIN": "/opt/hermes", "STREAM_ARGS": "--a 'b c'", "GRACE": "9", "SILENCE": "30"}.items():
        monkeypatch.setenv(f"HERMES_{name}", value)
    settings = HermesSettings()
    assert (settings.bin, settings.stream_args, settings.grace, settings.silence) == ("/opt/hermes", "--a 'b c'", 9, 30)


def test_leftovers_of_a_mark_that_nobody_has() -> None:
    assert leftovers.end(uuid4().hex, 5.0) == 0
