"""How many processes a load needs, and which bound it meets first. Pure.

A process is planned to use ``headroom`` of a core; bounds are told against the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, sqrt

from ops.capacity import Use, gateway_use, redis_use, worker_use
from ops.plan_costs import Costs
from ops.plan_events import cores
from ops.plan_load import Load, Setup

__all__ = ["Bound", "Limits", "Plan", "grown", "planned"]

_SLOTS = 0.8
"""Of a worker's slots: runs do not come evenly, and one that finds none waits."""
_FULL = 0.75
"""Of a primary's memory: the rest is for its buffers and for copies while it saves."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one process each: bytes, files, connections, bytes a second."""

    headroom: float = 0.6
    gateway_memory: float = 1 << 30
    gateway_files: int = 65_536
    redis_memory: float = 16 << 30
    redis_connections: int = 10_000
    redis_net: float = 1.25e9


@dataclass(frozen=True)
class Bound:
    """``multiple``: of the load, at which it is met by the processes of the plan. ``mend``: what moves it;
    ``by_processes``: more gateways or workers do."""

    name: str
    used: float
    limit: float
    multiple: float
    mend: str
    by_processes: bool = False


@dataclass(frozen=True)
class Plan:
    """``bounds``: the nearest first."""

    load: Load
    setup: Setup
    gateway: Use
    worker: Use
    redis: Use
    bounds: tuple[Bound, ...]

    @property
    def fits(self) -> bool:
        return self.bounds[0].multiple >= 1

    @property
    def wall(self) -> Bound:
        """The nearest of the bounds that neither gateways nor workers move."""
        return next(bound for bound in self.bounds if not bound.by_processes)


def grown(load: Load, times: float) -> Load:
    """So many times the viewers and the runs; each run as before."""
    a_day = None if load.runs_per_day is None else load.runs_per_day * times
    return replace(load, viewers=load.viewers * times, runs=load.runs * times, runs_per_day=a_day)


def planned(load: Load, setup: Setup, limits: Limits, costs: Costs, nodes: int | None = None) -> Plan:
    """The fewest primaries that do (or ``nodes``), and with them the fewest gateways and workers.

    Where no number does, the plan has one that could not do better; its bounds say what is in the way.
    """
    setup = replace(setup, workers=_fewest_workers(load, setup, limits, costs))
    for number in [nodes] if nodes is not None else _numbers(setup.partitions):
        tried = replace(setup, nodes=number, cluster=number > 1)
        tried = replace(tried, gateways=_fewest_gateways(load, tried, limits, costs))
        use = redis_use(load, tried, costs)
        if _redis_fits(use, limits):
            break
    return Plan(
        load,
        tried,
        gateway_use(load, tried, costs),
        worker_use(load, tried, costs),
        use,
        tuple(sorted(_bounds(load, tried, limits, costs), key=lambda bound: bound.multiple)),
    )


def _numbers(partitions: int) -> Iterator[int]:
    """Of primaries: one server, or a Cluster of three and more, in which each has a partition."""
    yield 1
    number = 3
    while number < partitions:
        yield number
        number = max(number + 1, round(number * 1.1))
    if partitions >= 3:
        yield partitions


def _redis_fits(use: Use, limits: Limits) -> bool:
    return (
        use.cpu <= limits.headroom
        and use.memory <= limits.redis_memory * _FULL
        and use.connections <= limits.redis_connections
        and max(use.net_in, use.net_out) <= limits.redis_net * limits.headroom
    )


def _fewest_workers(load: Load, setup: Setup, limits: Limits, costs: Costs) -> int:
    number = max(ceil(load.runs / setup.concurrency / _SLOTS), 1)
    tried = [number << power for power in range(12)]
    cpu = [worker_use(load, replace(setup, workers=n), costs).cpu for n in tried]
    fitting = (n for n, used in zip(tried, cpu, strict=True) if used <= limits.headroom)
    return next(fitting, None) or _best(tried, cpu)


def _fewest_gateways(load: Load, setup: Setup, limits: Limits, costs: Costs) -> int:
    def fits(number: int) -> bool:
        use = gateway_use(load, replace(setup, gateways=number), costs)
        return use.cpu <= limits.headroom and use.memory <= limits.gateway_memory and use.files <= limits.gateway_files

    tried = [1 << power for power in range(18)]
    high = next((number for number in tried if fits(number)), None)
    if high is None:
        return _best(tried, [gateway_use(load, replace(setup, gateways=n), costs).cpu for n in tried])
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _best(numbers: Sequence[int], cpu: Sequence[float]) -> int:
    """The first that comes near what the most of them could do: a part of the work is the same in each process."""
    return next(number for number, used in zip(numbers, cpu, strict=True) if used <= 1.1 * min(cpu))


# Bounds.


def _bounds(load: Load, setup: Setup, limits: Limits, costs: Costs) -> Iterator[Bound]:
    def bound(name: str, limit: float, used: Callable[[Load], float], mend: str, by: bool = False) -> Bound:
        return Bound(name, used(load), limit, _multiple(load, used, limit), mend, by)

    def gateway(some: Load) -> Use:
        return gateway_use(some, setup, costs)

    def worker(some: Load) -> Use:
        return worker_use(some, setup, costs)

    def redis(some: Load) -> Use:
        return redis_use(some, setup, costs)

    more = "more gateways"
    yield bound("CPU of a gateway", 1.0, lambda x: gateway(x).cpu, more, True)
    yield bound("memory of a gateway", limits.gateway_memory, lambda x: gateway(x).memory, more, True)
    yield bound("open files of a gateway", limits.gateway_files, lambda x: gateway(x).files, more, True)
    slots = setup.workers * setup.concurrency
    yield bound("runs at once in all workers", slots, lambda x: x.runs, "more workers", True)
    yield bound("CPU of a worker, without agents", 1.0, lambda x: worker(x).cpu, "more workers", True)
    yield bound(
        "CPU of a gateway for all runs", 1.0, lambda x: _for_all(x, setup, costs), "a longer RUNCAST_SWEEP, longer runs"
    )
    primaries = "more primaries"
    yield bound("CPU of a primary", 1.0, lambda x: redis(x).cpu, primaries)
    yield bound(
        "memory of a primary", limits.redis_memory * _FULL, lambda x: redis(x).memory, "more memory or primaries"
    )
    yield bound(
        "connections of a primary",
        limits.redis_connections,
        lambda x: redis(load).connections * x.runs / (load.runs or 1),  # processes grow with the load
        "maxclients, or a higher RUNCAST_CONCURRENCY",
    )
    yield bound("network of a primary", limits.redis_net, lambda x: max(redis(x).net_in, redis(x).net_out), primaries)
    if setup.cluster:
        yield bound(
            "primaries, one for each partition",
            setup.partitions,
            lambda x: setup.nodes * x.runs / (load.runs or 1),
            "a namespace with more RUNCAST_PARTITIONS",
        )


def _for_all(load: Load, setup: Setup, costs: Costs) -> float:
    """What each gateway does, however many there are: it looks at all open runs, and hears of all that come and go."""
    events = {"sweep": 1 / setup.sweep, "swept": load.runs / setup.sweep, "run": load.arrivals}
    return cores(events, costs.gateway)


def _multiple(load: Load, used: Callable[[Load], float], limit: float) -> float:
    low, high = 1e-6, 1e6
    if used(grown(load, high)) <= limit:
        return inf
    for _ in range(60):
        middle = sqrt(low * high)
        low, high = (middle, high) if used(grown(load, middle)) <= limit else (low, middle)
    return low
