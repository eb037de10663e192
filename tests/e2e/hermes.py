"""Where the real Hermes is, a home for it, a worker that calls it, and what is left of its processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.api import Broker
from tests.conftest import missing
from tests.fake_model import FakeModel
from workers.hermes.runner import HermesRunner
from workers.worker import Worker

__all__ = ["BUILDS", "NEEDS_LINUX", "environ_of", "hermes_binary", "make_home", "pids", "processes", "working"]

BUILDS = {"0.19.0": "RUNCAST_TEST_HERMES_019", "0.22.2": "RUNCAST_TEST_HERMES"}
"""The variable that names the program of each build."""
NEEDS_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc")


def hermes_binary(variable: str = "RUNCAST_TEST_HERMES") -> str:
    """The program that the variable names. Skips without it, and fails where ``CI=true``."""
    path = os.environ.get(variable, "")
    if not path:
        missing(f"{variable} does not name a Hermes program")
    assert Path(path).is_file(), f"{variable}={path}: there is no such file"
    return path


def make_home(home: Path, model: FakeModel) -> Path:
    (home / "config.yaml").write_text(model.config())
    return home


def environ_of(home: Path, trace: str) -> dict[str, str]:
    """For a Hermes in that home, whose processes are found by their trace, whatever becomes of them."""
    return {**os.environ, "HERMES_HOME": str(home), "HOME": str(home), "RUN_TRACE": trace}


@asynccontextmanager
async def working(
    broker: Broker, runners: Mapping[str, HermesRunner], *, concurrency: int = 4
) -> AsyncIterator[Worker]:
    """A worker in this process, which drains at the end."""
    worker = Worker(broker, runners=dict(runners), sweep=False, concurrency=concurrency)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.drain()
        await asyncio.wait_for(task, 60)


def processes(trace: str) -> dict[int, str]:
    """The living processes that carry ``RUN_TRACE=trace`` in their environment, with their command lines."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"RUN_TRACE={trace}".encode() not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                continue
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue  # it ended while we looked
        if command:
            found[int(pid)] = command
    return found


def pids(trace: str, *words: str, without: str = "\0") -> list[int]:
    """Of those the ones whose command line has all ``words`` and not ``without``."""
    return [p for p, c in processes(trace).items() if all(w in c for w in words) and without not in c]
