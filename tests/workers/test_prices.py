"""Prices: from the bundled list, exact, never made up, never from the network."""

from __future__ import annotations

import socket
import threading
from datetime import UTC, datetime
from decimal import ROUND_UP, Context, Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import Cost, Event, Item
from workers.prices import CostMeter, Price, decimal_string, price

AT = datetime(2026, 1, 1, tzinfo=UTC)
"""The list knows when prices changed: with a date of its own a test does not age."""


def _usage(input: int | None = 1000, output: int | None = 100, **more: int | None) -> dict[str, int | None]:
    return {"input_tokens": input, "output_tokens": output, **more}


def test_a_known_model_has_a_price() -> None:
    # $2.50 and $10 per million tokens.
    assert price("gpt-4o", "openai", _usage(), at=AT) == Price(Decimal("0.0035"), "USD", True)


def test_cached_tokens_are_part_of_the_input_and_cheaper() -> None:
    # Of 1000 input tokens 400 read ($0.30) and 100 written ($3.75), the other 500 at $3; 100 of output at $15.
    usage = _usage(cache_read_tokens=400, cache_write_tokens=100)
    found = price("claude-sonnet-4-5", "anthropic", usage, at=AT)
    assert found is not None
    assert found.amount == Decimal("0.00012") + Decimal("0.000375") + Decimal("0.0015") + Decimal("0.0015")


def test_reasoning_is_part_of_the_output() -> None:
    with_, without = (price("gpt-4o", "openai", _usage(reasoning_tokens=n), at=AT) for n in (90, None))
    assert with_ == without is not None


def test_a_long_prompt_has_the_higher_price() -> None:
    found = price("claude-sonnet-4-5", "anthropic", _usage(200_001, 0), at=AT)
    assert found is not None
    assert found.amount == Decimal(200_001) * 6 / 1_000_000


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("gpt-4o", "https://api.openai.com/v1"),
        ("openai/gpt-4o", None),
        ("gpt-4o", None),
        ("openai/gpt-4o", "openrouter"),
        ("gpt-4o-2024-08-06", "openai"),
        ("gpt-4o", "azure"),
        ("models/gemini-2.5-flash", "google"),
        ("gemini-2.5-flash", "https://generativelanguage.googleapis.com/v1beta"),
        ("llama-3.3-70b-versatile", "https://api.groq.com/openai/v1"),
        ("grok-4", "xai"),
        ("deepseek/deepseek-r1:free", "openrouter"),
    ],
)
def test_sellers_and_names(model: str, provider: str | None) -> None:
    assert price(model, provider, _usage(), at=AT) is not None


def test_a_free_model_costs_nothing_and_one_without_a_listed_price_is_unknown() -> None:
    assert price("deepseek/deepseek-r1:free", "openrouter", _usage(), at=AT) == Price(Decimal(0))
    assert price("whisper-1", "openai", _usage(), at=AT) is None


@pytest.mark.parametrize(
    ("model", "provider", "usage"),
    [
        ("fake-model", None, _usage()),
        ("fake-model", "openai", _usage()),
        ("gpt-4o", "custom", _usage()),
        ("gpt-4o", "http://127.0.0.1:8000/v1", _usage()),
        ("", "openai", _usage()),
        ("m" * 5000, None, _usage()),
        ("/", None, _usage()),
        ("gpt-4o", "openai", {}),
        ("gpt-4o", "openai", _usage(None)),
        ("gpt-4o", "openai", _usage(output=None)),
        ("gpt-4o", "openai", _usage(10, cache_read_tokens=11)),
        ("gpt-4o", "openai", _usage(-1)),
    ],
)
def test_what_is_not_known_has_no_price(model: str, provider: str | None, usage: dict[str, int | None]) -> None:
    assert price(model, provider, usage, at=AT) is None


def test_a_price_is_exact_whatever_the_callers_decimal_context() -> None:
    usage = _usage(123_456_789_012_345, 98_765_432_109)
    expected = (123_456_789_012_345 * 25 + 98_765_432_109 * 100) * Decimal(1).scaleb(-7)
    with localcontext(Context(prec=3, rounding=ROUND_UP)):
        found = price("gpt-4o", "openai", usage, at=AT)
    assert found is not None
    assert found.amount == expected


def test_no_network_and_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("prices asked the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    before = threading.active_count()
    assert price("gpt-4o", "openai", _usage()) is not None
    assert price("no-such-model", None, _usage()) is None
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0E-9", "0"), ("1E+3", "1000"), ("0.00350", "0.0035"), ("10", "10"), ("1.0", "1"), ("1E-12", "0.000000000001")],
)
def test_decimal_strings(amount: str, text: str) -> None:
    assert decimal_string(Decimal(amount)) == text


# The meter.


def _costs(items: list[Item]) -> list[tuple[str, str]]:
    assert all(isinstance(item, Cost) for item in items)
    return [(item.amount, item.total) for item in items if isinstance(item, Cost)]


def test_a_call_that_grows_gives_amounts_that_add_up() -> None:
    meter = CostMeter("openai")
    assert _costs(meter.count("gpt-4o", _usage(1000, 0), at=AT)) == [("0.0025", "0.0025")]
    assert _costs(meter.count("gpt-4o", _usage(1000, 100), at=AT)) == [("0.001", "0.0035")]
    assert meter.count("gpt-4o", _usage(1000, 100), at=AT) == []
    assert _costs(meter.count("gpt-4o", _usage(1000, 100), call=2, at=AT)) == [("0.0035", "0.007")]
    assert meter.total == Decimal("0.007")


def test_each_call_is_priced_by_its_own_size() -> None:
    meter = CostMeter("anthropic")
    for call in (1, 2):
        meter.count("claude-sonnet-4-5", _usage(150_000, 0), call=call, at=AT)
    # Together they would be beyond 200,000 tokens, and twice as dear.
    assert meter.total == Decimal(300_000) * 3 / 1_000_000


def test_a_call_that_becomes_cheaper_takes_nothing_back() -> None:
    meter = CostMeter("openai")
    assert _costs(meter.count("gpt-4o", _usage(1000, 0), at=AT)) == [("0.0025", "0.0025")]
    assert meter.count("gpt-4o", _usage(1000, 0, cache_read_tokens=1000), at=AT) == []
    assert _costs(meter.count("gpt-4o", _usage(1000, 100), call=2, at=AT)) == [("0.0035", "0.006")]


def test_an_unknown_model_is_said_once_and_the_others_still_count() -> None:
    meter = CostMeter("openai")
    (warning,) = meter.count("fake-model", _usage(), at=AT)
    assert isinstance(warning, Event)
    assert (warning.name, warning.payload["code"]) == ("warning", "price_unknown")
    assert warning.payload["model"] == "fake-model"
    assert "fake-model" in warning.payload["message"]
    assert meter.count("fake-model", _usage(), call=2, at=AT) == []
    assert meter.total is None
    assert _costs(meter.count("gpt-4o", _usage(), call=3, at=AT)) == [("0.0035", "0.0035")]


def test_counts_that_are_not_known_are_neither_a_cost_nor_an_unknown_model() -> None:
    meter = CostMeter("openai")
    assert meter.count("gpt-4o", _usage(None), at=AT) == []
    assert meter.count("fake-model", {}, at=AT) == []


def test_a_free_model_says_that_it_cost_nothing_once() -> None:
    meter = CostMeter("openrouter")
    assert _costs(meter.count("deepseek/deepseek-r1:free", _usage(), at=AT)) == [("0", "0")]
    assert meter.count("deepseek/deepseek-r1:free", _usage(2000), at=AT) == []


def test_the_provider_of_one_call_counts_before_the_meters() -> None:
    meter = CostMeter("http://127.0.0.1:1/v1")
    assert _costs(meter.count("gpt-4o", _usage(), provider="openai", at=AT)) == [("0.0035", "0.0035")]


def test_what_the_agent_says_counts_alone_from_then_on() -> None:
    meter = CostMeter("openai")
    meter.count("gpt-4o", _usage(), at=AT)
    (item,) = meter.reported(0.01, estimated=False)
    assert isinstance(item, Cost)
    assert (item.amount, item.total, item.estimated) == ("0.0065", "0.01", False)
    assert meter.count("gpt-4o", _usage(), call=2, at=AT) == []
    assert meter.reported("0.005", estimated=False) == []


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1, "x", ""])
def test_what_is_no_amount_is_passed_over(wrong: float | str) -> None:
    meter = CostMeter("openai")
    assert meter.reported(wrong, estimated=True) == []
    assert _costs(meter.count("gpt-4o", _usage(), at=AT)) == [("0.0035", "0.0035")]


_counts = st.one_of(st.none(), st.integers(0, 10**9))


@given(st.lists(st.tuples(st.integers(1, 3), _counts, _counts, st.integers(0, 1000)), max_size=12))
def test_amounts_are_never_negative_and_add_up_to_the_last_total(
    calls: list[tuple[int, int | None, int | None, int]],
) -> None:
    meter = CostMeter("anthropic")
    items = [
        item
        for call, input_, output, cached in calls
        for item in meter.count("claude-sonnet-4-5", _usage(input_, output, cache_read_tokens=cached), call=call, at=AT)
        if isinstance(item, Cost)
    ]
    amounts = [Decimal(item.amount) for item in items]
    assert all(amount >= 0 for amount in amounts)
    for n, item in enumerate(items, 1):
        assert sum(amounts[:n]) == Decimal(item.total)
