"""A busy run across a Cluster's failover, a slot's migration and a Sentinel's failover; and what each asks of nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.publisher import Publisher
from broker.settings import Settings
from broker.slots import slot_of
from tests.clusters import ClusterServers, SentinelServers, wait_for
from tests.e2e.crowd import Crowd
from tests.e2e.processes import Gateway, SseViewer, Worker, environment, http_json
from tests.servers import RedisServer, eventually

SMALL = {"viewers": 40, "rate": 300, "seconds": 5.0}
LARGE = {"viewers": 200, "rate": 1_000, "seconds": 12.0}
SIZES = [SMALL, pytest.param(LARGE, marks=[pytest.mark.long, pytest.mark.timeout(240)])]
QUICK = {"block": 2.0, "request_deadline": 1.0}


class Stage:
    """Two gateways over a store, and crowds that watch through them."""

    def __init__(self, url: str, namespace: str, directory: Path, **settings: Any) -> None:
        self.url = url
        self.settings = Settings(namespace=namespace, **{**QUICK, **settings})
        self.env = environment(url, namespace, **{**QUICK, **settings})
        self.gateways = [Gateway(self.env, directory / f"gateway{n}.log") for n in range(2)]

    async def __aenter__(self) -> Stage:
        for gateway in self.gateways:
            await gateway.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        for gateway in self.gateways:
            gateway.kill()

    async def play(self, size: dict[str, Any], disturb: Callable[[Publisher], Awaitable[Any]]) -> Crowd:
        crowd = Crowd(self.url, self.settings, [gateway.port for gateway in self.gateways], **size)
        await crowd.play(disturb)
        return crowd


def lag(replica: RedisServer) -> None:
    """From here on it gets nothing of what its master writes, and may be promoted all the same."""
    replica.command("CONFIG", "SET", "masterauth", "a password that nobody asked for")
    replica.command("CLIENT", "KILL", "TYPE", "master")
    wait_for(lambda: b"master_link_status:down" in replica.info("replication"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lost", [pytest.param(False, marks=pytest.mark.long), True])
async def test_a_primary_is_killed(own_cluster: ClusterServers, namespace: str, tmp_path: Path, size: Any, lost: bool):
    """``lost``: its replica lacks the end of the log, and the publisher has forgotten most of it."""
    async with Stage(own_cluster.url, namespace, tmp_path, **({"resend_items": 5} if lost else {})) as stage:

        async def disturb(publisher: Publisher) -> None:
            key = _items(publisher)
            primary = await asyncio.to_thread(own_cluster.primary_of, key)
            if lost:
                await asyncio.to_thread(lag, own_cluster.replica_of(primary))
                before = publisher.last
                await eventually(lambda: publisher.last >= before + 50)
            await asyncio.to_thread(primary.kill)
            await asyncio.to_thread(wait_for, lambda: own_cluster.primary_of(key) is not primary)

        crowd = await stage.play(size, disturb)
    reset = crowd.check()
    assert bool(crowd.rewound) == lost
    assert reset or not lost


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_a_primary_is_frozen_and_comes_back(own_cluster: ClusterServers, namespace: str, tmp_path: Path):
    """Awake again it has its old data, and for a moment it does not know that it is no primary any more."""
    async with Stage(own_cluster.url, namespace, tmp_path) as stage:

        async def disturb(publisher: Publisher) -> None:
            key = _items(publisher)
            primary = await asyncio.to_thread(own_cluster.primary_of, key)
            primary.pause()
            others = [node for node in own_cluster.nodes if node is not primary]
            await asyncio.to_thread(wait_for, lambda: own_cluster.primary_of(key, others) is not primary)
            primary.resume()

        crowd = await stage.play(LARGE, disturb)
    assert crowd.check() == 0
    assert not crowd.rewound


@pytest.mark.parametrize("size", SIZES)
async def test_the_runs_slot_moves(redis7_cluster: ClusterServers, namespace: str, tmp_path: Path, size: Any):
    servers = redis7_cluster
    async with Stage(servers.url, namespace, tmp_path) as stage:

        async def disturb(publisher: Publisher) -> None:
            slot, source, target = await asyncio.to_thread(_places, servers, publisher)
            await asyncio.to_thread(servers.begin_migration, slot, source, target)
            await asyncio.sleep(0.3)  # while it has begun, and nothing has moved
            moved = 1
            while moved:
                moved = await asyncio.to_thread(servers.move_keys, slot, source, target, 1)
                await asyncio.sleep(0.1)  # while both nodes have a part of the run
            await asyncio.to_thread(servers.end_migration, slot, source, target)

        crowd = await stage.play(size, disturb)
    assert crowd.check() == 0
    assert not crowd.rewound


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_the_runs_slot_moves_at_once(valkey_cluster: ClusterServers, namespace: str, tmp_path: Path):
    async with Stage(valkey_cluster.url, namespace, tmp_path) as stage:

        async def disturb(publisher: Publisher) -> None:
            await asyncio.to_thread(lambda: valkey_cluster.move_at_once(*_places(valkey_cluster, publisher)))

        crowd = await stage.play(LARGE, disturb)
    assert crowd.check() == 0
    assert not crowd.rewound


def _items(publisher: Publisher) -> bytes:
    return publisher._log.items_key(publisher.run_id)  # type: ignore[attr-defined,no-any-return]


def _places(servers: ClusterServers, publisher: Publisher) -> tuple[int, Any, Any]:
    """The slot of the run, the node that has it, and one that has not."""
    source = servers.primary_of(_items(publisher))
    return slot_of(_items(publisher)), source, next(node for node in servers.primaries if node is not source)


@pytest.mark.parametrize("size", SIZES)
async def test_sentinels_promote_a_replica(own_sentinels: SentinelServers, namespace: str, tmp_path: Path, size: Any):
    async with Stage(own_sentinels.url, namespace, tmp_path) as stage:

        async def disturb(publisher: Publisher) -> None:
            master = await asyncio.to_thread(lambda: own_sentinels.master)
            await asyncio.to_thread(master.kill)
            await asyncio.to_thread(wait_for, lambda: own_sentinels.master is not master)

        crowd = await stage.play(size, disturb)
    assert crowd.check() == 0
    assert not crowd.rewound


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_every_primary_gives_way_in_turn_while_workers_work(
    own_cluster: ClusterServers, namespace: str, tmp_path: Path
):
    """What an update of the servers does: every run is made, taken, executed and seen, though somebody waits."""
    async with Stage(own_cluster.url, namespace, tmp_path, lease=6.0, beat=1.0, sweep=1.0) as stage:
        workers = [Worker(stage.env, tmp_path / f"worker{n}.log") for n in range(2)]
        watching: list[asyncio.Task[SseViewer]] = []
        try:
            updating = asyncio.create_task(asyncio.to_thread(_update, own_cluster))
            while not updating.done() or len(watching) < 30:
                watching.append(asyncio.create_task(_one(stage, len(watching))))
                await asyncio.sleep(0.4)
            await updating
            async with asyncio.timeout(60):
                viewers = await asyncio.gather(*watching)
        finally:
            for worker in workers:
                worker.kill()
    for viewer in viewers:
        assert "".join(viewer.texts).endswith("".join(f"w{n} " for n in range(1, 31)))
        assert viewer.ids == list(range(viewer.ids[0], viewer.ids[-1] + 1))
        assert [name for name, _ in viewer.controls] == ["end"]


async def _one(stage: Stage, n: int) -> SseViewer:
    port = stage.gateways[n % 2].port
    body = {"runner": "scripted", "input": {"message": "x"}, "metadata": {"script": "tokens=30 rate=15"}}
    status, answer = 503, None
    while status == 503:
        status, answer = await http_json(port, "POST", "/v1/runs", body, {"Idempotency-Key": f"{n}"})
        await asyncio.sleep(0.1)
    assert status in (200, 201), answer
    return await SseViewer(answer["run_id"], [port]).watch()


def _update(servers: ClusterServers) -> None:
    for old in servers.primaries:
        servers.settle()
        new = servers.replica_of(old)
        new.command("CLUSTER", "FAILOVER")
        wait_for(lambda old=old: old not in servers.primaries)
        old.restart()
        servers.settle()
