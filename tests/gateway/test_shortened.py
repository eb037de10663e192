"""Outcomes in lists: short, whatever a run said."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.shortened import FIELD_MAX, FIELDS_MAX, TEXT_MAX, shortened

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=10).filter(lambda name: name != "steps"), VALUES, max_size=8))
def test_what_is_short_stays_as_it_is(outcome: dict[str, Any]) -> None:
    assert shortened(outcome) == outcome


def test_whatever_a_run_said_it_is_short() -> None:
    deep: Any = "x" * 1_000_000
    for _ in range(400):
        deep = [deep]
    long: dict[str, Any] = {
        "message": "m" * 5_000,
        "many": {f"k{n}": "v" * 400 for n in range(2_000)},
        "name": {"n" * 100_000: 1},
        "list": [[["x" * 600] * 50] * 50] * 50,
        "numbers": list(range(100_000)),
        "deep": deep,
        "usage": {"input_tokens": 1},
        **{f"field{n}": "f" for n in range(1_000)},
    }
    short = shortened(long)
    assert len(msgspec.json.encode(short)) < FIELDS_MAX * FIELD_MAX
    assert short["message"] == "m" * TEXT_MAX
    assert short["usage"] == {"input_tokens": 1}, "what one field says takes nothing from another"
    assert short["truncated_bytes"] > 800_000
    assert list(short) == [*list(long)[:FIELDS_MAX], "truncated_bytes"]
