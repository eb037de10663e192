"""Fixtures of the command's tests: the command in this process for what needs no signals, and as a real process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from broker import api
from broker.api import Broker
from broker.errors import StoreError
from broker.settings import Settings
from ops.cli import main

T = TypeVar("T")
COMMAND = [sys.executable, "-P", "-m", "ops.cli"]
RUN = """\
{"type":"message.delta","data":{"text":"Hello"}}
{"type":"message.delta","data":{"text":" world"}}
{"type":"tool.started","component_id":"tool:clock","data":{"call_id":"c1","name":"clock","args":{"zone":"UTC"}}}
{"type":"tool.completed","component_id":"tool:clock","data":{"call_id":"c1","name":"clock","result":"12:00"}}
{"type":"usage","data":{"input_tokens":10,"output_tokens":2,"total":{"input_tokens":10,"output_tokens":2}}}
{"type":"final","data":{"message":{"role":"assistant","content":[{"type":"text","text":"Hello world"}]},"rounds":1}}
"""


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Process:
    """The command as a process. ``until`` reads its output up to a piece of text or a pattern, with a deadline."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.popen = subprocess.Popen([*COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
        self._read = {False: b"", True: b""}
        self._matched = {False: 0, True: 0}

    def write(self, text: str) -> None:
        assert self.popen.stdin
        self.popen.stdin.write(text.encode())
        self.popen.stdin.flush()

    def until(self, text: str | re.Pattern[str], *, err: bool = False, timeout: float = 30.0) -> re.Match[str]:
        """Search what came after the last match, and wait for it."""
        pattern = text if isinstance(text, re.Pattern) else re.compile(re.escape(text))
        stream = self.popen.stderr if err else self.popen.stdout
        assert stream
        end = time.monotonic() + timeout
        while True:
            seen = self._read[err].decode(errors="ignore")
            if found := pattern.search(seen, self._matched[err]):
                self._matched[err] = found.end()
                return found
            ready, _, _ = select.select([stream], [], [], max(end - time.monotonic(), 0))
            assert ready, f"no {pattern.pattern!r} in {seen!r}"
            chunk = os.read(stream.fileno(), 4096)
            assert chunk, f"it ended without {pattern.pattern!r}: {seen!r}"
            self._read[err] += chunk

    @property
    def seen(self) -> str:
        return self._read[False].decode(errors="ignore")

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def end(self, timeout: float = 30.0) -> Result:
        """Close stdin, and wait for the end."""
        out, err = self.popen.communicate(timeout=timeout)
        return Result(self.popen.returncode, (self._read[False] + out).decode(), (self._read[True] + err).decode())

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()


class Command:
    """``runcast`` on a store of this test's own."""

    def __init__(self, settings: Settings, environment: dict[str, str], capture: pytest.CaptureFixture[str]) -> None:
        self.settings, self.environment, self._capture = settings, environment, capture
        self._started: list[Process] = []

    def __call__(self, *arguments: str) -> Result:
        """In this process."""
        self._capture.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        out, err = self._capture.readouterr()
        return Result(int(stop.value.code or 0), out, err)

    def start(self, *arguments: str, **environment: str) -> Process:
        """As a process of its own; killed at the end of the test if it is still there."""
        process = Process(arguments, {**self.environment, **environment})
        self._started.append(process)
        return process

    def piped(self, stdin: str, *arguments: str, **environment: str) -> Result:
        process = self.start(*arguments, **environment)
        out, err = process.popen.communicate(stdin.encode(), timeout=30)
        return Result(process.popen.returncode, out.decode(), err.decode())

    def imported(self, run_id: str, text: str = RUN) -> str:
        """A finished run to look at."""
        assert self.piped(text, "import", "--run", run_id).code == 0
        return run_id

    def broker(self, work: Callable[[Broker], Coroutine[Any, Any, T]]) -> T:
        async def opened() -> T:
            async with api.open(settings=self.settings) as broker:
                return await work(broker)

        return asyncio.run(opened())

    def close(self) -> None:
        for process in self._started:
            process.close()


@pytest.fixture
def runcast(
    embedded_dir: Path,
    namespace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Command]:
    own = {
        "RUNCAST_REDIS_URL": f"embedded:{embedded_dir}",
        "RUNCAST_NAMESPACE": namespace,
        "RUNCAST_DATA_DIR": str(tmp_path / "data"),
        "HERMES_BIN": "hermes-that-is-not-there",
        "PYTHONUNBUFFERED": "1",
    }
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    command = Command(Settings(), {**os.environ, **own}, capsys)
    yield command
    command.close()


@pytest.fixture
def worker(runcast: Command) -> Process:
    """A worker on this test's store, reading its queue."""
    process = runcast.start("worker", "--log-level", "warning")

    async def reads(b: Broker) -> None:
        end = time.monotonic() + 30
        while True:
            with contextlib.suppress(StoreError):  # no queue yet
                if await b.store.call(b"XINFO", b"CONSUMERS", b.queue.key, b"workers"):
                    return
            assert time.monotonic() < end
            await asyncio.sleep(0.02)

    runcast.broker(reads)
    return process
