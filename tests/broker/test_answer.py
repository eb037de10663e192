"""What a run answers: the reply, and the block of metadata that a model puts behind it."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.answer import BLOCK_MAX, RISK_LEVELS, Answer, answer_of, failure_of, last_text, parse_answer

KEYS = ("reply", "confidence", "risk_level", "riskLevel", "flagForReview", "flag_for_review")


def answer(text: str) -> tuple[str, float | None, str, bool]:
    a = parse_answer(text)
    return a.reply, a.confidence, a.risk_level, a.flag_for_review


BLOCK = '{"confidence": 0.9, "risk_level": "low", "flagForReview": false}'
TOLD = ("Hello there", 0.9, "low", False)
UNTOLD = (None, "unknown", False)


# Where the block is.


@pytest.mark.parametrize(
    "text",
    [
        f"Hello there\n{BLOCK}",
        f"Hello there {BLOCK}",
        f"Hello there{BLOCK}",
        f"\n\nHello there\n\n{BLOCK}\n\n",
        f"Hello there\n```json\n{BLOCK}\n```",
        f"Hello there\n```JSON\n{BLOCK}\n```\n",
        f"Hello there\n```\n{BLOCK}\n```",
        f"Hello there\n~~~json\n\n{BLOCK}\n\n~~~",
        f"Hello there\n````json\n{BLOCK}\n````",
        f"Hello there\n```json {BLOCK} ```",
        f"Hello there\n```json\n{BLOCK}",  # the fence was never closed
        "Hello there\n" + json.dumps(json.loads(BLOCK), indent=2),
    ],
)
def test_a_block_at_the_end_is_no_part_of_the_reply(text: str) -> None:
    assert answer(text) == TOLD


@pytest.mark.parametrize(
    "text",
    [
        "Hello there",
        "",
        f"{BLOCK}\nHello there",
        f"Hello there\n```json\n{BLOCK}\n```\nAnything else?",
        f"Hello there\n```json\nthe answer\n{BLOCK}\n```",
        f"Hello there {BLOCK[:-1]}",
        f"Hello there {BLOCK[1:]}",
        f"Hello there [{BLOCK}]",
        'Hello there {"colour": "red"}',
        "Hello there {}",
        "Hello there {'confidence': 0.9}",
        'Hello there {"confidence": 0.9,}',
        'Hello there {"confidence": NaN}',
        "Hello there }",
        'Hello there "}',
        "Hello there\n```json\n```",
        "```",
        '{"a": {"confidence": 0.9}}',
    ],
)
def test_everything_else_is_text(text: str) -> None:
    assert answer(text) == (text.strip(), *UNTOLD)


def test_the_last_of_several_blocks_counts() -> None:
    first = '{"confidence": 0.1, "risk_level": "critical"}'
    assert answer(f"Hello {first} there {BLOCK}") == (f"Hello {first} there", 0.9, "low", False)


@pytest.mark.parametrize("key", KEYS)
def test_any_of_the_keys_makes_a_block(key: str) -> None:
    assert parse_answer("Hello there\n" + json.dumps({"other": 1, key: None})).reply == "Hello there"


def test_a_code_block_ahead_of_a_bare_block_stays() -> None:
    code = "Run this:\n```\nls\n```"
    assert answer(f"{code}\n{BLOCK}") == (code, 0.9, "low", False)


@pytest.mark.parametrize(
    "reply", ["Hello there", 'a "quote" \\" and } braces {', "\\", '"', "}", '\\"}', "{\\\\", "line\nline", "漢字 😀"]
)
def test_a_text_that_is_all_block_has_its_reply(reply: str) -> None:
    text = json.dumps({"reply": reply, "confidence": 1})
    assert answer(text) == (reply.strip(), 1.0, "unknown", False)
    assert answer(f"```json\n{text}\n```") == (reply.strip(), 1.0, "unknown", False)


def test_what_stands_before_the_block_is_the_reply_whatever_the_block_repeats() -> None:
    assert parse_answer('Hello there\n{"reply": "Hello"}').reply == "Hello there"


@pytest.mark.parametrize("reply", [5, None, ["x"], {"a": 1}, "  "])
def test_a_block_alone_without_a_text_has_no_reply(reply: Any) -> None:
    assert parse_answer(json.dumps({"reply": reply, "confidence": 0.9})).reply == ""


def test_a_block_may_be_nested_and_repeat_a_key() -> None:
    text = 'Hello there {"confidence": 0.1, "why": {"a": [{"b": "}"}]}, "confidence": 0.9, "risk_level": "low"}'
    assert answer(text) == TOLD


# What its values mean.


@pytest.mark.parametrize(
    ("given", "confidence"),
    [
        (0, 0.0),
        (1, 1.0),
        (0.5, 0.5),
        (85, 0.85),
        (100, 1.0),
        (57.3, 0.573),
        ("0.9", 0.9),
        (" .9 ", 0.9),
        ("+0.9", 0.9),
        ("1.", 1.0),
        ("85", 0.85),
        ("85%", 0.85),
        ("85.5 %", 0.855),
        ("1%", 0.01),
        ("0.5%", 0.005),
        ("100%", 1.0),
        (-0.1, None),
        (-0.0, 0.0),
        (100.1, None),
        (10**400, None),
        ("101%", None),
        ("-1", None),
        ("high", None),
        ("", None),
        ("0,9", None),
        ("٩", None),
        ("1e-1", None),
        ("9" * 100_000, None),
        (True, None),
        (None, None),
        ([0.9], None),
        ({"value": 0.9}, None),
    ],
)
def test_confidence(given: Any, confidence: float | None) -> None:
    found = parse_answer("x " + json.dumps({"confidence": given})).confidence
    assert found == confidence
    assert found is None or (type(found) is float and math.copysign(1, found) == 1)


@pytest.mark.parametrize(
    ("told", "risk"),
    [
        *(({"risk_level": level}, level) for level in RISK_LEVELS),
        ({"riskLevel": "HIGH "}, "high"),
        ({"risk_level": "severe"}, "unknown"),
        ({"risk_level": "unknown"}, "unknown"),
        ({"risk_level": 3}, "unknown"),
        ({"risk_level": None, "riskLevel": "low"}, "low"),
        ({"risk_level": "low", "riskLevel": "high"}, "low"),
        ({"confidence": 1}, "unknown"),
    ],
)
def test_risk_levels(told: dict[str, Any], risk: str) -> None:
    assert parse_answer("x " + json.dumps(told)).risk_level == risk


@pytest.mark.parametrize(
    ("told", "flag"),
    [
        ({"flagForReview": True, "risk_level": "low"}, True),
        ({"flag_for_review": True, "confidence": 1}, True),
        ({"flagForReview": False, "risk_level": "critical", "confidence": 0}, False),
        ({"flagForReview": "true"}, True),
        ({"flagForReview": "No", "risk_level": "high"}, False),
        ({"flagForReview": 1}, True),
        ({"flagForReview": 0, "risk_level": "high"}, False),
        ({"flagForReview": None, "flag_for_review": True}, True),
        ({"flagForReview": False, "flag_for_review": True}, False),
        ({"flagForReview": "perhaps", "risk_level": "high"}, True),
        ({"flagForReview": [True]}, False),
        ({"risk_level": "high", "confidence": 1}, True),
        ({"risk_level": "critical"}, True),
        ({"risk_level": "medium"}, False),
        ({"confidence": 0.49}, True),
        ({"confidence": 0.5}, False),
        ({"confidence": "49%", "risk_level": "low"}, True),
        ({"confidence": None}, False),
    ],
)
def test_flag_for_review(told: dict[str, Any], flag: bool) -> None:
    assert parse_answer("x " + json.dumps(told)).flag_for_review is flag


@pytest.mark.parametrize(("below", "flag"), [(0.0, False), (0.6, False), (0.7, True), (1, True)])
def test_the_limit_of_a_review_is_the_workers(below: float, flag: bool) -> None:
    text = 'x {"confidence": 0.6}'
    assert parse_answer(text, review_below=below).flag_for_review is flag
    message = {"content": [{"type": "text", "text": text}]}
    assert answer_of({"message": message, "metadata": {"review_below": below}}, None).flag_for_review is flag


# Of a fence.


def test_the_text_of_a_message_is_what_its_deltas_were() -> None:
    blocks = [
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "Hello "},
        {"type": "tool_call", "id": "1", "name": "n", "arguments": {}},
        {"type": "text", "text": "there"},
        {"type": "refusal", "text": ", no"},
        {"type": "text", "text": None},
        "not a block",
    ]
    assert last_text({"content": blocks}) == "Hello there, no"
    assert last_text({"content": "as a text"}) == "as a text"
    empty: tuple[Any, ...] = (None, {}, {"content": None}, {"content": 5}, "text", [])
    for nothing in empty:
        assert last_text(nothing) == ""


def test_the_session_is_the_runs_or_hermes_own() -> None:
    message = {"content": [{"type": "text", "text": "\n\nHello"}]}
    final = {"message": message, "hermes_session_id": "20250101_000000_abcdef"}
    assert answer_of(final, "mine") == Answer(reply="Hello", session_id="mine")
    assert answer_of(final, None).session_id == "20250101_000000_abcdef"
    for unknown in (None, "", 5):
        assert answer_of({"message": message, "hermes_session_id": unknown}, None).session_id is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), parts),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), JSON))
def test_no_fence_raises(final: dict[str, Any]) -> None:
    for fields in (final, {"message": final, "metadata": final}, {"message": {"content": [final]}}):
        check(answer_of(fields, None))
    assert failure_of(final)


# Sentences.


@pytest.mark.parametrize(
    ("fence", "sentence"),
    [
        ({"code": "hermes_timeout", "message": "HERMES_TIMEOUT (3 s)"}, "Hermes execution timed out"),
        ({"code": "hermes_silent"}, "Hermes execution timed out: it gave no output for too long"),
        ({"code": "provider_auth", "message": " the key is not known "}, "the key is not known"),
        ({"code": "no_result", "message": ""}, "the run failed: no_result"),
        ({}, "the run failed: its worker did not say why"),
        ({"code": ["x"], "message": 5}, "the run failed: ['x']"),
        ({"code": "cancelled", "message": "the run was cancelled"}, "The run was cancelled"),
    ],
)
def test_failures_are_sentences(fence: dict[str, Any], sentence: str) -> None:
    assert failure_of(fence) == sentence


# Fuzzed.


def check(found: Answer) -> None:
    assert found.confidence is None or 0 <= found.confidence <= 1
    assert found.risk_level in (*RISK_LEVELS, "unknown")
    assert isinstance(found.flag_for_review, bool)
    assert found.reply == found.reply.strip()
    found.reply.encode()  # no lone surrogates


PIECES = ['"', "\\", "{", "}", "```", "~~~", "json", "\n", " ", ":", ",", "a", "1", '"confidence"', "[", "]", "\u2028"]


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_text_of_any_shape_is_an_answer_or_a_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = parse_answer(text)
    check(found)
    assert text.strip().startswith(found.reply)
    if (found.confidence, found.risk_level) == (None, "unknown") and '"confidence"' not in text:
        assert found.reply == text.strip()


@given(
    st.text(max_size=30), st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), JSON, min_size=1), st.booleans()
)
def test_a_block_is_found_behind_any_text(before: str, block: dict[str, Any], fenced: bool) -> None:
    encoded = json.dumps(block, ensure_ascii=False)
    text = f"{before}\n```json\n{encoded}\n```" if fenced else f"{before}\n{encoded}"
    found = parse_answer(text)
    check(found)
    if block.keys() & set(KEYS) and not before.rstrip().endswith("json"):
        given = block.get("reply")
        alone = given.strip() if isinstance(given, str) else ""
        assert found.reply == (before.strip() or alone)
    elif not block.keys() & set(KEYS):
        assert found.reply == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "{" * BLOCK_MAX + "}",
        '{"a":' * 50_000 + "}" * 50_000,
        '{"a":' * 50_000 + "1" + "}" * 49_999,
        "\\" * BLOCK_MAX + '"}',
        '"' * BLOCK_MAX + "}",
        '{"confidence":1}' * 10_000,
        "```" * 50_000,
        "~" * BLOCK_MAX,
        " " * BLOCK_MAX + "```",
        '{"confidence": 1, "x": "' + "y" * BLOCK_MAX + '"}',
    ],
)
def test_a_hostile_text_costs_little(text: str) -> None:
    """Not a measurement: what is quadratic takes minutes here."""
    began = time.process_time()
    check(parse_answer(text))
    assert time.process_time() - began < 5
