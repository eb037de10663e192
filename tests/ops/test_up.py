"""``runcast up``: everything in one terminal, and nothing left of it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest

from tests.ops.conftest import Command, Process


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """``up`` on a data directory of its own, with an empty home."""
    home = tmp_path / "home"
    home.mkdir()
    return {
        "RUNCAST_REDIS_URL": "embedded:",
        "RUNCAST_DATA_DIR": str(tmp_path / "up"),
        "HOME": str(home),
        "RUNCAST_WORKER_DRAIN": "2",
    }


def children_of(pid: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found.add(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: set[int], timeout: float = 20.0) -> None:
    end = time.monotonic() + timeout
    while left := {pid for pid in pids if alive(pid)}:
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.02)


def page_of(process: Process) -> str:
    return process.until(re.compile(r"page +(http://\S+/)\n"))[1]


def test_a_demo_and_out(runcast: Command, own: dict[str, str]) -> None:
    process = runcast.start("up", "--port", "0", "--exit-after-demo", **own)
    result = process.end(timeout=60)
    assert result.code == 0, result.err
    assert "agent    scripted" in result.out
    assert "✓ clock" in result.out
    assert "completed · " in result.out
    assert "Traceback" not in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_a_page_and_stops_with_all_it_started(
    runcast: Command, own: dict[str, str], number: signal.Signals
) -> None:
    process = runcast.start("up", "--port", "0", "--no-demo", **own)
    page = page_of(process)
    process.until("Ctrl-C stops everything")
    with urllib.request.urlopen(page, timeout=10) as answer:
        assert answer.status == 200
        assert b"<html" in answer.read().lower()
    children = children_of(process.popen.pid)
    assert len(children) >= 2
    process.signal(number)
    result = process.end()
    assert result.code == 0
    assert "Traceback" not in result.err
    gone(children)


def another_terminal(process: Process) -> dict[str, str]:
    """The environment of one in which the printed ``export`` lines were entered, and nothing else."""
    lines = re.findall(r"^ +export (.+)$", process.until(re.compile(r"(?s).*Ctrl-C stops everything"))[0], re.MULTILINE)
    assert lines
    told = {name: value for line in lines for name, _, value in [shlex.split(line)[0].partition("=")]}
    return {"RUNCAST_REDIS_URL": "", "RUNCAST_DATA_DIR": "", **told}


def test_the_next_commands_work_as_they_are_printed(runcast: Command, own: dict[str, str], tmp_path: Path) -> None:
    own = {**own, "RUNCAST_DATA_DIR": str(tmp_path / "it's up")}
    process = runcast.start("up", "--port", "0", "--no-demo", **own)
    there = another_terminal(process)
    assert there["RUNCAST_DATA_DIR"] == own["RUNCAST_DATA_DIR"], "files of runs are there, not in the store alone"
    script = ("--runner", "scripted", "--metadata", "script=tokens=2")
    result = runcast.start("run", "x", *script, **there).end(60)
    assert (result.code, result.out) == (0, "w1 w2 \n"), result.err
    process.signal(signal.SIGINT)
    assert process.end().code == 0


def test_a_second_interrupt_waits_for_no_run_and_leaves_none_open(runcast: Command, own: dict[str, str]) -> None:
    process = runcast.start("up", "--port", "0", "--no-demo", **own)
    there = another_terminal(process)
    arguments = ("--runner", "scripted", "--metadata", "script=tokens=1000 rate=20")
    watching = runcast.start("run", "x", *arguments, "--run-id", "r1", **there)
    watching.until("w2 ")
    began = time.monotonic()
    process.signal(signal.SIGINT)
    time.sleep(1)
    process.signal(signal.SIGINT)
    assert process.end().code == 0
    assert time.monotonic() - began < 25
    result = watching.end()
    assert result.code == 1
    assert "worker_stopped" in result.err


def test_killed_it_leaves_nothing_behind(runcast: Command, own: dict[str, str]) -> None:
    process = runcast.start("up", "--port", "0", "--no-demo", **own)
    process.until("Ctrl-C stops everything")
    children = children_of(process.popen.pid)
    process.popen.kill()
    process.popen.wait()
    gone(children)


def test_a_child_that_dies_is_started_again(runcast: Command, own: dict[str, str]) -> None:
    process = runcast.start("up", "--port", "0", "--no-demo", **own)
    page = page_of(process)
    process.until("Ctrl-C stops everything")
    for child in children_of(process.popen.pid):
        if b"serve" in (Path("/proc") / str(child) / "cmdline").read_bytes():
            os.kill(child, signal.SIGKILL)
    process.until("starting it again", err=True)
    end = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(page + "readyz", timeout=5):
                break
        except OSError:
            assert time.monotonic() < end
    process.signal(signal.SIGINT)
    assert process.end().code == 0


def test_a_port_in_use_is_avoided_with_a_notice_or_refused_where_it_was_chosen(
    runcast: Command, own: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        refused = runcast.piped("", "up", "--port", port, "--no-demo", **own)
        assert refused.code == 6
        assert "in use" in refused.err
        process = runcast.start("up", "--no-demo", **own, RUNCAST_PORT=port)
        process.until(f"port {port} is in use", err=True)
        assert f":{port}/" not in page_of(process)
        process.signal(signal.SIGINT)
        assert process.end().code == 0
