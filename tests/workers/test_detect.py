"""Which Hermes is found, which mode ``auto`` takes and why, and what is remembered of it."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.servers import eventually
from tests.workers.installed import Installed
from workers.hermes import detect
from workers.hermes.detect import Detector, find, locate

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc")


@pytest.fixture
def hermes(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


@pytest.mark.parametrize(
    ("env", "settings", "mode", "why"),
    [
        ({}, {}, "bridge", ["its Python was found", "handshake succeeded"]),
        ({"STAND_IN_LACKS": "step_callback"}, {}, "bridge", ["handshake succeeded"]),
        ({"PYTHONPATH": ""}, {}, "stream-json", ["no bridge", "cannot be imported", "it lists --format"]),
        ({"STAND_IN_LACKS": "stream_delta_callback"}, {}, "stream-json", ["has no stream_delta_callback"]),
        ({"STAND_IN_DIES": "1"}, {}, "stream-json", ["exit code 9"]),
        ({"STAND_IN_SLOW": "60"}, {"bridge_handshake": 0.5}, "stream-json", ["HERMES_BRIDGE_HANDSHAKE (0.5 s)"]),
        ({"PYTHONPATH": "", "FAKE_HERMES_OLDER": "1"}, {}, "text", ["cannot be imported", "does not list --format"]),
        ({"FAKE_HERMES_OLDER": "1"}, {}, "bridge", ["handshake succeeded"]),
        ({}, {"python": "/nowhere/python"}, "stream-json", ["/nowhere/python", "could not be started"]),
        ({}, {"stream_args": "--x"}, "stream-json", ["HERMES_STREAM_ARGS"]),
        ({"FAKE_HERMES_OLDER": "1"}, {"stream_args": "--x"}, "text", ["HERMES_STREAM_ARGS"]),
        ({"PYTHONPATH": ""}, {"mode": "bridge"}, "bridge", ["HERMES_MODE says so"]),
        ({}, {"mode": "quiet", "stream_args": "--x"}, "quiet", ["HERMES_MODE says so"]),
    ],
)
async def test_which_mode_is_taken(
    hermes: Installed, env: dict[str, str], settings: dict[str, Any], mode: str, why: list[str]
) -> None:
    hermes.env.update(env)
    found = await find(hermes.settings(**settings), hermes.env)
    assert (found.path, found.trouble, found.mode) == (str(hermes.script), "", mode)
    assert [words for words in why if words not in found.why] == []
    await eventually(lambda: not hermes.left)


async def test_what_is_told_of_it(hermes: Installed) -> None:
    hermes.env["STAND_IN_LACKS"] = "reasoning_callback,step_callback"
    found = await find(hermes.settings(), hermes.env)
    assert (found.version, found.bridge, found.streams) == ("9.9.9", "", True)
    assert found.lacks == ("reasoning_callback", "step_callback")


async def test_without_a_bridge_the_command_says_its_version(tmp_path: Path) -> None:
    hermes = Installed(tmp_path, bridge=False, streams=False)
    found = await find(hermes.settings(), hermes.env)
    assert (found.version, found.streams) == ("0.0.0", False)
    assert "cannot be imported" in found.bridge


async def test_no_program(hermes: Installed, tmp_path: Path) -> None:
    found = await find(hermes.settings(bin=str(tmp_path / "nothing")), hermes.env)
    assert (found.path, found.mode, found.trouble) == (None, "", "")


async def test_the_path_of_the_calls_says_which_program_it_is(
    hermes: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = hermes.copy(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    settings = hermes.settings(bin="hermes")
    assert locate(settings) is None
    hermes.env["PATH"] = f"{copy.parent}:{hermes.env['PATH']}"
    found = await find(settings, hermes.env)
    assert (found.path, found.mode) == (str(copy), "bridge")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("#!/bin/sh\necho 'it is broken' >&2; exit 3\n", "exit code 3. it is broken"),
        ("#!/bin/sh\nkill -9 $$\n", "exit code -9"),
        ("\0no program\n", ""),
        ("#!/nowhere/python\n", "No such file"),
    ],
)
async def test_a_program_that_does_not_run(hermes: Installed, program: str, words: str) -> None:
    hermes.write(program)
    found = await find(hermes.settings(), hermes.env)
    assert (found.path, found.mode) == (str(hermes.script), "")
    assert words in found.trouble
    assert found.trouble


async def test_a_program_that_hangs_is_given_up_with_what_it_started(
    hermes: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "_ASK_TIMEOUT", 0.5)
    hermes.write("#!/bin/sh\nsleep 600\n")
    found = await find(hermes.settings(), hermes.env)
    assert (found.mode, found.trouble) == ("", "it did not answer within 0.5 s")
    await eventually(lambda: not hermes.left)


async def test_a_look_that_is_cancelled_leaves_nothing(hermes: Installed) -> None:
    hermes.write("#!/bin/sh\nsleep 600\n")
    looking = asyncio.create_task(find(hermes.settings(), hermes.env))
    await eventually(lambda: len(hermes.left) >= 4)
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    await eventually(lambda: not hermes.left)


@pytest.mark.parametrize("turns", range(1, 5))
async def test_a_look_that_is_cancelled_twice_leaves_nothing(hermes: Installed, turns: int) -> None:
    hermes.write("#!/bin/sh\nsleep 600\n")
    looking = asyncio.create_task(detect._output(str(hermes.script), hermes.env, "--version"))
    for _ in range(2):
        for _ in range(turns):
            await asyncio.sleep(0)
        looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    await eventually(lambda: not hermes.left)


# What a worker remembers.


async def test_whether_it_streams_is_asked_once(hermes: Installed) -> None:
    detector = Detector(hermes.settings(), hermes.env)
    assert await asyncio.gather(*(detector.streams() for _ in range(3))) == [True] * 3
    assert await detector.streams()
    assert hermes.asked == ["chat --help"]


async def test_a_program_that_changed_is_asked_again(hermes: Installed) -> None:
    detector = Detector(hermes.settings(), hermes.env)
    assert await detector.streams()
    hermes.env["FAKE_HERMES_OLDER"] = "1"
    assert await detector.streams()
    hermes.touch()
    assert not await detector.streams()
    assert len(hermes.asked) == 2


async def test_another_program_that_comes_first_on_the_path_is_asked(hermes: Installed, tmp_path: Path) -> None:
    hermes.env["PATH"] = f"{tmp_path / 'bin'}:{tmp_path}:{hermes.env['PATH']}"
    detector = Detector(hermes.settings(bin="hermes"), hermes.env)
    assert await detector.streams()
    hermes.copy(tmp_path / "bin")
    hermes.env["FAKE_HERMES_OLDER"] = "1"
    assert not await detector.streams()


@pytest.mark.parametrize("program", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nsleep 600\n", "\0"])
async def test_a_program_that_could_not_be_asked_is_asked_again(
    hermes: Installed, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = Detector(hermes.settings(), hermes.env)
    changed = hermes.script.stat().st_mtime_ns
    with monkeypatch.context() as patched:
        patched.setattr(detect, "_ASK_TIMEOUT", 0.3)
        patched.setattr(Detector, "_identity", lambda self: (str(hermes.script), changed))
        hermes.write(program)
        assert not await detector.streams()
        patched.setattr(detect, "_ASK_TIMEOUT", 30.0)
        hermes.write()
        assert await detector.streams()


async def test_no_program_streams_nothing(hermes: Installed) -> None:
    hermes.script.unlink()
    assert not await Detector(hermes.settings(), hermes.env).streams()


def test_a_bridge_that_failed_is_tried_again_when_the_program_changed(hermes: Installed) -> None:
    detector = Detector(hermes.settings(), hermes.env)
    assert detector.no_bridge() == ""
    detector.bridge_failed("it is too old")
    assert detector.no_bridge() == "it is too old"
    hermes.touch()
    assert detector.no_bridge() == ""


def test_a_bridge_that_failed_is_tried_again_after_a_minute(hermes: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = Detector(hermes.settings(), hermes.env)
    detector.bridge_failed("it was too slow")
    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 59)
    assert detector.no_bridge() == "it was too slow"
    monkeypatch.setattr(time, "monotonic", lambda: began + 61)
    assert detector.no_bridge() == ""
