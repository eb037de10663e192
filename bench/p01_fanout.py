"""P1: CPU per frame, 500 viewers of one run at 100 items a second, every peer at the same pace."""

from __future__ import annotations

from bench.fanout import Load, compare
from bench.lab import Lab
from bench.results import Result, Row

__all__ = ["ROW"]


async def run(lab: Lab) -> Result:
    load = Load(viewers=lab.size(500, 20), rounds=lab.size(200, 30), burst=1, pause=0.01)
    result, ratios = await compare(lab, load, rounds=lab.size(5, 1))
    for name, ratio in ratios.items():
        result.at_most(f"CPU per frame / {name}", ratio, 1.8 if name == "C floor" else 0.8)
    return result


ROW = Row("P1", "CPU per frame, 500 viewers × 1 run at 100 items/s", run)
