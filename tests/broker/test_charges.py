"""Money is exact, and a run is charged as its record says."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.charges import Charge, charge_of, label_of
from broker.money import MAX_DOLLARS, NANO, dollars, nano_of, shown
from broker.records import RunRecord

amounts = st.decimals(min_value=0, max_value=MAX_DOLLARS, allow_nan=False, places=12)


@given(amounts)
def test_a_fraction_of_a_nano_dollar_counts_as_a_whole_one(amount: Decimal) -> None:
    nano = nano_of(amount)
    assert nano is not None
    assert 0 <= dollars(nano) - amount < Decimal(1) / NANO


@given(st.integers(0, MAX_DOLLARS * NANO))
def test_what_is_shown_is_exact(nano: int) -> None:
    text = shown(nano)
    assert nano_of(text) == nano
    assert "e" not in text.lower()
    assert "." not in text or text[-1] not in "0."


@pytest.mark.parametrize("none", [None, "", "1,5", "-0.1", "nan", "inf", MAX_DOLLARS + 1, "1e999999999", [], True])
def test_what_is_no_amount_is_none(none: Any) -> None:
    assert nano_of(none) is None


@pytest.mark.parametrize(
    ("amount", "nano"), [("0.0035", 3_500_000), (0.1, 100_000_000), ("1e-9", 1), ("1e-10", 1), (0, 0)]
)
def test_amounts(amount: Any, nano: int) -> None:
    assert nano_of(amount) == nano


def record(type_: str = "final", *, item: dict[str, Any] | None = None, **fields: Any) -> RunRecord:
    status = {"final": "completed", "failed": "failed", "cancelled": "cancelled"}[type_]
    known: dict[str, Any] = {
        **{
            "run_id": "r",
            "status": status,
            "runner": "hermes",
            "owner": "o",
            "attempt": 1,
            "epoch": 1,
            "rewound_to": 0,
        },
        **{"first": 1, "last": 9, "bytes": 1, "beat": "1", "cancel_requested": None, "created": 1.0, "started": 2.0},
        **{"ended": 3.0, "session_id": None, "principal": "", "request": {"input": {"message": "hi"}}, "metadata": {}},
        **{"on_worker_lost": "fail", "deadline_s": None, "usage": None, "cost": None, "queue": "", "queue_entry": ""},
        **{"outcome": {"type": type_, "seq": 9, "item": item or {}}},
    }
    return RunRecord(**{**known, **fields})


def charge(*args: Any, **fields: Any) -> tuple[int, bool]:
    found = charge_of(record(*args, **fields))
    return found.nano, found.known


PAID = {"total": "0.25", "currency": "USD"}
TOKENS = {"input_tokens": 7, "output_tokens": 2}
QUARTER = 250_000_000


def test_the_fence_counts_before_what_was_told_on_the_way() -> None:
    ended = record(
        item={"cost": PAID, "usage": TOKENS}, cost={"total": "0.1", "currency": "USD"}, usage={"input_tokens": 1}
    )
    assert charge_of(ended) == Charge(QUARTER, True, True, 7, 2)


def test_without_a_cost_in_the_fence_the_newest_one_counts() -> None:
    assert charge(cost=PAID) == (QUARTER, True)
    assert charge("cancelled", cost=PAID) == (QUARTER, True)


@pytest.mark.parametrize(
    "cost",
    [
        None,
        {"total": "0.25", "currency": "EUR"},
        {"total": "much", "currency": "USD"},
        {"total": None},
        {"amount": "-1"},
    ],
)
def test_a_cost_that_is_no_price_is_not_known(cost: dict[str, Any] | None) -> None:
    assert charge(item={"cost": cost, "usage": TOKENS}) == (0, False)


def test_a_run_that_told_nothing_of_its_cost_is_not_free() -> None:
    assert charge() == (0, False)
    assert charge("failed", item={"code": "hermes_timeout"}) == (0, False)
    assert charge("cancelled") == (0, False)


def test_nothing_is_charged_for_what_never_asked_a_model() -> None:
    assert charge("cancelled", started=None, last=1) == (0, True)
    assert charge("failed", item={"code": "runner_error"}, last=1) == (0, True)
    assert charge("failed", item={"code": "hermes_not_found"}) == (0, True)
    assert charge("failed", item={"code": "artifact_too_big"}) == (0, True)
    assert charge("failed", item={"code": "provider_auth"}) == (0, True)


@pytest.mark.parametrize("item", [{"partial": {"role": "assistant"}}, {"usage": TOKENS}])
def test_a_refusal_behind_answers_is_not_free(item: dict[str, Any]) -> None:
    assert charge("failed", item={"code": "provider_auth", **item}) == (0, False)


def test_of_a_lost_worker_it_is_not_known_what_it_spent_besides() -> None:
    assert charge("failed", item={"code": "worker_lost"}, last=1) == (0, False)
    assert charge("failed", item={"code": "worker_lost", "cost": PAID}) == (QUARTER, False)


def test_a_lost_attempt_was_paid_for() -> None:
    twice = record(item={"cost": PAID}, earlier=({"total": "0.5", "currency": "USD"}, {}))
    assert charge_of(twice)[:3] == (3 * QUARTER, False, False)


def test_a_recording_costs_nothing() -> None:
    assert charge_of(record(item={"cost": PAID, "usage": TOKENS}, runner="import")) == Charge(0, True, False, 0, 0)


def test_a_task_costs_nothing_but_its_steps() -> None:
    assert charge_of(record(runner="task")) == Charge(0, True, False, 0, 0)
    assert charge_of(record("failed", item={"code": "worker_lost"}, runner="task")) == Charge(0, True, False, 0, 0)


def test_only_a_cost_that_was_told_says_what_the_next_run_may_cost() -> None:
    assert charge_of(record(item={"cost": {"total": "0", "currency": "USD"}})).sample
    assert not charge_of(record("failed", item={"code": "unknown_runner"})).sample
    assert not charge_of(record(item={"usage": TOKENS})).sample


def test_runs_are_expected_to_cost_what_those_of_their_model_do() -> None:
    assert label_of({"input": {"model": "gpt-9"}, "runner": "llm"}) == "gpt-9"
    assert label_of({"input": {"message": "x"}}) == label_of({"input": {}, "runner": "hermes"})
    assert label_of({"input": {}, "runner": "llm"}) != label_of({"input": {}})
    assert len(label_of({"input": {"model": "m" * 9_999}})) < 200
