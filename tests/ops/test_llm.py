"""What ``runcast doctor`` says about the endpoint of the runner ``llm``."""

from __future__ import annotations

import os

import pytest

from ops.llm import find

SECRET = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("LLM_") or n.endswith("_API_KEY")]:
        monkeypatch.delenv(name)


def test_nothing_is_set() -> None:
    found = find()
    assert found.endpoint == "openai.chat at https://api.openai.com/v1"
    assert found.lacks == ("LLM_KEY or OPENAI_API_KEY", "LLM_MODEL")
    assert found.wrong == ""


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_BASE_URL", "http://127.0.0.1:8000?token=abc")
    monkeypatch.setenv("LLM_MODEL", "local")
    found = find()
    assert (found.endpoint, found.model, found.lacks) == ("openai.chat at http://127.0.0.1:8000/v1", "local", ())


def test_the_vendors_variable_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_API", "anthropic.messages")
    monkeypatch.setenv("LLM_MODEL", "claude-sonnet-4-5")
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    found = find()
    assert found.lacks == ()
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("LLM_API", "openai", "openai.chat"),
        ("LLM_KEY", SECRET + "\n", "line break"),
        ("LLM_BASE_URL", f"https://{SECRET}@h", "LLM_KEY"),
        ("LLM_RETRIES", "many", "LLM_RETRIES"),
        ("LLM_HEADERS", "{" + SECRET, "headers"),
        ("OPENAI_API_KEY", SECRET + "\x01", "OPENAI_API_KEY"),
    ],
)
def test_wrong_settings_are_told_without_the_secret(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    found = find()
    assert words in found.wrong
    assert SECRET not in repr(found)
