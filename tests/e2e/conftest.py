"""What more than one of the end-to-end tests start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.settings import Settings
from tests.e2e.hermes import BUILDS, hermes_binary, make_home
from tests.e2e.nestjs import NestProxy, built
from tests.fake_model import FakeModel
from tests.gateways import GatewayProcess
from tests.servers import RedisServer

# The real Hermes.


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Iterator[FakeModel]:
    """The model server of a module; ``PACE`` there: seconds between two pieces of an answer."""
    pace = getattr(request.module, "PACE", None)
    with FakeModel() if pace is None else FakeModel(pace=pace) as serving:
        yield serving


@pytest.fixture(scope="module")
def hermes(request: pytest.FixtureRequest) -> str:
    """The program of the build that the module calls ``BUILD``, else of the newer one."""
    return hermes_binary(BUILDS[getattr(request.module, "BUILD", "0.22.2")])


@pytest.fixture(scope="module")
def home(hermes: str, model: FakeModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One Hermes home for all tests of a module with one build: the first run in a new one takes longer."""
    return make_home(tmp_path_factory.mktemp("hermes-home"), model)


@pytest.fixture
async def broker(redis7: RedisServer, namespace: str, tmp_path: Path) -> AsyncIterator[Broker]:
    settings = Settings(redis_url=redis7.url, namespace=namespace, data_dir=tmp_path, worker_drain=0.5)
    async with api.open(settings=settings) as opened:
        yield opened


# A gateway behind a proxy.


@pytest.fixture(scope="module")
def settings(redis7: RedisServer) -> Settings:
    """Of a gateway that the tests of a module share."""
    return Settings(redis_url=redis7.url, namespace=f"t{uuid4().hex[:12]}", partitions=4, heartbeat=0.3)


@pytest.fixture(scope="module")
def gateway(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """That gateway, behind the proxies; a module with other ``settings`` has it by them."""
    process = GatewayProcess(settings, tmp_path_factory.mktemp("gateway")).start()
    yield process
    process.kill()
    assert "Traceback" not in process.log


# The NestJS proxy.


@pytest.fixture(scope="session")
def nest_program() -> Path:
    """The compiled NestJS proxy."""
    return built()


@pytest.fixture(scope="module")
def nest(nest_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., NestProxy]]:
    """Starts proxies: ``nest(upstream, drain=1)``. All are killed at the end, and none may have stumbled."""
    directory = tmp_path_factory.mktemp("proxies")
    started: list[NestProxy] = []

    def start(upstream: int | str, **settings: Any) -> NestProxy:
        started.append(NestProxy(nest_program, directory, upstream, **settings))
        return started[-1].ready()

    yield start
    for proxy in started:
        proxy.kill()
        assert "    at " not in proxy.log, proxy.log  # a stack
