"""A request → argv and environment: never a flag, never a shell, refused clearly where it cannot be passed."""

from __future__ import annotations

import pytest

from workers.hermes.command import ARGUMENT_MAX, MARK, Call, RefusedCall, arguments, environment


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
    argv = arguments("hermes", Call("p", yolo=False), stream=False, stream_args="--x")
    assert argv == ["hermes", "chat", "--query=p", "-Q", "--source=tool"]


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


def test_the_worker_keeps_its_own_settings_from_the_agent() -> None:
    env = environment({"RUNCAST_REDIS_URL": "redis://:pw@h", "HERMES_HOME": "/h", "PATH": "/bin"}, "m1")
    assert env == {
        "HERMES_HOME": "/h",
        "PATH": "/bin",
        "HERMES_DISABLE_LAZY_INSTALLS": "1",
        "PYTHONIOENCODING": "utf-8:replace",
        MARK: "m1",
    }
