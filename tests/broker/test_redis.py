"""The store's contract, on every kind of store; and what it does when a server misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from broker.connections import pack
from broker.errors import InvalidRequest, LayoutMismatch, StoreUnavailable
from broker.redis import Refused, Store
from broker.scripts import Script
from broker.settings import Settings
from broker.urls import parse
from tests.servers import Proxy, RedisServer, eventually, silent_host

ECHO = Script.of("echo", b"return {KEYS[1], ARGV[1], ARGV[2]}")


def _settings(**changes: object) -> Settings:
    return Settings(namespace=f"t{uuid4().hex[:12]}", **changes)  # type: ignore[arg-type]


@pytest.fixture
async def proxied(redis_server: RedisServer) -> AsyncIterator[tuple[Store, Proxy]]:
    """A store that reaches its server through a proxy."""
    async with Proxy(redis_server.port) as proxy:
        store = await Store.connect(proxy.url, _settings())
        yield store, proxy
        await store.aclose()


class TestCommands:
    async def test_replies_are_those_of_resp2_with_bytes(self, store: Store, namespace: str) -> None:
        key = f"{namespace}:k"
        assert await store.call("SET", key, 7) == b"OK"
        assert await store.call(b"GET", key.encode()) == b"7"
        assert await store.call("INCR", key) == 8
        assert await store.call("GET", f"{namespace}:none") is None
        assert await store.call("HSET", f"{namespace}:h", "a", 1, "b", 1.5) == 2
        assert await store.call("HGETALL", f"{namespace}:h") == [b"a", b"1", b"b", b"1.5"]

    async def test_streams_are_nested_lists(self, store: Store, namespace: str) -> None:
        key = f"{namespace}:s".encode()
        for seq in (1, 2):
            assert await store.call("XADD", key, f"{seq}-0", "t", "x", "d", "{}") == b"%d-0" % seq
        entries = [[b"1-0", [b"t", b"x", b"d", b"{}"]], [b"2-0", [b"t", b"x", b"d", b"{}"]]]
        assert await store.call("XRANGE", key, "-", "+") == entries
        assert await store.call("XREAD", "COUNT", 10, "STREAMS", key, "0-0") == [[key, entries]]
        assert not await store.call("XREAD", "COUNT", 10, "STREAMS", key, "2-0")

    async def test_binary_values_and_keys_pass_unchanged(self, store: Store, namespace: str) -> None:
        key = namespace.encode() + b":\r\n\x00\xff"
        value = bytes(range(256)) * 5000
        await store.call("SET", key, value)
        assert await store.call("GET", key) == value

    async def test_an_error_reply_is_refused_and_named_and_the_connection_stays(self, store: Store) -> None:
        before = store.stats.connections
        with pytest.raises(Refused, match="refused") as caught:
            await store.call("NOSUCHCOMMAND")
        assert caught.value.kind == "ERR"
        assert await store.call("PING") == b"PONG"
        assert store.stats.connections == before == store.stats.servers
        assert store.interruptions == 0

    async def test_nogroup_keeps_its_code(self, store: Store, namespace: str) -> None:
        with pytest.raises(Refused) as caught:
            await store.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", f"{namespace}:none", ">")
        assert caught.value.kind == "NOGROUP"


class TestPipelines:
    async def test_replies_come_in_order(self, store: Store, namespace: str) -> None:
        commands = [("INCR", f"{namespace}:n")] * 500
        assert await store.pipeline(commands) == list(range(1, 501))
        assert await store.pipeline([]) == []

    async def test_an_error_reply_is_raised_after_all_were_read(self, store: Store, namespace: str) -> None:
        key = f"{namespace}:k"
        with pytest.raises(Refused):
            await store.pipeline([("SET", key, 1), ("ZADD", key, 1, "x"), ("INCR", key)])
        assert await store.call("GET", key) == b"2"

    async def test_atomic_answers_like_plain(self, store: Store, namespace: str) -> None:
        key = f"{namespace}:k"
        assert await store.pipeline([("SET", key, 1), ("INCR", key)], atomic=True) == [b"OK", 2]

    async def test_atomic_with_a_malformed_command_does_nothing(self, store: Store, namespace: str) -> None:
        key = f"{namespace}:k"
        with pytest.raises(Refused):
            await store.pipeline([("SET", key, 1), ("NOSUCHCOMMAND",)], atomic=True)
        assert await store.call("EXISTS", key) == 0

    async def test_atomic_raises_the_error_of_a_command(self, store: Store, namespace: str) -> None:
        key = f"{namespace}:k"
        with pytest.raises(Refused) as caught:
            await store.pipeline([("SET", key, 1), ("ZADD", key, 1, "x")], atomic=True)
        assert caught.value.kind == "WRONGTYPE"


class TestScripts:
    async def test_runs_though_the_server_does_not_know_it_yet(self, store: Store, namespace: str) -> None:
        script = Script.of("x", b"-- %b\nreturn {KEYS[1], ARGV[1], #ARGV}" % uuid4().hex.encode())
        key = namespace.encode()
        for _ in range(2):
            assert await store.script(script, [key], [b"a", 2]) == [key, b"a", 2]

    async def test_the_servers_script_cache_may_be_lost(self, store: Store, namespace: str) -> None:
        key = namespace.encode()
        await store.script(ECHO, [key], [1, 2])
        try:
            await store.everywhere("SCRIPT", "FLUSH")
        except Refused as refused:
            if refused.kind == "NOPERM":
                pytest.skip("an account with the least rights cannot make that happen")
            raise
        assert await store.script(ECHO, [key], [1, 2]) == [key, b"1", b"2"]

    async def test_an_error_of_the_script_keeps_its_text(self, store: Store, namespace: str) -> None:
        script = Script.of("gap", b"return redis.error_reply('GAP 17')")
        with pytest.raises(Refused) as caught:
            await store.script(script, [namespace.encode()], [])
        assert caught.value.reply == "GAP 17"


class TestLinks:
    async def test_a_blocked_read_returns_what_is_added_and_blocks_nobody(self, store: Store, namespace: str) -> None:
        key = f"{namespace}:s".encode()
        link = await store.link(key)
        await link.send([pack(("XREAD", "BLOCK", 5000, "STREAMS", key, "0-0"))])
        reading = asyncio.create_task(link.read(7.0))
        await store.call("XADD", key, "1-0", "t", "x")
        assert await reading == [[key, [[b"1-0", [b"t", b"x"]]]]]
        await link.aclose()

    async def test_a_read_that_finds_nothing_is_none(self, store: Store, namespace: str) -> None:
        link = await store.link(f"{namespace}:s".encode())
        assert await link.call("XREAD", "BLOCK", 20, "STREAMS", f"{namespace}:s", "0-0", deadline=30.0) is None
        assert store.stats.links == 1
        await link.aclose()
        assert store.stats.links == 0

    async def test_a_late_reply_closes_the_link(self, store: Store, namespace: str) -> None:
        link = await store.link(f"{namespace}:s".encode())
        with pytest.raises(StoreUnavailable, match="in time"):
            await link.call("XREAD", "BLOCK", 2000, "STREAMS", f"{namespace}:s", "0-0", deadline=0.05)
        with pytest.raises(StoreUnavailable):
            await link.call("PING", deadline=1.0)
        assert store.stats.links == 0
        assert store.interruptions == 1
        assert await store.call("PING") == b"PONG"

    async def test_a_cancelled_read_closes_the_link(self, store: Store, namespace: str) -> None:
        link = await store.link(f"{namespace}:s".encode())
        reading = asyncio.create_task(link.call("XREAD", "BLOCK", 2000, "STREAMS", f"{namespace}:s", "0", deadline=5.0))
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        with pytest.raises(StoreUnavailable):
            await link.call("PING", deadline=1.0)
        assert store.interruptions == 0

    async def test_closing_wakes_the_reader(self, store: Store, namespace: str) -> None:
        link = await store.link(f"{namespace}:s".encode())
        reading = asyncio.create_task(link.call("XREAD", "BLOCK", 0, "STREAMS", f"{namespace}:s", "0", deadline=60.0))
        await asyncio.sleep(0.05)
        await link.aclose()
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(reading, 30)
        assert store.interruptions == 0

    async def test_an_error_reply_leaves_it_open(self, store: Store) -> None:
        link = await store.link()
        with pytest.raises(Refused):
            await link.call("NOSUCHCOMMAND", deadline=30.0)
        assert await link.call("PING", deadline=30.0) == b"PONG"


class TestShared:
    async def test_two_stores_of_one_url_see_the_same(self, store: Store, settings: Settings, store_url: str) -> None:
        other = await Store.connect(store_url, settings)
        key = f"{settings.namespace}:k"
        await store.call("SET", key, 1)
        assert await other.call("GET", key) == b"1"
        assert await other.secret() == await store.secret()
        await other.aclose()

    async def test_another_number_of_partitions_is_refused(self, store: Store, settings: Settings) -> None:
        with pytest.raises(LayoutMismatch, match="RUNCAST_PARTITIONS"):
            await Store.connect(store.url, settings.model_copy(update={"partitions": 32}))

    async def test_a_configured_secret_wins(self, store: Store, settings: Settings) -> None:
        configured = Settings(namespace=settings.namespace, secret="s3")  # type: ignore[arg-type]
        other = await Store.connect(store.url, configured)
        assert await other.secret() == b"s3"
        await other.aclose()

    async def test_a_closed_store_refuses(self, store: Store) -> None:
        await store.aclose()
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await store.call("PING")
            with pytest.raises(StoreUnavailable):
                await store.link()
            await store.aclose()


class TestCancellation:
    async def test_replies_still_match_after_random_cancellations(self, store: Store, namespace: str) -> None:
        """cases.md 9: 200 concurrent calls, cancelled at random moments; no reply ever reaches another call."""
        rng = random.Random(9)
        for _ in range(5):
            calls = [asyncio.create_task(_echoes(store, namespace, n)) for n in range(200)]
            for step in range(60):
                calls[rng.randrange(200)].cancel()
                await asyncio.sleep(0 if step % 2 else rng.random() * 0.001)
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(one) for one in done} <= {bool, asyncio.CancelledError}, [d for d in done if d is not True][:3]
            assert all(one for one in done if not isinstance(one, BaseException))
        assert store.stats.connections <= 3 * store.stats.servers
        assert store.stats.in_use == store.stats.waiting == 0
        assert store.interruptions == 0

    async def test_a_place_handed_to_a_cancelled_waiter_is_not_lost(self, store: Store, namespace: str) -> None:
        for _ in range(50):
            calls = [asyncio.create_task(_echoes(store, namespace, n)) for n in range(8)]
            await asyncio.sleep(0)
            for call in calls[3:]:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            assert store.stats.in_use == store.stats.waiting == 0
        assert await _echoes(store, namespace, 1)

    async def test_whoever_waits_is_not_overtaken_for_ever(self, redis7: RedisServer) -> None:
        """Twice as many callers as connections, each asking again at once."""
        store = await Store.connect(redis7.url, _settings())
        done = [0] * 6

        async def ask(n: int) -> None:
            while min(done) < 20:
                await store.call("PING")
                done[n] += 1

        await asyncio.gather(*(ask(n) for n in range(6)))
        assert max(done) <= 60
        await store.aclose()


def test_it_is_the_same_on_uvloop(redis7: RedisServer, redis7_tls: RedisServer, embedded_dir: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def use(url: str) -> None:
        store = await Store.connect(url, _settings())
        namespace = store.settings.namespace
        calls = [asyncio.create_task(_echoes(store, namespace, n)) for n in range(100)]
        for n in range(0, 100, 3):
            await asyncio.sleep(0)
            calls[n].cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert all(one is True or isinstance(one, asyncio.CancelledError) for one in done)
        link = await store.link()
        with pytest.raises(StoreUnavailable):
            await link.call("XREAD", "BLOCK", 2000, "STREAMS", f"{namespace}:s", "0-0", deadline=0.05)
        assert await store.call("PING") == b"PONG"
        await store.aclose()

    async def lose() -> None:
        async with Proxy(redis7.port) as proxy:
            store = await Store.connect(proxy.url, _settings())
            link = await store.link()
            before = store.interruptions
            proxy.cut()
            await eventually(lambda: store.interruptions > before)
            assert await store.call("PING") == b"PONG"
            with pytest.raises(StoreUnavailable):
                await link.call("PING", deadline=1.0)
            await store.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for url in (redis7.url, redis7_tls.url, f"embedded:{embedded_dir}"):
            runner.run(use(url))
        runner.run(lose())


async def _echoes(store: Store, namespace: str, n: int) -> bool:
    key = f"{namespace}:{n}".encode()
    first = await store.script(ECHO, [key], [n, "a"])
    second = await store.call(*_say(key, f"e{n}"))
    third = await store.pipeline([_say(key, n), _say(f"{namespace}:{-n}".encode(), -n)])
    return (first, second, third) == (
        [key, b"%d" % n, b"a"],
        b"e%d" % n,
        [b"%d" % n, b"%d" % -n],
    )


def _say(key: bytes, word: str | int) -> tuple[str | int | bytes, ...]:
    return ("EVAL", "return ARGV[1]", 1, key, word)


class TestSilence:
    async def test_a_silent_host_fails_connecting_within_the_deadline(self) -> None:
        async with silent_host() as url:
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match="in time"):
                await Store.connect(url, _settings(request_deadline=0.6))
            assert 0.5 < time.monotonic() - started < 15

    async def test_a_paused_server_fails_every_call_within_the_deadline(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = await Store.connect(redis_server.url, _settings())
        await asyncio.gather(*(store.call("PING") for _ in range(20)))
        redis_server.pause()
        started = time.monotonic()
        with monkeypatch.context() as patch:
            patch.setattr(store, "_deadline", 0.6)
            done = await asyncio.gather(*(store.call("PING") for _ in range(200)), return_exceptions=True)
        assert time.monotonic() - started < 15
        assert all(isinstance(one, StoreUnavailable) for one in done)
        assert store.interruptions >= 200
        redis_server.resume()
        assert await store.call("PING") == b"PONG"
        await store.aclose()

    async def test_nothing_listens(self) -> None:
        with pytest.raises(StoreUnavailable, match="no connection"):
            await Store.connect("redis://127.0.0.1:1/0", _settings())

    async def test_something_else_listens(self) -> None:
        async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(http, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(StoreUnavailable, match="does not speak"):
                await Store.connect(f"redis://127.0.0.1:{port}", _settings())


class TestOutage:
    async def test_a_restart_is_noticed_and_survived(self, redis_server: RedisServer) -> None:
        store = await Store.connect(redis_server.url, _settings())
        key = f"{store.settings.namespace}:k"
        await store.call("SET", key, 1)
        link = await store.link()
        redis_server.restart(kill=True)
        await eventually(lambda: store.interruptions > 0)
        with pytest.raises(StoreUnavailable):
            await link.call("PING", deadline=1.0)
        assert await store.call("GET", key) == b"1"
        await store.aclose()

    async def test_a_request_whose_reply_is_lost_is_not_sent_again(
        self, proxied: tuple[Store, Proxy], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, proxy = proxied
        key = f"{store.settings.namespace}:k"
        proxy.drop_replies = True
        with monkeypatch.context() as patch:
            patch.setattr(store, "_deadline", 0.5)
            with pytest.raises(StoreUnavailable):
                await store.call("INCR", key)
        proxy.drop_replies = False
        assert redis_server.command("GET", key) == b"1"
        assert await store.call("INCR", key) == 2

    async def test_a_cut_connection(self, proxied: tuple[Store, Proxy]) -> None:
        store, proxy = proxied
        before = store.interruptions
        proxy.cut()
        await eventually(lambda: store.interruptions > before)
        assert await store.call("PING") == b"PONG"

    async def test_connections_are_bounded(self, redis_server: RedisServer) -> None:
        store = await Store.connect(redis_server.url, _settings())
        await asyncio.gather(*(store.call("PING") for _ in range(500)))
        assert redis_server.info("clients").count(b"connected_clients:4\r\n") == 1  # and the one that asks
        await store.aclose()
        await eventually(lambda: b"connected_clients:1\r\n" in redis_server.info("clients"))

    async def test_a_replica_is_no_place_to_write(self, redis_server: RedisServer, tmp_path: Path) -> None:
        replica = RedisServer(tmp_path / "replica").start()
        try:
            replica.replica_of(redis_server)
            with pytest.raises(StoreUnavailable, match="READONLY"):
                await Store.connect(replica.url, _settings())
            replica.promote()
            store = await Store.connect(replica.url, _settings())
            await store.call("SET", f"{store.settings.namespace}:k", 1)
            redis_server.replica_of(replica)
            before = store.interruptions
            replica.command("REPLICAOF", "127.0.0.1", str(redis_server.port))
            with pytest.raises(StoreUnavailable):
                await store.call("SET", f"{store.settings.namespace}:k", 2)
            assert store.interruptions > before
            await store.aclose()
        finally:
            replica.kill()

    async def test_a_loading_server_is_unavailable(self, redis_server: RedisServer) -> None:
        store = await Store.connect(redis_server.url, _settings())
        await store.pipeline([("SET", f"{store.settings.namespace}:{n}", "x" * 1000) for n in range(3000)])
        before = store.interruptions
        # Loads so slowly (1 ms a key) that it can be seen loading.
        await store.call("CONFIG", "SET", "key-load-delay", 1000, "loading-process-events-interval-bytes", 1024)
        link = await store.link()
        await link.send([pack(("DEBUG", "LOADAOF"))])
        seen = []
        for _ in range(50):
            try:
                await store.call("GET", "x")
            except StoreUnavailable as error:
                seen.append(str(error))
                break
            await asyncio.sleep(0.01)
        assert "LOADING" in seen[0]
        assert store.interruptions > before
        await store.aclose()

    async def test_a_full_server_is_unavailable_not_broken(self, redis_server: RedisServer) -> None:
        redis_server.command("CONFIG", "SET", "maxclients", "2")
        store = await Store.connect(redis_server.url, _settings())
        first = await store.link()
        with pytest.raises(StoreUnavailable, match=r"max number of clients|lost|closed|reset"):
            await store.link()
        assert await first.call("PING", deadline=30.0) == b"PONG"
        await store.aclose()


class TestUrls:
    @pytest.mark.parametrize(
        "url",
        [
            "",
            "localhost:6379",
            "http://x",
            "redis://h:99999",
            "redis://h:port",
            "redis://h/name",
            "redis://h?ssl_ca_certs=x",
            "redis://h?socket_timeout=5",
            "rediss://h?ssl_ca_certs=/does/not/exist.pem",
            "rediss://h?ssl_cert_reqs=maybe",
            "unix://relative",
            "redis+cluster://",
            "redis+cluster://h,,i",
            "redis+cluster://h:99999",
            "redis+cluster://h:1,h/2",
            "redis+cluster://h/3",
            "redis+cluster://h?db=0",
            "redis+cluster://h?ssl_ca_certs=x",
            "redis+sentinel://h",
            "redis+sentinel://h/",
            "redis+sentinel://h/main/name",
            "redis+sentinel://h/main/0/1",
            "rediss+sentinel://h/main?ssl_ca_certs=/does/not/exist.pem",
        ],
    )
    async def test_a_url_that_cannot_be_used_says_what_can(self, url: str) -> None:
        with pytest.raises(InvalidRequest, match="Allowed: redis://") as caught:
            await Store.connect(url, _settings())
        assert caught.value.field == "redis_url"

    @pytest.mark.parametrize(
        "url",
        [
            "redis://user:hunter2@127.0.0.1:1/0",
            "redis://:hunter2@127.0.0.1:1/0",
            "redis://user:hunter2@h:99999",
            "redis+cluster://user:hunter2@127.0.0.1:1,127.0.0.1:2",
            "redis+cluster://user:hunter2@h:x",
            "redis+sentinel://user:hunter2@127.0.0.1:1/main?sentinel_password=hunter2",
            "hunter2://x",
            "redis://:hunter2@h/x",
            "rediss://:hunter2@h?ssl_ca_certs=/none&ssl_password=hunter2",
        ],
    )
    async def test_passwords_never_appear(self, url: str) -> None:
        with pytest.raises((InvalidRequest, StoreUnavailable)) as caught:
            await Store.connect(url, _settings(request_deadline=0.5))
        assert "hunter2" not in f"{caught.value!r} {caught.value}"

    def test_several_hosts(self, tmp_path: Path) -> None:
        cluster = parse("redis+cluster://us%40er:p%2Cw@a:1,[::1]:2,c", tmp_path)
        assert (cluster.kind, cluster.seeds) == ("cluster", (("a", 1), ("::1", 2), ("c", 6379)))
        assert (cluster.username, cluster.password, cluster.tls) == ("us@er", "p,w", None)
        assert cluster.shown == "redis+cluster://a:1,[::1]:2,c:6379"
        url = "rediss+sentinel://:pw@a,b:5/my%20main/3?sentinel_username=s&sentinel_password=t&ssl_cert_reqs=none"
        watched = parse(url, tmp_path)
        assert (watched.seeds, watched.master, watched.db) == ((("a", 26379), ("b", 5)), "my main", 3)
        plus = parse("redis+sentinel://u:a+b%2B@h/main?sentinel_password=a+b%2B", tmp_path)
        assert (plus.password, plus.sentinel_password) == ("a+b+", "a+b+"), "a URL's “+” is no space"
        of_master, of_sentinel = watched.at(("m", 7)), watched.sentinel_at(("a", 26379))
        assert (of_master.host, of_master.port, of_master.db, of_master.password) == ("m", 7, 3, "pw")
        assert (of_sentinel.username, of_sentinel.password, of_sentinel.db) == ("s", "t", 0)
        assert of_master.tls is of_sentinel.tls is watched.tls is not None

    async def test_password_database_and_unix_socket(self, tmp_path: Path) -> None:
        sock = tmp_path / "r.sock"
        server = RedisServer(tmp_path / "redis", options=["--unixsocket", str(sock)]).start()
        try:
            server.command("CONFIG", "SET", "requirepass", "p@ss/ word")
            settings = _settings()
            store = await Store.connect(f"unix://default:p%40ss%2F%20word@{sock}?db=3", settings)
            await store.call("SET", f"{settings.namespace}:k", 1)
            other = await Store.connect(f"redis://:p%40ss%2F%20word@127.0.0.1:{server.port}/3", settings)
            assert await other.call("GET", f"{settings.namespace}:k") == b"1"
            await store.aclose()
            await other.aclose()
            with pytest.raises(Refused, match="WRONGPASS"):
                await Store.connect(f"redis://:wrong@127.0.0.1:{server.port}", settings)
            with pytest.raises(Refused, match="NOAUTH"):
                await Store.connect(f"redis://127.0.0.1:{server.port}", settings)
        finally:
            server.kill()

    async def test_tls_verifies_the_server(self, redis7_tls: RedisServer) -> None:
        with pytest.raises(StoreUnavailable, match="certificate"):
            await Store.connect(f"rediss://127.0.0.1:{redis7_tls.port}/0", _settings())
        assert redis7_tls.certificates
        unverified = f"rediss://127.0.0.1:{redis7_tls.port}/0?ssl_cert_reqs=none"
        store = await Store.connect(unverified, _settings())
        assert await store.call("PING") == b"PONG"
        with contextlib.suppress(StoreUnavailable):
            await store.aclose()
