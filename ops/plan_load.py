"""What is planned for: a load, what carries it, and what of it lies in Redis. Pure.

Rates are per second, sizes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

__all__ = ["Load", "Setup", "Stock", "stock"]

ENVELOPE = 90
"""Bytes of a text delta's JSON and type without its text."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """``viewers`` and ``runs`` at one moment; ``rate`` items a second of each run, each of ``item_bytes`` stored bytes,
    ``batch`` of them in one append; a run takes ``run_seconds``; ``retention`` seconds its items are kept afterwards,
    ``record_ttl`` its record. ``shown``: the part of the items that a viewer's modes let through."""

    viewers: float
    runs: float
    rate: float
    retention: float
    record_ttl: float = 604_800.0
    run_seconds: float = 120.0
    runs_per_day: float | None = None
    item_bytes: float = 95.0
    batch: float = 1.0
    shown: float = 1.0

    @property
    def arrivals(self) -> float:
        """Runs that begin in a second."""
        if self.runs_per_day is not None:
            return self.runs_per_day / 86_400
        return self.runs / self.run_seconds

    @property
    def per_run(self) -> float:
        """Viewers of a run."""
        return self.viewers / self.runs if self.runs else 0.0

    @property
    def run_items(self) -> float:
        return self.rate * self.run_seconds

    @property
    def joins(self) -> float:
        """Viewers that come, and go, in a second: each stays as long as his run."""
        return self.per_run * self.arrivals


@dataclass(frozen=True, kw_only=True)
class Setup:
    """``nodes`` primaries (``cluster``: of a Cluster). ``by_run``: the proxy sends all viewers of a run to one gateway;
    else they are spread. ``tls``: towards Redis. ``lag``: seconds that a process which is woken waits for a core, as on
    a machine with too few of them. The rest are the settings of the same names."""

    gateways: int = 1
    workers: int = 1
    nodes: int = 1
    cluster: bool = False
    by_run: bool = False
    tls: bool = False
    lag: float = 0.0
    lanes: int = 2
    partitions: int = 64
    concurrency: int = 4
    block: float = 5.0
    pace: float = 0.02
    sweep: float = 5.0
    beat: float = 3.0
    heartbeat: float = 5.0
    cursor_seconds: float = 5.0
    window_bytes: float = 1 << 20
    windows_memory: float = 256 << 20
    resend_bytes: float = 8 << 20
    resend_items: float = 20_000
    run_max_items: float = 100_000
    run_max_bytes: float = 64 << 20
    item_max_bytes: float = 1 << 20

    @property
    def follow_lanes(self) -> int:
        return self.partitions if self.cluster else self.lanes

    @property
    def share(self) -> float:
        """Of all partitions, those of the primary that has most of them."""
        return ceil(self.partitions / self.nodes) / self.partitions


@dataclass(frozen=True)
class Stock:
    """What lies in Redis: items, runs that have them, records, and bytes of whole answers."""

    items: float
    runs: float
    records: float
    answers: float


def stock(load: Load, setup: Setup) -> Stock:
    """Open runs are half done on average. An ended run has its answer as its last item, and in its record."""
    ended, recorded = load.arrivals * min(load.retention, load.record_ttl), load.arrivals * load.record_ttl
    most = min(setup.run_max_items, setup.run_max_bytes / load.item_bytes)
    whole, half = min(load.run_items, most), min(load.run_items / 2, most)
    answer = min(load.run_items * max(load.item_bytes - ENVELOPE, 0.0), setup.item_max_bytes)
    return Stock(
        items=ended * (whole + 1) + load.runs * half,
        runs=ended + load.runs,
        records=recorded + load.runs,
        answers=(ended + recorded) * answer,
    )
