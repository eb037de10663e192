"""One task with all kinds of decisions, the people who decide, and the processes that work on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker.api import Broker
from broker.errors import Conflict, StoreUnavailable
from broker.settings import Settings
from broker.task_decisions import Approve, Edit, Reject, Retry
from broker.task_plan import TaskRequest
from tests.servers import die_with_parent, eventually

PLAN = json.dumps(
    {
        "steps": [
            {"title": "One", "instruction": "say one", "risk": "low"},
            {"title": "Two", "instruction": "say two", "risk": "high"},
            {"title": "Three", "instruction": "say three", "risk": "high"},
            {"title": "Four", "instruction": "FAIL", "risk": "low"},
            {"title": "Five", "instruction": "say five", "risk": "critical"},
        ]
    }
)
OUTCOME = [
    ("completed", "SAY ONE", None, None, 1),
    ("completed", "SAY TWO", "ann", "fine", 1),
    ("completed", "SAY 3", "bob", None, 2),
    ("completed", "SAY FOUR", None, None, 2),
    ("rejected", None, None, "never", 1),
]
"""State, result, who approved, the reason, the revision of each step: what becomes of it, undisturbed or not."""


def settings_for(url: str, namespace: str, directory: Path) -> Settings:
    return Settings(
        redis_url=url,
        namespace=namespace,
        data_dir=directory,
        partitions=4,
        block=0.2,
        beat=0.2,
        lease=1.0,
        sweep=0.1,
        requeue_after=0.5,
    )


class People:
    """They look at the task as it is told, and decide what is to be decided, each thing until it shows."""

    def __init__(self, broker: Broker, task_id: str) -> None:
        self.broker, self.task_id = broker, task_id

    async def until_ended(self, timeout: float = 60.0) -> dict[str, Any]:
        end = time.monotonic() + timeout
        while True:
            with contextlib.suppress(Conflict, StoreUnavailable):  # decided already, and not told yet; or Redis is away
                task = await self.broker.tasks.view(self.task_id)
                if task["run_status"] in ("completed", "failed", "cancelled"):
                    return task
                assert time.monotonic() < end, json.dumps(task, indent=1)
                await self._decide(task)
            assert time.monotonic() < end + 10, "Redis stays away"
            await asyncio.sleep(0.02)

    async def _decide(self, task: dict[str, Any]) -> None:
        n = task["current_step"]
        if n is None or task["status"] not in ("waiting", "halted"):
            return
        revision = task["steps"][n - 1]["revision"]
        match (task["status"], n, revision):
            case ("waiting", 2, _):
                await self._say(n, Approve(reason="fine", by="ann"))
            case ("waiting", 3, 1):
                await self._say(n, Edit(instruction="say 3", by="bob", revision=1))
            case ("waiting", 3, _):
                await self._say(n, Approve(by="bob", revision=2))
            case ("halted", 4, 1):
                await self._say(n, Edit(instruction="say four", by="bob", revision=1))
            case ("halted", 4, _):
                await self._say(None, Retry(by="bob"))
            case ("waiting", 5, _):
                await self._say(n, Reject(reason="never", then="continue", by="ann"))

    async def _say(self, n: int | None, decision: Any) -> None:
        await self.broker.tasks.decide(self.task_id, decision.change(n, "", time.time()))


class HandProcess:
    """``tests.tasks.hands`` in a process."""

    def __init__(self, settings: Settings, log: Path, act: str = "live", place: str = "") -> None:
        self.log = log
        given = {f"RUNCAST_{name.upper()}": str(getattr(settings, name)) for name in settings.model_fields_set}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RUNCAST_", "HERMES_"))}
        root = str(Path(__file__).parents[2])
        with log.with_suffix(".out").open("ab") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "tests.tasks.hands", act, place, str(log)],
                env={**kept, **given, "PYTHONPATH": root},
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=die_with_parent,
            )

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def frozen(self) -> bool:
        stat = Path(f"/proc/{self.popen.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    async def here(self) -> HandProcess:
        await eventually(lambda: "here" in self.lines or self.popen.poll() is not None, 30)
        return self

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


@contextlib.contextmanager
def hands(*processes: HandProcess) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()


async def new_task(broker: Broker) -> str:
    request = TaskRequest(goal="Count to five.", runner="hand", planner="hand", by="ann")
    return (await broker.tasks.create(request))[0].run_id


def outcome(task: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(s["state"], s["result"], s["approved_by"], s["reason"], s["revision"]) for s in task["steps"]]


def begun(lines: list[str]) -> list[str]:
    """The parts of the task in the order in which they were executed; those of a run's further attempt too."""
    return [line.split()[1] for line in lines if line.startswith("begin ")]


def run_after_its_result(lines: list[str]) -> list[str]:
    """Steps that were executed though their result was on the disk already. There must be none."""
    recorded: set[str] = set()
    wrong = []
    for line in lines:
        word, *rest = line.split()
        if word == "recorded":
            recorded.add(rest[0])
        elif word == "begin" and rest[0] in recorded:
            wrong.append(line)
    return wrong
