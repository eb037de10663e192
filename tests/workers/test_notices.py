"""Which of Hermes' own lines are known, and what becomes of them."""

from __future__ import annotations

import pytest

from broker.items import Event
from workers.hermes.notices import code_of, is_no_reply, item_of, split_no_reply


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("  ⚠ tirith security scanner enabled but not available — …", "tirith_unavailable"),
        ("  ⏱ Timeout — denying command", "approval_timeout"),
        ("  ⏱ Timeout — continuing without sudo", "sudo_timeout"),
        ("(clarify timed out after 3s — agent will decide)", "clarify_timeout"),
        ("⚠️  Reached maximum iterations (1). Requesting summary...", "turn_limit"),
        ("⚠ Iteration budget reached (1/1) — response may be incomplete", "turn_limit"),
        ("cli.chat.iteration_budget_reached", "turn_limit"),
        ("[subagent-1] ⚠️  Reached maximum iterations (1).", None),
        ("↻ Empty response after tool calls — using earlier content as final answer", "earlier_answer"),
        ("⏱️ Rate limited. Waiting 1.0s (attempt 2/3)...", "rate_limited"),
        ("⏳ Retrying in 2.2s (attempt 1/3)...", "retry"),
        ("⚠️ Empty response from model — retrying (1/3) in 7s", "retry"),
        ("⚠️ Rate limited — switching to fallback provider...", "fallback"),
        ("⚠️  Stream interrupted by network error (x)", "stream_interrupted"),
        ("⚠️  Response truncated — server ended the stream", "stream_interrupted"),
        ("❌ Model returned no content after all retries.", "empty_response"),
        ("⚡ Interrupted during API call.", "interrupted"),
        ("🗜️ Compressed 12 → 3 messages, retrying...", "context_compressed"),
        ("❌ Non-retryable error (HTTP 401): bad key", "model_error"),
        ("⚠️  Attempt 1/3, not retryable failed: HTTP 401", "model_error"),
        ("I retried, and the timeout was mine", None),
        ("", None),
    ],
)
def test_codes(line: str, code: str | None) -> None:
    assert code_of(line) == code


@pytest.mark.parametrize(
    ("line", "payload"),
    [
        ("⏳ Retrying in 2.2s (attempt 1/3)...", {"wait_s": 2.2, "attempt": 1, "of": 3}),
        ("⏱️ Rate limited. Waiting 1.0s (attempt 2/3)...", {"wait_s": 1.0, "attempt": 2, "of": 3}),
        ("⏳ down — retrying automatically in 18s (cycle 1/5); press Esc", {"wait_s": 18.0, "attempt": 1, "of": 5}),
        ("⚠️ Empty response from model — retrying (1/3)", {"attempt": 1, "of": 3}),
        (f"⏳ Retrying in {'9' * 1_500} (attempt 1/{'9' * 1_500})", {}),
        (f"⏳ Retrying in {'9' * 1_500}s", {"wait_s": 999_999_999.0}),
    ],
)
def test_a_new_attempt_is_a_retry_with_its_numbers(line: str, payload: dict[str, object]) -> None:
    assert item_of(line) == Event(name="retry", payload={"message": line, **payload})


def test_a_notice_of_several_lines_is_one_event_and_bounded() -> None:
    item = item_of("❌ gave up\n   💀 Final error: x\n" + "   more\n" * 5_000)
    assert isinstance(item, Event)
    assert item.payload["code"] == "model_error"
    assert item.payload["message"].startswith("❌ gave up\n💀 Final error: x\nmore\n")
    assert len(item.payload["message"]) == 4_000


def test_the_notice_that_there_is_no_reply() -> None:
    notice = "⚠️ No reply: the model returned empty content"
    assert is_no_reply(f"\n{notice}")
    assert not is_no_reply(f"Hermes says “{notice}”")
    assert not is_no_reply("⚠️ No reply is needed."), "a model may say that"
    assert split_no_reply(notice) == ("", notice)
    assert split_no_reply(f"So far.\n\nAnd.\n\n{notice}") == ("So far.\n\nAnd.", notice)
    for text in ("So far.\n\nAnd.", f"{notice}\n\nis what Hermes says then.", " a \n"):
        assert split_no_reply(text) == (text, "")


def test_a_line_of_megabytes_is_looked_at_by_its_beginning() -> None:
    """Searched as a whole, this one would take until the test is given up."""
    assert code_of("⚠" * (5 << 20)) is None
