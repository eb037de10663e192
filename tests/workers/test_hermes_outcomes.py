"""Runs of the runner ``hermes``: what fences carry, what they cost, how runs fall back, and how they are stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.servers import eventually
from tests.workers.fake_api import KEY, FakeApi, delta
from tests.workers.hermes_stage import Said, on_stage
from tests.workers.installed import Installed
from workers.prices import decimal_string, price

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc"),
    pytest.mark.timeout(60),
]


@pytest.fixture
def hermes(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


@pytest.fixture
def commands(tmp_path: Path) -> Installed:
    """One without a bridge."""
    return Installed(tmp_path, bridge=False)


# The way it is taken.


async def test_over_the_bridge_nothing_is_said_of_a_fallback(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        said = await stage.run("say:hello")
    assert (said.outcome, said.text, said.events("fallback")) == ("final", "hello", [])
    assert said.fence["metadata"]["mode"] == "bridge"


async def test_a_fallback_is_the_first_that_a_run_says(commands: Installed, tmp_path: Path) -> None:
    async with on_stage(commands, tmp_path) as stage:
        for _ in range(2):
            said = await stage.run("ECHO")
            names = [fields["name"] for fields in said.of("event")]
            assert names[:2] == ["run.started", "fallback"]
            [fallback] = said.events("fallback")
            assert (fallback["from"], fallback["to"]) == ("bridge", "stream-json")
            assert "cannot be imported" in fallback["because"]
            assert (said.outcome, said.fence["metadata"]["mode"]) == ("final", "stream-json")


@pytest.mark.parametrize("mode", ["bridge", "api"])
async def test_a_mode_that_was_named_and_is_not_there(commands: Installed, tmp_path: Path, mode: str) -> None:
    async with on_stage(commands, tmp_path, mode=mode) as stage:
        said = await stage.run("ECHO")
    assert said.outcome == "hermes_mode_unavailable"
    assert f"HERMES_MODE={mode}" in said.fence["message"]
    assert "runcast doctor" in said.fence["message"]
    assert commands.asked == []


@pytest.mark.parametrize("mode", ["auto", "bridge", "stream-json", "text", "quiet", "api"])
async def test_no_hermes(hermes: Installed, tmp_path: Path, mode: str) -> None:
    async with on_stage(hermes, tmp_path, mode=mode, bin=str(tmp_path / "nothing")) as stage:
        said = await stage.run("ECHO")
    assert (said.outcome, said.fence["retryable"]) == ("hermes_not_found", False)
    assert "HERMES_BIN" in said.fence["message"]


async def test_a_directory_that_is_none(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path, cwd=str(tmp_path / "nowhere")) as stage:
        said = await stage.run("say:x")
    assert (said.outcome, said.fence["retryable"]) == ("hermes_not_started", True)
    assert "nowhere" in said.fence["message"]


async def test_the_server_of_mode_api_serves_all_runs(hermes: Installed, tmp_path: Path) -> None:
    async with FakeApi() as api:
        api.script = [delta("hi"), {"event": "run.completed", "output": "hi"}]
        settings: dict[str, Any] = {"mode": "api", "api_url": api.url, "api_key": SecretStr(KEY)}
        async with on_stage(hermes, tmp_path, **settings) as stage:
            said = [await stage.run("one"), await stage.run("two")]
        assert [(s.outcome, s.text, s.fence["metadata"]["mode"]) for s in said] == [("final", "hi", "api")] * 2
        assert [run.body["input"] for run in api.runs] == ["one", "two"]


# What the fence carries.


async def test_metadata_and_the_transcript_of_all_rounds(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        fence = (await stage.run("say:first tool:terminal say:second", model="m")).fence
    assert (fence["rounds"], fence["hermes_session_id"]) == (2, "fresh")
    assert fence["message"]["content"] == [{"type": "text", "text": "second"}]
    metadata = fence["metadata"]
    assert metadata.pop("duration_ms") > 0
    assert metadata == {
        "mode": "bridge",
        "model": "m",
        "provider": "stand-in",
        "hermes_version": "9.9.9",
        "transcript": "firstsecond",
    }


@pytest.mark.parametrize(("letters", "whole"), [(128 * 1024, True), (128 * 1024 + 1, False)])
async def test_a_long_transcript_is_left_to_the_items(
    commands: Installed, tmp_path: Path, letters: int, whole: bool
) -> None:
    async with on_stage(commands, tmp_path, mode="stream-json") as stage:
        said = await stage.run(f"BIG {letters}")
    metadata = said.fence["metadata"]
    assert said.text == "é" * letters
    assert metadata.get("transcript") == (said.text if whole else None)
    assert metadata.get("transcript_bytes") == (None if whole else 2 * letters)


@pytest.mark.parametrize(("mode", "session"), [("stream-json", "s1"), ("text", None), ("quiet", None)])
async def test_a_session_goes_on_and_a_failure_names_it(
    commands: Installed, tmp_path: Path, mode: str, session: str | None
) -> None:
    async with on_stage(commands, tmp_path, mode=mode) as stage:
        said = await stage.run("ECHO", metadata={"hermes_session_id": "20300101_000000_aaaaaa"})
        failed = await stage.run("NOTHING")
    assert "--resume=20300101_000000_aaaaaa" in said.text
    assert failed.outcome == "empty_reply"
    assert failed.fence["hermes_session_id"] == (session or said.fence["hermes_session_id"])
    assert failed.fence["hermes_session_id"]


# What it costs.


async def test_a_model_whose_price_is_known_costs(commands: Installed, tmp_path: Path) -> None:
    commands.env["FAKE_HERMES_MODEL"] = "gpt-4o"
    async with on_stage(commands, tmp_path, mode="stream-json") as stage:
        said = await stage.run("LINGER")
    known = price("gpt-4o", None, {"input_tokens": 10, "output_tokens": 2, "cache_read_tokens": 0})
    assert known is not None
    [cost] = said.of("cost")
    assert (cost["amount"], cost["total"], cost["estimated"]) == (decimal_string(known.amount),) * 2 + (True,)
    assert said.fence["cost"]["total"] == cost["total"]
    assert said.events("warning") == []


async def test_a_model_that_is_not_on_the_list_is_said_once(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        said = await stage.run("tool:terminal tool:terminal tool:terminal say:x")
    assert len(said.of("usage")) == 3
    assert [warning["code"] for warning in said.events("warning")] == ["price_unknown"]
    assert (said.of("cost"), said.fence["cost"]) == ([], None)
    assert said.fence["usage"]["input_tokens"] == 300


async def test_a_price_that_hermes_knows_is_taken(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        said = await stage.run("cost:0.5 tool:terminal cost:0.75 say:x", model="gpt-4o")
    assert [cost["total"] for cost in said.of("cost")] == ["0.5", "0.75"]
    assert (said.fence["cost"]["total"], said.events("warning")) == ("0.75", [])


# Limits of time.


@pytest.mark.parametrize("mode", ["stream-json", "text", "bridge"])
@pytest.mark.parametrize(
    ("limits", "code"), [({"silence": 1.5}, "hermes_silent"), ({"timeout": 2.5}, "hermes_timeout")]
)
async def test_past_a_limit_of_time_the_partial_text_is_kept(
    hermes: Installed, tmp_path: Path, mode: str, limits: dict[str, Any], code: str
) -> None:
    prompt = "say:partial child wait" if mode == "bridge" else "HANG"
    async with on_stage(hermes, tmp_path, mode=mode, **limits) as stage:
        said = await stage.run(prompt)
        assert (said.outcome, said.fence["retryable"]) == (code, True)
        assert said.fence["partial"]["content"][0]["text"].strip() == "partial"
        assert said.fence["hermes_session_id"] or mode == "text"
        await eventually(lambda: hermes.left == [], 20)


async def test_the_deadline_of_a_run(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        said = await stage.run("say:partial hang", deadline_s=2.0)
    assert (said.outcome, said.fence["partial"]["content"][0]["text"]) == ("deadline", "partial")


# Stops.


async def _cancelled(stage: Any, run_id: str, at: str) -> Said:
    """The run, cancelled at its first item of that type."""
    said = Said()
    async for entry in stage.watch(run_id):
        said.append(entry)
        if entry.type == at and len(said.of(at)) == 1:
            await stage.broker.runs.cancel(run_id)
    return said


async def test_a_cancel_while_hermes_starts_does_not_wait_for_it(hermes: Installed, tmp_path: Path) -> None:
    """A start may take as long as a server's; the grace is for what has started."""
    hermes.env["STAND_IN_SLOW"] = "600"
    async with on_stage(hermes, tmp_path, bridge_handshake=600.0, grace=300.0) as stage:
        run_id = await stage.create("say:x")
        await eventually(lambda: len(hermes.left) >= 2, 20)
        await stage.broker.runs.cancel(run_id)
        said = await stage.follow(run_id)
        assert (said.outcome, said.fence["partial"]) == ("cancelled", None)
        await eventually(lambda: hermes.left == [], 20)


async def test_a_cancelled_run_keeps_its_text_and_its_session(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        said = await _cancelled(stage, await stage.create("say:partial child wait"), "message.delta")
        assert said.outcome == "cancelled"
        assert said.fence["partial"]["content"] == [{"type": "text", "text": "partial"}]
        assert said.fence["hermes_session_id"] == "fresh"
        await eventually(lambda: hermes.left == [], 20)


async def test_a_hermes_that_does_not_hear_a_stop_is_killed_after_its_grace(hermes: Installed, tmp_path: Path) -> None:
    async with on_stage(hermes, tmp_path) as stage:
        said = await _cancelled(stage, await stage.create("say:partial child hang"), "message.delta")
        assert said.outcome == "cancelled"
        await eventually(lambda: hermes.left == [], 20)
