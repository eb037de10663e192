"""A worker process that kills or freezes itself at a chosen moment: ``python -m tests.tasks.hands ACT PLACE LOG``.

A place is a moment between two effects of the task's worker: before it tells the store, the checkpoint, the stream, and
makes a step's run, and after that. They are counted from 1; a name stands for the first of that name. ``ACT`` is
``kill``, ``freeze`` or ``live``; the log gets a line for each place, each execution, and each result that is recorded.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from broker import api
from broker.items import Event, Final, MessageDelta
from broker.settings import Settings
from tests.tasks.story import PLAN
from workers.runner import RunContext, RunnerFailed
from workers.tasks import driver
from workers.tasks.checkpoints import Checkpoint
from workers.tasks.runner import task_worker
from workers.worker import Worker


class Log:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def line(self, text: str) -> None:
        os.write(self._file, f"{text}\n".encode())


class Places:
    """Counts the moments, and acts at one of them."""

    def __init__(self, act: str, place: str, log: Log) -> None:
        self._act, self._place, self._log = act, place, log
        self._count = 0

    def reach(self, name: str) -> None:
        self._count += 1
        self._log.line(f"place {self._count} {name}")
        if self._place in (str(self._count), name) and self._act != "live":
            self._place = ""
            os.kill(os.getpid(), signal.SIGKILL if self._act == "kill" else signal.SIGSTOP)
            self._log.line("awake")


class Hand:
    """The runner of the story: says its instruction in capitals; fails where that says so."""

    def __init__(self, log: Log) -> None:
        self.name = "hand"
        self._log = log

    async def run(self, context: RunContext) -> Final:
        part = context.request.component
        self._log.line(f"begin {part} {context.run_id} {context.attempt}")
        said = context.request.input.message.splitlines()[-1]
        if part == "plan":
            said = PLAN
        elif "FAIL" in said:
            raise RunnerFailed("no_luck", "it did not work")
        await context.emit(MessageDelta(text=said if part == "plan" else said.upper()))
        return Final()


def _watch(places: Places, log: Log) -> None:
    """Put a place around each effect. What is called stays what it is."""

    def around(target: Any, name: str, label: Callable[..., str | None]) -> None:
        inner = getattr(target, name)

        async def outer(self: Any, *args: Any, **options: Any) -> Any:
            said = label(*args, **options)
            if said is None:
                return await inner(self, *args, **options)
            places.reach(f"before {said}")
            result = await inner(self, *args, **options)
            if said.startswith("run "):
                places.reach(f"after {said}")
            return result

        setattr(target, name, outer)

    from broker.runs import Runs
    from broker.tasks import Tasks

    around(Tasks, "commit", lambda task, change, owner: f"store {change.what}")
    around(driver.TaskDriver, "_write", lambda task: f"checkpoint {task.history[-1].what}")
    around(RunContext, "emit", lambda item: f"stream {item.name}" if _is_told(item) else None)
    around(Runs, "create", lambda request, **_: f"run {request.component}")
    written = Checkpoint.write

    def write(self: Checkpoint, task: Any) -> None:
        written(self, task)
        if task.history[-1].what == "step_completed":
            log.line(f"recorded step:{task.history[-1].step}")

    Checkpoint.write = write  # type: ignore[method-assign]


def _is_told(item: object) -> bool:
    return isinstance(item, Event) and item.name.startswith("task.")


async def main(act: str, place: str, path: str) -> None:
    log = Log(path)
    _watch(Places(act, place, log), log)
    async with api.open(settings=Settings()) as broker:
        both: list[Awaitable[None]] = [
            Worker(broker, runners={"hand": Hand(log)}).run(),
            task_worker(broker).run(),
        ]
        log.line("here")
        await asyncio.gather(*both)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:4]))
