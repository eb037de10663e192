"""Bytes → lines: whatever the split, nothing lost, bounded."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from workers.hermes.lines import LineSplitter, TooLong


def _lines(chunks: list[bytes], limit: int = 1 << 24) -> list[bytes | TooLong]:
    splitter = LineSplitter(limit)
    found = [line for chunk in chunks for line in splitter.feed(chunk)]
    return found + splitter.close()


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_any_split_gives_the_same_lines(raw: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(c, len(raw)) for c in cuts), len(raw)]
    pieces = [raw[a:b] for a, b in pairwise(edges)]
    assert _lines(pieces) == _lines([raw])


def test_a_last_line_without_newline_and_no_line_for_a_final_newline() -> None:
    assert _lines([b"a\nb"]) == [b"a", b"b"]
    assert _lines([b"a\nb\n"]) == [b"a", b"b"]
    assert _lines([b"\n\r\na\r\n"]) == [b"", b"", b"a"]


def test_unicode_line_ends_do_not_end_a_line() -> None:
    text = "a\u2028b\u2029c\u0085d".encode()
    assert _lines([text + b"\n"]) == [text]


def test_a_line_of_five_megabytes_in_small_reads() -> None:
    line = b"x" * (5 << 20)
    chunks = [line[i : i + 65_536] for i in range(0, len(line), 65_536)]
    assert _lines([*chunks, b"\nend"]) == [line, b"end"]


def test_a_line_beyond_the_limit_is_left_out_with_its_size_and_the_next_one_is_kept() -> None:
    assert _lines([b"abcdef", b"ghij\nok\n"], limit=8) == [TooLong(10), b"ok"]
    assert _lines([b"12345678\n", b"123456789"], limit=8) == [b"12345678", TooLong(9)]


def test_a_cr_may_be_kept_to_say_who_wrote_the_line() -> None:
    splitter = LineSplitter(8, keep_cr=True)
    assert splitter.feed(b"a\r") == []
    assert splitter.feed(b"\nb\n\r\n1234567\r\n12345678\r\n") == [b"a\r", b"b", b"\r", b"1234567\r", TooLong(9)]
