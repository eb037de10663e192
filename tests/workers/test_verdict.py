"""The table of how a call ended → the code of the failure."""

from __future__ import annotations

import json

import pytest

from workers.hermes.output import OutputParser
from workers.hermes.verdict import Failure, judge

INIT = {"type": "system", "subtype": "init", "model": "m", "session_id": "s"}


def _judge(*records: object, exit_code: int | None = None, stderr: str = "") -> Failure | None:
    parser = OutputParser()
    for record in records:
        parser.feed((record if isinstance(record, str) else json.dumps(record)).encode() + b"\n")
    parser.close(succeeded=exit_code == 0)
    return judge(parser, exit_code, stderr)


def _result(exit_code: int = 0, text: str = "", error: str | None = None) -> dict[str, object]:
    return {"type": "result", "exit_code": exit_code, "text": text, **({"error": error} if error else {})}


TEXT = {"type": "text", "text": "hello"}
TOOL = {"type": "tool_use", "name": "t", "input": {}}
TOOL_END = {"type": "tool_result", "name": "t", "output": "o", "is_error": False}
NOTICE = "⚠️ No reply: the model returned empty content"


def test_an_answer_is_a_success() -> None:
    assert _judge(INIT, TEXT, _result(text="hello"), exit_code=None) is None


@pytest.mark.parametrize(
    "records",
    [
        (INIT, _result(text=NOTICE)),
        (INIT, _result(text="explainer.no_reply_prefixexplainer.empty_response")),
        (INIT, _result()),
        (INIT, TEXT, TOOL, TOOL_END, _result(text=NOTICE)),
        (INIT, TEXT, TOOL, TOOL_END, _result()),
        (INIT, {"type": "text", "text": " \n"}, _result()),
    ],
)
def test_an_empty_reply_is_a_failure_though_the_exit_code_is_0(records: tuple[object, ...]) -> None:
    failure = _judge(*records, exit_code=0)
    assert failure is not None
    assert (failure.code, failure.retryable) == ("empty_reply", True)
    assert failure.message
    assert "explainer" not in failure.message


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        ("HTTP 401: bad key", "provider_auth", False),
        ("HTTP 403: no", "provider_auth", False),
        ("HTTP 429: rate limit", "provider_rate_limit", True),
        ("HTTP 500: internal", "provider_error", True),
        ("HTTP 400: bad request", "provider_error", False),
        ("API call failed after 3 retries: Connection error", "provider_error", True),
        ("something else", "hermes_failed", False),
    ],
)
def test_errors_of_the_result(error: str, code: str, retryable: bool) -> None:
    failure = _judge(INIT, TEXT, _result(1, f"It went wrong.\n\nProvider said: {error}", error))
    if code == "hermes_failed":
        failure = _judge(INIT, TEXT, _result(1, error, error))
    assert failure is not None
    assert (failure.code, failure.retryable) == (code, retryable)
    assert error in failure.message


def test_a_turn_limit() -> None:
    failure = _judge(INIT, TOOL, TOOL_END, _result(1, "This is how far I got."))
    assert failure is not None
    assert failure.code == "turn_limit"


def test_an_unknown_session_and_an_agent_that_cannot_start() -> None:
    result = _result(1, error="credentials or agent init failed")
    for stderr, code in [("Session not found: x", "hermes_session_not_found"), ("No provider", "not_configured")]:
        failure = _judge(INIT, result, stderr=stderr)
        assert failure is not None
        assert failure.code == code
        assert stderr in failure.message


@pytest.mark.parametrize(
    ("exit_code", "stderr", "code"),
    [
        (0, "", "no_result"),
        (None, "", "no_result"),
        (130, "", "interrupted"),
        (-9, "", "hermes_died"),
        (1, "Traceback: boom", "hermes_failed"),
        (2, "error: unrecognized arguments: --format=stream-json", "hermes_too_old"),
    ],
)
def test_without_a_result_line(exit_code: int | None, stderr: str, code: str) -> None:
    failure = _judge(INIT, TEXT, exit_code=exit_code, stderr=stderr)
    assert failure is not None
    assert failure.code == code


def test_a_command_of_another_dialect_succeeds_by_its_exit_code() -> None:
    assert _judge("plain answer", exit_code=0) is None
    assert _judge({"type": "message.delta", "delta": "x"}, exit_code=0) is None
    failure = _judge(exit_code=0)
    assert failure is not None
    assert failure.code == "empty_reply"
