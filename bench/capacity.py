"""``python -m bench.capacity``: what ``runcast plan`` rests on, on this machine.

First the costs of single events (``bench.costs``), in so many turns. Then three loads of other sizes, by real gateways,
workers and a real Redis, and beside each figure what the model says from the costs; CPU as dear as a reference load was
just before and after, compared with when costs were measured. ``--json`` writes the costs, for ``runcast plan
--measured FILE``. Exit code 1 where a count is wrong by more than 30 %: those depend on no machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from bench.__main__ import machine
from bench.capacity_sizes import REFERENCE, SIZES, Compared, Reference, Size, measure, middle, paired
from bench.cost_meter import fit
from bench.costs import Calibration
from bench.lab import Lab
from bench.worker_costs import worker_costs
from ops.plan_costs import DEFAULT_COSTS, GATEWAY, REDIS, Costs, parse_costs

__all__ = ["main"]

_NEAR = 1.3


async def measured_costs(turns: int, tell: Callable[[str], None]) -> tuple[Costs, Reference]:
    """From all turns together, each with servers of its own; sizes and a worker's costs are the median's.

    Beside it what the reference took in those minutes.
    """
    references: list[Reference] = []
    calibrations: list[Calibration] = []
    workers: list[tuple[dict[str, float], dict[str, float]]] = []
    for turn in range(turns):
        tell(f"turn {turn + 1} of {turns}")
        with tempfile.TemporaryDirectory(prefix="runcast-bench-") as directory:
            async with Lab(Path(directory), tell=tell) as lab:
                calibrations.append(Calibration(lab))
                await calibrations[-1].run()
        with tempfile.TemporaryDirectory(prefix="runcast-bench-") as directory:
            async with Lab(Path(directory), tell=tell) as lab:
                workers.append(await worker_costs(lab))
        references.append(await _reference(tell))
    known = _median([calibration.known for calibration in calibrations])
    gateway, redis = ({"asked": known[name]} for name in ("gateway", "redis"))
    costs = Costs(
        gateway=_rounded(fit([point for one in calibrations for point in one.gateway], GATEWAY, gateway)),
        redis=_rounded(fit([point for one in calibrations for point in one.redis], REDIS, redis)),
        worker=_rounded(_median([costs for costs, _ in workers])),
        sizes=_rounded(_median([one.sizes | sizes for one, (_, sizes) in zip(calibrations, workers, strict=True)])),
    )
    return costs, _rounded(_median(references))


def _median(several: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median([one[name] for one in several]) for name in several[0]}


def _rounded(costs: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in costs.items()}


def shown(compared: list[Compared]) -> str:
    lines = [f"{'':34} {'predicted':>12} {'measured':>12} {'ratio':>6}"]
    lines += [f"{c.what:34} {c.predicted:12.4g} {c.measured:12.4g} {c.ratio:6.2f}" for c in compared]
    return "\n".join(lines)


async def _all_sizes(
    rounds: int, costs: Costs, calm: Reference, tell: Callable[[str], None]
) -> dict[Size, list[Compared]]:
    """Each size between two of the reference: what CPU costs changes from minute to minute on a shared machine."""
    found: dict[Size, list[list[Compared]]] = {size: [] for size in SIZES}
    before = await _reference(tell)
    for size in SIZES * rounds:
        compared, after = await _one(size, costs, tell), await _reference(tell)
        found[size].append(paired(compared, calm, before, after))
        print(
            f"{size}: " + ", ".join(f"{c.what} {c.ratio:.2f}" for c in found[size][-1] if "CPU" in c.what), flush=True
        )
        before = after
    return {size: middle(several) for size, several in found.items()}


async def _reference(tell: Callable[[str], None]) -> Reference:
    """CPU of the reference load, by what it is of."""
    return {one.what: one.measured for one in await _one(REFERENCE, DEFAULT_COSTS, tell) if "CPU" in one.what}


async def _one(size: Size, costs: Costs, tell: Callable[[str], None]) -> list[Compared]:
    with tempfile.TemporaryDirectory(prefix="runcast-bench-") as directory:
        async with Lab(Path(directory), tell=tell) as lab:
            return await measure(lab, size, costs)


async def run(options: argparse.Namespace) -> int:
    tell = (lambda what: print(f"  {what}", file=sys.stderr, flush=True)) if sys.stderr.isatty() else lambda _: None
    if options.costs:
        text = await asyncio.to_thread(options.costs.read_bytes)
        costs, reference = parse_costs(text, str(options.costs)), json.loads(text)["reference"]
    else:
        costs, reference = await measured_costs(options.turns, tell)
    facts = machine()
    parts = {part: getattr(costs, part) for part in ("gateway", "redis", "worker", "sizes")}
    for part, values in parts.items():
        print(f"{part}: " + ", ".join(f"{name} {value:g}" for name, value in values.items()), flush=True)
    results: list[dict[str, object]] = []
    wrong = False
    for size, compared in (
        (await _all_sizes(options.rounds, costs, reference, tell)).items() if not options.costs_only else ()
    ):
        print(f"\n{size}\n{shown(compared)}", flush=True)
        results.append({"size": str(size), "figures": [{**vars(c), "ratio": c.ratio} for c in compared]})
        wrong = wrong or any(c.counted and not 1 / _NEAR <= c.ratio <= _NEAR for c in compared)
    if options.json:
        text = json.dumps(
            {"machine": facts, **parts, "reference": reference, "sizes_checked": results}, indent=2, ensure_ascii=False
        )
        await asyncio.to_thread(options.json.write_text, text + "\n")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description="What `runcast plan` rests on.")
    parser.add_argument("--turns", type=int, default=3, help="how often costs are measured")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load is carried; the median counts")
    parser.add_argument("--costs-only", action="store_true", help="leave out the three loads")
    parser.add_argument("--costs", type=Path, default=None, help="take these, and measure the three loads alone")
    parser.add_argument("--json", type=Path, default=None, help="write the costs, for `runcast plan --measured`")
    return uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
