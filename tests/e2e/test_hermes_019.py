"""Every mode of Hermes 0.19.0 × prompts of every kind, against the table in docs/hermes.md (``matrix.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.api import Broker
from tests.e2e.hermes import NEEDS_LINUX
from tests.e2e.matrix import MODES, PROMPTS, SOME, what_arrives
from tests.fake_model import FakeModel

BUILD = "0.19.0"
PACE = 0.12
"""Slow enough that a busy machine still sees text while the model sends it."""
pytestmark = [NEEDS_LINUX, pytest.mark.timeout(280)]


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
