"""Runs of Hermes 0.19.0 that are ended by force: nothing is left of them, and each has one fence (``kills.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.api import Broker
from tests.e2e.hermes import NEEDS_LINUX
from tests.e2e.kills import Stage, expected, fates, killed_workers, scenarios
from tests.e2e.matrix import MODES
from tests.fake_model import BEFORE_TOOL, FakeModel
from tests.servers import RedisServer

BUILD = "0.19.0"
PACE = 0.02
pytestmark = [NEEDS_LINUX, pytest.mark.timeout(400)]


@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.long)], ids=["some", "all"])
async def test_whoever_ends_a_run_nothing_of_it_is_left(
    some: bool, broker: Broker, hermes: str, model: FakeModel, home: Path
) -> None:
    pairs = scenarios(MODES[BUILD], deadline="text", some=some)
    told = await fates(Stage(broker, hermes, model, home), pairs)
    assert told == {pair: expected(*pair) for pair in pairs}


@pytest.mark.parametrize(
    "modes", [("bridge", "api"), pytest.param(MODES[BUILD], marks=pytest.mark.long)], ids=["some", "all"]
)
async def test_a_worker_that_is_killed_leaves_nothing(
    modes: tuple[str, ...], redis7: RedisServer, hermes: str, model: FakeModel, home: Path, tmp_path: Path
) -> None:
    told = await killed_workers(modes, redis7, hermes, model, home, tmp_path)
    in_tool, in_answer = (f"worker_lost, said: {said}" for said in (BEFORE_TOOL.strip(), "This is a whole line of it."))
    assert told == {mode: ["worker_lost, said: "] if mode == "quiet" else [in_tool, in_answer] for mode in modes}
