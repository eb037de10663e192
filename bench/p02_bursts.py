"""P2: the same in bursts of ten."""

from __future__ import annotations

from bench.fanout import Load, compare
from bench.lab import Lab
from bench.results import Result, Row

__all__ = ["ROW"]


async def run(lab: Lab) -> Result:
    load = Load(viewers=lab.size(500, 20), rounds=lab.size(60, 5), burst=10, pause=0.1)
    result, ratios = await compare(lab, load, rounds=lab.size(5, 1))
    for name, ratio in ratios.items():
        if name != "C floor":
            result.at_most(f"CPU per frame / {name}", ratio, 0.25)
    return result


ROW = Row("P2", "the same in bursts of 10", run)
