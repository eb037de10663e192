"""How a command of Hermes ends, as others met it: case 26, in each mode that is a command, with a stand-in for it.

The real Hermes is ended in the same ways by ``tests/e2e/kills.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.merge import text_of
from tests.servers import eventually
from tests.workers.hermes_stage import HermesStage, Said, on_stage
from tests.workers.installed import Installed
from workers.hermes.command import MODES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc")
ERROR = "API call failed after 3 retries: HTTP 500: the model is on fire"


@pytest.fixture
def hermes(tmp_path: Path) -> Installed:
    return Installed(tmp_path, bridge=False)


@pytest.mark.parametrize("mode", MODES)
async def test_case_26_an_empty_answer_has_a_code_of_its_own_though_hermes_exits_with_0(
    hermes: Installed, tmp_path: Path, mode: str
):
    async with on_stage(hermes, tmp_path, mode=mode) as stage:
        said = await stage.run("NOTHING")
    assert (said.outcome, said.text, said.fence["retryable"]) == ("empty_reply", "", True)


@pytest.mark.parametrize("mode", ["text", "quiet"])
async def test_case_26_an_error_on_standard_output_is_carried_by_the_fence(
    hermes: Installed, tmp_path: Path, mode: str
):
    hermes.write(f"#!/bin/sh\necho '{ERROR}'\nexit 1\n")
    async with on_stage(hermes, tmp_path, mode=mode) as stage:
        said = await stage.run("x")
    assert (said.outcome, said.text) == ("provider_error", "")
    assert ERROR in said.fence["message"]


async def _in_a_tool(stage: HermesStage, hermes: Installed, mode: str, act: Callable[[str], Awaitable[object]]) -> Said:
    """A run that was ended by ``act`` while its tool ran, which ignores SIGTERM. Nothing of it is left."""
    run_id = await stage.create("HANG")
    await eventually(lambda: any("trap" in command for command in hermes.left), 20)
    said = Said()
    async for entry in stage.watch(run_id):
        said.append(entry)
        # In mode quiet nothing is said before the end.
        if entry.type == ("event" if mode == "quiet" else "tool.started") and len(said.of(entry.type)) == 1:
            await act(run_id)
    await eventually(lambda: hermes.left == [], 20)
    return said


def _kept(said: Said) -> str:
    return text_of(said.fence["partial"]).strip() if said.fence["partial"] else ""


@pytest.mark.parametrize("mode", MODES)
async def test_case_26_a_stop_inside_a_tool_keeps_the_text_and_leaves_no_process(
    hermes: Installed, tmp_path: Path, mode: str
):
    async with on_stage(hermes, tmp_path, mode=mode) as stage:
        said = await _in_a_tool(stage, hermes, mode, stage.broker.runs.cancel)
    assert (said.outcome, _kept(said)) == ("cancelled", "" if mode == "quiet" else "partial")


@pytest.mark.parametrize("mode", MODES)
async def test_case_26_a_child_that_outlives_sigkill_of_hermes_ends_as_well(
    hermes: Installed, tmp_path: Path, mode: str
):
    async def kill(_: str) -> None:
        hermes.kill("--query=")

    async with on_stage(hermes, tmp_path, mode=mode) as stage:
        said = await _in_a_tool(stage, hermes, mode, kill)
    assert (said.outcome, _kept(said)) == ("hermes_died", "" if mode == "quiet" else "partial")
