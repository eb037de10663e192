"""The bench in its short form: counts are right and nothing is lost. No time is asserted, and no peer is needed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import SCRIPTS, load
from bench.results import Result
from tests.conftest import missing
from tests.servers import redis_binary

ROOT = Path(__file__).resolve().parent.parent


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one short run of all rows found."""
    if redis_binary() is None:
        missing("there is no redis-server on this machine (Debian: apt install redis-server)")
    target = tmp_path_factory.mktemp("bench") / "results.json"
    done = bench("--short", "--json", str(target))
    assert target.exists(), done.stderr
    found: dict[str, Any] = json.loads(target.read_text())["rows"]
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_row_counts_right_and_loses_nothing(rows: dict[str, Any], name: str):
    if name == "P12" and not (shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")):
        missing("there is no nginx on this machine (Debian: apt install nginx-light)")
    assert name in rows, "the bench ended before this row"
    wrong = [check["what"] for check in rows[name]["checks"] if not check["ok"]]
    assert not wrong
    assert rows[name]["checks"], rows[name]["notes"]


def test_each_row_has_a_script_of_its_own():
    assert [load(name).name for name in SCRIPTS] == [f"P{n}" for n in range(1, len(SCRIPTS) + 1)]


def test_an_unknown_row_is_refused_with_the_known_ones():
    done = bench("P99")
    assert done.returncode == 2
    assert "P99" in done.stderr
    assert "P13" in done.stderr


def test_a_check_must_hold_every_time_that_it_is_made():
    result = Result()
    for ok in (True, False, True):
        result.check("in order", ok)
    assert not result.sound
    assert len(result.checks) == 1


def test_a_missed_ratio_is_no_failure():
    result = Result()
    result.at_most("a", 2.0, 1.0)
    result.at_least("b", 1.0, 2.0)
    assert [ratio.met for ratio in result.ratios] == [False, False]
    assert result.sound
