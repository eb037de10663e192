"""The model behind ``runcast plan``: a load and what carries it → CPU, memory, connections, bytes. Pure.

``plan_events`` counts what happens; here is what it comes to, for one process of each kind. Sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ops.plan_costs import Costs
from ops.plan_events import followed, gateway_cpu, redis_cpu, redis_events, worker_cpu
from ops.plan_load import Load, Setup, stock

__all__ = ["Use", "gateway_use", "redis_use", "worker_use"]

_POOL = 3
"""Connections of a process for commands, to each primary."""
_QUEUES = 2
"""Of a worker: one for runs, one for tasks."""
_OPEN_FILES = 32
"""Files of a process that are neither viewers nor Redis."""


@dataclass(frozen=True)
class Use:
    """Of one gateway, of one worker, or of the primary that has most to do."""

    cpu: float
    memory: float
    connections: int
    files: int = 0
    net_in: float = 0.0
    net_out: float = 0.0


def gateway_use(load: Load, setup: Setup, costs: Costs) -> Use:
    sizes = costs.sizes
    viewers, runs = load.viewers / setup.gateways, followed(load, setup)
    held = min(load.run_items / 2, setup.window_bytes / load.item_bytes)
    memory = sizes["gateway"] + viewers * sizes["viewer"]
    windows = runs * held * (sizes["window_entry"] + load.item_bytes)
    memory += runs * sizes["feed"] + min(windows, setup.windows_memory)
    connections = setup.follow_lanes + _POOL * setup.nodes
    return Use(
        cpu=gateway_cpu(load, setup, costs),
        memory=memory,
        connections=connections,
        files=ceil(viewers) + connections + _OPEN_FILES,
        net_in=runs * load.rate * (load.item_bytes + sizes["entry_out"]),
        net_out=viewers * load.rate * load.shown * (load.item_bytes + sizes["frame_out"]),
    )


def worker_use(load: Load, setup: Setup, costs: Costs) -> Use:
    """Without what its runners cost: agents, models, tools."""
    sizes = costs.sizes
    runs = load.runs / setup.workers
    kept = min(load.run_items / 2, setup.resend_items, setup.resend_bytes / load.item_bytes)
    memory = sizes["worker"] + runs * (sizes["execution"] + kept * (sizes["kept_item"] + load.item_bytes))
    connections = worker_connections(load, setup)
    return Use(
        cpu=worker_cpu(load, setup, costs),
        memory=memory,
        connections=connections,
        files=connections + _OPEN_FILES,
    )


def worker_connections(load: Load, setup: Setup) -> int:
    runs = ceil(min(load.runs / setup.workers, setup.concurrency))
    return min(runs, setup.follow_lanes) + _QUEUES + _POOL * setup.nodes


def redis_memory(load: Load, setup: Setup, costs: Costs) -> float:
    """``used_memory`` of all primaries together."""
    sizes, there = costs.sizes, stock(load, setup)
    follows = setup.gateways * (followed(load, setup) + setup.partitions)
    connected = setup.gateways * (setup.follow_lanes + _POOL * setup.nodes)
    connected += setup.workers * worker_connections(load, setup)
    memory = setup.nodes * sizes["redis"] + there.records * sizes["record"] + there.runs * sizes["stored_run"]
    memory += there.items * (sizes["stored_item"] + sizes["stored_byte"] * load.item_bytes) + there.answers
    return memory + follows * sizes["follow"] + connected * sizes["connection"]


def redis_use(load: Load, setup: Setup, costs: Costs) -> Use:
    """Of the primary that has the largest part of the partitions."""
    events, share, sizes = redis_events(load, setup, costs), setup.share, costs.sizes
    items, entries = events["append"] + events["item"], events["delivery"] + events["entry"]
    buses, runs = setup.partitions / setup.follow_lanes, followed(load, setup) / setup.follow_lanes
    asking = events["read"] * (buses * sizes["bus_in"] + runs * sizes["asked_in"])
    each_gateway = ceil(setup.follow_lanes / setup.nodes) + _POOL
    each_worker = ceil(worker_connections(load, setup) / setup.nodes)
    return Use(
        cpu=redis_cpu(load, setup, costs),
        memory=redis_memory(load, setup, costs) * share,
        connections=setup.gateways * each_gateway + setup.workers * each_worker,
        net_in=share * (items * load.item_bytes + events["append"] * sizes["append_in"] + asking),
        net_out=share * (entries * (load.item_bytes + sizes["entry_out"]) + events["swept"] * sizes["swept_out"]),
    )
