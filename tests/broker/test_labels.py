"""Labels that somebody else chooses stay few."""

from __future__ import annotations

import pytest

from broker.labels import OTHER, FewLabels


def test_the_first_are_taken_and_the_rest_are_one() -> None:
    labels = FewLabels(2)
    assert [labels(v) for v in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


@pytest.mark.parametrize("value", ["two words", "é", "x" * 65, 'a"b', "a\nb"])
def test_what_is_no_plain_word_is_other_and_takes_no_place(value: str) -> None:
    labels = FewLabels(1)
    assert labels(value) == OTHER
    assert labels("plain") == "plain"


def test_none_is_a_value() -> None:
    assert FewLabels(1)("") == ""
