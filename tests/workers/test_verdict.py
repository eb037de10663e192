"""The table of how a call ended → the code of the failure."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from workers.hermes.output import OutputParser
from workers.hermes.seen import HermesResult
from workers.hermes.verdict import Failure, judge, of_provider

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


def test_what_the_model_said_is_no_notice_whatever_it_looks_like() -> None:
    assert _judge(INIT, {"type": "text", "text": f"{NOTICE}\n"}, _result(text=NOTICE), exit_code=0) is None


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
        (-2, "", "interrupted"),
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


@dataclass
class _Seen:
    """Of a dialect without records."""

    answered: bool = False
    structured: bool = False
    result: HermesResult | None = None
    no_reply: str = ""
    limited: bool = False
    error: str = ""
    closed: bool = False
    guidance: str = ""


OWNED = "This chat is open in another Hermes window/terminal. Use it there, or start a new chat here."
NOT_SET_UP = "It looks like Hermes isn't configured yet"


@pytest.mark.parametrize(
    ("seen", "exit_code", "stderr", "code"),
    [
        (_Seen(answered=True), 0, "", None),
        (_Seen(answered=True, guidance="⚠ note"), 0, "warning: x", None),
        (_Seen(answered=True, limited=True), 0, "", "turn_limit"),
        (_Seen(limited=True, no_reply=NOTICE), 1, "", "turn_limit"),
        (_Seen(no_reply=NOTICE), 0, "", "empty_reply"),
        (_Seen(no_reply="explainer.no_reply_prefix"), 1, "", "empty_reply"),
        (_Seen(answered=True, error="HTTP 401: bad key"), 0, "", "provider_auth"),
        (_Seen(error="it gave up", guidance="❌ Rate limited (HTTP 429)"), 1, "", "provider_rate_limit"),
        (_Seen(error="something else"), 1, "", "hermes_failed"),
        (_Seen(guidance="Session not found: x"), 0, "", "hermes_session_not_found"),
        (_Seen(), 1, "Session not found: x", "hermes_session_not_found"),
        (_Seen(guidance=NOT_SET_UP), 1, "", "not_configured"),
        (_Seen(guidance="run `hermes setup`. Provider said: HTTP 401: no"), 1, "", "provider_auth"),
        (_Seen(guidance="⚠ note"), 0, "", "empty_reply"),
        (_Seen(answered=True), 1, "Traceback: boom", "hermes_failed"),
        (_Seen(answered=True), None, "", "no_result"),
        (_Seen(answered=True), -2, "Traceback\nKeyboardInterrupt", "interrupted"),
        (_Seen(answered=True), -15, "", "hermes_died"),
        (_Seen(answered=True), -11, "", "hermes_died"),
        (_Seen(answered=True, closed=True), -11, "", None),
        (_Seen(answered=True, closed=True), -6, "", None),
        (_Seen(answered=True, closed=True), -9, "", "hermes_died"),
        (_Seen(closed=True, no_reply=NOTICE), -11, "", "empty_reply"),
        (_Seen(closed=True), -11, "", "empty_reply"),
        (_Seen(guidance=OWNED), 1, "", "hermes_session_busy"),
        (_Seen(), 1, f"hermes-refusal-reason: SESSION_NOT_OWNED\n{OWNED}", "hermes_session_busy"),
        (_Seen(), 1, "Hermes is at the active session limit (2/2).", "hermes_session_busy"),
    ],
)
def test_without_records(seen: _Seen, exit_code: int | None, stderr: str, code: str | None) -> None:
    failure = judge(seen, exit_code, stderr)
    assert (failure and failure.code) == code
    assert failure is None or failure.message
    assert failure is None or "explainer" not in failure.message


def test_a_session_that_is_in_use_is_told_in_words_for_people() -> None:
    stderr = f"hermes-refusal-reason: SESSION_NOT_OWNED\n{OWNED}\nDetails: session x opened by cli 0m ago.\n"
    told = (
        _judge(INIT, _result(1, error="credentials or agent init failed"), stderr=stderr),
        judge(_Seen(), 1, stderr),
    )
    for failure in told:
        assert failure is not None
        assert (failure.code, failure.retryable) == ("hermes_session_busy", True)
        assert failure.message == f"{OWNED}\nDetails: session x opened by cli 0m ago."


@pytest.mark.parametrize("program", ["hermes", "hermes chat"])
def test_arguments_that_hermes_does_not_take_are_nobody_elses_fault(program: str) -> None:
    usage = "usage: hermes [-h] [--provider PROVIDER] [--resume SESSION]\n  [--no-session] hermes setup: no API keys\n"
    failure = judge(_Seen(), 2, f"{usage}{program}: error: unrecognized arguments: --bogus\n")
    assert failure is not None
    assert (failure.code, failure.retryable) == ("hermes_failed", False)
    assert failure.message.endswith("unrecognized arguments: --bogus")
    assert "usage" not in failure.message


def test_what_may_go_better_another_time_is_retryable() -> None:
    for exit_code in (None, 130, -9):
        failure = judge(_Seen(answered=True), exit_code, "")
        assert failure is not None
        assert failure.retryable
    assert (failure := judge(_Seen(limited=True), 0, "")) is not None
    assert not failure.retryable


def test_an_unknown_session_is_named_unless_hermes_has_no_words_for_it() -> None:
    named = judge(_Seen(), 1, "Session not found: 20200101_000000_abcdef")
    assert named is not None
    assert "20200101_000000_abcdef" in named.message
    bare = judge(_Seen(), 1, "cli.resume.session_not_found")
    assert bare is not None
    assert "cli." not in bare.message


@pytest.mark.parametrize(
    ("text", "code", "retryable"),
    [
        ("HTTP 408: timeout", "provider_error", True),
        ("Error code: 404 - no such model", "provider_error", False),
        ("connection refused", "provider_error", True),
        ("all is well", None, False),
    ],
)
def test_what_is_of_the_provider(text: str, code: str | None, retryable: bool) -> None:
    failure = of_provider(text, "words")
    assert (failure and failure.code) == code
    if failure is not None:
        assert (failure.message, failure.retryable) == ("words", retryable)
