"""P13: a provider's stream → its merged message, µs a chunk, against the accumulators of the SDKs.

Everything is measured in one process (``bench.merge_times``), each peer in pairs with ours, from three starts: the
bytes, decoded JSON, and the objects that each side folds. The goal counts against the fastest peer, on the stream on
which that is nearest. ``RUNCAST_BENCH_PYTHON`` names an interpreter that has the SDKs, and msgspec.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from bench.lab import Lab
from bench.results import Result, Row

__all__ = ["ROW"]

_ROOT = Path(__file__).resolve().parent.parent
_RECORDINGS = _ROOT.parent / "shared" / "fixtures" / "merge"
_STARTS = ("bytes", "JSON", "chunks")


async def run(lab: Lab) -> Result:
    result = Result()
    found = await _measured(lab)
    result.check("every message is what its stream tells", not found["wrong"] and found["alone"])
    for case in found["alone"]:
        result.figures[case["case"]] = " / ".join(f"{case[start]:.2f}" for start in _STARTS)
    for start in _STARTS:
        nearest = _nearest([pair for pair in found["pairs"] if pair["from"] == start])
        for pair in nearest:
            what = f"× {pair['peer']} from {start}, {pair['case']} ({pair['theirs']:.1f} / {pair['ours']:.1f} µs)"
            result.at_least(what, pair["ratio"], 2.0)
    result.notes.append("the figures are our µs a chunk, from the bytes / from decoded JSON / from items")
    result.notes += [f"{left['peer']} lacks a part of the message: {left['case']}" for left in found["lacking"]]
    if not found["peers"]:
        result.notes.append("no peer is installed: RUNCAST_BENCH_PYTHON names a Python that has them")
    return result


def _nearest(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each SDK, the stream on which it is nearest to us."""
    nearest: dict[str, dict[str, Any]] = {}
    for pair in sorted(pairs, key=lambda pair: -pair["ratio"]):
        nearest[pair["peer"]] = pair
    return sorted(nearest.values(), key=lambda pair: pair["ratio"])


async def _measured(lab: Lab) -> dict[str, Any]:
    """The other process's findings. Raises ``RuntimeError`` with its last words where it has none."""
    command = ["-m", "bench.merge_times", "--chunks", str(lab.size(10_000, 400)), "--turns", str(lab.size(5, 1))]
    if lab.short:
        command.append("--no-peers")
    elif _RECORDINGS.is_dir():
        command += ["--recordings", str(_RECORDINGS)]
    python = sys.executable if lab.short else os.environ.get("RUNCAST_BENCH_PYTHON", sys.executable)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(python, *command, cwd=_ROOT, stdout=pipe, stderr=pipe)
    try:
        said, told = await asyncio.gather(_all_of(process), _progress(lab, process))
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    if code != 0:
        raise RuntimeError(f"{python} {' '.join(command)} ended with {code}: {told}")
    found: dict[str, Any] = json.loads(said)
    return found


async def _all_of(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.read()


async def _progress(lab: Lab, process: asyncio.subprocess.Process) -> str:
    """Passes on what is being measured; the last lines are returned."""
    assert process.stderr is not None
    last: list[str] = []
    async for line in process.stderr:
        last = [*last[-4:], line.decode(errors="replace").strip()]
        lab.tell(last[-1])
    return " ".join(last)


ROW = Row("P13", "a provider's stream → its message, µs a chunk, against the SDKs", run)
