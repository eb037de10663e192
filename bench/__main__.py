"""``python -m bench [--short] [ROW…]``: measure, print the table, write ``bench/results.json``.

Rows run one after another, and each is printed as it ends. Ctrl-C stops everything that was started; what was
measured so far is kept. Exit code: 0, 1 where a check failed (a count is wrong, or something was lost), 2 for an
unknown row, 130 when stopped. A missed goal is no failure: a machine under load can miss it.
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

import uvloop

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
}
RESULTS = Path(__file__).parent / "results.json"


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
        "load": " ".join(f"{n:.2f}" for n in os.getloadavg()),
        "python": platform.python_version(),
    }
    found |= {name: version(name) for name in ("runcast", "uvicorn", "uvloop", "httptools", "hiredis", "msgspec")}
    for program, argument in (("redis-server", "--version"), ("nginx", "-v"), ("cc", "--version")):
        path = shutil.which(program) or shutil.which(program, path="/usr/sbin")
        if path is not None:
            said = subprocess.run([path, argument], capture_output=True, text=True, check=False)
            found[program] = (said.stdout or said.stderr).splitlines()[0]
    return found


def shown(row: Row, result: Result) -> str:
    lines = [f"{row.name:4} {row.what}"]
    lines += [f"     {'met   ' if ratio.met else 'MISSED'} {ratio}" for ratio in result.ratios]
    lines += [f"     {'sound ' if check.ok else 'WRONG '} {check}" for check in result.checks]
    if result.figures:
        lines.append("     " + ", ".join(f"{name}: {value}" for name, value in result.figures.items()))
    lines += [f"     note: {note}" for note in result.notes]
    return "\n".join(lines)


def as_json(result: Result) -> dict[str, object]:
    ratios = [{**asdict(ratio), "met": ratio.met} for ratio in result.ratios]
    return {**asdict(result), "ratios": ratios}


async def measure_all(rows: Sequence[Row], *, short: bool, done: Callable[[Row, Result], None]) -> None:
    status = _Status()
    with tempfile.TemporaryDirectory(prefix="runcast-bench-") as directory:
        async with Lab(Path(directory), short=short, tell=status.tell) as lab:
            for row in rows:
                status.row = row.name
                status.tell(row.what)
                result = await measure(row, lab)
                status.clear()
                done(row, result)


def run_until_stopped(rows: Sequence[Row], *, short: bool, done: Callable[[Row, Result], None]) -> bool:
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
    parser.add_argument("--short", action="store_true", help="small sizes, no peers: only the checks mean anything")
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
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n", flush=True)
    results: dict[str, Result] = {}

    def done(row: Row, result: Result) -> None:
        results[row.name] = result
        print(shown(row, result), flush=True)

    finished = run_until_stopped([load(name) for name in names], short=options.short, done=done)
    target = options.json or RESULTS
    if results and not (options.short and options.json is None):
        everything = {"machine": facts, "rows": {name: as_json(result) for name, result in results.items()}}
        target.write_text(json.dumps(everything, indent=2, ensure_ascii=False) + "\n")
        print(f"\nwritten to {target}")
    if not finished:
        print("stopped: the rows above are what was measured", file=sys.stderr)
        return 130
    return 0 if all(result.sound for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
