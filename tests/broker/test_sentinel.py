"""The store behind Sentinels: who the master is, that it is another one now, and accounts and TLS for both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.api import Broker
from broker.errors import StoreError, StoreUnavailable
from broker.redis import Refused, Store
from broker.settings import Settings
from tests.broker.registry import request
from tests.clusters import SentinelServers, wait_for
from tests.conftest import least_rights
from tests.servers import Certificates, RedisServer, eventually, silent_host


def _settings(namespace: str, **changes: Any) -> Settings:
    return Settings(namespace=namespace, **{"request_deadline": 1.0, "block": 1.0, **changes})


async def _until_served(store: Store, *command: Any) -> Any:
    async with asyncio.timeout(40):
        while True:
            try:
                return await store.call(*command)
            except StoreUnavailable:
                await asyncio.sleep(0.05)


@pytest.fixture
def replica(redis7: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "replica").start()
    server.replica_of(redis7)
    yield server
    server.kill()


class TestFinding:
    async def test_an_unknown_name_is_said(self, redis7_sentinel: SentinelServers, namespace: str) -> None:
        with pytest.raises(StoreError, match="no master of the name 'other'"):
            await Store.connect(redis7_sentinel.url.replace("/main", "/other"), _settings(namespace))

    async def test_silent_and_absent_ones_are_passed_over(
        self, redis7_sentinel: SentinelServers, namespace: str
    ) -> None:
        async with silent_host() as silent:
            hosts = f"127.0.0.1:1,{silent.split('/')[2]},127.0.0.1:{redis7_sentinel.sentinels[2].port}"
            store = await Store.connect(f"redis+sentinel://{hosts}/main", _settings(namespace))
            assert await store.call("PING") == b"PONG"
            await store.aclose()
            with pytest.raises(StoreUnavailable):
                await store.call("PING")

    async def test_nobody_answers(self, namespace: str) -> None:
        async with silent_host() as silent:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await Store.connect(
                    silent.replace("redis:", "redis+sentinel:").replace("/0", "/main"), _settings(namespace)
                )
            assert time.monotonic() - began < 15

    async def test_a_server_that_is_no_master_any_more_is_not_used(self, replica: RedisServer, namespace: str) -> None:
        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """A Sentinel that names the replica, as one does that has not heard of the switch."""
            port = str(replica.port).encode()
            while request := await reader.read(4096):
                named = b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%b\r\n" % (len(port), port)
                writer.write(named if b"MASTER-ADDR" in request else b"+OK\r\n")

        server = await asyncio.start_server(late, "127.0.0.1", 0)
        url = f"redis+sentinel://127.0.0.1:{server.sockets[0].getsockname()[1]}/main"
        with pytest.raises(StoreUnavailable, match="no master"):
            await Store.connect(url, _settings(namespace))
        server.close()


class TestSwitching:
    async def test_requests_and_links_follow_an_orderly_switch(
        self, redis7_sentinel: SentinelServers, namespace: str
    ) -> None:
        store = await Store.connect(redis7_sentinel.url, _settings(namespace))
        key = f"{namespace}:k"
        await store.call("INCR", key)
        before, old = store.interruptions, redis7_sentinel.master
        link = await store.link()
        reading = asyncio.create_task(link.call("XREAD", "BLOCK", 0, "STREAMS", f"{namespace}:s", "0", deadline=60.0))
        redis7_sentinel.sentinels[1].command("SENTINEL", "FAILOVER", "main")
        with pytest.raises(StoreUnavailable):
            await reading
        await asyncio.to_thread(wait_for, lambda: redis7_sentinel.master is not old)
        assert await _until_served(store, "INCR", key) == 2
        assert store.interruptions > before
        assert store.stats.servers == 1
        assert store._route.nodes[0].shown.endswith(f":{redis7_sentinel.master.port}")
        await store.aclose()

    @pytest.mark.long
    async def test_a_frozen_master_is_left_as_soon_as_another_one_is_made(
        self, own_sentinels: SentinelServers, namespace: str
    ) -> None:
        store = await Store.connect(own_sentinels.url, _settings(namespace))
        key, old = f"{namespace}:k", own_sentinels.master
        await store.call("SET", key, 1)
        link = await store.link()
        await eventually(lambda: store._route._watching is not None)  # type: ignore[attr-defined]
        reading = asyncio.create_task(link.call("XREAD", "BLOCK", 0, "STREAMS", f"{namespace}:s", "0", deadline=60.0))
        await asyncio.to_thread(wait_for, lambda: own_sentinels.nodes[1].command("GET", key) == b"1")
        old.pause()
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.call("INCR", key)
        assert time.monotonic() - began < 1.5
        with pytest.raises(StoreUnavailable, match="another server"):
            await reading  # within its block: nobody asked for anything, the Sentinel told
        assert await _until_served(store, "INCR", key) == 2
        old.resume()
        await asyncio.to_thread(own_sentinels.settle)
        assert await store.call("INCR", key) == 3
        await store.aclose()


async def test_tls_and_accounts_of_least_rights_for_both(tmp_path: Path, namespace: str) -> None:
    servers = SentinelServers(tmp_path, certificates=Certificates.create(tmp_path))
    try:
        servers.start()
        rules = [
            line.replace("~runcast:", f"~{namespace}:").replace(">PASSWORD", ">pw").split() for line in least_rights()
        ]
        for node in servers.nodes:
            node.command("ACL", "SETUSER", "runcast", *rules[0][2:], "+role")
        for sentinel in servers.sentinels:
            sentinel.command("ACL", "SETUSER", "runcast", *rules[1][2:])
        url = servers.url.replace("//", "//runcast:pw@")
        account = "&sentinel_username=runcast&sentinel_password=pw"
        store = await Store.connect(url + account, _settings(namespace))
        broker = Broker(store, store.settings)
        record, _ = await broker.runs.create(request())
        assert (await broker.runs.get(record.run_id)).status == "queued"
        with pytest.raises(Refused, match="NOPERM"):
            await store.call("FLUSHALL")
        old = servers.master
        servers.sentinels[0].command("SENTINEL", "FAILOVER", "main")
        await asyncio.to_thread(wait_for, lambda: servers.master is not old)
        assert await _until_served(store, "EXISTS", broker.keys.run(record.run_id)) == 1
        await store.aclose()
        with pytest.raises(StoreError, match="WRONGPASS"):
            await Store.connect(url + account.replace("=pw", "=no"), _settings(namespace))
    finally:
        servers.stop()


async def test_no_news_is_nothing_to_log(
    redis7_sentinel: SentinelServers, namespace: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("broker.sentinel._LISTEN", 0.05)
    monkeypatch.setattr("broker.sentinel._PAUSE", 0.05)
    caplog.set_level("INFO", "runcast.store")
    store = await Store.connect(redis7_sentinel.url, _settings(namespace))
    heard = redis7_sentinel.sentinels[0].command("INFO", "stats")
    connected = int(str(heard).split("total_connections_received:")[1].split()[0].split("\\r")[0])

    def again() -> int:
        told = str(redis7_sentinel.sentinels[0].command("INFO", "stats"))
        return int(told.split("total_connections_received:")[1].split()[0].split("\\r")[0]) - connected

    await eventually(lambda: again() > 8, 30)
    await store.aclose()
    assert [r.getMessage() for r in caplog.records if "tells nothing" in r.getMessage()] == []
