"""Anthropic's messages API: what each event, and each odd one, becomes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import Annotation, Cache, Event, MessageDelta, Summary, ToolCallDelta, Usage
from tests.workers.providers import streams
from tests.workers.providers.streams import Told
from workers.providers.adapter import ProviderError

API = "anthropic.messages"
Data = dict[str, Any]


def start(id: str | None = "msg_a", model: str = "claude-x", usage: Data | None = None, **more: Any) -> Data:
    message: Data = {
        "id": id,
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": model,
        "stop_reason": None,
    }
    return {"type": "message_start", "message": message | {"usage": usage or {}} | more}


def block(index: int, kind: str, **fields: Any) -> Data:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def delta(index: int, kind: str, **fields: Any) -> Data:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def text(index: int, text: Any) -> Data:
    return delta(index, "text_delta", text=text)


def json_delta(index: int, text: str) -> Data:
    return delta(index, "input_json_delta", partial_json=text)


def stop(index: int) -> Data:
    return {"type": "content_block_stop", "index": index}


def ends(reason: str | None = "end_turn", usage: Data | None = None, **more: Any) -> list[Data]:
    told = {"stop_reason": reason, "stop_sequence": None} | more
    return [{"type": "message_delta", "delta": told, "usage": usage or {"output_tokens": 9}}, {"type": "message_stop"}]


PING = {"type": "ping"}


def read(*events: Any, **more: Any) -> Told:
    return streams.read(API, events, **more)


def whole(*blocks: Data, reason: str = "end_turn") -> Told:
    return read(start(), *blocks, *ends(reason))


def test_a_plain_answer() -> None:
    result = read(
        start(usage={"input_tokens": 11, "output_tokens": 1}),
        block(0, "text", text=""),
        PING,
        text(0, "Hel"),
        PING,
        text(0, "lo"),
        stop(0),
        *ends(usage={"output_tokens": 6}),
        round=3,
    )
    names = {"model": "claude-x", "response_id": "msg_a"}
    assert result.items[0] == Event(name="model.started", payload={"round": 3, **names})
    assert [i for i in result.items if isinstance(i, MessageDelta)] == [
        MessageDelta(text="Hel", round=3, index=0),
        MessageDelta(text="lo", round=3, index=0),
    ]
    assert result.items[-1] == Event(name="model.completed", payload={"round": 3, "finish_reason": "end_turn", **names})
    assert result.message == {
        "role": "assistant",
        "content": [{"type": "text", "text": "Hello"}],
        "model": "claude-x",
        "finish_reason": "end_turn",
    }
    assert (result.error, len(result.items)) == (None, 6)


def test_two_equal_deltas_are_two() -> None:
    assert whole(block(0, "text", text=""), text(0, "ha"), text(0, "ha"), stop(0)).content == [
        {"type": "text", "text": "haha"}
    ]


def test_text_and_citations_of_a_start_count() -> None:
    result = whole(block(0, "text", text="so ", citations=[{"cited_text": "c"}]), text(0, "far"), stop(0))
    assert result.content == [{"type": "text", "text": "so far", "annotations": [{"cited_text": "c"}]}]


def test_citations_stay_in_their_block() -> None:
    result = whole(
        block(0, "text", text=""),
        text(0, "The sky is "),
        stop(0),
        block(1, "text", text="", citations=[]),
        delta(1, "citations_delta", citation={"cited_text": "blue sky", "document_index": 0}),
        text(1, "blue"),
        delta(1, "citations_delta", citation={"cited_text": "b"}),
        stop(1),
    )
    assert result.content == [
        {"type": "text", "text": "The sky is "},
        {
            "type": "text",
            "text": "blue",
            "annotations": [{"cited_text": "blue sky", "document_index": 0}, {"cited_text": "b"}],
        },
    ]
    assert [a.index for a in result.of(Annotation)] == [1, 1]


# -- thinking


def test_thinking_blocks_keep_their_own_signatures_and_order() -> None:
    result = whole(
        block(0, "thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="first "),
        delta(0, "thinking_delta", thinking="thought", estimated_tokens=20),
        delta(0, "signature_delta", signature="S1"),
        stop(0),
        block(1, "redacted_thinking", data="cipher1"),
        PING,
        stop(1),
        block(2, "redacted_thinking", data="cipher2"),
        stop(2),
        block(3, "text", text=""),
        text(3, "between"),
        stop(3),
        block(4, "thinking", thinking="given ", signature="S2"),
        delta(4, "thinking_delta", thinking="in the start"),
        stop(4),
        block(5, "thinking", thinking=""),
        delta(5, "signature_delta", signature="only signed"),
        stop(5),
    )
    assert result.content == [
        {"type": "reasoning", "text": "first thought", "signature": "S1"},
        {"type": "reasoning", "text": "", "redacted": "cipher1"},
        {"type": "reasoning", "text": "", "redacted": "cipher2"},
        {"type": "text", "text": "between"},
        {"type": "reasoning", "text": "given in the start", "signature": "S2"},
        {"type": "reasoning", "text": "", "signature": "only signed"},
    ]
    assert "incomplete_blocks" not in result.end


def test_thinking_that_was_cut_off_is_kept_unsigned_and_marked() -> None:
    result = whole(block(0, "thinking", thinking=""), delta(0, "thinking_delta", thinking="Let"), reason="max_tokens")
    assert result.content == [{"type": "reasoning", "text": "Let", "incomplete": True}]
    assert result.end["incomplete_blocks"] == [0]
    assert "incomplete" not in result.end
    assert result.error is None


# -- tools


def call(**fields: Any) -> Data:
    return {"type": "tool_call", "id": "toolu_1", "name": "look", "arguments": {}} | fields


TOOL = block(0, "tool_use", id="toolu_1", name="look", input={})


@pytest.mark.parametrize(
    ("first", "deltas", "arguments"),
    [
        (TOOL, [json_delta(0, ""), json_delta(0, '{"a": '), json_delta(0, "1}")], {"a": 1}),
        (TOOL, [json_delta(0, "")], {}),
        (TOOL, [delta(0, "input_json_delta")], {}),
        (TOOL, [delta(0, "input_json_delta", partial_json=None)], {}),
        (TOOL, [], {}),
        (block(0, "tool_use", id="toolu_1", name="look"), [], {}),
        (block(0, "tool_use", id="toolu_1", name="look", input=None), [], {}),
        (block(0, "tool_use", id="toolu_1", name="look", input={"a": 1}), [], {"a": 1}),
        (block(0, "tool_use", id="toolu_1", name="look", input='{"a":1}'), [], {"a": 1}),
        (block(0, "tool_use", id="toolu_1", name="look", input={"a": 1}), [json_delta(0, "")], {"a": 1}),
        (block(0, "tool_use", id="toolu_1", name="look", input={"a": 0}), [json_delta(0, '{"a":1}')], {"a": 1}),
        (TOOL, [delta(0, "input_json_delta", partial_json={"a": 1})], {"a": 1}),
    ],
)
def test_the_input_of_a_tool(first: Data, deltas: list[Data], arguments: Data) -> None:
    assert whole(first, *deltas, stop(0), reason="tool_use").content == [call(arguments=arguments)]


def test_arguments_are_told_as_they_come() -> None:
    result = whole(block(1, "tool_use", id="t", name="n", input={}), json_delta(1, '{"a"'), json_delta(1, ":1}"))
    assert result.of(ToolCallDelta) == [
        ToolCallDelta(call_id="t", name="n", index=1),
        ToolCallDelta(call_id="t", arguments='{"a"', index=1),
        ToolCallDelta(call_id="t", arguments=":1}", index=1),
    ]


def test_several_calls_never_mix() -> None:
    result = whole(
        block(0, "text", text="I look."),
        stop(0),
        block(1, "tool_use", id="a", name="f", input={}),
        block(2, "tool_use", id="b", name="g", input={}),
        json_delta(2, '{"y":'),
        json_delta(1, '{"x":1}'),
        json_delta(2, "2}"),
        stop(2),
        stop(1),
        reason="tool_use",
    )
    assert [(b.get("id"), b.get("arguments")) for b in result.content[1:]] == [("a", {"x": 1}), ("b", {"y": 2})]


def test_max_tokens_cut_the_json() -> None:
    result = whole(TOOL, json_delta(0, '{"lines": ["one", "tw'), reason="max_tokens")
    (cut,) = result.content
    assert (cut["arguments"], cut["raw"]) == (None, '{"lines": ["one", "tw')
    assert cut["error"]["code"] == "truncated"
    assert cut["error"]["repair"] == {"lines": ["one", "tw"]}
    assert result.end["finish_reason"] == "max_tokens"


def test_max_tokens_cut_a_call_whose_json_happens_to_be_whole() -> None:
    unclosed = whole(block(0, "tool_use", id="toolu_1", name="look", input={"a": 1}), reason="max_tokens")
    assert (unclosed.content[0]["arguments"], unclosed.content[0]["raw"]) == (None, '{"a": 1}')
    assert "error" in unclosed.content[0]


def test_a_call_that_the_stop_reason_speaks_of_needs_no_stop_of_its_block() -> None:
    assert whole(TOOL, json_delta(0, '{"a":1}'), reason="tool_use").content == [call(arguments={"a": 1})]


def test_a_call_without_id_gets_one_that_is_always_the_same() -> None:
    calls = [
        block(0, "tool_use", name="f", input={}),
        stop(0),
        block(1, "tool_use", id="", name="g", input={}),
        stop(1),
    ]
    result = read(start(), *calls, *ends("tool_use"), round=4)
    assert [(b["id"], b["name"]) for b in result.content] == [("call_4_1", "f"), ("call_4_2", "g")]


def test_another_call_on_a_used_index_is_another() -> None:
    result = whole(
        block(0, "tool_use", id="a", name="f", input={"x": 1}),
        block(0, "tool_use", id="b", name="g", input={}),
        json_delta(0, '{"y":2}'),
        stop(0),
    )
    assert [(b["id"], b["arguments"]) for b in result.content] == [("a", {"x": 1}), ("b", {"y": 2})]


def test_who_called_the_tool_is_kept_where_it_was_code() -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srv_1"}
    tools = [block(0, "tool_use", id="a", name="f", input={}, caller=caller), stop(0)]
    tools += [block(1, "tool_use", id="b", name="f", input={}, caller={"type": "direct"}), stop(1)]
    result = whole(*tools, reason="tool_use")
    payload = {"round": 1, "event": "tool_use", "data": {"index": 0, "id": "a", "caller": caller}}
    assert result.events("provider.event") == [payload]


# -- what Anthropic does by itself


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_tools_that_run_at_anthropic_are_no_calls_of_ours(kind: str) -> None:
    found = {"type": "web_search_tool_result", "tool_use_id": "srv", "content": [{"url": "u"}]}
    result = whole(
        block(0, kind, id="srv", name="web_search", input={}, server_name="s"),
        json_delta(0, ""),
        json_delta(0, '{"query":'),
        json_delta(0, ' "q"}'),
        stop(0),
        {"type": "content_block_start", "index": 1, "content_block": found},
        stop(1),
        block(2, "text", text="Found."),
        stop(2),
    )
    used = {"type": kind, "id": "srv", "name": "web_search", "input": {"query": "q"}, "server_name": "s"}
    assert result.events("provider.block") == [
        {"round": 1, "index": 0, "block": used},
        {"round": 1, "index": 1, "block": found},
    ]
    assert result.content == [{"type": "text", "text": "Found."}]
    assert not result.of(ToolCallDelta)


def test_a_server_tool_whose_input_was_cut_keeps_its_text() -> None:
    result = whole(block(0, "server_tool_use", id="s", name="n", input={}), json_delta(0, '{"q'), reason="max_tokens")
    (payload,) = result.events("provider.block")
    assert payload["incomplete"] is True
    assert (payload["block"]["input"], payload["block"]["raw"]) == (None, '{"q')
    assert payload["block"]["error"]["code"] == "truncated"


def test_a_server_tool_with_its_input_in_the_start() -> None:
    result = whole(block(0, "server_tool_use", id="s", name="n", input={"q": 1}), stop(0))
    assert result.events("provider.block")[0]["block"]["input"] == {"q": 1}


def test_blocks_and_deltas_of_unknown_kinds_are_kept() -> None:
    result = whole(
        block(0, "hologram", depth=3),
        delta(0, "text_delta", text="a"),
        delta(0, "text_delta", text="b"),
        delta(0, "voxel_delta", at=1),
        stop(0),
        block(1, "text", text=""),
        delta(1, "colour_delta", colour="red"),
        text(1, "x"),
        stop(1),
    )
    assert [p["block"] for p in result.events("provider.block")] == [{"type": "hologram", "depth": 3, "text": "ab"}]
    assert [p["data"] for p in result.events("provider.event")] == [
        {"index": 0, "delta": {"type": "voxel_delta", "at": 1}},
        {"index": 1, "delta": {"type": "colour_delta", "colour": "red"}},
    ]
    assert result.content == [{"type": "text", "text": "x"}]


def test_a_compaction_is_a_summary_and_goes_back_as_it_came() -> None:
    told = {"content": "Earlier: greetings.", "encrypted_content": "opaque"}
    result = whole(
        block(0, "compaction", content=None, encrypted_content=None),
        delta(0, "compaction_delta", **told),
        stop(0),
        block(1, "text", text="Go on."),
        stop(1),
    )
    assert result.of(Summary) == [Summary(text="Earlier: greetings.", replaces="context")]
    assert result.events("provider.block") == [{"round": 1, "index": 0, "block": {"type": "compaction", **told}}]
    assert result.content == [{"type": "text", "text": "Go on."}]


def test_a_compaction_that_failed_is_no_summary() -> None:
    result = whole(block(0, "compaction", content=None), delta(0, "compaction_delta", content=None), stop(0))
    assert not result.of(Summary)
    assert result.events("provider.block")[0]["block"] == {"type": "compaction", "content": None}


def test_a_fallback_renames_the_model() -> None:
    hop = {"from": {"model": "claude-x"}, "to": {"model": "claude-y"}, "trigger": {"type": "refusal"}}
    result = whole(block(0, "fallback", **hop), stop(0), block(1, "text", text="hi"), stop(1))
    assert result.message is not None
    assert result.message["model"] == result.end["model"] == "claude-y"
    payload = {"round": 1, "index": 0, "from": "claude-x", "to": "claude-y", "trigger": {"type": "refusal"}}
    assert result.events("fallback") == [payload]
    assert result.events("provider.block")[0]["block"] == {"type": "fallback", **hop}


def test_a_fallback_that_names_no_model_changes_none() -> None:
    result = whole(block(0, "fallback"), stop(0), block(1, "text", text="hi"), stop(1))
    assert result.message is not None
    assert result.message["model"] == result.end["model"] == "claude-x"


# -- usage


def test_counts_of_the_cache_are_part_of_the_input() -> None:
    first = {"input_tokens": 100, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 7, "output_tokens": 1}
    result = read(start(usage=first), *ends(usage={"output_tokens": 25}))
    assert result.usage == {
        "input_tokens": 147,
        "output_tokens": 25,
        "cache_read_tokens": 40,
        "cache_write_tokens": 7,
        "reasoning_tokens": None,
    }
    assert result.of(Cache) == [Cache(status="hit", tokens=40)]
    assert [(u.input_tokens, u.output_tokens) for u in result.of(Usage)] == [(147, 1), (0, 24)]


def test_later_counts_replace_earlier_ones_field_by_field() -> None:
    first = {"input_tokens": 43, "cache_read_input_tokens": 10, "output_tokens": 1}
    last = {"input_tokens": 61, "cache_read_input_tokens": None, "output_tokens": 2}
    result = read(start(usage=first), *ends(usage=last))
    assert (result.usage or {})["input_tokens"] == 71
    assert [u.input_tokens for u in result.of(Usage)] == [53, 18]


def test_counts_of_iterations_are_details_and_never_added() -> None:
    one = {"type": "compaction", "input_tokens": 8000, "output_tokens": 150}
    two = {"type": "message", "input_tokens": 224, "output_tokens": 22}
    last = {"input_tokens": 224, "output_tokens": 22, "iterations": [one, two], "server_tool_use": None}
    result = read(start(usage={"input_tokens": 8000, "output_tokens": 2}), *ends(usage=last))
    assert result.usage is not None
    assert (result.usage["input_tokens"], result.usage["output_tokens"]) == (224, 22)
    assert sum(u.input_tokens for u in result.of(Usage)) == 224
    assert result.events("provider.event")[0]["data"] == {"usage": {"iterations": [one, two]}}


def test_thinking_tokens() -> None:
    last = {"output_tokens": 90, "output_tokens_details": {"thinking_tokens": 70}}
    usage = read(start(usage={"input_tokens": 3}), *ends(usage=last)).usage
    assert usage is not None
    assert (usage["output_tokens"], usage["reasoning_tokens"]) == (90, 70)


def test_empty_details_are_none() -> None:
    assert not read(start(usage={"iterations": [], "server_tool_use": {}}), *ends()).events("provider.event")


def test_what_was_not_counted_is_null() -> None:
    assert read(start(), *ends(usage={"output_tokens": 4})).usage == {
        "input_tokens": None,
        "output_tokens": 4,
        "cache_read_tokens": None,
        "cache_write_tokens": None,
        "reasoning_tokens": None,
    }


# -- how it ends


def test_why_it_stopped_is_told_in_full() -> None:
    result = read(start(), *ends("stop_sequence", stop_sequence="\n\nHuman", stop_details=None))
    assert (result.end["finish_reason"], result.end["stop_sequence"]) == ("stop_sequence", "\n\nHuman")
    assert "stop_details" not in result.end
    details = {"type": "refusal", "category": "bio"}
    assert read(start(), *ends("refusal", stop_details=details)).end["stop_details"] == details


def test_the_first_finish_reason_counts() -> None:
    result = read(start(), ends("max_tokens")[0], ends(None)[0], *ends("end_turn"))
    assert result.end["finish_reason"] == "max_tokens"


def test_a_message_may_be_told_whole_in_its_start() -> None:
    result = read(start(stop_reason="end_turn", container={"id": "c"}), {"type": "message_stop"})
    assert result.end["finish_reason"] == "end_turn"
    assert result.events("provider.event")[0]["data"] == {"container": {"id": "c"}}
    assert read(start(), {"type": "message_stop"}).end["finish_reason"] is None


def test_container_and_edits_of_the_context_are_kept() -> None:
    container = {"id": "c1", "expires_at": "2030-01-01T00:00:00Z"}
    last = ends(container=container)
    last[0]["context_management"] = {"applied_edits": [{"type": "clear"}]}
    result = read(start(container=None, usage={"service_tier": "standard"}), *last)
    assert [p["data"] for p in result.events("provider.event")] == [
        {
            "container": container,
            "context_management": {"applied_edits": [{"type": "clear"}]},
            "usage": {"service_tier": "standard"},
        }
    ]


def test_what_a_cloud_adds_to_the_stop_is_kept() -> None:
    metrics = {"inputTokenCount": 3, "outputTokenCount": 4}
    result = read(start(), ends()[0], {"type": "message_stop", "amazon-bedrock-invocationMetrics": metrics})
    assert result.events("provider.event")[0]["data"] == {"amazon-bedrock-invocationMetrics": metrics}


def test_a_second_stop_says_nothing_new() -> None:
    events = [start(container={"id": "c"}), block(0, "text", text="Hi"), stop(0), stop(0), *ends()]
    assert read(*events, {"type": "message_stop"}).items == read(*events).items


@pytest.mark.parametrize("until", [1, 2, 3, 4, 5])
def test_without_message_stop_the_message_is_incomplete(until: int) -> None:
    events = [start(), block(0, "text", text=""), text(0, "Hal"), stop(0), *ends()]
    result = read(*events[:until])
    assert result.error is not None
    assert result.error.code == "incomplete_stream"
    assert result.end["incomplete"] is True
    assert result.content == ([{"type": "text", "text": "Hal"}] if until > 3 else result.content)
    assert not result.events("model.failed")


def test_a_call_in_an_incomplete_message_is_not_valid() -> None:
    result = read(start(), TOOL, json_delta(0, '{"a":1}'))
    assert (result.content[0]["arguments"], result.content[0]["raw"]) == (None, '{"a":1}')
    assert "error" in result.content[0]


def test_no_events_at_all() -> None:
    result = read()
    assert [i.name for i in result.of(Event)] == ["model.started", "model.completed"]
    assert result.error == ProviderError("incomplete_stream", "the stream ended without its terminal event")


@pytest.mark.parametrize(
    ("event", "data", "code", "message"),
    [
        (
            "error",
            {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}},
            "overloaded_error",
            "Busy",
        ),
        ("error", {"error": {"type": "api_error", "message": "M"}}, "api_error", "M"),
        ("", {"error": {"code": "c", "message": "M"}}, "c", "M"),
        ("", {"error": "just words"}, "error", "just words"),
        ("error", {"message": "M"}, "error", "M"),
        (
            "",
            {"type": "error", "error": {"type": "rate_limit_error"}},
            "rate_limit_error",
            '{"type": "rate_limit_error"}',
        ),
    ],
)
def test_an_error_ends_the_message_and_what_came_stays(event: str, data: Data, code: str, message: str) -> None:
    result = read(start(), block(0, "text", text=""), text(0, "so far"), (event, data), text(0, " lost"), *ends())
    assert result.error == ProviderError(code, message)
    assert result.events("model.failed") == [{"round": 1, "code": code, "message": message}]
    assert result.content == [{"type": "text", "text": "so far", "incomplete": True}]
    assert result.end["incomplete"] is True


def test_an_error_tells_which_request_it_was() -> None:
    result = read(start(), {"type": "error", "error": {"type": "api_error", "message": "M"}, "request_id": "req_1"})
    assert result.events("model.failed")[0]["request_id"] == "req_1"


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
def test_a_start_that_comes_again_is_ignored(at: int) -> None:
    events = [start(usage={"input_tokens": 5}), block(0, "text", text=""), text(0, "Hi"), stop(0), *ends()]
    once = read(*events)
    again = read(*events[:at], start(usage={"input_tokens": 5}), *events[at:])
    assert again.items == once.items
    assert again.error is None


@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_start_of_another_message_spoils_the_stream(at: int) -> None:
    events = [start(), block(0, "text", text=""), text(0, "Hi"), stop(0), *ends()]
    result = read(*events[:at], start(id="msg_b"), text(0, "other"), *events[at:])
    assert result.error is not None
    assert result.error.code == "corrupt_stream"
    assert "msg_a" in result.error.message
    assert "msg_b" in result.error.message
    assert result.content == (
        [{"type": "text", "text": "Hi"} | ({"incomplete": True} if at < 4 else {})] if at > 2 else []
    )


@pytest.mark.parametrize("ids", [(None, None), (None, "b"), ("a", None)])
def test_without_ids_content_in_between_tells_a_second_message(ids: tuple[str | None, str | None]) -> None:
    first, second = start(id=ids[0]), start(id=ids[1])
    assert read(first, second, block(0, "text", text="x"), stop(0), *ends()).error is None
    spoiled = read(first, block(0, "text", text="x"), second)
    assert spoiled.error is not None
    assert spoiled.error.code == "corrupt_stream"


def test_content_of_a_start_is_content() -> None:
    result = read(
        start(content=[{"type": "text", "text": "given"}, {"type": "tool_use", "id": "t", "name": "f"}]), *ends()
    )
    assert [b["type"] for b in result.content] == ["text", "tool_call"]
    assert "incomplete_blocks" not in result.end


def test_what_comes_behind_the_end_is_kept_and_changes_nothing() -> None:
    result = read(start(), block(0, "text", text="Hi"), stop(0), *ends(), PING, text(0, "late"), ends("max_tokens")[0])
    assert result.content == [{"type": "text", "text": "Hi"}]
    assert [p["event"] for p in result.events("provider.event")] == ["content_block_delta", "message_delta"]
    assert result.end["finish_reason"] == "end_turn"


# -- odd inputs


def test_events_are_known_by_their_type_or_their_name() -> None:
    bare = [
        ("message_start", {"message": start()["message"]}),
        ("content_block_delta", {"delta": text(0, "a")["delta"]}),
    ]
    result = read(*bare, ("message_stop", {}))
    assert result.content == [{"type": "text", "text": "a"}]
    assert result.error is None


def test_deltas_whose_start_was_lost() -> None:
    result = whole(
        text(0, "text"),
        delta(1, "thinking_delta", thinking="thought"),
        json_delta(2, '{"a":'),
        json_delta(2, "1}"),
        stop(2),
    )
    assert result.content[:2] == [{"type": "text", "text": "text"}, {"type": "reasoning", "text": "thought"}]
    assert (result.content[2]["id"], result.content[2]["raw"]) == ("call_1_1", '{"a":1}')
    assert "error" in result.content[2], "a call without a name is no valid one"


def test_a_lost_message_start_is_made_up_for() -> None:
    result = read(block(0, "text", text="a"), start(), text(0, "b"), stop(0), *ends())
    assert result.items[0] == Event(name="model.started", payload={"round": 1, "model": None, "response_id": None})
    assert result.end["response_id"] == "msg_a"
    assert result.content == [{"type": "text", "text": "ab"}]


@pytest.mark.parametrize("event", [text(0, "a"), stop(0), block(0, "text", text="a"), *ends()])
def test_whatever_comes_first_begins_the_response(event: Data) -> None:
    assert read(event).items[0] == Event(name="model.started", payload={"round": 1, "model": None, "response_id": None})


def test_a_citation_that_is_none_and_a_text_that_is_none_are_kept() -> None:
    result = whole(
        block(0, "text", text="x"),
        delta(0, "citations_delta"),
        stop(0),
        block(1, "hologram", text=5),
        text(1, "y"),
        stop(1),
        block(2, "compaction", content="told in the start"),
        delta(2, "compaction_delta", content=None),
        stop(2),
    )
    assert [p["data"] for p in result.events("provider.event")] == [
        {"index": 0, "delta": {"type": "citations_delta"}},
        {"index": 1, "delta": {"type": "text_delta", "text": "y"}},
    ]
    assert [s.text for s in result.of(Summary)] == ["told in the start"]


def test_json_of_a_tool_in_a_text_block_is_no_argument() -> None:
    result = whole(block(0, "text", text=""), json_delta(0, "{}"), text(0, "x"), stop(0))
    assert result.content == [{"type": "text", "text": "x"}]
    assert result.events("provider.event")[0]["data"]["delta"]["partial_json"] == "{}"


@pytest.mark.parametrize("index", [None, -1, True, "0", 2**31, 2**70, 1.0])
def test_an_index_that_is_none_means_the_block_under_way(index: Any) -> None:
    blocks = [block(0, "text", text="a"), stop(0), block(index, "text", text="b"), text(index, "c"), stop(index)]
    result = whole(*blocks)
    assert result.content == [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]
    assert "incomplete_blocks" not in result.end


@pytest.mark.parametrize(
    "data", ["text", ["list"], None, 7, {}, {"type": "news", "error": 1}, {"type": 5}, {"type": ["a"]}]
)
def test_unknown_events_are_kept(data: Any) -> None:
    result = read(start(), ("", data), block(0, "text", text="ok"), stop(0), *ends())
    assert [p["data"] for p in result.events("provider.event")] == [data]
    assert result.content == [{"type": "text", "text": "ok"}]


VARIED = [
    start(usage={"input_tokens": 9, "cache_read_input_tokens": 3, "output_tokens": 1}),
    block(0, "thinking", thinking="", signature=""),
    delta(0, "thinking_delta", thinking="Grüße — 思考 🙂"),
    delta(0, "signature_delta", signature="sig=="),
    stop(0),
    block(1, "redacted_thinking", data="xyz"),
    stop(1),
    PING,
    block(2, "text", text=""),
    text(2, "Größe\u2028 "),
    delta(2, "citations_delta", citation={"cited_text": "q"}),
    stop(2),
    block(3, "server_tool_use", id="s", name="web_search", input={}),
    json_delta(3, '{"q": "é"}'),
    stop(3),
    block(4, "compaction", content=None),
    delta(4, "compaction_delta", content="short"),
    stop(4),
    block(5, "tool_use", id="t", name="f", input={"a": 0}),
    json_delta(5, ""),
    json_delta(5, '{"a": "ü'),
    json_delta(5, '"}'),
    stop(5),
    *ends("tool_use", usage={"input_tokens": 11, "output_tokens": 30}),
]
_STREAM = streams.sse(VARIED)


@given(st.sets(st.integers(0, len(_STREAM)), max_size=12))
def test_every_split_of_the_bytes_gives_the_same_items(cuts: set[int]) -> None:
    assert streams.split(API, _STREAM, cuts) == read(*((e["type"], e) for e in VARIED)).items


@given(streams.mutated(VARIED))
def test_a_stream_that_was_tampered_with_raises_nothing(events: list[Any]) -> None:
    streams.check(API, events)


@given(streams.strange(streams.keys(VARIED) | {"error", "request_id"}, streams.words(VARIED) | {"error", "fallback"}))
def test_nothing_that_is_json_raises(events: list[Any]) -> None:
    streams.check(API, events)
