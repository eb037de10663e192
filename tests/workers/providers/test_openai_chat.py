"""The chat completions API and its many dialects: chunks → items, and the message they merge to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from broker.items import Annotation, Cache, Event, Item, Message, MessageDelta, ReasoningDelta, ToolCallDelta, Usage
from tests.workers.providers import streams
from tests.workers.providers.streams import Told, told
from workers.merged import MergedStream
from workers.providers.decoding import DONE
from workers.providers.openai_chat import OpenAIChat

API = "openai.chat"


def chunk(
    delta: dict[str, Any] | None = None, finish: str | None = None, index: int = 0, **fields: Any
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    return {"id": "r1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **fields}


def say(text: str, **fields: Any) -> dict[str, Any]:
    return chunk({"content": text}, **fields)


def call(
    index: int | None = 0, id: str | None = None, name: str | None = None, arguments: Any = None
) -> dict[str, Any]:
    fragment: dict[str, Any] = {"function": {"name": name, "arguments": arguments}, "id": id, "type": "function"}
    return fragment if index is None else {"index": index, **fragment}


def calls(*fragments: dict[str, Any]) -> dict[str, Any]:
    return chunk({"tool_calls": list(fragments)})


END = chunk(finish="stop")


def read(chunks: Iterable[Any], *, done: bool = True, snapshots: bool = False) -> Told:
    adapter = OpenAIChat(1, snapshots=snapshots)
    items = [item for data in chunks for item in adapter.feed("", data)]
    items += adapter.feed(DONE, None) if done else []
    return told(items + adapter.close(), adapter.error)


def blocks(*chunks: Any) -> list[dict[str, Any]]:
    return read([*chunks, END]).content


def made(*fragments: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The calls of chunks with one fragment each: id, name, arguments, or else the code of the error."""
    content = read([*map(calls, fragments), chunk(finish="tool_calls")]).content
    return [(b["id"], b["name"], b["arguments"] if b["arguments"] is not None else b["error"]["code"]) for b in content]


# -- the frame


def test_a_response_begins_and_ends_once() -> None:
    result = read([say("a"), say("b", model="other", id="r2"), END, END])
    assert result.events("model.started") == [{"round": 1, "model": "m", "response_id": "r1"}]
    assert result.end == {"round": 1, "finish_reason": "stop", "model": "m", "response_id": "r1"}
    assert result.message == {
        "role": "assistant",
        "content": [{"type": "text", "text": "ab"}],
        "finish_reason": "stop",
        "model": "m",
    }
    assert result.error is None


def test_a_first_chunk_about_the_prompt_begins_nothing() -> None:
    first = {"id": "", "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    result = read([first, say("a"), END])
    assert result.events("model.started") == [{"round": 1, "model": "m", "response_id": "r1"}]
    assert result.events("provider.event")[0]["data"] == {"prompt_filter_results": [{"prompt_index": 0}]}


@pytest.mark.parametrize(
    ("chunks", "done", "error", "incomplete"),
    [
        ([say("a"), END], True, None, False),
        ([say("a"), END], False, None, False),
        ([say("a")], True, None, False),
        ([say("a")], False, "incomplete_stream", True),
        ([], False, "incomplete_stream", None),
        ([], True, None, None),
        ([say("a"), say("b", index=1), END], False, "incomplete_stream", False),
    ],
)
def test_which_ends_are_an_end(chunks: list[Any], done: bool, error: str | None, incomplete: bool | None) -> None:
    result = read(chunks, done=done)
    assert (result.error.code if result.error else None) == error
    completed = result.events("model.completed")
    if incomplete is None:
        assert completed == []
    else:
        assert completed[0].get("incomplete", False) is incomplete


def test_nothing_comes_behind_the_end() -> None:
    adapter = OpenAIChat()
    adapter.feed("", say("a"))
    assert adapter.feed(DONE, None)
    assert adapter.feed("", say("b")) + adapter.feed(DONE, None) + adapter.close() == []


def test_choices_never_mix() -> None:
    chunks = [
        say("a"),
        say("x", index=1),
        {"id": "r1", "model": "m", "choices": [*say("b")["choices"], *say("y", index=1)["choices"]]},
        calls(call(0, None, "f", "{}"))
        | {"choices": [{"index": 1, "delta": calls(call(0, None, "g", "{}"))["choices"][0]["delta"]}]},
        chunk(finish="stop"),
        chunk(finish="length", index=1),
    ]
    result = read(chunks)
    assert [(e.get("choice"), e["finish_reason"]) for e in result.events("model.completed")] == [
        (None, "stop"),
        (1, "length"),
    ]
    assert [(d.choice, d.text) for d in result.of(MessageDelta)] == [(UNSET, "a"), (1, "x"), (UNSET, "b"), (1, "y")]
    (delta,) = result.of(ToolCallDelta)
    assert (delta.choice, delta.call_id, delta.index) == (1, "call_1_1_1", 1)


def test_a_whole_completion_that_was_not_streamed() -> None:
    whole = {
        "id": "r",
        "model": "m",
        "object": "chat.completion",
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    message = {"role": "assistant", "content": "hi", "tool_calls": [call(None, "a", "f", "{}")]}
    result = read([whole | {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}], done=False)
    assert [b["type"] for b in result.content] == ["text", "tool_call"]
    assert result.error is None
    # beside a delta it is that delta again, or all so far
    twice = chunk({"content": "a"})
    twice["choices"][0]["message"] = {"content": "a"}
    end = chunk(finish="stop")
    end["choices"][0]["message"] = {"content": "a"}
    assert blocks(twice, end) == [{"type": "text", "text": "a"}]


# -- blocks


def test_blocks_are_numbered_as_they_begin() -> None:
    result = read(
        [
            chunk({"role": "assistant", "content": "", "reasoning_content": None, "refusal": None, "tool_calls": None}),
            chunk({"reasoning_content": "r1"}),
            chunk({"content": "t1", "reasoning_content": "r2"}),
            calls(call(3, "a", "f", "")),
            chunk({"content": "t2"}),
            chunk({"refusal": "no"}),
            END,
        ]
    )
    deltas = [i for i in result.items if not isinstance(i, (Event, Usage))]
    assert [getattr(i, "index", None) for i in deltas] == [0, 0, 1, 2, 1, 3]
    assert result.content == [
        {"type": "reasoning", "text": "r1r2"},
        {"type": "text", "text": "t1t2"},
        {"type": "tool_call", "id": "a", "name": "f", "arguments": {}},
        {"type": "refusal", "text": "no"},
    ]


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        ({"reasoning": "a"}, "a"),
        ({"reasoning_content": "a"}, "a"),
        ({"reasoning": "a", "reasoning_content": "a"}, "a"),
        ({"reasoning": "a", "reasoning_details": [{"type": "reasoning.text", "text": "a", "index": 0}]}, "a"),
        ({"reasoning": "a", "reasoning_details": [{"type": "reasoning.summary", "summary": "a", "index": 0}]}, "a"),
        ({"reasoning": "a", "reasoning_details": []}, "a"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]}, "a"),
    ],
)
def test_reasoning_under_all_its_names_counts_once(delta: dict[str, Any], text: str) -> None:
    assert blocks(chunk(delta)) == [{"type": "reasoning", "text": text}]


def test_reasoning_details_are_blocks_with_signatures_and_secrets() -> None:
    def detail(index: int, **fields: Any) -> dict[str, Any]:
        return chunk({"reasoning_details": [{"type": "reasoning.text", "index": index, **fields}]})

    secret = chunk(
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "blob"}], "reasoning": "x"}
    )
    assert blocks(
        detail(0, text="a"), detail(0, text="b"), detail(0, signature="s"), secret, detail(2, text="c", signature="t")
    ) == [
        {"type": "reasoning", "text": "ab", "signature": "s"},
        {"type": "reasoning", "text": "x"},
        {"type": "reasoning", "text": "", "redacted": "blob"},
        {"type": "reasoning", "text": "c", "signature": "t"},
    ]


def test_content_in_parts() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "no"}, {"type": "image", "url": "u"}]
    result = read([chunk({"content": parts}), END])
    assert result.content == [{"type": "text", "text": "ab"}, {"type": "refusal", "text": "no"}]
    assert result.events("provider.event")[0]["data"] == {"content": {"type": "image", "url": "u"}}


def test_equal_deltas_are_two_deltas() -> None:
    assert blocks(say("ha"), say("ha")) == [{"type": "text", "text": "haha"}]


def test_annotations_come_as_often_as_they_are_sent() -> None:
    note = {"type": "url_citation", "url_citation": {"url": "u"}}
    assert blocks(say("a"), chunk({"annotations": [note, note]})) == [
        {"type": "text", "text": "a", "annotations": [note, note]}
    ]


def test_citations_that_every_chunk_repeats_come_once_each_by_their_place() -> None:
    chunks = [say("a", citations=["u"]), say("b", citations=["u", "u"]), say("c", citations=["u"]), END]
    result = read(chunks)
    assert [a.annotation for a in result.of(Annotation)] == ["u", "u"]
    assert result.content == [{"type": "text", "text": "abc", "annotations": ["u", "u"]}]


# -- calls


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        # one fragment, and several
        ([call(0, "a", "f", '{"x":1}')], [("a", "f", {"x": 1})]),
        ([call(0, "a", "f", ""), call(0, None, None, '{"x"'), call(0, None, None, ":1}")], [("a", "f", {"x": 1})]),
        # the first index may be 1; calls may alternate
        (
            [call(1, "a", "f"), call(2, "b", "g"), call(1, arguments="{}"), call(2, arguments='{"y":2}')],
            [("a", "f", {}), ("b", "g", {"y": 2})],
        ),
        # no index: by id, else the latest
        (
            [call(None, "a", "f", "{"), call(None, "b", "g", "{"), call(None, "a", None, "}")],
            [("a", "f", {}), ("b", "g", "truncated")],
        ),
        (
            [call(None, "a", "f", "{"), call(None, "b", "g", "{"), call(None, None, None, "}")],
            [("a", "f", "truncated"), ("b", "g", {})],
        ),
        # no index, no id: a whole call behind a whole call is another one
        (
            [call(None, None, "f", '{"x":1}'), call(None, None, "f", '{"x":2}')],
            [("call_1_1", "f", {"x": 1}), ("call_1_2", "f", {"x": 2})],
        ),
        ([call(None, None, "f", '{"x"'), call(None, None, "f", ":1}")], [("call_1_1", "f", {"x": 1})]),
        (
            [call(None, None, "f", '{"x"'), call(None, None, "g", "{}")],
            [("call_1_1", "f", "truncated"), ("call_1_2", "g", {})],
        ),
        # the index comes later, or is left out later
        ([call(None, "a", "f", "{"), call(0, None, None, "}")], [("a", "f", {})]),
        ([call(None, "a", "f", "{"), call(0, "a", None, "}")], [("a", "f", {})]),
        ([call(None, "a", "f", "{}"), call(1, None, "g", "{}")], [("a", "f", {}), ("call_1_2", "g", {})]),
        ([call(0, "a", "f", "{"), call(None, None, None, "}")], [("a", "f", {})]),
        # another id on a used index, and back
        ([call(0, "a", "f", "{"), call(0, "b", "g", "{}"), call(0, "a", None, "}")], [("a", "f", {}), ("b", "g", {})]),
        # ids that are empty, late, numbers
        ([call(0, "", "f", "{"), call(0, "a", "", "}")], [("a", "f", {})]),
        ([call(0, None, "f", "{}"), call(1, None, "g", "{}")], [("call_1_1", "f", {}), ("call_1_2", "g", {})]),
        (
            [call(0, None, "f", "{"), call(1, "b", "g", "{}"), call(0, "late", None, "}")],
            [("call_1_1", "f", {}), ("b", "g", {})],
        ),
        ([{**call(0, None, "f", "{}"), "id": 7}], [("7", "f", {})]),
        # names in fragments, repeated, late, never
        ([call(0, "a", "get_"), call(0, None, "time", "{"), call(0, None, "get_time", "}")], [("a", "get_time", {})]),
        ([call(0, "a", "f", "{"), call(0, None, "other", "}")], [("a", "f", {})]),
        ([call(0, "a", None, "{"), call(0, None, "f", "}")], [("a", "f", {})]),
        ([call(0, "a", None, "{}")], [("a", "", "nameless")]),
        ([call(0, "a")], [("a", "", "nameless")]),
        # arguments: objects, nothing, twice
        ([call(0, "a", "f", {"x": [1]})], [("a", "f", {"x": [1]})]),
        ([call(0, "a", "f", None)], [("a", "f", {})]),
        ([call(0, "a", "f", "{}"), call(0, None, None, "{}")], [("a", "f", "trailing")]),
        # one id on two indexes is two calls
        (
            [call(0, "a", "f", "{"), call(1, "a", "f", "{"), call(0, None, None, "}"), call(1, None, None, "}")],
            [("a", "f", {}), ("a", "f", {})],
        ),
    ],
)
def test_which_fragment_belongs_to_which_call(fragments: list[dict[str, Any]], expected: list[tuple[Any, ...]]) -> None:
    assert made(*fragments) == expected


def test_fragments_in_one_chunk() -> None:
    both = calls(call(None, None, "f", ""), call(None, None, "g", ""))
    assert [b["name"] for b in blocks(both)] == ["f", "g"]
    same = calls(call(0, "a", "f"), call(0, None, None, '{"x":1}'))
    assert [b["arguments"] for b in blocks(same)] == [{"x": 1}]
    assert blocks(chunk({"tool_calls": ["x", None, 5]}), chunk({"tool_calls": {"a": 1}})) == []


def test_every_delta_of_a_call_has_its_id_and_its_name_once() -> None:
    deltas = read([calls(call(0, "a", "f", "{")), calls(call(0, "a", "f", "}")), calls(call(1, None, "g", "{}"))]).of(
        ToolCallDelta
    )
    assert [(d.call_id, d.name, d.arguments) for d in deltas] == [
        ("a", "f", "{"),
        ("a", UNSET, "}"),
        ("call_1_2", "g", "{}"),
    ]


def test_a_call_without_an_id_waits_for_it_no_longer_than_to_the_next_call() -> None:
    adapter = OpenAIChat()
    assert [i for i in adapter.feed("", calls(call(0, None, "f", "{"))) if isinstance(i, ToolCallDelta)] == []
    late = adapter.feed("", calls(call(1, "b", "g", "{}")))
    assert [i.call_id for i in late if isinstance(i, ToolCallDelta)] == ["call_1_1", "b"]


def test_the_one_function_call_of_old() -> None:
    parts = [{"name": "f", "arguments": ""}, {"arguments": '{"x"'}, {"arguments": ":1}"}]
    result = read([*(chunk({"function_call": part}) for part in parts), chunk(finish="function_call")])
    assert result.content == [{"type": "tool_call", "id": "call_1_1", "name": "f", "arguments": {"x": 1}}]
    assert [d.call_id for d in result.of(ToolCallDelta)] == ["call_1_1"] * 3


def test_free_text_for_a_custom_tool() -> None:
    fragments = [
        {"index": 0, "id": "a", "type": "custom", "custom": {"name": "run", "input": "print("}},
        {"index": 0, "custom": {"input": "1)"}},
    ]
    assert blocks(*(calls(f) for f in fragments)) == [
        {"type": "tool_call", "id": "a", "name": "run", "kind": "custom", "input": "print(1)"}
    ]


def test_geminis_signature_of_a_call() -> None:
    fragment = {**call(0, "a", "f", "{}"), "extra_content": {"google": {"thought_signature": "s"}}}
    assert blocks(calls(fragment))[0]["signature"] == "s"


@pytest.mark.parametrize("end", [chunk(finish="length"), None])
def test_a_cut_call_is_not_valid(end: Any) -> None:
    result = read([calls(call(0, "a", "f", "")), *([end] if end else [])], done=False)
    (block,) = result.content
    assert (block["arguments"], block["error"]["code"]) == (None, "truncated")


# -- usage


def totals(*usages: Any) -> list[tuple[int | None, ...]]:
    result = read([*(chunk({}, usage=u) for u in usages), END])
    return [tuple(getattr(i, n) for n in ("input_tokens", "output_tokens")) for i in result.of(Usage)]


def test_usage_is_cumulative_and_told_in_deltas() -> None:
    first, second = {"prompt_tokens": 10, "completion_tokens": 1}, {"prompt_tokens": 10, "completion_tokens": 3}
    assert totals(None, first, None, first, second, {}) == [(10, 1), (0, 2)]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
            (9, 5, 4, None, None),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 5, "prompt_cache_hit_tokens": 4}, (9, 5, 4, None, None)),
        ({"prompt_tokens": 9, "completion_tokens": 5, "cached_tokens": 4}, (9, 5, 4, None, None)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "completion_tokens_details": {"reasoning_tokens": 4},
                "total_tokens": 14,
            },
            (9, 5, None, None, 4),
        ),
        # xAI counts reasoning beside the completion; its total shows it
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "completion_tokens_details": {"reasoning_tokens": 4},
                "total_tokens": 18,
            },
            (9, 9, None, None, 4),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cache_write_tokens": 2, "cached_tokens": 0},
            },
            (9, 5, 0, 2, None),
        ),
        ({"prompt_tokens": 9, "completion_tokens": "5", "total_tokens": -1}, (9, None, None, None, None)),
    ],
)
def test_usage_in_our_meaning(usage: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    result = read([say("a"), END, {"choices": [], "usage": usage}])
    assert tuple((result.usage or {}).values()) == expected
    assert [c.tokens for c in result.of(Cache)] == ([expected[2]] if expected[2] else [])


def test_usage_wherever_it_stands() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 5}
    in_choice = chunk(finish="stop")
    in_choice["choices"][0]["usage"] = usage
    for last in (
        in_choice,
        chunk(finish="stop", x_groq={"usage": usage}),
        chunk(finish="stop", usage=usage, x_groq={"usage": usage}),
    ):
        result = read([say("a"), last])
        assert result.usage is not None
        assert (result.usage["input_tokens"], result.usage["output_tokens"]) == (9, 5)
        assert len(result.of(Usage)) == 1


# -- errors


@pytest.mark.parametrize(
    ("event", "data", "code", "message"),
    [
        ("", {"error": {"code": 429, "message": "slow down"}}, "429", "slow down"),
        ("", {"error": {"type": "server_error", "message": "oh"}}, "server_error", "oh"),
        ("", {"error": "oh"}, "provider_error", "oh"),
        ("error", {"message": "oh", "code": "c"}, "c", "oh"),
        ("error", {"error": {"message": "oh"}}, "provider_error", "oh"),
        ("", {"object": "error", "message": "oh", "type": "BadRequest", "code": 400}, "400", "oh"),
        (
            "",
            {"id": "r1", "choices": [{"index": 0, "delta": {}, "error": {"code": 502, "message": "oh"}}]},
            "502",
            "oh",
        ),
        ("", chunk(finish="error"), "provider_error", "finish_reason is error"),
    ],
)
def test_an_error_ends_the_message_and_what_came_before_stays(event: str, data: Any, code: str, message: str) -> None:
    adapter = OpenAIChat()
    items = adapter.feed("", say("a")) + adapter.feed(event, data) + adapter.feed("", say("b")) + adapter.close()
    result = told(items, adapter.error)
    assert result.error is not None
    assert (result.error.code, result.error.message) == (code, message)
    (failed,) = result.events("model.failed")
    assert (failed["code"], failed["message"]) == (code, message)
    assert result.content == [{"type": "text", "text": "a"}]
    assert result.events("model.completed")


def test_usage_behind_an_error_still_counts() -> None:
    result = read([say("a"), {"error": {"message": "oh"}, "usage": {"prompt_tokens": 3}}])
    assert result.usage is not None
    assert result.usage["input_tokens"] == 3
    assert result.end["incomplete"] is True


# -- what fits no item


def test_what_is_not_known_is_kept() -> None:
    logprobs = {"content": [{"token": "a", "logprob": -0.1}]}
    first = say("a", service_tier="default", moderation={"flagged": False}, obfuscation="xyz")
    first["choices"][0] |= {
        "logprobs": logprobs,
        "token_ids": [5],
        "content_filter_results": {"hate": {"filtered": False}},
    }
    first["choices"][0]["delta"]["audio"] = {"data": "x"}
    events = read([first, first, END]).events("provider.event")
    choice = {"logprobs": logprobs, "token_ids": [5]}
    assert [e["data"] for e in events] == [
        {**choice, "content_filter_results": {"hate": {"filtered": False}}},
        {"audio": {"data": "x"}},
        {"service_tier": "default", "moderation": {"flagged": False}},
        choice,
        {"audio": {"data": "x"}},
        {"moderation": {"flagged": False}},
    ]


def test_nulls_say_nothing() -> None:
    empty = chunk({"content": None, "graph_data": {"sources": None}, "llm_data": None})
    empty["choices"][0] |= {"logprobs": None, "trace_details": None}
    assert read([empty | {"system_fingerprint": None}, END]).events("provider.event") == []


def test_the_native_finish_reason_stands_beside_the_other() -> None:
    end = chunk(finish="stop")
    end["choices"][0]["native_finish_reason"] = "end_turn"
    assert read([say("a"), end]).end["native_finish_reason"] == "end_turn"


# -- snapshots


def test_growing_snapshots() -> None:
    chunks = [
        chunk({"reasoning_content": "r"}),
        chunk({"reasoning_content": "r1", "content": "Hel"}),
        say("Hello"),
        say("Hello"),
        calls(call(0, "a", "f", '{"x"')),
        calls(call(0, "a", "f", '{"x":1}')),
        END,
    ]
    result = read(chunks, snapshots=True)
    assert [i.text for i in result.of(MessageDelta)] == ["Hel", "lo"]
    assert result.content == [
        {"type": "reasoning", "text": "r1"},
        {"type": "text", "text": "Hello"},
        {"type": "tool_call", "id": "a", "name": "f", "arguments": {"x": 1}},
    ]
    assert result.of(Message) == []


def test_growing_snapshots_of_a_call_without_an_id() -> None:
    grown = [calls(call(0, None, "f", '{"x"')), calls(call(0, None, "f", '{"x":1}'))]
    result = read(grown, snapshots=True)
    assert [d.arguments for d in result.of(ToolCallDelta)] == ['{"x"', ":1}"]


def test_a_snapshot_that_does_not_go_on_replaces_what_was_told() -> None:
    result = read([say("Hello"), say("Help"), say("Help me"), END], snapshots=True)
    assert [i.text for i in result.of(MessageDelta)] == ["Hello"]
    (message,) = result.of(Message)
    assert result.message == message.message
    assert message.message == {
        "role": "assistant",
        "content": [{"type": "text", "text": "Help me"}],
        "finish_reason": "stop",
        "model": "m",
    }
    assert len(result.events("merge.mismatch")) == 1


# -- anything whatsoever

PROTOTYPE = [
    chunk({"role": "assistant", "content": "", "reasoning_content": "r"}),
    chunk({"reasoning_details": [{"type": "reasoning.text", "text": "x", "index": 0, "signature": "s"}]}),
    say("hi", citations=["u"], service_tier="x"),
    calls(call(0, "a", "f", "{"), call(1, None, "g", "{}")),
    calls(call(0, None, None, "}")),
    chunk({"function_call": {"name": "f", "arguments": "{}"}, "annotations": [{"a": 1}], "refusal": "no"}),
    chunk(
        finish="stop", usage={"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    ),
]


@given(streams.mutated(PROTOTYPE), st.booleans(), st.booleans())
def test_any_chunks_give_items_that_hold_together(events: list[Any], done: bool, snapshots: bool) -> None:
    result = read(events, done=done, snapshots=snapshots)
    assert len(result.events("model.started")) == (
        1 if result.items and result.message else len(result.events("model.started"))
    )
    choices = [e.get("choice", 0) for e in result.events("model.completed")]
    assert len(set(choices)) == len(choices)
    for name in streams.COUNTS:
        counts = [n for item in result.of(Usage) if (n := getattr(item, name)) is not None]
        assert (sum(counts) if counts else None) == (result.usage or {}).get(name)
    assert read(events, done=done, snapshots=snapshots) == result


def test_reading_goes_on_where_the_bytes_were_cut() -> None:
    stream = b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in PROTOTYPE) + b"data: [DONE]\n\n"
    whole = streams.split(API, stream, [])
    for cut in range(0, len(stream), 3):
        assert streams.split(API, stream, [cut, min(cut + 1, len(stream))]) == whole


def test_halves_of_a_character_meet() -> None:
    merged = MergedStream(API)
    items: list[Item] = []
    for text in ("a\\ud83d", "\\ude00b", "\\ud83d", "c"):
        items += merged.feed(b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text.encode())
    merged.feed(b"data: [DONE]\n\n")
    assert merged.result()["choices"][0]["text"] == "a😀b\ufffdc"
    assert [i.text for i in items if isinstance(i, (MessageDelta, ReasoningDelta))] == ["a", "😀b", "\ufffdc"]
