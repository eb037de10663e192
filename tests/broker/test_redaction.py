"""Secrets go, and the text around them stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from pydantic_settings import BaseSettings

from broker.redaction import MARK, Redactor, redact, secrets_of

KEY = "sk-proj-" + "Ab3" * 12


@pytest.mark.parametrize(
    ("text", "secret", "stays"),
    [
        ("redis://user:hunter2@host:6379/0 is away", "hunter2", "host:6379/0 is away"),
        ("redis://:p@ss:w@host/0", "p@ss", "host/0"),
        ("GET https://host/x?cancel_token=abcdef123&modes=final", "abcdef123", "modes=final"),
        ("Authorization: Bearer abc.def-ghi", "abc.def-ghi", "Authorization"),
        ("{'authorization': 'Basic dXNlcjpwdw=='}", "dXNlcjpwdw", "authorization"),
        ("sent Bearer abcdefgh12345 to it", "abcdefgh12345", "to it"),
        ('{"api_key": "kkkkkkkk", "model": "m"}', "kkkkkkkk", '"model": "m"'),
        ('{"password": "two words\'s", "a": 1}', "two words", '"a": 1'),
        ("LLM_API_KEY=kkkkkkkk rest", "kkkkkkkk", "rest"),
        ("Cookie: session=abc; other=def", "def", "Cookie"),
        (f"the key {KEY} is refused", KEY, "is refused"),
        ("ghp_" + "a" * 36 + " is", "ghp_a", " is"),
        ("AKIAIOSFODNN7EXAMPLE!", "AKIAIOSFODNN7EXAMPLE", "!"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl end", "c2lnbmF0dXJl", "end"),
        ("old-eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl end", "c2lnbmF0dXJl", "old-"),
        ("a" * 70 + "-eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl end", "c2lnbmF0dXJl", "aaaa-"),
        ("-" * 70 + "eyJhbGciOiJI.eyJzdWIiOiIx. end", "eyJzdWIiOiIx", "---- end".replace(" ", f"{MARK} ")),
        ("host12345678.eyJhbGciOiJI.eyJzdWIiOiIx.c2ln end", "eyJhbGciOiJI", "host12345678."),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.c2ln.eyJhbGciOiJI.eyJzdWIiOiIx.c2ln end", "eyJ", "end"),
        ("--my-token=kkkkkkkk rest", "kkkkkkkk", "--my-token="),
        ("ask?cancel_token=kkkkkkkk&a=1", "kkkkkkkk", "&a=1"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- end", "MIIE", "end"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEcut short", "MIIE", ""),
    ],
)
def test_what_looks_like_a_secret_goes(text: str, secret: str, stays: str) -> None:
    said = redact(text)
    assert secret not in said
    assert MARK in said
    assert stays in said


@pytest.mark.parametrize(
    "text",
    [
        "run run_038haqq0wc13n0ptq969rj16fv ended: final",
        "max_tokens=4096, input_tokens: 12, first_token 0.2 s",
        "no token within 5 s",
        "listening on 127.0.0.1, port 8700",
        "user@host of https://host/path",
        "the basic idea",
    ],
)
def test_everything_else_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "piece", ["a-", "token", 'token="', "-eyJ", "eyJaaaaaaaa-", "-----BEGIN ", "://a", "cookie:\n", " "]
)
def test_no_text_takes_more_than_its_share_of_time(piece: str) -> None:
    """In the square of its length this text takes a quarter of an hour: so long a worker would stand still."""
    text = piece * (300_000 // len(piece))
    assert redact(redact(text)) == redact(text)


def test_what_is_known_goes_wherever_it_stands() -> None:
    known = Redactor(["correct horse", "correct horse battery", "abc"])
    assert known("xcorrect horse batteryx correct horse") == f"x{MARK}x {MARK}"
    assert known("abcd") == "abcd", "too short to be told from words"
    assert Redactor([""])("text") == "text"


@given(st.text(max_size=200))
def test_redacting_again_changes_nothing(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=40), st.text())
def test_a_known_secret_never_stays(secret: str, around: str) -> None:
    if secret not in MARK and secret not in around:
        assert secret not in Redactor([secret])(f"{around} {secret} {around}").replace(MARK, "")


class _Settings(BaseSettings):
    key: SecretStr = SecretStr("the-key")
    none: SecretStr | None = None
    empty: SecretStr = SecretStr("")
    headers: dict[str, SecretStr] = {"x-key": SecretStr("the-header")}
    plain: str = "plain"


class _Needs(BaseSettings):
    lacking: int


def test_settings_tell_their_secrets() -> None:
    assert secrets_of(_Settings()) == secrets_of(_Settings) == ["the-key", "the-header"]
    assert secrets_of(_Needs) == [], "whoever needs it says so"
