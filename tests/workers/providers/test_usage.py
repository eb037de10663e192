"""Token counts: cumulative and in deltas, per field, never wiped; the deltas sum up to the last total."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import Cache, Usage
from broker.merge import COUNTS, Merger
from workers.providers.usage import UsageCounter

NOTHING = dict.fromkeys(COUNTS)


def test_what_was_counted_since_the_response_began() -> None:
    counter = UsageCounter()
    (first,) = counter.set(input_tokens=10, output_tokens=1)
    assert first == Usage(input_tokens=10, output_tokens=1, total=NOTHING | {"input_tokens": 10, "output_tokens": 1})
    (second,) = counter.set(output_tokens=4, reasoning_tokens=2)
    total = NOTHING | {"input_tokens": 10, "output_tokens": 4, "reasoning_tokens": 2}
    assert second == Usage(input_tokens=0, output_tokens=3, reasoning_tokens=2, total=total)
    assert counter.set(output_tokens=4) == counter.set(input_tokens=None) == counter.set() == []
    assert counter.counts == total


def test_what_was_counted_since_the_last_report() -> None:
    counter = UsageCounter()
    counter.add(input_tokens=10, output_tokens=1)
    (item,) = counter.add(output_tokens=1)
    assert item == Usage(input_tokens=0, output_tokens=1, total=NOTHING | {"input_tokens": 10, "output_tokens": 2})
    assert counter.add(output_tokens=0) == counter.add() == []
    (item,) = counter.add(reasoning_tokens=0)
    assert isinstance(item, Usage)
    assert (item.reasoning_tokens, item.total["reasoning_tokens"]) == (0, 0)


def test_a_count_that_is_corrected_downwards_is_a_negative_delta() -> None:
    counter = UsageCounter()
    counter.set(input_tokens=10)
    (item,) = counter.set(input_tokens=7)
    assert item == Usage(input_tokens=-3, total=NOTHING | {"input_tokens": 7})


def test_zero_is_known_and_null_is_not() -> None:
    counter = UsageCounter()
    (item,) = counter.set(input_tokens=0)
    assert item == Usage(input_tokens=0, total=NOTHING | {"input_tokens": 0})


def test_cached_tokens_are_a_hit_once() -> None:
    counter = UsageCounter()
    assert len(counter.set(cache_read_tokens=0)) == 1
    assert counter.set(cache_read_tokens=5)[1:] == [Cache(status="hit", tokens=5)]
    assert len(counter.set(cache_read_tokens=6)) == 1


def test_the_rounds_before_are_in_the_total() -> None:
    counter = UsageCounter({"input_tokens": 100, "cache_read_tokens": 7, "output_tokens": None})
    (item,) = counter.set(input_tokens=10, output_tokens=1)
    assert isinstance(item, Usage)
    assert item.input_tokens == 10
    assert item.total == NOTHING | {"input_tokens": 110, "output_tokens": 1, "cache_read_tokens": 7}


@pytest.mark.parametrize("value", [None, True, -1, 1.5, "7", float("nan"), float("inf"), [], {}, 2**60])
def test_what_is_no_count_is_not_counted(value: Any) -> None:
    counter = UsageCounter()
    assert counter.set(input_tokens=value) == counter.add(input_tokens=value) == []
    assert counter.counts == NOTHING
    assert counter.set(input_tokens=7.0) == [Usage(input_tokens=7, total=NOTHING | {"input_tokens": 7})]


_REPORTS = st.dictionaries(st.sampled_from(COUNTS), st.none() | st.integers(0, 50), max_size=5)


@given(st.lists(st.tuples(st.booleans(), _REPORTS), max_size=10))
def test_the_deltas_sum_up_to_the_last_total_and_the_merge_has_it(reports: list[tuple[bool, dict[str, Any]]]) -> None:
    counter, merger = UsageCounter(), Merger()
    items = [i for add, report in reports for i in (counter.add if add else counter.set)(**report)]
    usage = [item for item in items if isinstance(item, Usage)]
    for item in items:
        merger.add(item)
    for name in COUNTS:
        told = [count for item in usage if (count := getattr(item, name)) is not None]
        assert (sum(told) if told else None) == counter.counts[name]
        assert (usage[-1].total if usage else NOTHING)[name] == counter.counts[name] == (merger.usage or NOTHING)[name]
