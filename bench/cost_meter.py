"""What is counted while a load runs (CPU by process, Redis's own counters), and the fit of costs to it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.processes import Process
from broker.api import Broker

__all__ = ["Counts", "Meter", "Point", "calm", "counts", "fit", "metered"]


@dataclass(frozen=True)
class Point:
    """So many events of each kind, and the microseconds of CPU that they took."""

    events: Mapping[str, float]
    spent: float


def fit(points: Sequence[Point], names: Sequence[str], known: Mapping[str, float] | None = None) -> dict[str, float]:
    """Costs of 0 or more whose sums come nearest to what was spent, in relative terms: least squares, leaving out what
    would be negative, the worst first. ``known``: costs that were measured by themselves."""
    known = known or {}
    rows = [(p.events, p.spent, p.spent - sum(n * known.get(e, 0.0) for e, n in p.events.items())) for p in points]
    rows = [row for row in rows if row[1] > 0]
    used = [name for name in names if name not in known and any(events.get(name) for events, _, _ in rows)]
    while used:
        table = [[*(events.get(name, 0.0) / spent for name in used), left / spent] for events, spent, left in rows]
        found = dict(zip(used, _nearest(table), strict=True))
        worst = min(used, key=lambda name: found[name] * max(e.get(name, 0.0) / s for e, s, _ in rows))
        if found[worst] >= 0:
            return {name: known.get(name, found.get(name, 0.0)) for name in names}
        used.remove(worst)
    return {name: known.get(name, 0.0) for name in names}


def _nearest(rows: Sequence[Sequence[float]]) -> list[float]:
    """x such that every row but its last · x is nearest to its last."""
    n = len(rows[0]) - 1
    table = [[sum(row[i] * row[j] for row in rows) for j in range(n + 1)] for i in range(n)]
    for i in range(n):
        table[i][i] *= 1 + 1e-9  # of what two events always have in common, either may be said
        pivot = max(range(i, n), key=lambda r: abs(table[r][i]))
        table[i], table[pivot] = table[pivot], table[i]
        for r in range(n):
            if r != i:
                factor = table[r][i] / table[i][i]
                table[r] = [a - factor * b for a, b in zip(table[r], table[i], strict=True)]
    return [table[i][n] / table[i][i] for i in range(n)]


@dataclass(frozen=True)
class Counts:
    """Redis's own counters. ``calls``: by command, those of scripts among them."""

    calls: Counter[str]
    net_in: int
    net_out: int
    memory: int
    clients: int

    def since(self, before: Counts) -> Counts:
        """What was added since; ``clients`` as they are."""
        return Counts(
            self.calls - before.calls,
            self.net_in - before.net_in,
            self.net_out - before.net_out,
            self.memory - before.memory,
            self.clients,
        )


async def counts(broker: Broker) -> Counts:
    """Of the one server behind ``broker``."""
    lines = (await broker.store.call(b"INFO", b"all")).decode().splitlines()
    fields = dict(line.partition(":")[::2] for line in lines if ":" in line)
    calls = {
        name.removeprefix("cmdstat_"): int(value.partition("calls=")[2].partition(",")[0])
        for name, value in fields.items()
        if name.startswith("cmdstat_")
    }
    wanted = ("total_net_input_bytes", "total_net_output_bytes", "used_memory", "connected_clients")
    return Counts(Counter(calls), *(int(fields[name]) for name in wanted))


@dataclass
class Meter:
    """Filled when the ``metered`` block ends. Microseconds of CPU, bytes of growth."""

    seconds: float = 0.0
    redis: float = 0.0
    turns: list[int] = field(default_factory=list)
    """How often each woke from waiting: Redis, then the others."""
    lag: float = 0.0
    """Seconds that one of them waited for a core, each time, on average."""
    processes: list[float] = field(default_factory=list)
    grown: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=lambda: Counts(Counter(), 0, 0, 0, 0))


@asynccontextmanager
async def metered(broker: Broker, redis: Process, *processes: Process) -> AsyncIterator[Meter]:
    """Measure what happens inside, at Redis and at each process."""
    meter = Meter()
    slept = [_slept(p) for p in (redis, *processes)]
    queued = [_queued(p) for p in (redis, *processes)]
    before, began = await counts(broker), time.monotonic()
    cpu, sizes = [_cpu(p) for p in (redis, *processes)], [p.rss() for p in processes]
    yield meter
    spent = [_cpu(p) - then for p, then in zip((redis, *processes), cpu, strict=True)]
    meter.redis, meter.processes = spent[0], spent[1:]
    waits = [_queued(p) for p in (redis, *processes)]
    slices = sum(now[1] - then[1] for now, then in zip(waits, queued, strict=True))
    meter.lag = sum(now[0] - then[0] for now, then in zip(waits, queued, strict=True)) / max(slices, 1)
    meter.grown = [p.rss() - then for p, then in zip(processes, sizes, strict=True)]
    meter.seconds = time.monotonic() - began
    meter.turns = [_slept(p) - then for p, then in zip((redis, *processes), slept, strict=True)]
    meter.counts = (await counts(broker)).since(before)


def _cpu(process: Process) -> float:
    """Microseconds so far, of all its threads; finer than the ticks of ``Process.cpu``."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum([int(task.read_text().split()[0]) for task in tasks]) / 1e3


def _slept(process: Process) -> int:
    """How often it had nothing to do, and waited."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])


def _queued(process: Process) -> tuple[float, int]:
    """Seconds that its first thread was ready and had no core, and how often it got one."""
    _, waited, times = Path(f"/proc/{process.pid}/schedstat").read_text().split()
    return int(waited) / 1e9, int(times)


async def calm(process: Process) -> None:
    """Wait until it has started and rests."""
    end = time.monotonic() + 15
    while time.monotonic() < end:
        before = process.cpu()
        await asyncio.sleep(1.0)
        if process.cpu() - before < 0.03:
            return
