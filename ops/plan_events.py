"""What happens in a second, and the CPU that it takes: the counting half of the model behind ``runcast plan``. Pure.

Every cost is a number of events times what one of them was measured to cost (``plan_costs``). Rates are per second,
CPU cores (1.0 is one core all the time). Where an event's number grows with more than one thing, it says so here;
docs/scaling.md tells the same to users, and the bench holds it against real processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

from ops.plan_costs import Costs
from ops.plan_load import Load, Setup

__all__ = [
    *("Events", "Reads", "cores", "followed", "reads"),
    *("gateway_cpu", "gateway_events", "redis_cpu", "redis_events", "worker_cpu"),
]

_TIMER = 0.001
_PACE = 0.005 + _TIMER
_PACE_ABOVE = 64
"""A lane of more streams than these reads every ``_PACE`` seconds at most (``broker.tail``), by timers of 1 ms."""
_REST_EACH, _LEAST_REST = 40e-6, 0.001
"""Seconds of rest for each write that a read led to, and the least that is taken (``broker.tail``)."""

Events = dict[str, float]


def cores(events: Mapping[str, float], costs: Mapping[str, float]) -> float:
    total: float = sum([number * costs[name] for name, number in events.items()])
    return total / 1e6


def followed(load: Load, setup: Setup) -> float:
    """Runs that one gateway follows: those of its viewers. Spread over gateways, a run with many viewers is followed
    by nearly all of them, and each of those reads it for itself."""
    watched, gateways = min(load.per_run, 1.0), setup.gateways
    if setup.by_run or gateways == 1:
        return load.runs * watched / gateways
    if load.per_run < 1:
        return load.runs * load.per_run / gateways
    missed: float = (1 - 1 / gateways) ** load.per_run
    return load.runs * (1 - missed)


# One gateway.


@dataclass(frozen=True)
class Reads:
    """Of all lanes of one gateway: reads a second, streams that each asks for, the part of the reads that have to wait,
    and how often a run's new items come in a reply of their own."""

    reads: float
    streams: float
    blocked: float
    deliveries: float


def reads(load: Load, setup: Setup, costs: Costs) -> Reads:
    """A lane is woken by the first batch that comes; what comes while it reads, waits for the other lanes of its
    process, or paces itself, is in its next read.

    So reads grow with the batches of few runs, and no further than one each ``_PACE`` seconds with many; and a process
    that has little time left reads the less often: that is what the search is for, the CPU that explains itself.
    """
    low, high = 0.0, 0.99
    for _ in range(12):
        busy = (low + high) / 2
        lane = _reads_at(busy, load, setup, costs)
        low, high = (busy, high) if _cpu_with(lane, load, setup, costs) > busy else (low, busy)
    return _reads_at(low, load, setup, costs)


def _reads_at(busy: float, load: Load, setup: Setup, costs: Costs) -> Reads:
    runs, all_lanes = followed(load, setup), setup.follow_lanes
    lanes = _with_runs(runs, all_lanes)
    idle = (all_lanes - lanes) / setup.block
    streams = runs / lanes + setup.partitions / all_lanes
    batches = runs * load.rate / load.batch / lanes * _bunched(load, setup, costs)
    if not batches:
        return Reads(all_lanes / setup.block, streams + 1, 1.0, 0.0)
    both = [costs.gateway, costs.redis]
    own = sum(c["read"] + streams * c["asked"] for c in both) / 1e6 / (1 - busy) + 2 * setup.lag
    many = _PACE if streams > _PACE_ABOVE else 0.0
    viewers = load.viewers / setup.gateways / runs
    cycle, blocked = 0.0, 1.0
    for _ in range(5):  # what came in a cycle is written at its end, and says how long the next one is
        pace = max(many, _rest(viewers * min(max(batches * cycle, 1.0), runs / lanes), setup))
        service = max(own, pace + setup.lag) if pace else own
        blocked = exp(-batches * service)
        cycle = service + blocked / batches
    each = 1 / min(cycle, setup.block)
    return Reads(each * lanes + idle, streams + 1, blocked, runs * min(load.rate / load.batch, each))


def _with_runs(runs: float, lanes: int) -> float:
    """Of the lanes, those that have a run at all, where each run lies anywhere."""
    if lanes == 1 or runs <= 1:
        return 1.0
    empty: float = (1 - 1 / lanes) ** runs
    return lanes * (1 - empty)


def _rest(writes: float, setup: Setup) -> float:
    pace = min(writes * _REST_EACH, setup.pace)
    return pace + _TIMER if pace >= _LEAST_REST else 0.0


def gateway_events(load: Load, setup: Setup, costs: Costs) -> Events:
    """Of one gateway, a second."""
    return _gateway_events(reads(load, setup, costs), load, setup)


def _gateway_events(lane: Reads, load: Load, setup: Setup) -> Events:
    viewers, runs = load.viewers / setup.gateways, followed(load, setup)
    watched = runs or 1.0
    writes = viewers * min(lane.deliveries / watched, load.rate * load.shown)
    frames = viewers * load.rate * load.shown
    return {
        "second": 1.0,
        "sweep": 1 / setup.sweep,
        "swept": load.runs / setup.sweep,
        "read": lane.reads,
        "asked": lane.reads * lane.streams,
        "delivery": lane.deliveries,
        "item": max(runs * load.rate - lane.deliveries, 0.0),
        "write": writes,
        "frame": max(frames - writes, 0.0),
        "followed": runs,
        "viewer": viewers,
        "beat": viewers * _quiet(load, setup),
        "join": load.joins / setup.gateways,
        "run": load.arrivals,
    }


def _quiet(load: Load, setup: Setup) -> float:
    """Frames a second that keep a viewer's stream from silence, or his cursor from falling behind."""
    written = load.rate * load.shown
    beats = 1 / setup.heartbeat if written < 1 / setup.heartbeat else 0.0
    moves = 1 / setup.cursor_seconds if load.shown < 1 and load.rate > 0 else 0.0
    return max(beats, moves)


def gateway_cpu(load: Load, setup: Setup, costs: Costs) -> float:
    """Of one gateway."""
    return _cpu_with(reads(load, setup, costs), load, setup, costs)


def _cpu_with(lane: Reads, load: Load, setup: Setup, costs: Costs) -> float:
    events = _gateway_events(lane, load, setup)
    paced = lane.streams > _PACE_ABOVE + 1  # then the pause after a read ends in a turn as well
    requests = events["read"] + events["sweep"] + events["join"] + events["run"]
    work = cores(events | _tls(requests, setup), costs.gateway)
    return _with_turns(work, requests + paced * events["read"], setup, costs.gateway)


def _tls(requests: float, setup: Setup) -> Events:
    return {"tls": requests} if setup.tls else {}


def _with_turns(work: float, requests: float, setup: Setup, costs: Mapping[str, float]) -> float:
    """Cores of a process that each request wakes, but for those that come while it works, or waits for a core: a busy
    process does more for the same CPU than a calm one, and a calm one is no measure of what it can do."""
    waking = requests / (1 + requests * setup.lag) * costs["turn"] / 1e6
    return (work + waking) / (1 + waking)


# One worker.


def worker_cpu(load: Load, setup: Setup, costs: Costs) -> float:
    """Of one worker, without what its runners cost."""
    runs = load.runs / setup.workers
    appends = runs * load.rate / load.batch
    events = {"second": 1.0, "append": appends, "item": runs * load.rate - appends}
    sweeps = {"sweep": 1 / setup.sweep, "swept": load.runs / setup.sweep}  # the same code as a gateway's
    requests = appends + runs / setup.beat
    work = cores(events | _tls(requests, setup), costs.worker) + cores(sweeps, costs.gateway)
    # A timer of its runner wakes it for an item, and Redis when that is stored.
    return _with_turns(work, requests + appends, setup, costs.worker)


def _bunched(load: Load, setup: Setup, costs: Costs) -> float:
    """Moments at which a worker sends something, of those at which one of its runs says something: what comes while it
    works, half of which is for runs that are heard already, or while it waits for a core, goes out together."""
    appends = load.runs / setup.workers * load.rate / load.batch
    free = 1 - min(worker_cpu(load, setup, costs), 1.0) / 2
    return free / (1 + appends * setup.lag)


# Redis.


def redis_events(load: Load, setup: Setup, costs: Costs) -> Events:
    """Of all primaries together, a second."""
    lane = reads(load, setup, costs)
    gateways, processes = setup.gateways, setup.gateways + setup.workers
    appends = load.runs * load.rate / load.batch
    idle = setup.workers * min(load.runs / setup.workers, setup.follow_lanes) / setup.block
    items = followed(load, setup) * load.rate
    return {
        "second": float(setup.nodes),
        "sweep": processes / setup.sweep,
        "swept": processes * load.runs / setup.sweep,
        "append": appends,
        "item": load.runs * load.rate - appends,
        "read": gateways * lane.reads + idle,
        "asked": gateways * lane.reads * lane.streams,
        "blocked": gateways * lane.reads * lane.streams * lane.blocked,
        "delivery": gateways * lane.deliveries,
        "entry": gateways * max(items - lane.deliveries, 0.0),
        "beat": load.runs / setup.beat,
        "run": load.arrivals,
        "news": gateways * load.arrivals,
        "join": load.joins,
    }


def redis_cpu(load: Load, setup: Setup, costs: Costs) -> float:
    """Of the primary with the largest part. Reads of several gateways follow the same appends, at the same moments; a
    worker's beats come at once: each of those wakes it about once."""
    events, share = redis_events(load, setup, costs), setup.share
    requests = sum(events[name] for name in ("append", "read", "beat", "sweep", "run", "news", "join"))
    moments = events["append"] * _bunched(load, setup, costs) + events["read"] / setup.gateways
    moments += setup.workers / setup.beat + sum(events[name] for name in ("sweep", "run", "news", "join"))
    work = cores(events | _tls(requests, setup), costs.redis) * share
    return _with_turns(work, moments * share, setup, costs.redis)
