"""Gateways as processes over Valkey (the server that Runcast brings) and over Redis, and a broker beside them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.settings import Settings
from tests.e2e.processes import Worker, environment
from tests.gateways import GatewayProcess
from tests.webui.front import Front

HEARTBEAT = 0.4
_ENVIRONMENT = {"SHOW_CLI_SESSIONS", "WEBUI_PASSWORD"}


@pytest.fixture(scope="module", params=["valkey", "redis7"])
def settings(request: pytest.FixtureRequest) -> Settings:
    """Of each server in turn."""
    return settings_of(request, request.param)


def settings_of(request: pytest.FixtureRequest, server: str) -> Settings:
    if server == "valkey":
        url = f"embedded:{request.getfixturevalue('embedded_dir')}"
    else:
        url = str(request.getfixturevalue("redis7").url)
    return Settings(
        redis_url=url,
        namespace=f"t{uuid4().hex[:12]}",
        partitions=4,
        heartbeat=HEARTBEAT,
        block=1.0,
        retry_ms=300,
        beat=0.3,
    )


@pytest.fixture(scope="module")
def gateway(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    for name in _ENVIRONMENT:
        os.environ.pop(f"RUNCAST_{name}", None)
    process = GatewayProcess(settings, tmp_path_factory.mktemp("gateway")).start()
    yield process
    process.kill()
    assert "Traceback" not in process.log, process.log


@pytest.fixture
async def broker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def worker(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    given = {name: getattr(settings, name) for name in ("partitions", "beat", "block")}
    log = tmp_path_factory.mktemp("worker") / "log"
    process = Worker(environment(settings.redis_url, settings.namespace, **given), log)
    yield process
    process.kill()
    assert "Traceback" not in process.output, process.output


@pytest.fixture
def front(gateway: GatewayProcess) -> Front:
    return Front(gateway)


@pytest.fixture
async def session_id(broker: Broker) -> str:
    """A session without a turn."""
    return (await broker.sessions.create()).session_id
