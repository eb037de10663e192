"""Runs of Hermes 0.19.0 that are ended by force: nothing is left of them, and each has one fence (``kills.py``)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.settings import Settings
from tests.e2e.hermes import hermes_binary, make_home
from tests.e2e.kills import Stage, expected, fates, killed_workers, scenarios
from tests.e2e.matrix import BUILDS, MODES
from tests.fake_model import BEFORE_TOOL, FakeModel
from tests.servers import RedisServer

BUILD = "0.19.0"
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc"),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    with FakeModel(pace=0.02) as serving:
        yield serving


@pytest.fixture(scope="module")
def home(model: FakeModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("hermes-home"), model)


@pytest.fixture
async def broker(redis7: RedisServer, tmp_path: Path) -> AsyncIterator[Broker]:
    settings = Settings(redis_url=redis7.url, namespace=f"t{uuid4().hex[:12]}", data_dir=tmp_path, worker_drain=0.5)
    async with api.open(settings=settings) as opened:
        yield opened


@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.long)], ids=["some", "all"])
async def test_whoever_ends_a_run_nothing_of_it_is_left(
    some: bool, broker: Broker, model: FakeModel, home: Path
) -> None:
    pairs = scenarios(MODES[BUILD], deadline="text", some=some)
    told = await fates(Stage(broker, hermes_binary(BUILDS[BUILD]), model, home), pairs)
    assert told == {pair: expected(*pair) for pair in pairs}


@pytest.mark.parametrize(
    "modes", [("bridge", "api"), pytest.param(MODES[BUILD], marks=pytest.mark.long)], ids=["some", "all"]
)
async def test_a_worker_that_is_killed_leaves_nothing(
    modes: tuple[str, ...], redis7: RedisServer, model: FakeModel, home: Path, tmp_path: Path
) -> None:
    told = await killed_workers(modes, redis7, hermes_binary(BUILDS[BUILD]), model, home, tmp_path)
    in_tool, in_answer = (f"worker_lost, said: {said}" for said in (BEFORE_TOOL.strip(), "This is a whole line of it."))
    assert told == {mode: ["worker_lost, said: "] if mode == "quiet" else [in_tool, in_answer] for mode in modes}
