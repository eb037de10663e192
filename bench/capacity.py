"""``python -m bench.capacity``: what ``runcast plan`` rests on, on this machine.

First the costs of single events (``bench.costs``), in so many turns, of which the median counts. Then three loads of
other sizes, by real gateways, workers and a real Redis, and beside each figure what the model says from the costs;
CPU times the factor that a reference load took just before and after. ``--json`` writes the costs, for
``runcast plan --measured FILE``. Exit code 1 where a count is wrong by more
than 30 %: counts do not depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import uvloop

from bench.__main__ import machine
from bench.capacity_sizes import REFERENCE, SIZES, Compared, Size, measure, paired
from bench.cost_meter import fit
from bench.costs import Calibration
from bench.lab import Lab
from bench.worker_costs import worker_costs
from ops.plan_costs import GATEWAY, REDIS, Costs, parse_costs

__all__ = ["main"]

_NEAR = 1.3


async def measured_costs(turns: int, tell: Callable[[str], None]) -> Costs:
    """The median of some turns, each with servers of its own."""
    found: list[Costs] = []
    for turn in range(turns):
        tell(f"turn {turn + 1} of {turns}")
        with tempfile.TemporaryDirectory(prefix="runcast-bench-") as directory:
            async with Lab(Path(directory), tell=tell) as lab:
                calibration = Calibration(lab)
                await calibration.run()
        with tempfile.TemporaryDirectory(prefix="runcast-bench-") as directory:
            async with Lab(Path(directory), tell=tell) as lab:
                worker, sizes = await worker_costs(lab)
        found.append(
            Costs(
                gateway=fit(calibration.gateway, GATEWAY),
                redis=fit(calibration.redis, REDIS, calibration.known),
                worker=worker,
                sizes=calibration.sizes | sizes,
            )
        )

    def middle(part: str) -> dict[str, float]:
        several: list[dict[str, float]] = [getattr(costs, part) for costs in found]
        return {name: round(statistics.median([one[name] for one in several]), 3) for name in several[0]}

    return Costs(middle("gateway"), middle("redis"), middle("worker"), middle("sizes"))


def shown(compared: list[Compared]) -> str:
    lines = [f"{'':34} {'predicted':>12} {'measured':>12} {'ratio':>6}"]
    lines += [f"{c.what:34} {c.predicted:12.4g} {c.measured:12.4g} {c.ratio:6.2f}" for c in compared]
    return "\n".join(lines)


async def _all_sizes(costs: Costs, tell: Callable[[str], None]) -> dict[Size, list[Compared]]:
    """Each size between two of the reference: what CPU costs changes from minute to minute on a shared machine."""
    found = {}
    before = await _one(REFERENCE, costs, tell)
    for size in SIZES:
        compared, after = await _one(size, costs, tell), await _one(REFERENCE, costs, tell)
        found[size] = paired(compared, before, after)
        before = after
    return found


async def _one(size: Size, costs: Costs, tell: Callable[[str], None]) -> list[Compared]:
    with tempfile.TemporaryDirectory(prefix="runcast-bench-") as directory:
        async with Lab(Path(directory), tell=tell) as lab:
            return await measure(lab, size, costs)


async def run(options: argparse.Namespace) -> int:
    tell = (lambda what: print(f"  {what}", file=sys.stderr, flush=True)) if sys.stderr.isatty() else lambda _: None
    if options.costs:
        costs = parse_costs(await asyncio.to_thread(options.costs.read_bytes), str(options.costs))
    else:
        costs = await measured_costs(options.turns, tell)
    facts = machine()
    parts = {part: getattr(costs, part) for part in ("gateway", "redis", "worker", "sizes")}
    for part, values in parts.items():
        print(f"{part}: " + ", ".join(f"{name} {value:g}" for name, value in values.items()), flush=True)
    results: list[dict[str, object]] = []
    wrong = False
    for size, compared in (await _all_sizes(costs, tell)).items() if not options.costs_only else ():
        print(f"\n{size}\n{shown(compared)}", flush=True)
        results.append({"size": str(size), "figures": [{**vars(c), "ratio": c.ratio} for c in compared]})
        wrong = wrong or any(c.counted and not 1 / _NEAR <= c.ratio <= _NEAR for c in compared)
    if options.json:
        text = json.dumps({"machine": facts, **parts, "sizes_checked": results}, indent=2, ensure_ascii=False)
        await asyncio.to_thread(options.json.write_text, text + "\n")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description="What `runcast plan` rests on.")
    parser.add_argument("--turns", type=int, default=3, help="how often costs are measured; the median counts")
    parser.add_argument("--costs-only", action="store_true", help="leave out the three loads")
    parser.add_argument("--costs", type=Path, default=None, help="take these, and measure the three loads alone")
    parser.add_argument("--json", type=Path, default=None, help="write the costs, for `runcast plan --measured`")
    return uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
