"""P14: P5 and P12 on a Cluster of three primaries and three replicas: connections and commands, node by node."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack

from bench.lab import TEXT, Lab, paced
from bench.monitor import Monitor
from bench.p05_many_runs import claimed, publish_to_all
from bench.processes import Process
from bench.results import Result, Row
from bench.sink import Sink, Spec
from broker.api import Broker
from broker.items import Final, MessageDelta
from broker.redis import Store
from broker.settings import Settings
from tests.clusters import ClusterServers

__all__ = ["ROW"]

_VIEWERS = 5
_WRITES = {"EVALSHA", "EVAL", "SCRIPT"}


async def run(lab: Lab) -> Result:
    servers = ClusterServers(lab.directory / "cluster")
    result = Result()
    try:
        await asyncio.to_thread(servers.start)
        settings = Settings(redis_url=servers.url, namespace=lab.namespace)
        broker = Broker(await Store.connect(servers.url, settings), settings)
        try:
            await _many_runs(lab, servers, broker, result)
            await _two_gateways(lab, servers, broker, result)
        finally:
            await broker.aclose()
    finally:
        servers.stop()
    return result


def _gateway(lab: Lab, servers: ClusterServers) -> Process:
    # The sweep's reads depend on nothing here, and would blur the counts.
    return lab.new_gateway(redis_url=servers.url, sweep=3600)


async def _many_runs(lab: Lab, servers: ClusterServers, broker: Broker, result: Result) -> None:
    runs, items = lab.size(500, 60), lab.size(40, 10)
    records = [await claimed(broker) for _ in range(runs)]
    gateway = _gateway(lab, servers)
    lab.tell(f"{runs} runs × {_VIEWERS} viewers")
    paths = [lab.path(record.run_id) for record in records for _ in range(_VIEWERS)]
    before = _calls(servers)
    async with Sink(Spec(gateway.port, paths, items, timeout=120)) as sink:
        await publish_to_all(broker, records, items, 0.1)
        seen = await sink.seen()
        held = [gateway.connections_to(node.port) for node in servers.primaries]
    asked = [after - then for after, then in zip(_calls(servers), before, strict=True)]
    gateway.stop()
    partitions = broker.keys.partitions
    on_each = [
        sum(servers.primary_of(broker.keys.bus(p)) is node for p in range(partitions)) for node in servers.primaries
    ]
    result.figures["connections by node"] = " + ".join(map(str, held))
    result.figures["partitions by node"] = " + ".join(map(str, on_each))
    result.figures["reads an item"] = round(sum(asked) / (runs * items), 3)
    result.figures["reads by node"] = " + ".join(map(str, asked))
    result.check("all delivered", seen.frames == runs * _VIEWERS * items)
    result.check("in order", not seen.disorder)
    # The index of sessions has a slot of its own, which is followed while somebody looks at it.
    few = all(count <= lanes + 3 for count, lanes in zip(held, on_each, strict=True))
    result.check("connections to each node ≤ its partitions + 3", few)
    result.check("reads ≤ items", sum(asked) <= runs * items + 200)


async def _two_gateways(lab: Lab, servers: ClusterServers, broker: Broker, result: Result) -> None:
    viewers, items = lab.size(100, 20), lab.size(300, 60)
    counts = []
    for number in (1, 2):
        gateways = [_gateway(lab, servers) for _ in range(number)]
        lab.tell(f"{number} gateway, {number * viewers} viewers")
        counts.append(await _commands(lab, servers, broker, gateways, viewers, items, result))
        for gateway in gateways:
            gateway.stop()
    one, two = ({name: count for name, count in by_node.items() if count} for by_node in counts)
    result.figures["commands by node, 1 gateway"] = str(one)
    result.figures["commands by node, 2 gateways"] = str(two)
    result.check("one node is asked", len(one) == len(two) == 1)
    result.check(
        "one more read an item, of the second process, at most", sum(two.values()) <= sum(one.values()) + items + 20
    )


async def _commands(
    lab: Lab,
    servers: ClusterServers,
    broker: Broker,
    gateways: Sequence[Process],
    viewers: int,
    items: int,
    result: Result,
) -> dict[str, int]:
    """How often each node was asked about the run, but for what its publisher wrote."""
    claim = await claimed(broker)
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(broker.publisher(claim))
        paths = [lab.path(claim.run_id)] * viewers
        sinks = [await stack.enter_async_context(Sink(Spec(gateway.port, paths, items))) for gateway in gateways]
        monitors = [await stack.enter_async_context(Monitor(node.port, claim.run_id)) for node in servers.primaries]
        async for _ in paced(items, 0.005):
            await publisher.publish(MessageDelta(text=TEXT))
        for sink in sinks:
            seen = await sink.seen()
            result.check("every viewer got every item, in order", seen.complete == viewers and not seen.disorder)
        counts = [await monitor.counts() for monitor in monitors]
        await publisher.seal(Final())
    return {f"node {n}": _reads(count) for n, count in enumerate(counts, 1)}


def _reads(count: Counter[str]) -> int:
    return sum(n for name, n in count.items() if name not in _WRITES)


def _calls(servers: ClusterServers) -> list[int]:
    """XREADs that each primary has answered so far."""
    return [_xreads(node.info("commandstats").decode()) for node in servers.primaries]


def _xreads(stats: str) -> int:
    lines = (line for line in stats.splitlines() if line.startswith("cmdstat_xread:"))
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines)


ROW = Row("P14", "P5 and P12 on a Cluster, node by node", run)
