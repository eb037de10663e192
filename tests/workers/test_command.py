"""A request → argv and environment: never a flag, never a shell, refused clearly where it cannot be passed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workers.hermes import command
from workers.hermes.command import ARGUMENT_MAX, COLUMNS, MARK, MODES, Call, RefusedCall, arguments, environment


@pytest.mark.parametrize(
    "prompt", ["-q --help", "--yolo", "'; rm -rf / #", 'a "b" $(c) `d`', "line\nline\n", "-", "漢😀\u2028"]
)
def test_a_prompt_is_one_argument_unchanged(prompt: str) -> None:
    argv = arguments("hermes", Call(prompt))
    assert argv[:3] == ["hermes", "chat", f"--query={prompt}"]
    assert "-Q" not in argv


def test_options_are_single_arguments() -> None:
    call = Call("p", model="-m", provider="x", toolsets=["a", "b"], max_turns=3, resume="--r")
    argv = arguments("hermes", call, stream_args="--verbose 'two words'")
    assert argv[3:] == [
        *("--format=stream-json", "--source=tool", "--yolo", "--model=-m", "--provider=x", "--toolsets=a,b"),
        *("--resume=--r", "--max-turns=3", "--verbose", "two words"),
    ]


def test_the_quiet_contract_and_approvals() -> None:
    argv = arguments("hermes", Call("p", yolo=False), mode="quiet", stream_args="--x")
    assert argv == ["hermes", "chat", "--query=p", "-Q", "--source=tool"]


def test_a_screen_is_asked_for_by_saying_nothing_of_it() -> None:
    argv = arguments("hermes", Call("p"), mode="text", stream_args="--verbose 'two words'")
    assert argv == ["hermes", "chat", "--query=p", "--source=tool", "--yolo", "--verbose", "two words"]


def test_nul_and_what_is_no_unicode_are_refused() -> None:
    for prompt in ("a\0b", "a\ud800b"):
        with pytest.raises(RefusedCall) as refused:
            arguments("hermes", Call(prompt))
        assert refused.value.code == "invalid_prompt"


def test_the_limit_of_one_argument_is_exact() -> None:
    room = ARGUMENT_MAX - len("--query=") - 1
    assert arguments("hermes", Call("x" * room))
    with pytest.raises(RefusedCall) as refused:
        arguments("hermes", Call("é" * (room // 2 + 1)))
    assert refused.value.code == "prompt_too_long"
    assert f"{room:,}" in str(refused.value)
    assert "bridge" in str(refused.value)


@pytest.mark.parametrize("prompt", ["see [/b] there", "[/]", "close [bold]x[/italic]"])
def test_a_prompt_that_hermes_could_not_print_is_refused_in_mode_text_alone(prompt: str) -> None:
    """The real Hermes ends with a traceback of Rich."""
    with pytest.raises(RefusedCall) as refused:
        arguments("hermes", Call(prompt), mode="text")
    assert refused.value.code == "invalid_prompt"
    for mode in set(MODES) - {"text"}:
        assert f"--query={prompt}" in arguments("hermes", Call(prompt), mode=mode)


@pytest.mark.parametrize("prompt", ["[bold]x[/bold]", "a[0]", "[link=x]y[/link]", r"\[/b]", "[b]", "[ /b ]", "a / b]"])
def test_other_brackets_pass_in_mode_text(prompt: str) -> None:
    assert f"--query={prompt}" in arguments("hermes", Call(prompt), mode="text")


def test_the_worker_keeps_its_own_settings_from_the_agent() -> None:
    env = environment({"RUNCAST_REDIS_URL": "redis://:pw@h", "HERMES_HOME": "/h", "PATH": "/bin"}, "m1")
    assert env == {
        "HERMES_HOME": "/h",
        "PATH": "/bin",
        "HERMES_DISABLE_LAZY_INSTALLS": "1",
        "PYTHONIOENCODING": "utf-8:replace",
        "PYTHONUTF8": "1",
        MARK: "m1",
    }


def test_a_calls_own_environment_goes_over_the_workers_and_under_the_mark() -> None:
    env = environment({"A": "1", "B": "1", "RUNCAST_X": "1"}, "m1", extra={"B": "2", MARK: "forged"})
    assert (env["A"], env["B"], env[MARK]) == ("1", "2", "m1")
    assert "RUNCAST_X" not in env


def test_the_modes_that_read_words_ask_for_english_and_a_screen_is_wide_and_plain() -> None:
    terminal = {"COLUMNS": "80", "TERM": "dumb", "FORCE_COLOR": "1", "HERMES_LANGUAGE": "de"}
    for mode in ("stream-json", "quiet"):
        env = environment(terminal, "m1", mode=mode)
        assert (env["HERMES_LANGUAGE"], env["COLUMNS"]) == ("en", "80")
    screen = environment(terminal, "m1", mode="text")
    assert (screen["COLUMNS"], screen["TERM"], screen["NO_COLOR"]) == (str(COLUMNS), "xterm", "1")
    assert "FORCE_COLOR" not in screen
    assert environment(terminal, "m1", mode="text", extra={"COLUMNS": "120"})["COLUMNS"] == "120"
    assert environment(terminal, "m1")["HERMES_LANGUAGE"] == "de"


def test_what_is_ours_stays_with_us(tmp_path: Path) -> None:
    root = Path(command.__file__).parents[2]
    inherited = {
        "RUNCAST_SECRET": "s",
        "LLM_KEY": "k",
        "HERMES_API_KEY": "a",
        "HERMES_HOME": "/h",
        "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}",
        "PYTHONHOME": "/of/the/workers/python",
        "PYTHONIOENCODING": "latin-1",
    }
    passed = environment(inherited, "m")
    assert not {"RUNCAST_SECRET", "LLM_KEY", "HERMES_API_KEY", "PYTHONHOME"} & set(passed)
    assert passed["PYTHONIOENCODING"] == "utf-8:replace", "its output is read as UTF-8"
    assert passed["HERMES_HOME"] == "/h"
    assert passed["PYTHONPATH"] == str(tmp_path), "our package `gateway` would hide Hermes' own"
    assert "PYTHONPATH" not in environment({"PYTHONPATH": str(root)}, "m")
