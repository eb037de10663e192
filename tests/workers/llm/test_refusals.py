"""What ``llm`` refuses before anything is sent, and the mapping of what a server says."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.artifacts import InboundArtifact
from tests.workers.llm.endpoint import serve, stream
from tests.workers.llm.stage import KEY, Staging
from tests.workers.llm.wire import pieces
from workers.llm.failures import CallFailed, Secrets, of_status, of_stream, retry_after
from workers.providers.adapter import ProviderError

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("request_", "settings", "code"),
    [
        ({"toolsets": ["web"]}, {}, "unsupported_input"),
        ({"attachments": [{"name": "a"}]}, {}, "unsupported_input"),
        ({"artifacts": [InboundArtifact(name="a", url="http://x/")]}, {}, "artifacts_unsupported"),
        ({"metadata": {"temperatur": "1"}}, {}, "invalid_option"),
        ({"metadata": {"stop": "x"}}, {"api": "openai.responses"}, "invalid_option"),
        ({"provider": "nobody"}, {}, "unknown_provider"),
        ({"provider": "groq"}, {}, "not_configured"),
        ({}, {"model": ""}, "not_configured"),
    ],
)
async def test_nothing_is_sent(request_: dict[str, Any], settings: dict[str, Any], code: str, staging: Staging) -> None:
    async with serve(stream(*pieces("openai.chat", ["x"]))) as endpoint, staging(endpoint.url, **settings) as stage:
        entries = await stage.run(**request_)
    assert (entries[-1].type, entries[-1].fields["code"]) == ("failed", code)
    assert entries[-1].fields["retryable"] is False
    assert endpoint.exchanges == []


async def test_what_means_nothing_here_is_passed_over(staging: Staging) -> None:
    async with serve(stream(*pieces("openai.chat", ["x"]))) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run(approvals="ask", max_turns=3, toolsets=[], metadata={"x-label": "mine"})
    assert entries[-1].type == "final"


async def test_the_request_names_its_model_and_options(staging: Staging) -> None:
    async with (
        serve(stream(*pieces("openai.chat", ["x"]))) as endpoint,
        staging(endpoint.url, max_output_tokens=50) as stage,
    ):
        await stage.run("Was ist “das”?", model="other", metadata={"system": "kurz", "temperature": "0.1"})
    (exchange,) = endpoint.exchanges
    assert exchange.path == "/v1/chat/completions"
    assert exchange.headers["authorization"] == f"Bearer {KEY}"
    assert exchange.body["model"] == "other"
    assert exchange.body["messages"] == [
        {"role": "system", "content": "kurz"},
        {"role": "user", "content": "Was ist “das”?"},
    ]
    assert (exchange.body["temperature"], exchange.body["max_tokens"]) == (0.1, 50)


# Failures.


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "words", "type": "t"}}', "HTTP 400: words"),
        (b'{"type": "error", "error": {"type": "invalid_request_error", "message": "words"}}', "HTTP 400: words"),
        (b'[{"error": {"code": 400, "message": "words", "status": "INVALID_ARGUMENT"}}]', "HTTP 400: words"),
        (b'{"error": "words"}', "HTTP 400: words"),
        (b'{"object": "error", "message": "words"}', "HTTP 400: words"),
        (b'{"message": "words"}', "HTTP 400: words"),
        (b'{"detail": "words"}', "HTTP 400: words"),
        (b'{"detail": [{"msg": "words"}]}', 'HTTP 400: [{"msg": "words"}]'),
        (b"some\n  words", "HTTP 400: some words"),
        (b"\xff\xfe", "HTTP 400: \ufffd\ufffd"),
        (b"", "HTTP 400"),
        (b"[]", "HTTP 400: []"),
        (b"null", "HTTP 400: null"),
        (b'{"error": null}', "HTTP 400: None"),
    ],
)
def test_error_bodies_of_all_shapes(body: bytes, message: str) -> None:
    failed = of_status(400, body, {}, NOW)
    assert (failed.code, failed.message, failed.retryable, failed.again) == ("provider_error", message, False, False)


def test_an_endless_message_is_cut() -> None:
    assert len(of_status(500, b'{"error": "' + b"x" * 50_000 + b'"}', {}, NOW).message) <= 2000
    assert len(of_status(500, b"x" * 50_000, {}, NOW).message) < 400


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_when_the_server_wants_to_be_asked_again(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds
    assert of_status(429, b"", headers, NOW).wait_s == seconds


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("incomplete_stream", ("incomplete_stream", True, True)),
        ("corrupt_stream", ("corrupt_stream", True, False)),
        ("broken_json", ("unreadable_stream", True, True)),
        ("no_stream", ("unreadable_stream", False, False)),
        ("too_long", ("unreadable_stream", False, False)),
        ("overloaded_error", ("provider_error", True, True)),
        ("server_error", ("provider_error", True, True)),
        ("api_error", ("provider_error", True, True)),
        ("500", ("provider_error", True, True)),
        ("503", ("provider_error", True, True)),
        ("408", ("provider_error", True, True)),
        ("", ("provider_error", True, True)),
        ("rate_limit_error", ("provider_rate_limit", True, True)),
        ("rate_limit_exceeded", ("provider_rate_limit", True, True)),
        ("RESOURCE_EXHAUSTED", ("provider_rate_limit", True, True)),
        ("429", ("provider_rate_limit", True, True)),
        ("insufficient_quota", ("provider_rate_limit", False, False)),
        ("billing_error", ("provider_rate_limit", False, False)),
        ("authentication_error", ("provider_auth", False, False)),
        ("PERMISSION_DENIED", ("provider_auth", False, False)),
        ("invalid_api_key", ("provider_auth", False, False)),
        ("401", ("provider_auth", False, False)),
        ("invalid_request_error", ("provider_error", False, False)),
        ("INVALID_ARGUMENT", ("provider_error", False, False)),
        ("not_found_error", ("provider_error", False, False)),
        ("context_length_exceeded", ("provider_error", False, False)),
        ("content_filter", ("provider_error", False, False)),
        ("400", ("provider_error", False, False)),
    ],
)
def test_errors_inside_a_stream(code: str, expected: tuple[str, bool, bool]) -> None:
    failed = of_stream(ProviderError(code, "words"))
    assert (failed.code, failed.retryable, failed.again) == expected
    assert "words" in failed.message


def test_secrets_are_taken_out_of_everything_but_short_ones_are_no_secrets() -> None:
    secrets = Secrets(["sk-long-secret", "", "a"])
    assert secrets.scrub("key sk-long-secret, a") == "key [redacted], a"
    value = {"a": ["sk-long-secret", 1, None, {"sk-long-secret": "x sk-long-secret y"}]}
    assert secrets.scrub_all(value) == {"a": ["[redacted]", 1, None, {"[redacted]": "x [redacted] y"}]}
    assert Secrets([]).scrub_all(value) is value


def test_a_failure_is_a_runners_failure() -> None:
    failed = CallFailed("c", "m" * 5000)
    assert (failed.code, len(failed.message), failed.again, failed.wait_s) == ("c", 2000, False, None)
