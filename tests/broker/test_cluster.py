"""The store on a Cluster: redirects, slots on the move, nodes that fail, and how much each node is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from broker import tail as tail_module
from broker.api import Broker
from broker.errors import StoreUnavailable
from broker.items import MessageDelta
from broker.queue import Queue
from broker.redis import Moving, Refused, Store
from broker.scripts import Script
from broker.settings import Settings
from broker.slots import slot_of
from tests.broker.registry import request
from tests.clusters import ClusterServers, wait_for
from tests.conftest import least_rights
from tests.servers import RedisServer, eventually

COUNT = Script.of("count", b"return redis.call('INCR', KEYS[1]) + #KEYS - 2")
IN_CLUSTER = ["+cluster|slots", "+asking"]


def _settings(namespace: str, **changes: Any) -> Settings:
    return Settings(namespace=namespace, **{"request_deadline": 10.0, "block": 1.0, **changes})


@pytest.fixture
async def store(request: pytest.FixtureRequest, redis7_cluster: ClusterServers, namespace: str) -> AsyncIterator[Store]:
    """``request.param``: other settings."""
    store = await Store.connect(redis7_cluster.url, _settings(namespace, **getattr(request, "param", {})))
    yield store
    await store.aclose()


class Move:
    """The slot of a key on its way from one primary to another; it is brought to its end when the test has ended."""

    def __init__(self, servers: ClusterServers, key: bytes) -> None:
        self.servers, self.slot = servers, slot_of(key)
        self.source = servers.primary_of(key)
        self.target = next(node for node in servers.primaries if node is not self.source)

    async def begin(self) -> None:
        await asyncio.to_thread(self.servers.begin_migration, self.slot, self.source, self.target)

    async def carry(self, *keys: bytes) -> None:
        """These keys lie on the other node from now on."""
        await asyncio.to_thread(self.source.carry, self.target, *keys)

    async def end(self) -> None:
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        while self.servers.move_keys(self.slot, self.source, self.target):
            pass
        self.servers.end_migration(self.slot, self.source, self.target)

    async def all(self) -> None:
        await self.begin()
        await self.end()


@asynccontextmanager
async def moving(servers: ClusterServers, key: bytes) -> AsyncIterator[Move]:
    move = Move(servers, key)
    await move.begin()
    try:
        yield move
    finally:
        await move.end()


class TestMoved:
    async def test_a_request_follows_its_slot(self, store: Store, redis7_cluster: ClusterServers) -> None:
        tag = uuid4().hex
        a, b = b"{%b}a" % tag.encode(), b"{%b}b" % tag.encode()
        assert await store.script(COUNT, [a, b], []) == 1
        await Move(redis7_cluster, a).all()
        assert await store.script(COUNT, [a, b], []) == 2  # which that node has never heard of
        await Move(redis7_cluster, a).all()
        assert await store.pipeline([("INCR", a), ("GET", a), ("SET", b, 1)]) == [3, b"3", b"OK"]
        await Move(redis7_cluster, a).all()
        assert await store.pipeline([("INCR", a), ("GET", b)], atomic=True) == [4, b"1"]

    async def test_the_map_is_looked_at_anew(self, store: Store, redis7_cluster: ClusterServers) -> None:
        keys = [b"{%d}" % n for n in range(64)]
        for key in keys[:2]:
            await Move(redis7_cluster, key).all()
        await store.pipeline([("EXISTS", key) for key in keys])
        cluster = store._route

        def agrees() -> bool:
            return all(
                cluster._map[slot_of(key)] == ("127.0.0.1", redis7_cluster.primary_of(key).port)  # type: ignore[attr-defined]
                for key in keys
            )

        await eventually(agrees)
        asked = [_calls(node, "exists") for node in redis7_cluster.primaries]
        await store.pipeline([("EXISTS", key) for key in keys])
        now = [_calls(node, "exists") for node in redis7_cluster.primaries]
        assert sum(now) - sum(asked) == len(keys), "nobody was asked in vain"

    async def test_a_blocked_read_hears_of_it(
        self, store: Store, redis7_cluster: ClusterServers, namespace: str
    ) -> None:
        key = f"{namespace}:s".encode()
        link = await store.link(key)
        reading = asyncio.create_task(link.call("XREAD", "BLOCK", 0, "STREAMS", key, "0", deadline=60.0))
        move = Move(redis7_cluster, key)
        # One that comes while the slot is on its way is told where to ask instead.
        await eventually(lambda: "blocked_clients:1" in str(move.source.command("INFO", "clients")))
        await move.all()
        with pytest.raises(StoreUnavailable, match="another"):
            await reading
        again = await _linked(store, key)
        assert await again.call("XREAD", "BLOCK", 1, "STREAMS", key, "0", deadline=30.0) is None
        assert again.node.shown.endswith(f":{move.target.port}")
        await again.aclose()

    async def test_links_leave_a_node_whose_slot_somebody_saw_move(
        self, store: Store, redis7_cluster: ClusterServers, namespace: str
    ) -> None:
        key, other = f"{{{namespace}}}:s".encode(), f"{{{namespace}}}:x".encode()
        link, before = await store.link(key), store.interruptions
        await Move(redis7_cluster, key).all()
        await store.call("SET", other, 1)
        with pytest.raises(StoreUnavailable, match="another server"):
            await link.call("PING", deadline=1.0)
        assert store.interruptions > before, "who counts from an unbroken observation starts again"


class TestMoving:
    async def test_keys_of_both_nodes_are_served(self, store: Store, redis7_cluster: ClusterServers) -> None:
        here, there, none = (b"{m%d}%b" % (1, name) for name in (b"here", b"there", b"none"))
        await store.pipeline([("SET", here, 1), ("SET", there, 1), ("DEL", none)])
        async with moving(redis7_cluster, here) as move:
            await move.carry(there)
            assert await store.call("INCR", here) == 2
            assert await store.call("INCR", there) == 2
            assert await store.pipeline([("INCR", key) for key in (there, here, none, there, none)]) == [3, 3, 1, 4, 2]
            assert await store.pipeline([("INCR", there), ("GET", there)], atomic=True) == [5, b"5"]
            assert await store.script(COUNT, [there], []) == 5
        assert await store.pipeline([("GET", key) for key in (here, there, none)]) == [b"3", b"6", b"2"]

    async def test_what_lies_on_both_waits_within_its_deadline(
        self, store: Store, redis7_cluster: ClusterServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here, there = b"{m2}here", b"{m2}there"
        await store.pipeline([("SET", here, 1), ("SET", there, 1)])
        async with moving(redis7_cluster, here) as move:
            await move.carry(there)
            before, began = store.interruptions, time.monotonic()
            with monkeypatch.context() as patch:
                patch.setattr(store, "_deadline", 1.0)
                with pytest.raises(StoreUnavailable, match="on the move"):
                    await store.script(COUNT, [here, there], [])
            assert time.monotonic() - began < 9.0
            assert store.interruptions > before
            waiting = asyncio.create_task(store.script(COUNT, [here, there], []))
            both = asyncio.create_task(store.pipeline([("GET", there), ("INCR", here)], atomic=True))
        assert sorted([await waiting, (await both)[1]]) == [2, 3], "done once each, and what was refused was not"

    async def test_a_link_stays_open(self, store: Store, redis7_cluster: ClusterServers) -> None:
        here, there = b"{m3}here", b"{m3}there"
        await store.pipeline([("XADD", here, "1-0", "a", "b"), ("XADD", there, "1-0", "a", "b")])
        link = await store.link(here)
        read = ("XREAD", "BLOCK", 10, "STREAMS", here, there, "0", "0")
        async with moving(redis7_cluster, here) as move:
            await move.carry(there)
            with pytest.raises(Moving):
                await link.call(*read, deadline=30.0)
            assert len(await link.call("XREAD", "STREAMS", here, "0", deadline=30.0)) == 1
        await link.aclose()

    async def test_a_queue_goes_on(self, store: Store, redis7_cluster: ClusterServers) -> None:
        queue = Queue(store)
        link = await store.link(queue.key)
        await queue.put("first", 1)
        assert await _take(queue, link) == "first"
        async with moving(redis7_cluster, queue.key) as move:
            await move.carry(queue.key)
            await queue.put("second", 1)
            assert await _take(queue, link) == "second"
        with pytest.raises(StoreUnavailable):
            await _take(queue, link)
        link = await _linked(store, queue.key)
        await queue.put("third", 1)
        assert await _take(queue, link) == "third"
        await link.aclose()


async def _take(queue: Queue, link: Any) -> str | None:
    for _ in range(2):  # the first look may make the group
        if (taken := await queue.take(link, "c", block_ms=500)) is not None:
            await queue.done(taken.entry_id)
            return taken.run_id
    return None


async def _linked(store: Store, key: bytes) -> Any:
    async with asyncio.timeout(30):
        while True:
            try:
                return await store.link(key)
            except StoreUnavailable:
                await asyncio.sleep(0.05)


class TestLanes:
    @pytest.fixture
    async def broker(self, store: Store) -> AsyncIterator[Broker]:
        broker = Broker(store, store.settings)
        yield broker
        await broker.hub.aclose()
        await broker.tail.aclose()

    async def test_one_for_each_partition_in_use(self, broker: Broker, redis7_cluster: ClusterServers) -> None:
        got: list[bytes] = []
        runs = [f"r{n}" for n in range(40)]
        for run in runs:
            broker.tail.subscribe(broker.keys.items(run), b"0-0", lambda entries: got.append(entries[-1][1][1]))
        partitions = {broker.keys.partition(run) for run in runs}
        await eventually(lambda: broker.tail.connections == len(partitions))
        assert broker.store.stats.links == len(partitions)
        await broker.store.pipeline([("XADD", broker.keys.items(run), "1-0", "t", run) for run in runs])
        await eventually(lambda: sorted(got) == sorted(run.encode() for run in runs))
        assert broker.store.stats.connections <= 3 * 3

    @pytest.mark.parametrize("store", [{"block": 20.0}], indirect=True)
    async def test_who_joins_a_blocked_read_is_read_at_once(self, broker: Broker) -> None:
        keys = [broker.keys.items("x") + b"%d" % n for n in range(2)]
        got: dict[bytes, float] = {}
        broker.tail.subscribe(keys[0], b"0-0", lambda _: None)
        lane = broker.tail._lane_of(keys[0])
        await eventually(lambda: lane._blocked)
        await broker.store.call("XADD", keys[1], "1-0", "t", "t")
        began = time.monotonic()
        broker.tail.subscribe(keys[1], b"0-0", lambda _: got.setdefault(b"", time.monotonic()))
        await eventually(lambda: bool(got), step=0.002)
        assert got[b""] - began < broker.settings.block / 2

    async def test_while_its_slot_moves_streams_are_read_singly(
        self, broker: Broker, redis7_cluster: ClusterServers
    ) -> None:
        got: dict[bytes, list[bytes]] = {}
        base = broker.keys.items("y")
        keys = [base + b"%d" % n for n in range(3)]
        for key in keys:
            await broker.store.call("XADD", key, "1-0", "t", "t")
            broker.tail.subscribe(key, b"0-0", lambda es, k=key: got.setdefault(k, []).extend(id_ for id_, _ in es))
        await eventually(lambda: sum(map(len, got.values())) == 3)
        async with moving(redis7_cluster, base) as move:
            await move.carry(keys[1])
            for key in keys:
                await broker.store.call("XADD", key, "2-0", "t", "t")
            await eventually(lambda: sum(map(len, got.values())) == 6)
            late = base + b"late"
            await broker.store.call("XADD", late, "1-0", "t", "t")
            broker.tail.subscribe(late, b"0-0", lambda es: got.setdefault(late, []).extend(id_ for id_, _ in es))
            await eventually(lambda: late in got)
        for key in keys:
            await broker.store.call("XADD", key, "3-0", "t", "t")
        await eventually(lambda: sum(map(len, got.values())) == 10)
        assert [got[key] for key in keys] == [[b"1-0", b"2-0", b"3-0"]] * 3
        await eventually(lambda: broker.tail.connections == 1)

    async def test_one_that_follows_nothing_lets_its_connection_go(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tail_module, "_IDLE", 0.05)
        key, got = broker.keys.items("z"), []
        subscription = broker.tail.subscribe(key, b"0-0", lambda _: None)
        await eventually(lambda: broker.tail.connections == 1)
        subscription.close()
        await eventually(lambda: broker.tail.connections == 0)
        broker.tail.subscribe(key, b"0-0", got.extend)
        await broker.store.call("XADD", key, "1-0", "t", "t")
        await eventually(lambda: bool(got))

    async def test_what_one_run_asks_of_the_nodes(self, broker: Broker, redis7_cluster: ClusterServers) -> None:
        """Appends and reads go to the one node that has the run; viewers cost nothing."""
        record, _ = await broker.runs.create(request(), enqueue=False)
        claim = await broker.runs.claim(record.run_id, record.attempt, "me")
        mine = redis7_cluster.primary_of(broker.keys.run(record.run_id))
        got: list[int] = []

        async def watch() -> None:
            async for entry in broker.stream(record.run_id):
                got.append(entry.seq)

        async with broker.publisher(claim) as publisher:
            await publisher.publish(MessageDelta(text="0"))
            await publisher.flush()
            viewers = [asyncio.create_task(watch()) for _ in range(20)]
            await eventually(lambda: len(got) == 20)
            before = {node.port: (_calls(node, "xread"), _calls(node, "evalsha")) for node in redis7_cluster.primaries}
            for n in range(30):
                await publisher.publish(MessageDelta(text=f"{n} "))
                await publisher.flush()
            await eventually(lambda: len(got) == 20 * 31)
            for viewer in viewers:
                viewer.cancel()
            await asyncio.gather(*viewers, return_exceptions=True)
        for node in redis7_cluster.primaries:
            reads, appends = (
                now - then
                for now, then in zip((_calls(node, "xread"), _calls(node, "evalsha")), before[node.port], strict=True)
            )
            assert appends == (30 if node is mine else 0)
            assert reads <= (31 if node is mine else 0)


def _calls(node: RedisServer, command: str) -> int:
    for line in node.info("commandstats").decode().splitlines():
        if line.startswith(f"cmdstat_{command}:"):
            return int(line.split("calls=")[1].split(",")[0])
    return 0


class TestReaching:
    async def test_with_tls(self, redis7_cluster: ClusterServers, namespace: str) -> None:
        store = await Store.connect(redis7_cluster.tls_url, _settings(namespace))
        keys = [b"%d" % n for n in range(40)]
        await store.pipeline([("SET", b"%b:%b" % (namespace.encode(), key), key) for key in keys])
        assert await store.pipeline([("GET", b"%b:%b" % (namespace.encode(), key)) for key in keys]) == keys
        assert store.stats.servers == 3
        ports = {node.tls_port for node in redis7_cluster.primaries}
        assert {int(node.shown.rpartition(":")[2]) for node in store._route.nodes} == ports
        await store.aclose()

    async def test_with_the_least_rights(self, redis7_cluster: ClusterServers, namespace: str) -> None:
        name = f"u{uuid4().hex}"
        rules = [
            rule.replace("~runcast:", f"~{namespace}:").replace(">PASSWORD", ">pw")
            for rule in least_rights()[0].split()
        ]
        for node in redis7_cluster.nodes:
            node.command("ACL", "SETUSER", name, *rules[2:], *IN_CLUSTER)
        store = await Store.connect(redis7_cluster.url.replace("//", f"//{name}:pw@"), _settings(namespace))
        broker = Broker(store, store.settings)
        record, _ = await broker.runs.create(request(session_id="s"))
        key = broker.keys.run(record.run_id)
        async with moving(redis7_cluster, key) as move:
            await move.carry(key)
            assert (await broker.runs.get(record.run_id)).status == "queued"
        assert [r.run_id for r in (await broker.runs.list())[0]] == [record.run_id]
        with pytest.raises(Refused, match="NOPERM"):
            await store.call("GET", "another:key")
        await store.aclose()

    async def test_a_url_of_one_node_says_what_to_do(self, redis7_cluster: ClusterServers, namespace: str) -> None:
        has_it = redis7_cluster.primary_of(f"{namespace}:layout".encode())
        url = next(node.url for node in redis7_cluster.primaries if node is not has_it)
        with pytest.raises(Refused, match=r"redis\+cluster://"):
            await Store.connect(url, _settings(namespace))

    async def test_a_server_that_is_no_cluster_says_so(self, redis7: RedisServer, namespace: str) -> None:
        with pytest.raises(Refused, match="cluster support disabled"):
            await Store.connect(f"redis+cluster://127.0.0.1:{redis7.port}", _settings(namespace))

    async def test_nobody_is_there(self, namespace: str) -> None:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await Store.connect("redis+cluster://127.0.0.1:1,127.0.0.1:2", _settings(namespace, request_deadline=1.0))
        assert time.monotonic() - began < 15

    async def test_the_first_of_the_hosts_is_away(self, redis7_cluster: ClusterServers, namespace: str) -> None:
        url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{redis7_cluster.nodes[2].port}"
        store = await Store.connect(url, _settings(namespace))
        await store.aclose()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.call("GET", "x")


class TestFailing:
    async def test_a_frozen_primary_costs_its_own_slots_a_deadline_until_its_replica_has_taken_over(
        self, own_cluster: ClusterServers, namespace: str
    ) -> None:
        store = await Store.connect(own_cluster.url, _settings(namespace, request_deadline=1.0))
        keys = [b"%b:%d" % (namespace.encode(), n) for n in range(30)]
        await store.pipeline([("SET", key, 1) for key in keys])
        frozen = own_cluster.primary_of(keys[0])
        link = await store.link(keys[0])
        reading = asyncio.create_task(link.call("XREAD", "BLOCK", 0, "STREAMS", keys[0] + b"s", "0", deadline=60.0))
        theirs = [key for key in keys if own_cluster.primary_of(key) is frozen]
        mine = next(key for key in keys if key not in theirs)
        frozen.pause()
        began = time.monotonic()
        failed = await asyncio.gather(*(store.call("INCR", key) for key in theirs), return_exceptions=True)
        assert all(isinstance(one, StoreUnavailable) for one in failed)
        assert time.monotonic() - began < 15
        assert await store.call("INCR", mine) == 2

        async def all_served() -> bool:
            try:
                return len(await store.pipeline([("SET", key, 1) for key in keys])) == len(keys)
            except StoreUnavailable:
                return False

        async with asyncio.timeout(40):
            while not await all_served():  # noqa: ASYNC110  # whatever it takes the replica
                await asyncio.sleep(0.1)
        with pytest.raises(StoreUnavailable, match="another server"):
            await reading
        frozen.resume()
        await asyncio.to_thread(own_cluster.settle)
        assert await store.pipeline([("GET", key) for key in keys]) == [b"1"] * len(keys)
        await store.aclose()

    @pytest.mark.long
    async def test_slots_without_a_node(self, own_cluster: ClusterServers, namespace: str) -> None:
        """CLUSTERDOWN: nothing is done, and it is done within the deadline once the slots are served again."""
        store = await Store.connect(own_cluster.url, _settings(namespace, request_deadline=1.0))
        key = f"{namespace}:k".encode()
        slot, owner = str(slot_of(key)), own_cluster.primary_of(key)
        for node in own_cluster.nodes:
            node.command("CLUSTER", "DELSLOTS", slot)
        await asyncio.to_thread(wait_for, lambda: b"cluster_state:fail" in owner.cluster_info())
        before, began = store.interruptions, time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.call("INCR", key)
        assert time.monotonic() - began < 1.5
        assert store.interruptions > before
        calling = asyncio.create_task(store.call("INCR", key))
        await asyncio.to_thread(owner.command, "CLUSTER", "ADDSLOTS", slot)
        async with asyncio.timeout(15):
            while isinstance((await asyncio.gather(calling, return_exceptions=True))[0], StoreUnavailable):
                calling = asyncio.create_task(store.call("INCR", key))
        assert await calling == 1
        await store.aclose()
