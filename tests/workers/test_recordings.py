"""Recorded runs of the real Hermes 0.19.0 and 0.22.2 → items and verdicts, at every split of their bytes.

The recordings lie beside the repository and are not part of it; in CI they must be there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from broker.items import Item, MessageDelta, ReasoningDelta, ToolCompleted, ToolFailed, ToolStarted, Usage
from broker.merge import Merger, text_of
from tests.workers.drawn import events, text
from workers.hermes.output import OutputParser
from workers.hermes.quiet import QuietParser
from workers.hermes.seen import Reader
from workers.hermes.text import TextParser
from workers.hermes.verdict import Failure, judge

FIXTURES = Path(__file__).resolve().parents[2].parent / "shared" / "fixtures" / "hermes"
PLAIN = "Hello there! This is a plain streamed\nanswer made of about twenty small tokens, sent slowly one by one. End."
AFTER_TOOL = "Final answer: the **tool** ran and\nprinted what I expected. Goodbye w20."
BEFORE_TOOL = "Let me run a command first. "


def _recording(name: str) -> tuple[bytes, str, int]:
    if not FIXTURES.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"the recordings are not at {FIXTURES}")
        pytest.skip("no recordings of Hermes beside the repository")
    last = json.loads((FIXTURES / f"{name}.jsonl").read_text().splitlines()[-1])
    return (FIXTURES / f"{name}.stdout").read_bytes(), (FIXTURES / f"{name}.stderr").read_text(), last["rc"]


def _reader(name: str) -> Reader:
    if "streamjson" in name or name == "iot_03_sigterm":
        return OutputParser()
    return QuietParser() if "_Q_" in name or name == "90_C_unconfigured" else TextParser()


def _read(name: str, *, cut: int = 0) -> tuple[Reader, list[Item], Failure | None]:
    raw, stderr, exit_code = _recording(name)
    reader = _reader(name)
    items = reader.feed(raw[:cut]) + reader.feed(raw[cut:]) + reader.heard(stderr)
    items += reader.close(succeeded=exit_code == 0)
    return reader, items, judge(reader, exit_code, stderr)


def _codes(items: list[Item]) -> list[object]:
    return [event["code"] for event in events(items, "warning")]


def _calls(items: list[Item]) -> list[tuple[str, str]]:
    return [(i.call_id, i.name) for i in items if isinstance(i, ToolStarted)]


ALL = [
    *("02_Q_plain", "20_B_Q_tool", "30_B_Q_resume", "32_B_Q_resume_missing", "40_B_Q_sigterm", "50_B_Q_CUT"),
    *("50_B_Q_EMPTY", "50_B_Q_ERR401", "50_B_Q_ERR500", "60_B_Q_danger", "64_E_Q_timeouts_CLARIFY", "86_B_Q_maxturns"),
    *("90_C_unconfigured", "10_q_plain", "21_B_q_tool", "22_B_q_long_cols400", "23_B_q_plain_cols40", "24_B_q_reason"),
    *("42_B_q_sigterm", "70_B_q_manytools", "iot_01_streamjson_tool", "iot_02_streamjson_REASON", "iot_03_sigterm"),
    "iot_02_streamjson_ERR401",
]


@pytest.mark.parametrize("name", ALL)
def test_every_split_gives_the_same_items_and_the_same_verdict(name: str) -> None:
    _, whole, verdict = _read(name)
    for cut in range(len(_recording(name)[0]) + 1):
        _, items, failure = _read(name, cut=cut)
        assert (items, failure) == (whole, verdict), cut


# quiet


@pytest.mark.parametrize(
    ("name", "reply", "codes", "session"),
    [
        ("02_Q_plain", PLAIN, ["tirith_unavailable"], "20261129_194741_57a784"),
        ("20_B_Q_tool", AFTER_TOOL, [], "20261129_194903_2c3a95"),
        ("30_B_Q_resume", PLAIN, [], "20261129_194903_2c3a95"),
        ("50_B_Q_CUT", f"This answer will be cut off in the {PLAIN}", [], "20261129_195124_ae8dfa"),
        ("60_B_Q_danger", AFTER_TOOL, ["approval_timeout"], "20261129_195132_4e4801"),
        ("64_E_Q_timeouts_CLARIFY", AFTER_TOOL, ["clarify_timeout"], "20261129_201307_8a644a"),
    ],
)
def test_quiet_answers(name: str, reply: str, codes: list[str], session: str) -> None:
    reader, items, failure = _read(name)
    assert (text(items), failure) == (reply, None)
    assert _codes(items) == codes
    assert reader.session_id == session
    assert events(items, "hermes.session") == [{"hermes_session_id": session}]


@pytest.mark.parametrize(
    ("name", "code", "said", "partial"),
    [
        ("32_B_Q_resume_missing", "hermes_session_not_found", "20200101_000000_abcdef", ""),
        ("40_B_Q_sigterm", "interrupted", "interrupted", ""),
        ("50_B_Q_EMPTY", "empty_reply", "empty content", ""),
        ("50_B_Q_ERR401", "provider_auth", "HTTP 401: bad key (fake)", ""),
        ("50_B_Q_ERR500", "provider_error", "HTTP 500: fake internal error", ""),
        ("86_B_Q_maxturns", "turn_limit", "turn limit", "Fake Title"),
        ("90_C_unconfigured", "not_configured", "hermes setup", ""),
    ],
)
def test_quiet_failures(name: str, code: str, said: str, partial: str) -> None:
    _, items, failure = _read(name)
    assert failure is not None
    assert failure.code == code
    assert said in failure.message
    assert text(items) == partial


# text


@pytest.mark.parametrize(
    ("name", "answer", "session", "seconds"),
    [
        ("10_q_plain", PLAIN, "20261129_194805_3311f9", 5),
        ("22_B_q_long_cols400", None, "20261129_194920_dd646d", 9),
        ("23_B_q_plain_cols40", None, "20261129_194930_7e3902", 5),
        ("24_B_q_reason", "The answer is forty two.", "20261129_194937_b62b9b", 4),
    ],
)
def test_screens(name: str, answer: str | None, session: str, seconds: int) -> None:
    reader, items, failure = _read(name)
    assert failure is None
    assert answer is None or text(items) == answer
    assert reader.duration_ms == seconds * 1_000
    assert [event["hermes_session_id"] for event in events(items, "hermes.session")] == [session]
    assert not [i for i in items if isinstance(i, (ReasoningDelta, ToolStarted))]


def test_a_screen_that_is_wide_enough_shows_the_text_as_it_is() -> None:
    _, items, _ = _read("22_B_q_long_cols400")
    assert text(items) == "\n".join(f"Line {i} with some words in it to fill up space." for i in range(12))
    assert _codes(items) == []


def test_a_narrow_screen_shows_the_text_as_it_was_broken_and_says_so() -> None:
    _, items, _ = _read("23_B_q_plain_cols40")
    assert text(items).split() == PLAIN.split()
    assert text(items) != PLAIN
    assert _codes(items) == ["wrapped_text"]


def test_a_screen_with_a_tool() -> None:
    _, items, failure = _read("21_B_q_tool")
    assert failure is None
    assert text(items) == f"{BEFORE_TOOL}\n\n{AFTER_TOOL}"
    assert [i.round for i in items if isinstance(i, MessageDelta)] == [1, 2, 2]
    assert _calls(items) == [("hermes_call_1", "terminal")]


def test_a_screen_with_many_tools() -> None:
    _, items, failure = _read("70_B_q_manytools")
    assert failure is None
    assert text(items) == f"Round 1. \n\nRound 2. \n\n{AFTER_TOOL}"
    assert [i.round for i in items if isinstance(i, MessageDelta)] == [1, 2, 3, 3]
    names = ["terminal", "read_file", "terminal"] * 2
    assert _calls(items) == [(f"hermes_call_{n}", name) for n, name in enumerate(names, 1)]
    ends = [(i.call_id, i.duration_ms) for i in items if isinstance(i, (ToolCompleted, ToolFailed))]
    durations = [1200.0, 100.0, 0.0, 1200.0, 0.0, 0.0]
    assert ends == [(f"hermes_call_{n}", duration) for n, duration in enumerate(durations, 1)]
    assert [i.error for i in items if isinstance(i, ToolFailed)] == ["exit 3"]


def test_a_terminated_screen_has_no_answer_and_its_traceback_is_none() -> None:
    reader, items, failure = _read("42_B_q_sigterm")
    assert failure is not None
    assert failure.code == "interrupted"
    assert text(items) == ""
    assert _codes(items) == ["interrupted"]
    assert reader.session_id is None


# stream-json


def test_a_tool_round() -> None:
    reader, items, failure = _read("iot_01_streamjson_tool")
    assert failure is None
    deltas = [i for i in items if isinstance(i, MessageDelta)]
    records = [json.loads(line) for line in _recording("iot_01_streamjson_tool")[0].splitlines()]
    assert [d.text for d in deltas] == [r["text"] for r in records if r["type"] == "text"]
    assert [d.round for d in deltas] == [1] * 6 + [2] * 12
    started = next(i for i in items if isinstance(i, ToolStarted))
    ended = next(i for i in items if isinstance(i, ToolCompleted))
    assert started.args == {"command": "echo hello-from-tool; pwd"}
    assert (started.call_id, ended.duration_ms) == (ended.call_id, 112)
    usage = next(i for i in items if isinstance(i, Usage))
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (2300, 117, 200)
    merger = Merger()
    for item in items:
        merger.add(item)
    assert reader.result is not None
    assert text_of(merger.message(2)).strip() == reader.result.text == AFTER_TOOL
    assert [event["hermes_session_id"] for event in events(items, "hermes.session")] == ["20261129_200728_d14b15"]
    assert not events(items, "warning") + events(items, "merge.mismatch")


def test_an_answer_of_a_reasoning_model() -> None:
    reader, items, failure = _read("iot_02_streamjson_REASON")
    assert failure is None
    assert text(items) == "The answer is forty two."
    assert reader.session_id == "20261129_200738_cd72cc"


def test_a_rejected_key() -> None:
    _, items, failure = _read("iot_02_streamjson_ERR401")
    assert failure is not None
    assert (failure.code, failure.retryable) == ("provider_auth", False)
    assert "HTTP 401: bad key (fake)" in failure.message
    assert not [i for i in items if isinstance(i, (MessageDelta, Usage))]


def test_a_terminated_run_keeps_its_text() -> None:
    _, items, failure = _read("iot_03_sigterm")
    assert failure is not None
    assert failure.code == "interrupted"
    assert text(items) == "w00 w01 w02 w03 w04 "
