"""Cursors and the resume decision: every row of its table, and every strange cursor that somebody has sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cursor import Bounds, Resume, Start, choose, format_cursor, parse, resolve

OPEN = Bounds(first=1, last=10, ended=False)
ENDED = Bounds(first=1, last=10, ended=True)
EMPTY = Bounds(first=1, last=0, ended=False)
TRIMMED = Bounds(first=6, last=10, ended=False)
TRIMMED_ENDED = Bounds(first=6, last=10, ended=True)
EXPIRED = Bounds(first=11, last=10, ended=True)


@pytest.mark.parametrize(
    ("raw", "bounds", "answer"),
    [
        # No cursor, and the ways to say “the start”.
        (None, OPEN, Resume(0)),
        (None, ENDED, Resume(0)),
        (None, EMPTY, Resume(0)),
        ("-1", OPEN, Resume(0)),
        ("0", OPEN, Resume(0)),
        ("R:0", OPEN, Resume(0)),
        ("R:0", EMPTY, Resume(0)),
        ("-1", ENDED, Resume(0)),
        # What follows it.
        ("R:1", OPEN, Resume(1)),
        ("R:9", OPEN, Resume(9)),
        ("R:10", OPEN, Resume(10)),
        ("R:9", ENDED, Resume(9)),
        # The fence.
        ("R:10", ENDED, Resume(10, done=True)),
        ("R:10", TRIMMED_ENDED, Resume(10, done=True)),
        ("R:10", EXPIRED, Resume(10, done=True)),
        # Malformed, foreign, ahead.
        ("abc", OPEN, Resume(0, reset="malformed")),
        ("S:5", OPEN, Resume(0, reset="foreign")),
        ("S:5", ENDED, Resume(0, reset="foreign")),
        ("S:10", ENDED, Resume(0, reset="foreign")),
        ("R:11", OPEN, Resume(0, reset="ahead")),
        ("R:11", ENDED, Resume(0, reset="ahead")),
        ("R:1", EMPTY, Resume(0, reset="ahead")),
        # Retention: the gap names the viewer's cursor; the last removed item is no gap.
        (None, TRIMMED, Resume(5, gap=0)),
        ("0", TRIMMED, Resume(5, gap=0)),
        ("R:4", TRIMMED, Resume(5, gap=4)),
        ("R:5", TRIMMED, Resume(5)),
        ("R:6", TRIMMED, Resume(6)),
        ("S:7", TRIMMED, Resume(5, reset="foreign", gap=0)),
        ("R:99", TRIMMED, Resume(5, reset="ahead", gap=0)),
        # Everything has expired but the record.
        (None, EXPIRED, Resume(10, gap=0)),
        ("R:9", EXPIRED, Resume(10, gap=9)),
        ("S:9", EXPIRED, Resume(10, reset="foreign", gap=0)),
    ],
)
def test_the_resume_table(raw: str | None, bounds: Bounds, answer: Resume) -> None:
    assert resolve(raw, "R", bounds) == answer


@pytest.mark.parametrize(
    ("bounds", "after"), [(OPEN, 10), (EMPTY, 0), (TRIMMED, 10), (ENDED, 9), (TRIMMED_ENDED, 9), (EXPIRED, 10)]
)
def test_from_now_announces_the_position_and_never_skips_the_fence(bounds: Bounds, after: int) -> None:
    assert resolve(None, "R", bounds, Start.NOW) == Resume(after, announce=True)


@pytest.mark.parametrize("raw", ["R:3", "-1", "S:3", "abc"])
def test_a_cursor_wins_over_from_now(raw: str) -> None:
    assert resolve(raw, "R", OPEN, Start.NOW) == resolve(raw, "R", OPEN)


@pytest.mark.parametrize(
    ("raw", "bounds", "answer"),
    [
        (None, Bounds(6, 10, True, final_only=True), Resume(5)),
        ("R:2", Bounds(6, 10, True, final_only=True), Resume(5)),
        ("R:2", Bounds(6, 10, False, final_only=True), Resume(5)),
        ("R:7", Bounds(6, 10, False, final_only=True), Resume(7)),
        ("R:2", Bounds(11, 10, True, final_only=True), Resume(10, gap=2)),
    ],
)
def test_who_wants_the_fence_alone_misses_nothing_before_it(raw: str | None, bounds: Bounds, answer: Resume) -> None:
    assert resolve(raw, "R", bounds) == answer


STRANGE = [
    ("abc", "malformed"),
    ("1e9", "malformed"),
    ("1", "malformed"),
    ("10", "malformed"),
    ("$", "malformed"),
    ("+", "malformed"),
    ("-2", "malformed"),
    ("00", "malformed"),
    ("9" * 20, "malformed"),
    ("9" * 10_240, "malformed"),
    ("R", "malformed"),
    ("R:", "malformed"),
    (":", "malformed"),
    (":5", "foreign"),
    ("R:1:2", "malformed"),
    ("R:R:2", "malformed"),
    ("R:-1", "malformed"),
    ("R:+1", "malformed"),
    ("R: 1", "malformed"),
    ("R:1 ", "malformed"),
    ("R:1\n", "malformed"),
    ("R:1_0", "malformed"),
    ("R:1.0", "malformed"),
    ("R:1e9", "malformed"),
    ("R:$", "malformed"),
    ("R:0x1", "malformed"),
    ("R:1-0", "malformed"),
    ("R:١", "malformed"),
    ("R:１", "malformed"),
    ("R:²", "malformed"),
    ("R:" + "9" * 20, "malformed"),
    ("R:" + "9" * 10_240, "malformed"),
    ("R:" + "0" * 10_240 + "1", "malformed"),
    ("r:1", "foreign"),
    ("R\0:1", "foreign"),
    ("1764445312345-0", "malformed"),
    ("R:1, R:2", "malformed"),
]


@pytest.mark.parametrize(("raw", "reason"), STRANGE, ids=[raw[:24] for raw, _ in STRANGE])
def test_strange_cursors_get_one_reset_and_everything(raw: str, reason: str) -> None:
    assert parse(raw, "R") == reason
    for bounds in (OPEN, ENDED, EMPTY):
        assert resolve(raw, "R", bounds) == Resume(0, reset=reason)


@pytest.mark.parametrize("raw", ["R:" + "9" * 19, "R:9223372036854775807", "R:9223372036854775808"])
def test_numbers_beyond_the_end_are_ahead_however_long(raw: str) -> None:
    assert resolve(raw, "R", ENDED) == Resume(0, reset="ahead")


def test_minus_one_ten_times_is_the_start_ten_times() -> None:
    assert [resolve("-1", "R", ENDED) for _ in range(10)] == [Resume(0)] * 10


@pytest.mark.parametrize(
    ("header", "query", "chosen"),
    [
        (None, None, None),
        ("", "", None),
        (" \t", None, None),
        (None, "R:1", "R:1"),
        ("", "R:1", "R:1"),
        ("  ", " R:1 ", "R:1"),
        ("R:2", "R:1", "R:2"),
        (" R:2", None, "R:2"),
        ("abc", "R:1", "abc"),
        ("0", "R:1", "0"),
    ],
)
def test_the_header_counts_if_not_blank_then_the_query(
    header: str | None, query: str | None, chosen: str | None
) -> None:
    assert choose(header, query) == chosen


BOUNDS = st.builds(
    lambda first, kept, ended, final_only: Bounds(first, first - 1 + kept, ended, final_only),
    st.integers(1, 50),
    st.integers(0, 50),
    st.booleans(),
    st.booleans(),
)


@given(st.none() | st.text() | st.integers(-5, 200).map(lambda n: f"R:{n}"), BOUNDS, st.sampled_from(Start))
def test_whatever_the_cursor_the_answer_lies_in_the_log(raw: str | None, bounds: Bounds, start: Start) -> None:
    answer = resolve(raw, "R", bounds, start)
    assert bounds.first - 1 <= answer.after <= bounds.last
    assert answer.gap is None or answer.gap + 1 < bounds.first
    if answer.done:
        assert bounds.ended
        assert answer == Resume(bounds.last, done=True)
    if answer.reset:
        assert answer.after == bounds.first - 1


@given(st.integers(0, 99), BOUNDS)
def test_each_resume_names_a_gap_exactly_where_items_are_missing(seq: int, bounds: Bounds) -> None:
    bounds = Bounds(bounds.first, bounds.last, bounds.ended)
    if seq > bounds.last:
        return
    answer = resolve(format_cursor("R", seq), "R", bounds)
    missing = bounds.first - 1 - seq
    if answer.done:
        assert seq == bounds.last
    elif missing > 0:
        assert answer == Resume(bounds.first - 1, gap=seq)
    else:
        assert answer == Resume(seq)


@given(st.from_regex(r"[A-Za-z0-9_.-]{1,128}", fullmatch=True), st.integers(0, 10**19 - 1))
def test_a_cursor_comes_back_as_it_was_written(run_id: str, seq: int) -> None:
    assert parse(format_cursor(run_id, seq), run_id) == seq


@given(st.from_regex(r"[A-Za-z0-9_.-]{1,9}", fullmatch=True), st.from_regex(r"[A-Za-z0-9_.-]{1,9}", fullmatch=True))
def test_another_runs_cursor_is_foreign(one: str, other: str) -> None:
    if one != other:
        assert parse(format_cursor(one, 1), other) == "foreign"
