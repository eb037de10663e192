"""The bench in its short form: counts are right and nothing is lost. No time is asserted, and no peer is needed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import peers, report
from bench.__main__ import SCRIPTS, checked, keep, load, main
from bench.lab import Lab
from bench.processes import Missing
from bench.results import Result, Row
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


def row(*, right: bool) -> Row:
    async def run(_: Lab) -> Result:
        result = Result(figures={"µs a frame, runcast": 2.5})
        result.check("every item came", right)
        result.at_most("CPU / C floor", 1.5, 1.8)
        return result

    return Row("P1", "a row", run)


@pytest.mark.parametrize(("right", "code"), [(True, 0), (False, 1)])
def test_a_wrong_count_is_named_and_ends_it_with_1(
    right: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("bench.__main__.load", lambda _: row(right=right))
    assert main(["--short", "p1", "--json", str(tmp_path / "results.json")]) == code
    said = capsys.readouterr().out.splitlines()
    assert said[0] == ("P1   1 counts right · a row" if right else "P1   WRONG every item came · a row")


def test_a_row_that_lacks_something_says_so_and_is_no_failure():
    result = Result(notes=["left out: there is no nginx on this machine"])
    assert checked(row(right=True), result) == "P1   left out: there is no nginx on this machine"
    assert result.sound


def test_some_rows_measured_again_leave_the_others_of_the_same_machine(tmp_path: Path):
    target = tmp_path / "results.json"
    keep({"machine": "a"}, {"P2": {"n": 1}, "P10": {"n": 1}}, target)
    found = keep({"machine": "a"}, {"P10": {"n": 2}, "P1": {"n": 2}}, target)
    assert found["rows"] == {"P1": {"n": 2}, "P2": {"n": 1}, "P10": {"n": 2}}
    assert list(found["rows"]) == ["P1", "P2", "P10"]
    found = keep({"machine": "another"}, {"P1": {"n": 3}}, target)
    assert found == json.loads(target.read_text()) == {"machine": {"machine": "another"}, "rows": {"P1": {"n": 3}}}


def test_the_page_shows_what_was_measured():
    results = json.loads(report.RESULTS.read_text())
    again = "they are made by python -m bench.report"
    assert report.shown(report.PAGE.read_text()) == report.tables(results), again
    assert report.PLOT.read_text() == report.plot(results), again


def test_a_table_tells_what_was_met_missed_and_wrong():
    result = Result(figures={"µs a frame, runcast": 2.5}, notes=["no peer"])
    result.at_most("CPU / Nchan", 1.2345, 0.8)
    result.at_least("× XADD", 4.0, 3.0)
    result.check("in order", False)
    rows = {"P1": {**vars(result), "ratios": [{**vars(r), "met": r.met} for r in result.ratios]}}
    rows["P1"]["checks"] = [vars(check) for check in result.checks]
    said = report.tables({"machine": {"system": "Linux"}, "rows": rows})
    for line in (
        "| P1 | CPU / Nchan | 1.23 | ≤ 0.8 | **missed** |",
        "| P1 | × XADD | 4 | ≥ 3 | met |",
        "| P1 | **wrong:** in order | | all | **wrong** |",
        "- P1: µs a frame, runcast 2.5.",
        "- P1: no peer",
        "- system: Linux",
    ):
        assert line in said.splitlines()


def test_a_plot_has_a_bar_for_each_server_longer_where_more_was_spent():
    figures = {"µs a frame, runcast": 2.0, "µs a frame, C <floor>": 1.5, "µs a frame, langgraph": 240.0, "p50 ms": 3}
    drawn = ElementTree.fromstring(report.plot({"machine": {}, "rows": {"P1": {"figures": figures}}}))
    wide = [float(bar.attrib["width"]) for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert len(wide) == 3
    assert wide == sorted(wide)
    assert [t for t in texts if t in ("C <floor>", "runcast", "langgraph")] == ["C <floor>", "runcast", "langgraph"]


def test_a_peer_that_is_not_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RUNCAST_BENCH_PEERS", str(tmp_path))
    with pytest.raises(Missing, match="RUNCAST_BENCH_PEERS"):
        peers.durable_streams(Lab(tmp_path))
