"""Runs of the real Hermes that are ended by force, several at once: what is left of them, and what their fences say.

Every run has processes that are found by an environment variable of its own (``RUN_TRACE``), whatever became of them;
in mode ``api`` the runs of one runner share it, as they share a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from broker import api
from broker.api import Broker, StreamEntry
from broker.merge import text_of
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.e2e.hermes import environ_of, pids, processes, working
from tests.e2e.processes import Worker as WorkerProcess
from tests.e2e.processes import environment
from tests.fake_model import BEFORE_TOOL, FakeModel
from tests.servers import RedisServer, eventually
from workers.hermes.runner import HermesRunner
from workers.hermes.settings import HermesSettings

__all__ = ["Scenario", "Stage", "expected", "fates", "killed_workers", "scenarios"]

GRACE = 5.0
_STARTED = 120.0
"""Seconds until a run has come to where it is to be ended, on a busy machine."""
_GONE = 20.0
"""Seconds from a fence until nothing is left: the grace, and what it takes to notice."""
_AT_ONCE = 3
"""Runs that start at the same time: a start takes some seconds of a processor."""
_LINE = "This is a whole line of it."
_SERVER = "api_listener.py"


@dataclass(frozen=True)
class Scenario:
    """``at``: where the run is when it is ended (``started``, ``asked``: the model has the request, ``text``,
    ``tool``); ``act``: how (``cancel``, ``kill``: SIGKILL of Hermes, nothing: the worker does).

    ``code`` and ``partial`` are of the fence; ``partial`` is how it begins.
    """

    prompt: str
    at: str
    act: str
    code: str
    partial: str = ""
    settings: dict[str, float] = field(default_factory=dict)
    deadline: float | None = None


def _in_tool(act: str, code: str) -> Scenario:
    return Scenario("Start a SLEEPTOOL", "tool", act, code, BEFORE_TOOL.strip())


def _stalled(code: str, **more: Any) -> Scenario:
    return Scenario("Answer and STALL", "text", "", code, _LINE, **more)


_LIMITS = {"silence": 25.0, "timeout": 40.0}
_ALL = {
    "silence": _stalled("hermes_silent", settings=_LIMITS),
    "timeout": Scenario("Be ENDLESS", "text", "", "hermes_timeout", "Line 0.", settings=_LIMITS),
    "deadline": _stalled("deadline", deadline=40.0),
    "cancel in a tool": _in_tool("cancel", "cancelled"),
    "cancel before the first token": Scenario("Be MUTE", "asked", "cancel", "cancelled"),
    "cancel at the start": Scenario("Say something PLAIN", "started", "cancel", "cancelled"),
    "Hermes killed in a tool": _in_tool("kill", "hermes_died"),
}
_SOME = ("cancel in a tool", "Hermes killed in a tool")
"""What every test run ends, and what there is in mode ``quiet``."""


def scenarios(modes: tuple[str, ...], deadline: str, *, some: bool = False) -> list[tuple[str, str]]:
    """Mode and scenario: all of them in each mode that streams. ``deadline``: the mode that has a run with one, which
    is stopped as by a cancel. ``some``: those that are no long test."""
    chosen = [(mode, name) for name in _ALL for mode in modes if name in _SOME or not (some or mode == "quiet")]
    return [(mode, name) for mode, name in chosen if name != "deadline" or mode == deadline]


def expected(mode: str, name: str) -> str:
    scenario = _ALL[name]
    return f"{scenario.code}, said: {'' if mode == 'quiet' else scenario.partial}"


class Stage:
    """A worker in this process with a runner for each run, so that each has its own settings and processes."""

    def __init__(self, broker: Broker, binary: str, model: FakeModel, home: Path) -> None:
        self.broker, self.model = broker, model
        self._binary, self._home = binary, home
        self.traces: dict[str, str] = {}
        self.runners: dict[str, HermesRunner] = {}

    def runner(self, mode: str, name: str) -> str:
        """The name of the runner for that run. The API server of a run that is killed is nobody else's."""
        scenario = _ALL[name]
        key = f"{mode}.{name.replace(' ', '-')}"
        if mode == "api" and scenario.act != "kill":
            key = "api.limits" if scenario.settings else "api.stops"
        if key not in self.runners:
            trace = self.traces[key] = uuid4().hex
            settings: dict[str, Any] = dict(scenario.settings)
            made = HermesSettings(bin=self._binary, mode=mode, grace=GRACE, bridge_handshake=_STARTED, **settings)
            self.runners[key] = HermesRunner(made, environ=environ_of(self._home, trace))
        return key

    async def fate(self, mode: str, name: str, starting: asyncio.Semaphore) -> str:
        """Run it, end it, and tell how it ended once nothing of it is left."""
        scenario, runner = _ALL[name], self.runner(mode, name)
        trace, prompt = self.traces[runner], f"{uuid4().hex[:8]}: {scenario.prompt}"
        async with starting:
            request = RunRequest(input=RunInput(message=prompt), runner=runner, deadline_s=scenario.deadline)
            run_id = (await self.broker.runs.create(request))[0].run_id
            await self._reached(scenario.at, run_id, prompt, trace)
        if scenario.act == "cancel":
            await self.broker.runs.cancel(run_id)
        elif scenario.act == "kill":
            os.kill(_hermes(trace), signal.SIGKILL)
        told = await _told(self.broker, run_id, scenario.partial)
        await eventually(lambda: not _run_processes(trace, scenario), _GONE, step=0.2)
        return told

    async def _reached(self, at: str, run_id: str, prompt: str, trace: str) -> None:
        """Once the run is there."""
        there: dict[str, Callable[[], object]] = {
            "asked": lambda: any(prompt in asked for asked in self.model.prompts),
            "text": lambda: any(prompt in reply.prompt and reply.pieces for reply in self.model.replies),
            "tool": lambda: pids(trace, "sleep 60", without="--query"),
        }
        if at == "started":
            async for entry in self.broker.stream(run_id):
                if entry.type == "event" and entry.fields["name"] == "run.started":
                    return
        await eventually(there[at], _STARTED, step=0.2)


def _hermes(trace: str) -> int:
    """The process that Hermes is, in any mode: not its supervisor, not a tool."""
    [pid] = {pid for mark in ("--query=", "bridge.py", _SERVER) for pid in pids(trace, mark, without="supervisor.py")}
    return pid


def _run_processes(trace: str, scenario: Scenario) -> list[str]:
    """Of a run whose server goes on: its tool."""
    living = list(processes(trace).values())
    if scenario.act != "kill" and any(_SERVER in command for command in living):
        return [command for command in living if "sleep 60" in command and _SERVER not in command]
    return living


async def _told(broker: Broker, run_id: str, partial: str) -> str:
    """The end of the run: one fence, its code, and whether what was said is kept (else all of that)."""
    async with asyncio.timeout(_STARTED):
        entries = [entry async for entry in broker.stream(run_id)]
    fences = [entry for entry in entries if entry.type in ("final", "failed", "cancelled")]
    assert fences == entries[-1:], [entry.type for entry in entries]
    lost = fences[0].fields.get("code") == "worker_lost"  # then nobody was there to say it
    assert lost or not _unended(entries), "calls of tools have an end"
    fence = fences[0]
    said = text_of(fence.fields["partial"]).strip() if fence.fields.get("partial") else ""
    kept = partial if partial and said.startswith(partial) else said
    return f"{fence.fields.get('code', fence.type)}, said: {kept}"


def _unended(entries: list[StreamEntry]) -> set[str]:
    ended = {entry.fields["call_id"] for entry in entries if entry.type in ("tool.completed", "tool.failed")}
    return {entry.fields["call_id"] for entry in entries if entry.type == "tool.started"} - ended


async def fates(stage: Stage, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """How all of them ended. Nothing is left of any."""
    starting = asyncio.Semaphore(_AT_ONCE)
    for mode, name in pairs:
        stage.runner(mode, name)
    async with working(stage.broker, stage.runners, concurrency=len(pairs)):
        told = await asyncio.gather(*(stage.fate(mode, name, starting) for mode, name in pairs))
    assert [processes(trace) for trace in stage.traces.values() if processes(trace)] == []
    return dict(zip(pairs, told, strict=True))


# The worker itself is killed.


async def killed_workers(
    modes: tuple[str, ...], redis: RedisServer, binary: str, model: FakeModel, home: Path, directory: Path
) -> dict[str, list[str]]:
    """For each mode how two runs ended whose worker was killed: one in its answer, one in a tool."""
    starting = asyncio.Semaphore(2)

    async def one(mode: str) -> list[str]:
        (directory / mode).mkdir()
        return await _killed_worker(mode, redis, binary, model, home, directory / mode, starting)

    return dict(zip(modes, await asyncio.gather(*map(one, modes)), strict=True))


async def _killed_worker(
    mode: str,
    redis: RedisServer,
    binary: str,
    model: FakeModel,
    home: Path,
    directory: Path,
    starting: asyncio.Semaphore,
) -> list[str]:
    trace, namespace = uuid4().hex, f"t{uuid4().hex[:12]}"
    hermes = {"HERMES_BIN": binary, "HERMES_MODE": mode, "HERMES_GRACE": str(GRACE), "HERMES_HOME": str(home)}
    env = {**environment(redis.url, namespace), **hermes, "HOME": str(home), "RUN_TRACE": trace}
    settings = Settings(redis_url=redis.url, namespace=namespace, data_dir=directory, lease=2.0, beat=0.4, sweep=0.4)
    env |= {"RUNCAST_LEASE": "2.0", "RUNCAST_BEAT": "0.4"}
    async with api.open(settings=settings) as broker, contextlib.AsyncExitStack() as stack:
        worker = WorkerProcess(env, directory / "worker.log")
        stack.callback(worker.kill)
        async with starting:
            runs = await _at_work(broker, model, mode, trace)
        worker.popen.kill()
        await eventually(lambda: not _of_hermes(trace), _GONE, step=0.2)
        sweeping = asyncio.create_task(broker.sweeper.run_forever())
        stack.callback(sweeping.cancel)
        return [await _told(broker, run_id, "" if mode == "quiet" else partial) for run_id, partial in runs]


def _of_hermes(trace: str) -> list[str]:
    return [command for command in processes(trace).values() if "ops.cli" not in command]


async def _at_work(broker: Broker, model: FakeModel, mode: str, trace: str) -> list[tuple[str, str]]:
    """Two runs (one in mode ``quiet``, which has no text before its end), come to where their worker is killed."""
    runs = []
    for prompt, partial in [("Start a SLEEPTOOL", BEFORE_TOOL.strip()), ("Answer and STALL", _LINE)]:
        if mode != "quiet" or partial != _LINE:
            request = RunRequest(input=RunInput(message=prompt))
            runs.append(((await broker.runs.create(request))[0].run_id, partial))
    await eventually(lambda: pids(trace, "sleep 60", without="--query"), _STARTED, step=0.2)
    for run_id, partial in runs if mode != "quiet" else []:
        await _said(broker, run_id, partial)
    return runs


async def _said(broker: Broker, run_id: str, partial: str) -> None:
    """Once all of ``partial`` is in the log: what a worker read last is lost with it."""
    said = ""
    async with asyncio.timeout(_STARTED):
        async for entry in broker.stream(run_id):
            said += entry.fields["text"] if entry.type == "message.delta" else ""
            if said.strip().startswith(partial):
                return
