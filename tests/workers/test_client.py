"""Hermes for Python callers: what ``chat`` and ``chat_stream`` share, results, failures, leaving early."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import eventually
from tests.workers.calling import client, streamed
from tests.workers.fake_hermes import SESSION
from tests.workers.installed import Installed
from workers.hermes.client import HermesClient, HermesStreamEvent
from workers.hermes.command import Call, RefusedCall, Unavailable
from workers.hermes.process import NotStarted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc")
COMMANDS = ("stream-json", "text", "quiet")


@pytest.fixture
async def hermes(tmp_path: Path) -> AsyncIterator[Installed]:
    hermes = Installed(tmp_path)
    yield hermes
    assert hermes.left == []


async def echoed(client: HermesClient, **options: Any) -> list[dict[str, Any]]:
    """What the command was called with: by ``chat``, by ``chat_stream``."""
    quiet = await client.chat("ECHO", **options)
    _, stream = await streamed(client, "ECHO", **options)
    return [json.loads(quiet.reply), json.loads(stream.reply)]


# What both share.


async def test_both_build_the_same_command_but_for_its_mode(hermes: Installed) -> None:
    quiet, stream = await echoed(
        client(hermes, "stream-json"),
        model="m",
        provider="p",
        toolsets=["web", "files"],
        max_turns=3,
        resume="s0",
    )
    shared = ["--source=tool", "--yolo", "--model=m", "--provider=p", "--toolsets=web,files", "--resume=s0"]
    shared += ["--max-turns=3"]
    assert quiet["argv"] == ["chat", "--query=ECHO", "-Q", *shared]
    assert stream["argv"] == ["chat", "--query=ECHO", "--format=stream-json", *shared]


async def test_stream_args_are_of_the_stream_alone(hermes: Installed) -> None:
    quiet, stream = await echoed(client(hermes, stream_args="--verbose 'a b'"))
    assert "--verbose" not in quiet["argv"]
    assert stream["argv"][-2:] == ["--verbose", "a b"]
    assert "-Q" not in stream["argv"]


@pytest.mark.parametrize("mode", ["stream-json", "text"])
async def test_environment_and_directory(hermes: Installed, tmp_path: Path, mode: str) -> None:
    hermes.env.update(THEIRS="inherited", MINE="inherited", RUNCAST_REDIS_URL="redis://:secret@host")
    options = {"cwd": str(tmp_path), "env": {"MINE": "merged", "HERMES_HOME": "/elsewhere"}}
    for told in await echoed(client(hermes, mode), **options):
        assert told["cwd"] == str(tmp_path)
        assert (told["env"]["THEIRS"], told["env"]["MINE"]) == ("inherited", "merged")
        assert told["env"]["HERMES_HOME"] == "/elsewhere"
        assert "RUNCAST_REDIS_URL" not in told["env"]


async def test_the_environment_of_a_call_is_not_that_of_the_next(hermes: Installed) -> None:
    made = client(hermes, "stream-json")
    await streamed(made, "ECHO", env={"MINE": "once"})
    assert [told["env"].get("MINE") for told in await echoed(made)] == [None, None]


async def test_the_directory_of_the_settings_is_that_of_the_calls(hermes: Installed, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    told = await echoed(client(hermes, "stream-json", cwd=str(tmp_path / "work")))
    assert [t["cwd"] for t in told] == [str(tmp_path / "work")] * 2


async def test_options_change_a_call_that_is_given(hermes: Installed) -> None:
    call = Call("ECHO", model="a", max_turns=1)
    _, result = await streamed(client(hermes, "stream-json"), call, model="b")
    argv = json.loads(result.reply)["argv"]
    assert ("--model=b" in argv, "--max-turns=1" in argv, call.model) == (True, True, "a")


async def test_over_the_bridge_a_call_is_the_same(hermes: Installed, tmp_path: Path) -> None:
    options = {"model": "m", "toolsets": ["web"], "max_turns": 3, "resume": "known", "cwd": str(tmp_path)}
    _, result = await streamed(client(hermes), "echo", **options)
    told = json.loads(result.reply)
    assert (result.mode, told["model"], told["toolsets"], told["max_iterations"]) == ("bridge", "m", ["web"], 3)
    assert (told["session_id"], told["cwd"], told["HERMES_SESSION_SOURCE"]) == ("known", str(tmp_path), "tool")
    assert (told["yolo"], told["HERMES_YOLO_MODE"]) == ("1", "1")


# Results.


@pytest.mark.parametrize(("mode", "session"), [("stream-json", "s1"), ("text", SESSION), ("quiet", SESSION)])
async def test_what_a_result_tells(hermes: Installed, mode: str, session: str) -> None:
    tokens, result = await streamed(client(hermes, mode), "LINGER")
    assert "".join(tokens) == "done"
    assert (result.transcript, result.reply, result.session_id) == ("done", "done", session)
    assert (result.exit_code, result.failure, result.ok, result.mode) == (0, None, True, mode)
    if mode == "stream-json":
        assert result.usage is not None
        assert (result.usage["input_tokens"], result.usage["output_tokens"]) == (10, 2)
    else:
        assert result.usage is None
        assert "finished" in result.stderr


async def test_the_transcript_has_all_rounds_and_the_reply_the_last_one(hermes: Installed) -> None:
    tokens, result = await streamed(client(hermes), "say:first tool:terminal say:second")
    assert result.transcript == "".join(tokens) == "firstsecond"
    assert result.reply == "second"
    assert result.usage is not None
    assert result.usage["input_tokens"] == 100


async def test_the_quiet_answer_is_quiet_in_every_mode(hermes: Installed) -> None:
    for mode in ("auto", "bridge", "text"):
        result = await client(hermes, mode).chat("ECHO")
        assert (result.mode, result.exit_code, result.session_id) == ("quiet", 0, SESSION)
        assert json.loads(result.reply)["prompt"] == "ECHO"


@pytest.mark.parametrize("mode", COMMANDS)
@pytest.mark.parametrize(
    ("prompt", "code", "exit_code"), [("NOTHING", "empty_reply", 0), ("UNCONFIGURED", "not_configured", 1)]
)
async def test_failures_are_results(hermes: Installed, mode: str, prompt: str, code: str, exit_code: int) -> None:
    tokens, result = await streamed(client(hermes, mode), prompt)
    assert result.failure is not None
    assert (result.failure.code, result.exit_code, result.ok) == (code, exit_code, False)
    assert (tokens, result.reply) == ([], "")
    if mode == "quiet":
        assert (await client(hermes).chat(prompt)).failure == result.failure


async def test_a_failure_keeps_what_was_said(hermes: Installed) -> None:
    _, result = await streamed(client(hermes, "stream-json"), "NORESULT 1")
    assert result.failure is not None
    assert (result.failure.code, result.transcript, "boom" in result.stderr) == ("hermes_failed", "partial", True)


@pytest.mark.parametrize(
    ("limits", "code"), [({"silence": 1.5}, "hermes_silent"), ({"timeout": 2.5}, "hermes_timeout")]
)
async def test_limits_of_time(hermes: Installed, limits: dict[str, Any], code: str) -> None:
    _, result = await streamed(client(hermes, "stream-json", **limits), "HANG")
    assert result.failure is not None
    assert (result.failure.code, result.transcript) == (code, "partial ")
    assert hermes.left == []
    quiet = await client(hermes, **limits).chat("HANG")
    assert quiet.failure is not None
    assert quiet.failure.code == code


async def test_what_cannot_be_started_is_raised(hermes: Installed, tmp_path: Path) -> None:
    absent = HermesClient(hermes.settings(bin=str(tmp_path / "nothing")), environ=hermes.env)
    for call in (absent.chat("x"), streamed(absent, "x")):
        with pytest.raises(NotStarted) as missing:
            await call
        assert missing.value.missing
    for call in (client(hermes).chat("a\0b"), streamed(client(hermes, "text"), "a\0b")):
        with pytest.raises(RefusedCall) as refused:
            await call
        assert refused.value.code == "invalid_prompt"
    hermes.env["PYTHONPATH"] = ""
    with pytest.raises(Unavailable):
        await streamed(client(hermes, "bridge"), "say:x")
    assert hermes.asked == []


# Leaving early.


async def test_left_early_the_call_is_stopped_and_nothing_is_left(hermes: Installed) -> None:
    for mode, prompt in (("stream-json", "HANG"), ("text", "HANG"), ("bridge", "say:partial child hang")):
        stream = client(hermes, mode).chat_stream(prompt)
        assert (await anext(stream)).token is not None
        assert hermes.left != []
        await stream.aclose()
        assert hermes.left == []


async def test_cancelled_the_call_is_stopped_and_nothing_is_left(hermes: Installed) -> None:
    tokens = []

    async def run(stream: AsyncIterator[HermesStreamEvent]) -> None:
        async for event in stream:
            tokens.append(event.token)

    for mode, prompt in (("stream-json", "HANG"), ("bridge", "say:partial child wait")):
        tokens.clear()
        running = asyncio.create_task(run(client(hermes, mode).chat_stream(prompt)))
        await eventually(lambda: tokens, 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert hermes.left == []


async def test_a_quiet_call_that_is_cancelled(hermes: Installed) -> None:
    running = asyncio.create_task(client(hermes).chat("HANG"))
    await eventually(lambda: [command for command in hermes.left if command.startswith("sh ")], 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert hermes.left == []


async def test_several_at_once(hermes: Installed) -> None:
    made = client(hermes)
    results = await asyncio.gather(*(streamed(made, f"say:{n}") for n in range(4)))
    assert [result.reply for _, result in results] == ["0", "1", "2", "3"]
