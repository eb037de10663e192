"""What the cases share: one gateway a module over the session's Redis, and a broker in the test's process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.settings import Settings
from tests.gateways import GatewayProcess
from tests.servers import RedisServer


@pytest.fixture(scope="module")
def settings(redis7: RedisServer) -> Settings:
    return Settings(
        redis_url=redis7.url,
        namespace=f"t{uuid4().hex[:12]}",
        partitions=4,
        heartbeat=0.4,
        cursor_seconds=0.2,
        block=1.0,
        retry_ms=300,
    )


@pytest.fixture(scope="module")
def gateway(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    process = GatewayProcess(settings, tmp_path_factory.mktemp("gateway")).start()
    yield process
    process.kill()
    assert "Traceback" not in process.log


@pytest.fixture
async def broker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened
