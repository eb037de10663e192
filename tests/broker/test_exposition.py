"""Processes that share a port are read as one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from broker.exposition import exposition, shared_by_processes

_COUNT = "from broker import metrics; metrics.CREATED.inc(3); metrics.VIEWERS.inc(2); metrics.APPEND_SECONDS.observe(1)"
_SHOW = "from broker.exposition import exposition; print(exposition().decode())"


def shown(*programs: str) -> str:
    done = subprocess.run([sys.executable, "-c", "\n".join(programs)], capture_output=True, text=True, check=True)
    return done.stdout


def value(text: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def test_the_dead_have_counted_and_hold_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    shown(_COUNT)
    shown(_COUNT)
    text = shown(_COUNT, _SHOW)
    assert value(text, "runcast_runs_created_total") == 9
    assert value(text, "runcast_append_seconds_count") == 3
    assert value(text, "runcast_viewers") == 2, "of the one that lives"
    assert len(list(tmp_path.glob("gauge_live*"))) <= 2
    assert "pid=" not in text


def test_the_directory_is_there_while_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    with shared_by_processes():
        directory = os.environ["PROMETHEUS_MULTIPROC_DIR"]
        shown(_COUNT)
        assert list(Path(directory).glob("*.db"))
    assert not Path(directory).exists()
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ


def test_the_operators_directory_stays_his(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    with shared_by_processes():
        assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == str(tmp_path)
    assert tmp_path.exists()


def test_one_process_tells_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    text = exposition().decode()
    assert "process_resident_memory_bytes" in text
    assert "# TYPE runcast_viewers gauge" in text
