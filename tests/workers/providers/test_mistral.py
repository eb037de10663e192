"""Mistral's chat API: what each chunk, and each odd one, becomes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import Annotation, Cache, Event, MessageDelta, ReasoningDelta, ToolCallDelta
from broker.merge import Merger
from tests.workers.providers import streams
from tests.workers.providers.streams import Told
from workers.providers.adapter import ProviderError
from workers.providers.decoding import DONE

API = "mistral.chat"
Data = dict[str, Any]
DONE_EVENT = (DONE, None)
USAGE = {"prompt_tokens": 20, "completion_tokens": 6, "total_tokens": 26}


def chunk(finish: str | None = None, usage: Data | None = None, choice: Any = 0, **delta: Any) -> Data:
    entry = {"index": choice, "delta": delta, "finish_reason": finish}
    told: Data = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "mistral-x", "choices": [entry]}
    return told | ({"usage": usage} if usage else {}) | {"p": "abcdef"}


def text(content: Any, **more: Any) -> Data:
    return chunk(content=content, **more)


def thinking(*texts: str, **more: Any) -> Data:
    return {"type": "thinking", "thinking": [{"type": "text", "text": t} for t in texts], **more}


def part(text: str) -> Data:
    return {"type": "text", "text": text}


def call(name: str = "look", arguments: Any = "", **more: Any) -> Data:
    return {"function": {"name": name, "arguments": arguments}, **more}


END = chunk("stop", USAGE, content="")


def read(*events: Any, **more: Any) -> Told:
    return streams.read(API, events, **more)


def test_a_plain_answer() -> None:
    result = read(chunk(role="assistant", content=""), text("Hel"), text("lo"), END, DONE_EVENT, round=2)
    names = {"model": "mistral-x", "response_id": "c1"}
    assert result.items[0] == Event(name="model.started", payload={"round": 2, **names})
    assert result.of(MessageDelta) == [
        MessageDelta(text="Hel", round=2, index=0),
        MessageDelta(text="lo", round=2, index=0),
    ]
    assert result.items[-1] == Event(name="model.completed", payload={"round": 2, "finish_reason": "stop", **names})
    assert result.content == [{"type": "text", "text": "Hello"}]
    assert result.error is None


def test_thinking_in_lists_then_text_as_a_string() -> None:
    result = read(
        text([thinking("I ")]),
        text([thinking("count", ".", closed=True), part("4")]),
        text("2"),
        END,
    )
    assert [(i.text, i.index) for i in result.of(ReasoningDelta)] == [("I ", 0), ("count", 0), (".", 0)]
    assert [(i.text, i.index) for i in result.of(MessageDelta)] == [("4", 1), ("2", 1)]
    assert result.content == [{"type": "reasoning", "text": "I count."}, {"type": "text", "text": "42"}]


def test_each_change_of_kind_begins_a_block() -> None:
    result = read(text([thinking("a"), part("b"), thinking("c", signature="SIG"), "d"]), END)
    assert result.content == [
        {"type": "reasoning", "text": "a"},
        {"type": "text", "text": "b"},
        {"type": "reasoning", "text": "c", "signature": "SIG"},
        {"type": "text", "text": "d"},
    ]


def test_thinking_as_a_string_and_a_signature_alone() -> None:
    parts = [{"type": "thinking", "thinking": "so"}, {"type": "thinking", "thinking": [], "signature": "S"}]
    assert read(text(parts), END).content == [{"type": "reasoning", "text": "so", "signature": "S"}]


def test_references_annotate_the_text() -> None:
    reference = {"type": "reference", "reference_ids": [1, 2]}
    result = read(text([part("As said"), reference]), text("."), END)
    assert result.content == [{"type": "text", "text": "As said.", "annotations": [reference]}]
    assert [a.index for a in result.of(Annotation)] == [0]


def test_a_reference_belongs_to_the_text_before_it() -> None:
    reference = {"type": "reference", "reference_ids": [7]}
    result = read(text([part("a"), thinking("b"), reference]), END)
    assert result.content[0] == {"type": "text", "text": "a", "annotations": [reference]}
    assert read(text([reference, part("a")]), END).content == [
        {"type": "text", "text": "a", "annotations": [reference]}
    ]


def test_a_completion_that_was_not_streamed() -> None:
    message = {"role": "assistant", "content": "All", "tool_calls": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    result = read({"id": "c", "model": "m", "choices": [choice], "usage": USAGE})
    assert (result.content, result.error) == ([{"type": "text", "text": "All"}], None)


def test_other_parts_are_kept_in_their_place() -> None:
    image, tool_reference = {"type": "image_url", "image_url": "u"}, {"type": "tool_reference", "tool": "t"}
    parts = [part("a"), image, {"type": "thinking", "thinking": [part("b"), tool_reference, part("c")]}]
    result = read(text(parts), text("d", choice=1), text([image], choice=1), END)
    assert result.events("provider.block") == [
        {"round": 1, "index": 1, "block": image},
        {"round": 1, "index": 2, "block": tool_reference},
        {"round": 1, "index": 1, "block": image, "choice": 1},
    ]
    assert result.content == [{"type": "text", "text": "a"}, {"type": "reasoning", "text": "bc"}]


# -- tools


@pytest.mark.parametrize(
    "entries",
    [
        [[call(arguments='{"a": 1}', id="x1")]],
        [[call(arguments={"a": 1}, id="x1")]],
        [[call(id="x1", index=0)], [call("", '{"a": ', index=0)], [call("", "1}", index=0)]],
        [[call(id="x1")], [call("", '{"a": '), call("", "1}")]],
        [[call(id="x1", index=3)], [call("look", '{"a":', id="x1", index=3)], [call("", "1}", id="null", index=3)]],
    ],
)
def test_a_call_whole_or_in_fragments(entries: list[list[Data]]) -> None:
    result = read(*(chunk(tool_calls=e, content="") for e in entries), chunk("tool_calls", USAGE))
    assert result.content == [{"type": "tool_call", "id": "x1", "name": "look", "arguments": {"a": 1}}]
    assert result.error is None


def test_several_calls_in_the_chunk_of_the_finish_reason() -> None:
    calls = [call("f", '{"a": 1}', id="x1", index=0), call("g", '{"b": 2}', id="x2", index=1)]
    result = read(chunk(role="assistant", content=""), chunk("tool_calls", USAGE, tool_calls=calls), DONE_EVENT)
    assert result.of(ToolCallDelta) == [
        ToolCallDelta(call_id="x1", name="f", arguments='{"a": 1}', index=0),
        ToolCallDelta(call_id="x2", name="g", arguments='{"b": 2}', index=1),
    ]
    assert result.end["finish_reason"] == "tool_calls"


def test_several_calls_without_an_index_or_with_the_same_one() -> None:
    for more in ({}, {"index": 0}):
        calls = [call("f", '{"a": 1}', id="x1", **more), call("g", '{"b": 2}', id="x2", **more)]
        result = read(chunk("tool_calls", tool_calls=calls))
        assert [(b["id"], b["arguments"]) for b in result.content] == [("x1", {"a": 1}), ("x2", {"b": 2})]


@pytest.mark.parametrize("id", [None, "", "null"])
def test_a_call_without_id_gets_a_made_one(id: Any) -> None:
    result = read(text("Hm."), chunk("tool_calls", tool_calls=[call(arguments="{}", id=id)]), round=2)
    assert [b.get("id") for b in result.content] == [None, "call_2_1"]
    assert result.of(ToolCallDelta)[0].index == 1


def test_a_call_that_the_length_cut_is_not_valid() -> None:
    result = read(chunk("length", tool_calls=[call(arguments='{"a": 1', id="x")]))
    assert (result.content[0]["arguments"], result.content[0]["raw"]) == (None, '{"a": 1')


# -- choices, usage


def test_choices_never_mix() -> None:
    both = [{"index": n, "delta": {"content": w}, "finish_reason": None} for n, w in ((1, "b"), (0, "a"))]
    result = read({"id": "c", "model": "m", "choices": both}, text("B", choice=1), text("A"), chunk("length"), END)
    result = read({"choices": both}, text("B", choice=1), text("A"), chunk("length"), chunk("stop", choice=1))
    merger = Merger()
    for item in result.items:
        merger.add(item)
    assert [(merger.message(1, n) or {})["content"] for n in (0, 1)] == [
        [{"type": "text", "text": "aA"}],
        [{"type": "text", "text": "bB"}],
    ]
    ends = [(p.get("choice", 0), p["finish_reason"]) for p in result.events("model.completed")]
    assert ends == [(0, "length"), (1, "stop")]


@pytest.mark.parametrize(
    "details",
    [
        {"prompt_tokens_details": {"cached_tokens": 12}},
        {"prompt_token_details": {"cached_tokens": 12}},
        {"num_cached_tokens": 12},
        {"num_cached_tokens": 0, "prompt_tokens_details": {"cached_tokens": 12}},
    ],
)
def test_cached_tokens_are_part_of_the_input(details: Data) -> None:
    result = read(text("x"), chunk("stop", USAGE | details), DONE_EVENT)
    assert result.usage == {
        "input_tokens": 20,
        "output_tokens": 6,
        "cache_read_tokens": 12,
        "cache_write_tokens": None,
        "reasoning_tokens": None,
    }
    assert result.of(Cache) == [Cache(status="hit", tokens=12)]


def test_usage_may_come_alone_and_later_and_again() -> None:
    usage = USAGE | {"completion_tokens_details": {"reasoning_tokens": 2}}
    result = read(text("x", usage={"prompt_tokens": 20}), chunk("stop"), {"choices": [], "usage": usage}, DONE_EVENT)
    assert result.usage is not None
    assert (result.usage["input_tokens"], result.usage["output_tokens"], result.usage["reasoning_tokens"]) == (20, 6, 2)
    assert not result.events("provider.event")


def test_what_else_stands_by_the_counts_is_kept() -> None:
    more = {"service_tier": "priority", "prompt_audio_seconds": None}
    result = read(chunk("stop", USAGE | more))
    assert result.events("provider.event") == [{"round": 1, "event": "usage", "data": {"service_tier": "priority"}}]


# -- how it ends


def test_the_finish_reason_is_the_first() -> None:
    assert read(text("x"), chunk("length"), chunk("stop"), DONE_EVENT).end["finish_reason"] == "length"


@pytest.mark.parametrize("events", [[], [text("Hal")], [text("Hal"), text("b", choice=1), chunk("stop")]])
def test_without_a_finish_reason_the_message_is_incomplete(events: list[Any]) -> None:
    result = read(*events)
    assert result.error == ProviderError("incomplete_stream", "the stream ended without its terminal event")
    assert result.events("model.completed")[-1]["incomplete"] is True


def test_done_ends_what_has_no_finish_reason() -> None:
    result = read(text("x"), DONE_EVENT)
    assert (result.error, result.end["finish_reason"], "incomplete" in result.end) == (None, None, False)


@pytest.mark.parametrize(
    ("event", "code", "message"),
    [
        ({"object": "error", "message": "Busy", "type": "rate_limited", "code": "1300"}, "1300", "Busy"),
        ({"object": "error", "message": "Busy", "type": "rate_limited", "code": None}, "rate_limited", "Busy"),
        ({"error": {"message": "Busy", "type": "server_error"}}, "server_error", "Busy"),
        ({"error": "Busy"}, "error", "Busy"),
        ({"error": {"raw": 1}}, "error", '{"raw": 1}'),
        (("error", {"message": {"detail": ["Busy"]}}), "error", '{"detail": ["Busy"]}'),
        (chunk("error", USAGE), "error", "the generation ended with the finish reason “error”"),
    ],
)
def test_an_error_ends_the_message_and_what_came_stays(event: Any, code: str, message: str) -> None:
    result = read(text("so far"), event, text(" lost"), END, DONE_EVENT)
    assert result.error == ProviderError(code, message)
    assert result.events("model.failed") == [{"round": 1, "code": code, "message": message}]
    assert [b["text"] for b in result.content] == ["so far"]
    assert result.end["incomplete"] is True


def test_usage_in_the_chunk_of_the_error_counts() -> None:
    assert (read(chunk("error", USAGE)).usage or {})["output_tokens"] == 6


def test_what_comes_behind_done_is_kept_and_changes_nothing() -> None:
    late = text("late")
    result = read(text("Hi"), chunk("stop"), DONE_EVENT, late)
    assert result.content == [{"type": "text", "text": "Hi"}]
    assert result.events("provider.event") == [{"round": 1, "event": "", "data": late}]


# -- odd inputs


def test_unknown_fields_are_kept_and_change_nothing() -> None:
    odd = {**chunk(content="x", prefix=True), "moderation": {"ok": True}}
    odd["choices"][0]["logprobs"] = {"content": [1]}
    result = read(odd, END)
    assert [p["data"] for p in result.events("provider.event")] == [
        {"choice": 0, "prefix": True, "logprobs": {"content": [1]}},
        {"moderation": {"ok": True}},
    ]
    assert result.content == [{"type": "text", "text": "x"}]


@pytest.mark.parametrize("data", ["text", ["list"], None, 7, {"news": 1}])
def test_unknown_events_are_kept(data: Any) -> None:
    result = read(text("a"), ("", data), text("b"), END)
    assert [p["data"] for p in result.events("provider.event")] == [data]
    assert result.content == [{"type": "text", "text": "ab"}]


@pytest.mark.parametrize("content", [None, 5, {}, [], [None], [[]], [5], "", [{"type": "text"}], [{"type": ["x"]}]])
def test_content_that_is_none(content: Any) -> None:
    assert [b["text"] for b in read(text("a"), text(content), text("b"), END).content if b["type"] == "text"] in (
        ["ab"],
        ["a", "b"],
    )


VARIED = [
    chunk(role="assistant", content=""),
    text([thinking("Größe 🙂")]),
    text([thinking("x", signature="s"), part("Ja\u2028"), {"type": "reference", "reference_ids": [1]}]),
    text("42"),
    text([{"type": "image_url", "image_url": "u"}]),
    chunk(tool_calls=[call(id="x1", index=0), call("g", '{"b": "ü"}', id="x2", index=1)]),
    chunk(tool_calls=[call("", '{"a": ', index=0)]),
    chunk(tool_calls=[call("", "1}", index=0)]),
    text("b", choice=1),
    chunk("stop", choice=1),
    chunk("tool_calls", USAGE | {"prompt_tokens_details": {"cached_tokens": 3}, "service_tier": "standard"}),
]
_STREAM = streams.sse(VARIED, named=False) + b"data: [DONE]\n\n"


@given(st.sets(st.integers(0, len(_STREAM)), max_size=12))
def test_every_split_of_the_bytes_gives_the_same_items(cuts: set[int]) -> None:
    assert streams.split(API, _STREAM, cuts) == read(*VARIED, DONE_EVENT).items


@given(streams.mutated([*VARIED, {"error": {"message": "M"}}]))
def test_a_stream_that_was_tampered_with_raises_nothing(events: list[Any]) -> None:
    streams.check(API, events)


@given(streams.strange(streams.keys(VARIED) | {DONE}, streams.words(VARIED) | {"error"}))
def test_nothing_that_is_json_raises(events: list[Any]) -> None:
    streams.check(API, events)
