"""The quiet contract: what stands ahead of the answer, the answer, and the session."""

from __future__ import annotations

import signal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import Item, MessageDelta
from tests.workers.drawn import SESSION, events, split_everywhere, text
from workers.hermes.quiet import QuietParser
from workers.hermes.verdict import Failure, ended_well, judge

SAID = f"\nsession_id: {SESSION}\n"
TIRITH = "  ⚠ tirith security scanner enabled but not available — pattern matching only\r\n"
BOX = "\r\n┌─ Reasoning " + "─" * 60 + "┐\r\n"
LIMIT = "⚠️  Reached maximum iterations (1). Requesting summary...\n"
NO_REPLY = "⚠️ No reply: the model returned empty content after retries.\n"


def _parse(
    raw: str | bytes, *, stderr: str = SAID, exit_code: int = 0, cuts: tuple[int, ...] = ()
) -> tuple[list[Item], Failure | None]:
    parser = QuietParser()
    data = raw.encode() if isinstance(raw, str) else raw
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    items = [item for a, b in pairwise(edges) for item in parser.feed(data[a:b])]
    assert items == [], "nothing before the end"
    items = parser.heard(stderr) + parser.close(succeeded=exit_code == 0)
    return items, judge(parser, exit_code, stderr)


@pytest.mark.parametrize(
    "reply", ["Hi", "one\n\n  two\n", "a\r\nb\r\nc", "é漢😀\u2028", '{"type": "message.delta", "delta": "x"}', "⚠ mine"]
)
def test_the_answer_is_what_is_printed_but_for_the_last_newline(reply: str) -> None:
    items, failure = _parse(reply + "\n")
    assert failure is None
    assert items[1:] == [MessageDelta(text=reply)]
    assert events(items, "hermes.session") == [{"hermes_session_id": SESSION}]


@pytest.mark.parametrize(
    ("ahead", "codes"),
    [
        (TIRITH, ["tirith_unavailable"]),
        ("\r\n  ⏱ Timeout — denying command\r\n", ["approval_timeout"]),
        ("\r\n(clarify timed out after 3s — agent will decide)\r\n", ["clarify_timeout"]),
        (f"{TIRITH}\r\n  ⏱ Timeout — denying command\r\n", ["tirith_unavailable", "approval_timeout"]),
        (f"{BOX}thinking, one\r\nthinking, two\r\n", ["reasoning_shown"]),
        (f"{BOX}thinking\r\n└{'─' * 72}┘\r\n", ["reasoning_shown"]),
        (
            f"{TIRITH}{BOX}hm\r\n\r\n  ⏱ Timeout — denying command\r\n",
            ["tirith_unavailable", "reasoning_shown", "approval_timeout"],
        ),
    ],
)
def test_what_was_meant_for_a_screen_is_a_warning_and_no_part_of_the_answer(ahead: str, codes: list[str]) -> None:
    raw = f"{ahead}The answer\n  is this.\n".encode()
    for first, _ in split_everywhere(raw):
        items, failure = _parse(raw, cuts=(len(first),))
        assert failure is None
        assert text(items) == "The answer\n  is this."
        assert [event["code"] for event in events(items, "warning")] == codes


@pytest.mark.parametrize(
    "reply", ["First.\n  ⏱ Timeout — denying command\nlast", "(clarify timed out after 3s)", LIMIT[:5]]
)
def test_the_same_words_inside_the_answer_are_the_models(reply: str) -> None:
    items, failure = _parse(reply + "\n")
    assert text(items) == reply
    assert failure is None
    assert not events(items, "warning")


def test_an_empty_answer_is_a_failure_though_the_exit_code_is_0() -> None:
    for raw in (NO_REPLY, "explainer.no_reply_prefixexplainer.empty_response\n", "", "\n"):
        items, failure = _parse(TIRITH + raw)
        assert text(items) == ""
        assert failure is not None
        assert (failure.code, failure.retryable) == ("empty_reply", True)
        assert "explainer" not in failure.message


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_turn_limit_keeps_the_closing_words(exit_code: int) -> None:
    items, failure = _parse(f"\n{LIMIT}So far.\n\n{NO_REPLY}", exit_code=exit_code)
    assert text(items) == "So far."
    assert failure is not None
    assert failure.code == "turn_limit"


@pytest.mark.parametrize(
    ("reply", "bounded", "code", "partial"),
    [
        ("So far.", True, "turn_limit", "So far."),
        ("So far.", False, "hermes_failed", ""),
        ("Provider said: HTTP 500: x", True, "provider_error", ""),
    ],
)
def test_a_failure_in_other_words_than_a_providers_is_the_turn_limit_where_there_is_one(
    reply: str, bounded: bool, code: str, partial: str
) -> None:
    """0.22.2 prints the closing words, and ends with exit code 1."""
    parser = QuietParser(bounded=bounded)
    parser.feed(reply.encode() + b"\n")
    assert text(parser.close(succeeded=False)) == partial
    failure = judge(parser, 1, SAID)
    assert failure is not None
    assert failure.code == code


@pytest.mark.parametrize(
    ("raw", "stderr", "exit_code", "code", "said"),
    [
        ("HTTP 401: bad key\n", SAID, 1, "provider_auth", "HTTP 401: bad key"),
        ("API call failed after 3 retries: HTTP 429: slow down\n", SAID, 1, "provider_rate_limit", "HTTP 429"),
        ("API call failed after 3 retries: HTTP 500: oops\n", SAID, 1, "provider_error", "HTTP 500"),
        (
            "It rejected your API key: run `hermes setup`.\n\nProvider said: HTTP 401: no\n",
            SAID,
            1,
            "provider_auth",
            "no",
        ),
        (
            "\nIt looks like Hermes isn't configured yet\n\n  Run:  hermes setup\n",
            "",
            1,
            "not_configured",
            "hermes setup",
        ),
        ("", "Session not found: x\nUse a session ID.\n", 1, "hermes_session_not_found", "Session not found: x"),
        ("", "cli.resume.session_not_found\n", 1, "hermes_session_not_found", "does not know"),
        ("", SAID, 130, "interrupted", "interrupted"),
        ("", "Error: no such model\n", 1, "hermes_failed", "no such model"),
    ],
)
def test_failures(raw: str, stderr: str, exit_code: int, code: str, said: str) -> None:
    items, failure = _parse(raw, stderr=stderr, exit_code=exit_code)
    assert text(items) == ""
    assert failure is not None
    assert failure.code == code
    assert said in failure.message
    assert "session_id:" not in failure.message


def test_the_session_is_known_while_the_answer_is_not_and_again_where_it_rotated() -> None:
    parser = QuietParser()
    resumed = "↻ Resumed session 20300101_000000_ffffff (1 user message, 2 total messages)\n"
    assert events(parser.heard(""), "hermes.session") == []
    assert events(parser.heard(resumed), "hermes.session") == [{"hermes_session_id": "20300101_000000_ffffff"}]
    assert parser.heard(resumed) == []
    assert events(parser.heard(resumed + SAID), "hermes.session") == [
        {"hermes_session_id": SESSION, "rotated_from": "20300101_000000_ffffff"}
    ]
    assert parser.session_id == SESSION


def test_invalid_utf8_is_replaced_and_what_is_too_much_is_left_out_and_said_so() -> None:
    assert text(_parse(b"a\xff\xe2\x82b\n")[0]) == "a\ufffd\ufffdb"
    parser = QuietParser(limit=1_000)
    for _ in range(100):
        parser.feed(b"x" * 100)
    items = parser.close()
    assert text(items) == "x" * 1_000
    assert [event["code"] for event in events(items, "warning")] == ["output_too_long"]
    assert "9,000" in str(events(items, "warning")[0]["message"])


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4), st.booleans())
def test_any_bytes_and_any_split_give_the_same(raw: bytes, cuts: list[int], succeeded: bool) -> None:
    exit_code = 0 if succeeded else 1
    assert _parse(raw, cuts=tuple(cuts), exit_code=exit_code) == _parse(raw, exit_code=exit_code)


@given(st.lists(st.sampled_from([TIRITH, BOX, LIMIT, "\n", "\r\n", "words\n", "words\r\n", "└" + "─" * 72 + "┘\r\n"])))
def test_whatever_stands_ahead_the_answer_behind_a_plain_line_is_whole(pieces: list[str]) -> None:
    items, failure = _parse("".join(pieces) + "The answer\nto it")
    assert text(items).endswith("The answer\nto it")
    assert failure is None or failure.code == "turn_limit"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_on_the_way_out_does_not_take_the_answer_away(number: signal.Signals) -> None:
    parser = QuietParser()
    parser.feed(b"The answer.\n")
    assert ended_well(parser, -number)
    assert [item.text for item in parser.close(succeeded=True) if isinstance(item, MessageDelta)] == ["The answer."]
    assert judge(parser, -number, "") is None


@pytest.mark.parametrize("output", [b"", b"The ans", b"\n"])
def test_a_crash_before_the_answer_is_whole_is_one(output: bytes) -> None:
    parser = QuietParser()
    parser.feed(output)
    assert not ended_well(parser, -signal.SIGSEGV)
    parser.close(succeeded=False)
    failure = judge(parser, -signal.SIGSEGV, "")
    assert failure is not None
    assert failure.code == "hermes_died"
