"""Bedrock's ConverseStream: what each event, and each odd one, becomes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import Cache, Event, MessageDelta, ToolCallDelta
from tests.workers.providers import streams
from tests.workers.providers.streams import Told
from workers.providers.adapter import ProviderError

API = "bedrock.converse"
Data = dict[str, Any]

START = {"messageStart": {"role": "assistant"}}


def opens(index: int, **start: Any) -> Data:
    return {"contentBlockStart": {"contentBlockIndex": index, "start": start}}


def delta(index: Any, **delta: Any) -> Data:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": delta}}


def stop(index: int) -> Data:
    return {"contentBlockStop": {"contentBlockIndex": index}}


def ends(reason: str = "end_turn", usage: Data | None = None, **more: Any) -> list[Data]:
    told = usage or {"inputTokens": 30, "outputTokens": 5, "totalTokens": 35}
    return [{"messageStop": {"stopReason": reason}}, {"metadata": {"usage": told, **more}}]


def tool(index: int, id: str | None = "use_1", name: str = "look", **more: Any) -> Data:
    return opens(index, toolUse={"toolUseId": id, "name": name, **more})


def input(index: int, text: Any) -> Data:
    return delta(index, toolUse={"input": text})


def read(*events: Any, **more: Any) -> Told:
    return streams.read(API, events, **more)


def whole(*blocks: Data, reason: str = "end_turn") -> Told:
    return read(START, *blocks, *ends(reason))


def test_a_plain_answer() -> None:
    result = read(START, delta(0, text="Hel"), delta(0, text=""), delta(0, text="lo"), stop(0), *ends(), round=2)
    names = {"model": None, "response_id": None}
    assert result.items[0] == Event(name="model.started", payload={"round": 2, **names})
    assert result.of(MessageDelta) == [
        MessageDelta(text="Hel", round=2, index=0),
        MessageDelta(text="lo", round=2, index=0),
    ]
    assert result.items[-1] == Event(name="model.completed", payload={"round": 2, "finish_reason": "end_turn", **names})
    assert result.content == [{"type": "text", "text": "Hello"}]
    assert result.error is None


def test_events_under_the_name_of_their_frame() -> None:
    events = [START, delta(0, text="Hi"), stop(0), *ends()]
    named = [pair for event in events for pair in event.items()]
    wrapped = [(name, {name: inner}) for name, inner in named]
    assert read(*named).items == read(*wrapped).items == read(*events).items


def test_reasoning_with_signature_redacted_reasoning_and_text() -> None:
    result = whole(
        delta(0, reasoningContent={"text": "I "}),
        delta(0, reasoningContent={"text": "think"}),
        delta(0, reasoningContent={"signature": "SIG"}),
        stop(0),
        delta(1, reasoningContent={"redactedContent": "b64=="}),
        stop(1),
        delta(2, text=""),
        stop(2),
        delta(3, text="Answer"),
        stop(3),
    )
    assert result.content == [
        {"type": "reasoning", "text": "I think", "signature": "SIG"},
        {"type": "reasoning", "text": "", "redacted": "b64=="},
        {"type": "text", "text": "Answer"},
    ]


def test_citations_belong_to_their_block() -> None:
    citation = {"title": "T", "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}}}
    result = whole(delta(0, text="As said"), delta(0, citation=citation), stop(0))
    assert result.content == [{"type": "text", "text": "As said", "annotations": [citation]}]


@pytest.mark.parametrize(
    ("fragments", "arguments"),
    [
        (['{"city"', ':"Paris"}'], {"city": "Paris"}),
        ([""], {}),
        ([], {}),
        ([None], {}),
        (["{}"], {}),
        ([{"city": "Paris"}], {"city": "Paris"}),
    ],
)
def test_the_input_of_a_tool(fragments: list[Any], arguments: Data) -> None:
    result = whole(tool(0), *(input(0, f) for f in fragments), stop(0), reason="tool_use")
    assert result.content == [{"type": "tool_call", "id": "use_1", "name": "look", "arguments": arguments}]
    assert result.of(ToolCallDelta)[0] == ToolCallDelta(call_id="use_1", name="look", index=0)


def test_calls_side_by_side_and_without_ids() -> None:
    result = read(
        START,
        opens(0),
        delta(0, text="Both."),
        stop(0),
        tool(1, None, "f"),
        tool(2, "", "g"),
        input(2, '{"b":2}'),
        input(1, '{"a":1}'),
        stop(1),
        stop(2),
        *ends("tool_use"),
        round=3,
    )
    assert [(b["id"], b["name"], b["arguments"]) for b in result.content[1:]] == [
        ("call_3_1", "f", {"a": 1}),
        ("call_3_2", "g", {"b": 2}),
    ]


def test_a_call_that_was_cut_is_not_valid() -> None:
    result = whole(tool(0), input(0, '{"city":"Pa'), stop(0), reason="max_tokens")
    assert (result.content[0]["arguments"], result.content[0]["raw"]) == (None, '{"city":"Pa')
    unclosed = whole(tool(0), input(0, '{"city":"Paris"}'), reason="max_tokens")
    assert unclosed.content[0]["arguments"] is None
    assert unclosed.end["incomplete_blocks"] == [0]


def test_a_call_that_the_stop_reason_speaks_of_needs_no_stop_of_its_block() -> None:
    assert whole(tool(0), input(0, '{"a":1}'), reason="tool_use").content[0]["arguments"] == {"a": 1}


def test_a_tool_whose_start_was_lost_is_no_valid_call() -> None:
    result = whole(input(0, '{"a":'), input(0, "1}"), stop(0), reason="tool_use")
    assert (result.content[0]["id"], result.content[0]["raw"]) == ("call_1_1", '{"a":1}')
    assert "error" in result.content[0]


# -- what Bedrock does by itself


def test_tools_that_run_at_bedrock_are_no_calls_of_ours() -> None:
    result = whole(
        tool(0, "srv", "nova_grounding", type="server_tool_use"),
        input(0, '{"query":'),
        input(0, '"q"}'),
        stop(0),
        opens(1, toolResult={"toolUseId": "srv", "status": "success"}),
        delta(1, toolResult=[{"text": "found "}]),
        delta(1, toolResult=[{"json": {"n": 1}}]),
        stop(1),
        delta(2, text="So."),
        stop(2),
    )
    used = {"toolUseId": "srv", "name": "nova_grounding", "type": "server_tool_use", "input": {"query": "q"}}
    got = {"toolUseId": "srv", "status": "success", "content": [{"text": "found "}, {"json": {"n": 1}}]}
    assert result.events("provider.block") == [
        {"round": 1, "index": 0, "block": {"toolUse": used}},
        {"round": 1, "index": 1, "block": {"toolResult": got}},
    ]
    assert result.content == [{"type": "text", "text": "So."}]


def test_an_image_is_gathered() -> None:
    parts = [{"source": {"bytes": "AAAA"}}, {"source": {"bytes": "BBBB"}}]
    result = whole(opens(0, image={"format": "png"}), *(delta(0, image=part) for part in parts), stop(0))
    assert result.events("provider.block")[0]["block"] == {"image": {"format": "png", "content": parts}}


def test_what_a_server_tool_was_asked_is_kept_where_it_was_cut() -> None:
    result = whole(tool(0, "s", "n", type="server_tool_use"), input(0, '{"q'), reason="max_tokens")
    (payload,) = result.events("provider.block")
    assert payload["incomplete"] is True
    assert (payload["block"]["toolUse"]["input"], payload["block"]["toolUse"]["raw"]) == (None, '{"q')


def test_unknown_members_are_kept() -> None:
    result = whole(
        {"hologram": {"x": 1}},
        delta(0, voxel=1, text="a"),
        opens(1, video={"format": "mp4"}),
        delta(1, voxel=2),
        stop(1),
        stop(0),
    )
    assert [p["data"] for p in result.events("provider.event")] == [
        {"hologram": {"x": 1}},
        {"index": 0, "delta": {"voxel": 1}},
        {"index": 1, "delta": {"voxel": 2}},
    ]
    assert result.events("provider.event")[0]["event"] == "hologram"
    assert read(("chunk", {"hologram": 1})).events("provider.event")[0]["event"] == "chunk"
    assert result.events("provider.block")[0]["block"] == {"video": {"format": "mp4"}}
    assert result.content == [{"type": "text", "text": "a"}]


# -- usage


def test_counts_of_the_cache_are_part_of_the_input() -> None:
    usage = {"inputTokens": 4, "outputTokens": 264, "totalTokens": 1853, "cacheReadInputTokens": 1500}
    usage["cacheWriteInputTokens"] = 85
    result = read(START, delta(0, text="x"), stop(0), *ends(usage=usage))
    assert result.usage == {
        "input_tokens": 1589,
        "output_tokens": 264,
        "cache_read_tokens": 1500,
        "cache_write_tokens": 85,
        "reasoning_tokens": None,
    }
    assert result.of(Cache) == [Cache(status="hit", tokens=1500)]


def test_without_counts_of_a_cache_they_are_null() -> None:
    usage = read(START, *ends()).usage
    assert usage is not None
    assert (usage["input_tokens"], usage["cache_read_tokens"], usage["cache_write_tokens"]) == (30, None, None)


def test_the_rest_of_the_metadata_is_kept() -> None:
    usage: Data = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2, "serverToolUsage": {}}
    usage["cacheDetails"] = [{"ttl": "5m", "inputTokens": 1}]
    more: Data = {"metrics": {"latencyMs": 7}, "serviceTier": {"type": "flex"}, "performanceConfig": None}
    result = read(START, *ends(usage=usage, **more))
    rest = {"metrics": {"latencyMs": 7}, "serviceTier": {"type": "flex"}}
    rest["usage"] = {"cacheDetails": [{"ttl": "5m", "inputTokens": 1}]}
    assert result.events("provider.event") == [{"round": 1, "event": "metadata", "data": rest}]


def test_a_prompt_router_names_the_model() -> None:
    result = read(START, delta(0, text="x"), stop(0), *ends(trace={"promptRouter": {"invokedModelId": "arn:m"}}))
    assert result.message is not None
    assert result.message["model"] == result.end["model"] == "arn:m"


# -- how it ends


@pytest.mark.parametrize("turned", [False, True])
def test_metadata_may_come_on_either_side_of_the_stop(turned: bool) -> None:
    last = ends("tool_use")
    result = read(START, tool(0), input(0, ""), stop(0), *(reversed(last) if turned else last))
    assert (result.end["finish_reason"], result.error) == ("tool_use", None)
    assert (result.usage or {})["output_tokens"] == 5
    assert result.items[-1] == Event(name="model.completed", payload=result.end)


def test_the_end_waits_for_no_end_of_the_bytes() -> None:
    for last in (ends(), list(reversed(ends()))):
        told = read(START, delta(0, text="x"), stop(0), *last, close=False)
        assert told.items[-1] == Event(name="model.completed", payload=told.end)


def test_a_stop_without_metadata_is_an_end_too() -> None:
    result = read(START, delta(0, text="x"), stop(0), {"messageStop": {"stopReason": "stop_sequence"}})
    assert result.error is None
    assert (result.end["finish_reason"], "incomplete" in result.end) == ("stop_sequence", False)


def test_additional_fields_of_the_model_are_told() -> None:
    last = {"messageStop": {"stopReason": "stop_sequence", "additionalModelResponseFields": {"stop_sequence": "#"}}}
    assert read(START, last).end["additional_fields"] == {"stop_sequence": "#"}


@pytest.mark.parametrize("until", [0, 1, 2, 3])
def test_without_message_stop_the_message_is_incomplete(until: int) -> None:
    events = [START, delta(0, text="Hal"), stop(0), *ends()]
    result = read(*events[:until], *events[4:])
    assert result.error == ProviderError("incomplete_stream", "the stream ended without its terminal event")
    assert result.end["incomplete"] is True
    assert [b["text"] for b in result.content] == ["Hal"] * (until > 1)


@pytest.mark.parametrize(
    ("event", "code", "message"),
    [
        ({"throttlingException": {"message": "Slow down"}}, "throttlingException", "Slow down"),
        (("throttlingException", {"message": "Slow down"}), "throttlingException", "Slow down"),
        (("validationException", {"Message": "No"}), "validationException", "No"),
        ({"internalServerException": {}}, "internalServerException", "internalServerException"),
        ({"internalServerException": "words"}, "internalServerException", "words"),
        ({"error": "words"}, "error", "words"),
        (("InternalServerError", {"message": "M"}), "InternalServerError", "M"),
    ],
)
def test_an_exception_ends_the_message_and_what_came_stays(event: Any, code: str, message: str) -> None:
    result = read(START, delta(0, text="so far"), event, delta(0, text=" lost"), *ends())
    assert result.error == ProviderError(code, message)
    assert result.events("model.failed") == [{"round": 1, "code": code, "message": message}]
    assert result.content == [{"type": "text", "text": "so far", "incomplete": True}]
    assert result.end["incomplete"] is True


def test_an_exception_of_the_model_itself_tells_the_original() -> None:
    told = {"message": "M", "originalStatusCode": 424, "originalMessage": "why"}
    result = read(START, {"modelStreamErrorException": told})
    facts = {"originalStatusCode": 424, "originalMessage": "why"}
    assert result.events("model.failed") == [{"round": 1, "code": "modelStreamErrorException", "message": "M", **facts}]


def test_a_second_start_is_harmless_until_there_is_content() -> None:
    assert read(START, START, delta(0, text="x"), stop(0), *ends()).error is None
    result = read(START, delta(0, text="x"), START, delta(0, text="y"))
    assert result.error is not None
    assert result.error.code == "corrupt_stream"
    assert [b["text"] for b in result.content] == ["x"]


def test_what_comes_behind_the_end_is_kept_and_changes_nothing() -> None:
    late = [delta(0, text="late"), {"throttlingException": {"message": "M"}}]
    result = read(START, delta(0, text="Hi"), stop(0), ends()[0], *late, ends()[1], *late)
    assert result.content == [{"type": "text", "text": "Hi"}]
    assert len(result.events("provider.event")) == 4
    assert result.error is None


@pytest.mark.parametrize("index", [None, -1, True, "0", 2**31, 2**70])
def test_an_index_that_is_none_means_the_block_under_way(index: Any) -> None:
    result = whole(delta(0, text="a"), stop(0), delta(1, text="b"), delta(index, text="c"), stop(index))
    assert result.content == [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]
    assert "incomplete_blocks" not in result.end


@pytest.mark.parametrize("data", ["text", ["list"], None, 7, {"news": None}])
def test_unknown_events_are_kept(data: Any) -> None:
    result = read(START, ("", data), delta(0, text="ok"), stop(0), *ends())
    assert [p["data"] for p in result.events("provider.event")] == [data]
    assert result.content == [{"type": "text", "text": "ok"}]


def test_starts_without_an_index_are_numbered() -> None:
    started = [{"contentBlockStart": {"start": {"toolUse": {"toolUseId": id, "name": "f"}}}} for id in "ab"]
    result = whole(*started, {"contentBlockStop": {}}, reason="tool_use")
    assert [(d.call_id, d.index) for d in result.of(ToolCallDelta)] == [("a", 0), ("b", 1)]


VARIED = [
    START,
    delta(0, reasoningContent={"text": "Größe 🙂"}),
    delta(0, reasoningContent={"signature": "s=="}),
    stop(0),
    delta(1, reasoningContent={"redactedContent": "r=="}),
    stop(1),
    opens(2),
    delta(2, text="Ja\u2028 — "),
    delta(2, citation={"title": "T"}),
    stop(2),
    tool(3, "srv", "n", type="server_tool_use"),
    input(3, '{"q": 1}'),
    stop(3),
    opens(4, toolResult={"toolUseId": "srv"}),
    delta(4, toolResult=[{"text": "r"}]),
    stop(4),
    tool(5),
    input(5, '{"a": "'),
    input(5, 'ü"}'),
    stop(5),
    *ends("tool_use", {"inputTokens": 3, "outputTokens": 4, "cacheReadInputTokens": 2}, metrics={"latencyMs": 1}),
]
_STREAM = streams.lines(VARIED)


@given(st.sets(st.integers(0, len(_STREAM)), max_size=12))
def test_every_split_of_the_bytes_gives_the_same_items(cuts: set[int]) -> None:
    assert streams.split(API, _STREAM, cuts) == read(*VARIED).items


@given(streams.mutated([*VARIED, {"throttlingException": {"message": "M"}}]))
def test_a_stream_that_was_tampered_with_raises_nothing(events: list[Any]) -> None:
    streams.check(API, events)


@given(streams.strange(streams.keys(VARIED) | {"throttlingException", "image"}, ()))
def test_nothing_that_is_json_raises(events: list[Any]) -> None:
    streams.check(API, events)
