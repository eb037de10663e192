"""Every mode of Hermes 0.19.0 × prompts of every kind, against the table in docs/hermes.md (``matrix.py``)."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.settings import Settings
from tests.e2e.hermes import make_home
from tests.e2e.matrix import MODES, PROMPTS, SOME, what_arrives
from tests.fake_model import FakeModel
from tests.servers import RedisServer

BUILD = "0.19.0"
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc"),
    pytest.mark.timeout(280),
]


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    # Slow enough that a busy machine still sees text while the model sends it.
    with FakeModel(pace=0.12) as serving:
        yield serving


@pytest.fixture(scope="module")
def home(model: FakeModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("hermes-home"), model)


@pytest.fixture
async def broker(redis7: RedisServer, tmp_path: Path) -> AsyncIterator[Broker]:
    settings = Settings(redis_url=redis7.url, namespace=f"t{uuid4().hex[:12]}", data_dir=tmp_path, worker_drain=0.5)
    async with api.open(settings=settings) as opened:
        yield opened


@pytest.mark.parametrize("kinds", [SOME, pytest.param(tuple(PROMPTS), marks=pytest.mark.long)], ids=["some", "all"])
@pytest.mark.parametrize("mode", MODES[BUILD])
async def test_what_arrives_is_what_the_docs_say(
    mode: str,
    kinds: tuple[str, ...],
    broker: Broker,
    model: FakeModel,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = await what_arrives(BUILD, mode, broker, model, home, tmp_path, kinds)
    with capsys.disabled():
        print(f"\nHermes {BUILD}, mode {mode}\n{table}")
