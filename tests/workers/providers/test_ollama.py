"""Ollama's chat: small streams, and what may be wrong with them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import MessageDelta, ReasoningDelta, ToolCallDelta, Usage
from tests.workers.providers import streams
from tests.workers.providers.streams import Told, check, lines, mutated, split, strange
from workers.providers.ollama import OllamaChat

API = "ollama.chat"

DONE = {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}


def read(*events: Any, round: int = 1) -> Told:
    return streams.read(API, events, round=round)


def line(**message: Any) -> dict[str, Any]:
    return {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", **message}}


def test_text_and_the_frame() -> None:
    items = read(line(content="He"), line(content="He"), line(content="!"), DONE, round=2)
    assert [d.text for d in items.of(MessageDelta)] == ["He", "He", "!"]
    assert {(d.round, d.index) for d in items.of(MessageDelta)} == {(2, 0)}
    assert items.events("model.started") == [{"round": 2, "model": "m", "response_id": None}]
    assert items.events("model.completed") == [
        {"round": 2, "finish_reason": "stop", "model": "m", "response_id": None},
    ]
    assert items.error is None


def test_thinking_comes_before_the_content_and_apart_from_it() -> None:
    items = read(line(thinking="Hm", content=""), line(thinking=".", content="So"), line(content="."), DONE)
    assert items.content == [{"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "So."}]
    assert [d.index for d in items.of(ReasoningDelta) + items.of(MessageDelta)] == [0, 0, 1, 1]


def test_text_that_goes_on_behind_a_call_is_another_block() -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    items = read(line(content="a"), line(content="", tool_calls=[call]), line(content="b"), DONE)
    assert [b["type"] for b in items.content] == ["text", "tool_call", "text"]


def test_calls_are_whole_and_their_index_says_nothing() -> None:
    first = {"function": {"name": "f", "arguments": {"b": 1, "a": "é"}}}
    second = {"function": {"index": 1, "name": "g", "arguments": '{"x": 1}'}}
    third = {"id": "call_abc", "function": {"index": 1, "name": "f"}}
    items = read(line(tool_calls=[first, second]), line(tool_calls=[third]), DONE)
    assert [(d.call_id, d.name, d.arguments) for d in items.of(ToolCallDelta)] == [
        ("call_1_1", "f", '{"b": 1, "a": "é"}'),
        ("call_1_2", "g", '{"x": 1}'),
        ("call_abc", "f", ""),
    ]
    assert [b["arguments"] for b in items.content] == [{"b": 1, "a": "é"}, {"x": 1}, {}]
    assert items.message is not None
    assert items.message["finish_reason"] == "stop"


def test_counts_come_once_and_a_missing_one_stays_unknown() -> None:
    items = read(line(content="a"), DONE | {"eval_count": 7, "total_duration": 5})
    assert [(u.input_tokens, u.output_tokens) for u in items.of(Usage)] == [(None, 7)]
    assert items.usage is not None
    assert items.usage["input_tokens"] is None
    assert items.events("model.completed")[0]["details"] == {"total_duration": 5}
    assert read(DONE | {"prompt_eval_count": 3, "eval_count": 0}).of(Usage)[0].total["output_tokens"] == 0


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"error": "model ran out of memory"}, "provider_error", "model ran out of memory"),
        ({"error": {"code": "overloaded", "message": "later"}}, "overloaded", "later"),
        ({"error": {"odd": 1}}, "provider_error", '{"odd": 1}'),
    ],
)
def test_an_error_ends_the_message_and_keeps_what_came(error: dict[str, Any], code: str, message: str) -> None:
    items = read(line(content="Hel"), error, line(content="lo"), DONE)
    assert items.error is not None
    assert (items.error.code, items.error.message) == (code, message)
    assert items.events("model.failed") == [{"round": 1, "code": code, "message": message}]
    assert items.events("model.completed")[0]["incomplete"] is True
    assert items.content == [{"type": "text", "text": "Hel"}]


def test_without_a_last_line_it_is_incomplete() -> None:
    items = read(line(content="Hel"))
    assert items.error is not None
    assert items.error.code == "incomplete_stream"
    assert items.events("model.completed")[0]["incomplete"] is True
    assert [e.get("incomplete") for e in read().events("model.completed")] == [True]


def test_behind_the_last_line_nothing_belongs_to_the_message() -> None:
    late = line(content="more")
    items = read(line(content="a"), DONE, late)
    assert items.content == [{"type": "text", "text": "a"}]
    assert items.events("provider.event") == [{"round": 1, "event": "", "data": late}]
    assert len(items.events("model.completed")) == 1


def test_done_without_a_reason_and_done_that_is_not_true() -> None:
    items = read({"model": "m", "message": {"content": "a"}, "done": "no"}, {"model": "m", "done": True})
    completed = items.events("model.completed")
    assert [(c["finish_reason"], c.get("incomplete")) for c in completed] == [(None, None)]


def test_what_has_no_place_in_a_message_is_kept() -> None:
    items = read(line(content="a", images=["QUJD"]) | {"logprobs": [{"token": "a"}]}, 7, DONE)
    assert items.events("provider.block") == [{"round": 1, "index": 1, "block": {"images": ["QUJD"]}}]
    kept = [(e["event"], e["data"]) for e in items.events("provider.event")]
    assert kept == [("logprobs", [{"token": "a"}]), ("", 7)]
    odd = read(line(tool_calls=["x", {"function": "y"}]), DONE)
    assert [e["data"] for e in odd.events("provider.event")] == ["x", {"function": "y"}]


def test_generate_has_its_text_elsewhere() -> None:
    items = read({"model": "m", "thinking": "t"}, {"model": "m", "response": "a"}, {"done": True})
    assert items.content == [{"type": "reasoning", "text": "t"}, {"type": "text", "text": "a"}]


def test_the_end_is_told_once() -> None:
    adapter = OllamaChat()
    adapter.feed("", DONE)
    assert adapter.close() == adapter.close() == []


STREAM: list[dict[str, Any]] = [
    line(thinking="hm", content=""),
    line(content="a\u2028b"),
    line(tool_calls=[{"id": "c", "function": {"index": 1, "name": "f", "arguments": {"a": [1]}}}]),
    line(content="c") | {"error": ""},
    DONE | {"prompt_eval_count": 3, "eval_count": 4, "total_duration": 9},
]
WORDS = ["message", "content", "thinking", "tool_calls", "function", "name", "arguments", "done", "error", "model"]


@given(mutated([*STREAM, {"error": "broken"}]))
def test_a_stream_that_was_spoiled_raises_nothing(events: list[Any]) -> None:
    check(API, events)


@given(strange(WORDS, ["stop", "prompt_eval_count", "eval_count"]))
def test_events_without_sense_raise_nothing(events: list[Any]) -> None:
    check(API, events)


@given(st.lists(st.integers(0, len(lines(STREAM)))))
def test_every_split_gives_the_same_items(cuts: list[int]) -> None:
    assert split(API, lines(STREAM), cuts) == split(API, lines(STREAM), [])
