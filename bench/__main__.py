"""``python -m bench [--short] [ROW…]``: measure, print the table, write ``bench/results.json`` and what docs/ show.

Rows run one after another, and each is printed as it ends. Ctrl-C stops everything that was started; what was
measured so far is kept. Where only some rows are measured the others stay, as long as machine and versions are the
same. Exit code: 0, 1 where a check failed (a count is wrong, or something was lost), 2 for an unknown row, 130 when
stopped. A missed goal is no failure: a machine under load can miss it.

``--short`` is for the counts: small sizes, no peers, a line a row, and nothing is written unless ``--json`` says where.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop

from bench import peers, report
from bench.lab import Lab
from bench.processes import Missing
from bench.results import Result, Row

__all__ = ["SCRIPTS", "main", "measure"]

SCRIPTS = {
    "P1": "p01_fanout",
    "P2": "p02_bursts",
    "P3": "p03_replay",
    "P4": "p04_idle",
    "P5": "p05_many_runs",
    "P6": "p06_publish",
    "P7": "p07_latency",
    "P8": "p08_join",
    "P9": "p09_slow",
    "P10": "p10_commands",
    "P11": "p11_growth",
    "P12": "p12_two_gateways",
    "P13": "p13_merge",
    "P14": "p14_cluster",
    "P15": "p15_late",
}


def load(name: str) -> Row:
    row: Row = importlib.import_module(f"bench.{SCRIPTS[name]}").ROW
    return row


async def measure(row: Row, lab: Lab) -> Result:
    """One row. Where something that it cannot do without is missing, its result says so."""
    try:
        return await row.run(lab)
    except Missing as missing:
        return Result(notes=[f"left out: {missing}"])


class _Status:
    """What is being done, on one line that is written over; nothing where nobody watches."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self.row = ""
        self._began = time.monotonic()

    def tell(self, what: str) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            line = f"{time.monotonic() - self._began:5.0f} s  {self.row}  {what}"
            sys.stderr.write(f"\r\x1b[K{line[:width]}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def machine() -> dict[str, str]:
    """The machine and the versions: what a figure is worth nothing without."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = cpuinfo.read_text().partition("model name")[2].partition(":")[2].partition("\n")[0].strip()
    found = {
        "machine": f"{os.cpu_count()} × {model or platform.machine()}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    found |= {name: version(name) for name in ("runcast", "uvicorn", "uvloop", "httptools", "hiredis", "msgspec")}
    for program, argument in (("redis-server", "--version"), ("nginx", "-v"), ("cc", "--version")):
        path = shutil.which(program) or shutil.which(program, path="/usr/sbin")
        if path is not None:
            said = subprocess.run([path, argument], capture_output=True, text=True, check=False)
            found[program] = (said.stdout or said.stderr).splitlines()[0]
    return found | peers.versions()


def checked(row: Row, result: Result) -> str:
    """One line: the counts alone."""
    wrong = [check.what for check in result.checks if not check.ok]
    if not result.checks:
        return f"{row.name:4} {'; '.join(result.notes) or 'nothing was counted'}"
    said = f"WRONG {'; '.join(wrong)}" if wrong else f"{len(result.checks)} counts right"
    return f"{row.name:4} {said} · {row.what}"


def shown(row: Row, result: Result) -> str:
    lines = [f"{row.name:4} {row.what}"]
    lines += [f"     {'met   ' if ratio.met else 'MISSED'} {ratio}" for ratio in result.ratios]
    lines += [f"     {'sound ' if check.ok else 'WRONG '} {check}" for check in result.checks]
    if result.figures:
        lines.append("     " + ", ".join(f"{name}: {value}" for name, value in result.figures.items()))
    lines += [f"     note: {note}" for note in result.notes]
    return "\n".join(lines)


def as_json(result: Result, load: str) -> dict[str, object]:
    ratios = [{**asdict(ratio), "met": ratio.met} for ratio in result.ratios]
    return {**asdict(result), "ratios": ratios, "load": load}


def keep(facts: dict[str, str], rows: dict[str, object], target: Path) -> dict[str, Any]:
    """Write what was measured, beside what the same machine has measured of other rows."""
    known = json.loads(target.read_text()) if target.exists() else {}
    before = known["rows"] if known.get("machine") == facts else {}
    everything = {**before, **rows}
    results = {"machine": facts, "rows": {name: everything[name] for name in SCRIPTS if name in everything}}
    target.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    return results


async def measure_all(rows: Sequence[Row], *, short: bool, done: Callable[[Row, Result, str], None]) -> None:
    status = _Status()
    with tempfile.TemporaryDirectory(prefix="runcast-bench-") as directory:
        async with Lab(Path(directory), short=short, tell=status.tell) as lab:
            for row in rows:
                status.row = row.name
                status.tell(row.what)
                load = f"{os.getloadavg()[0]:.2f}"
                result = await measure(row, lab)
                status.clear()
                done(row, result, load)


def run_until_stopped(rows: Sequence[Row], *, short: bool, done: Callable[[Row, Result, str], None]) -> bool:
    """False: stopped before the end, by SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        uvloop.run(measure_all(rows, short=short, done=done))
    except KeyboardInterrupt:
        return False
    return True


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Runcast and its peers, in ratios.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"some of {', '.join(SCRIPTS)}; all where none is named")
    parser.add_argument("--short", action="store_true", help="small sizes, no peers, a line a row: the counts alone")
    parser.add_argument("--json", type=Path, default=None, help="where to write the results")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    names = [name.upper() for name in options.rows] or list(SCRIPTS)
    if unknown := [name for name in names if name not in SCRIPTS]:
        print(f"there is no row {', '.join(unknown)}: the rows are {', '.join(SCRIPTS)}", file=sys.stderr)
        return 2
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    facts = machine()
    if not options.short:
        print("\n".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n", flush=True)
    results: dict[str, Result] = {}
    measured: dict[str, object] = {}

    def done(row: Row, result: Result, load: str) -> None:
        results[row.name], measured[row.name] = result, as_json(result, load)
        print(checked(row, result) if options.short else shown(row, result), flush=True)

    finished = run_until_stopped([load(name) for name in names], short=options.short, done=done)
    if measured and options.json is not None:
        options.json.unlink(missing_ok=True)
        keep(facts, measured, options.json)
    elif measured and not options.short:
        report.write(keep(facts, measured, report.RESULTS))
        print(f"\nwritten to {report.RESULTS} and {report.PAGE}")
    if not finished:
        print("stopped: the rows above are what was measured", file=sys.stderr)
        return 130
    return 0 if all(result.sound for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
