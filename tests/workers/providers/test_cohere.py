"""Cohere's chat API: what each event, and each odd one, becomes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import Annotation, Cache, Event, MessageDelta, ReasoningDelta, ToolCallDelta
from tests.workers.providers import streams
from tests.workers.providers.streams import Told
from workers.providers.adapter import ProviderError

API = "cohere.chat"
Data = dict[str, Any]


def event(kind: str, index: Any = None, **message: Any) -> Data:
    told: Data = {"type": kind} | ({} if index is None else {"index": index})
    return told | ({"delta": {"message": message}} if message else {})


def start(id: str | None = "gen_a") -> Data:
    return {"id": id, **event("message-start", role="assistant", content=[], tool_plan="", tool_calls=[])}


def opens(index: Any, kind: str = "text", **content: Any) -> Data:
    return event("content-start", index, content={"type": kind, **content})


def content(index: Any, **content: Any) -> Data:
    return event("content-delta", index, content=content)


def closes(index: Any) -> Data:
    return event("content-end", index)


def plan(text: Any) -> Data:
    return event("tool-plan-delta", tool_plan=text)


def tool(index: Any, id: str | None = "look_1", name: str = "look", arguments: Any = "") -> Data:
    function = {"name": name, "arguments": arguments}
    return event("tool-call-start", index, tool_calls={"id": id, "type": "function", "function": function})


def arguments(index: Any, text: Any) -> Data:
    return event("tool-call-delta", index, tool_calls={"function": {"arguments": text}})


def tool_end(index: Any) -> Data:
    return event("tool-call-end", index)


def cites(index: int, **citation: Any) -> list[Data]:
    return [event("citation-start", index, citations=citation), event("citation-end", index)]


USAGE = {
    "billed_units": {"input_tokens": 8, "output_tokens": 50},
    "tokens": {"input_tokens": 500.0, "output_tokens": 54},
    "cached_tokens": 320,
}


def end(reason: str | None = "COMPLETE", **more: Any) -> Data:
    return {"type": "message-end", "delta": {"finish_reason": reason, "usage": USAGE, **more}}


def read(*events: Any, **more: Any) -> Told:
    return streams.read(API, events, **more)


def whole(*events: Data, reason: str = "COMPLETE") -> Told:
    return read(start(), *events, end(reason))


def test_thinking_then_text() -> None:
    result = read(
        start(),
        opens(0, "thinking", thinking="Let "),
        content(0, thinking="me."),
        closes(0),
        opens(1, text="Fo"),
        content(1, text=""),
        content(1, text="ur"),
        closes(1),
        end(),
        round=2,
    )
    names = {"model": None, "response_id": "gen_a"}
    assert result.items[0] == Event(name="model.started", payload={"round": 2, **names})
    assert [i.text for i in result.of(ReasoningDelta)] == ["Let ", "me."]
    assert result.of(MessageDelta) == [
        MessageDelta(text="Fo", round=2, index=1),
        MessageDelta(text="ur", round=2, index=1),
    ]
    assert result.content == [{"type": "reasoning", "text": "Let me."}, {"type": "text", "text": "Four"}]
    assert result.items[-1] == Event(name="model.completed", payload={"round": 2, "finish_reason": "COMPLETE", **names})
    assert result.error is None


def test_tools_with_a_plan() -> None:
    result = whole(
        plan("I will "),
        plan("look."),
        tool(0),
        arguments(0, '{"a"'),
        arguments(0, ": 1}"),
        tool_end(0),
        tool(1, "look_2", arguments='{"b": 2}'),
        tool_end(1),
        reason="TOOL_CALL",
    )
    block = {"type": "tool_plan", "tool_plan": "I will look."}
    assert result.events("provider.block") == [{"round": 1, "index": 0, "block": block}]
    assert result.of(ToolCallDelta) == [
        ToolCallDelta(call_id="look_1", name="look", index=1),
        ToolCallDelta(call_id="look_1", arguments='{"a"', index=1),
        ToolCallDelta(call_id="look_1", arguments=": 1}", index=1),
        ToolCallDelta(call_id="look_2", name="look", arguments='{"b": 2}', index=2),
    ]
    assert [b["arguments"] for b in result.content] == [{"a": 1}, {"b": 2}]
    order = [type(i).__name__ if not isinstance(i, Event) else i.name for i in result.items]
    assert order.index("provider.block") < order.index("ToolCallDelta")


def test_a_plan_has_its_place_where_it_began() -> None:
    result = whole(plan("I "), opens(0, text="Hm."), closes(0), plan("look."), tool(0), tool_end(0))
    assert result.events("provider.block")[0]["index"] == 0
    assert [d.index for d in [*result.of(MessageDelta), *result.of(ToolCallDelta)]] == [1, 2]


def test_a_plan_without_calls_is_told_at_the_end() -> None:
    assert whole(plan("Nothing to do.")).events("provider.block")[0]["block"]["tool_plan"] == "Nothing to do."
    assert read(start(), plan("Noth")).events("provider.block")[0]["block"]["tool_plan"] == "Noth"


def test_content_and_calls_have_places_of_their_own() -> None:
    result = whole(opens(0), content(0, text="So."), closes(0), tool(0), arguments(0, "{}"), reason="MAX_TOKENS")
    assert [d.index for d in [*result.of(MessageDelta), *result.of(ToolCallDelta)]] == [0, 1, 1]
    assert result.end["incomplete_blocks"] == [1]
    assert result.content[0] == {"type": "text", "text": "So."}
    assert "error" in result.content[1]


@pytest.mark.parametrize(
    ("first", "rest", "value"),
    [("", [], {}), (None, [None], {}), ("", ["{}"], {}), ({"a": 1}, [], {"a": 1}), ('{"a":', ["1}"], {"a": 1})],
)
def test_the_arguments_of_a_call(first: Any, rest: list[Any], value: Data) -> None:
    result = whole(tool(0, arguments=first), *(arguments(0, r) for r in rest), tool_end(0), reason="TOOL_CALL")
    assert result.content[0]["arguments"] == value


def test_calls_without_ids_get_made_ones() -> None:
    result = read(start(), tool(0, None, "f"), tool_end(0), tool(1, "", "g"), tool_end(1), end("TOOL_CALL"), round=2)
    assert [(b["id"], b["name"]) for b in result.content] == [("call_2_1", "f"), ("call_2_2", "g")]


def test_a_call_whose_start_was_lost_is_no_valid_one() -> None:
    result = whole(arguments(0, '{"a":'), arguments(0, "1}"), tool_end(0), reason="TOOL_CALL")
    assert (result.content[0]["id"], result.content[0]["raw"]) == ("call_1_1", '{"a":1}')
    assert "error" in result.content[0]


def test_a_call_that_the_finish_reason_speaks_of_needs_no_end_of_its_own() -> None:
    assert whole(tool(0), arguments(0, '{"a":1}'), reason="TOOL_CALL").content[0]["arguments"] == {"a": 1}


# -- citations


def test_citations_of_text_are_annotations_in_their_block() -> None:
    one = {"start": 0, "end": 3, "text": "The", "sources": [{"type": "tool", "id": "t:0"}], "type": "TEXT_CONTENT"}
    result = whole(
        opens(0, "thinking"),
        content(0, thinking="hm"),
        closes(0),
        opens(1),
        content(1, text="The sky"),
        *cites(0, **one, content_index=1),
        *cites(1, start=4, end=7, text="sky", sources=[]),
        closes(1),
    )
    assert result.content[1]["annotations"] == [
        {**one, "content_index": 1},
        {"start": 4, "end": 7, "text": "sky", "sources": []},
    ]
    assert [a.index for a in result.of(Annotation)] == [1, 1]


@pytest.mark.parametrize("kind", ["PLAN", "THINKING_CONTENT"])
def test_other_citations_are_kept(kind: str) -> None:
    cited = cites(0, type=kind, text="t")
    result = whole(opens(0), content(0, text="x"), *cited, closes(0))
    assert result.events("provider.event")[0] == {"round": 1, "event": "citation-start", "data": cited[0]}
    assert result.content == [{"type": "text", "text": "x"}]


# -- usage


def test_what_was_read_and_written_counts_not_what_is_billed() -> None:
    result = whole(opens(0), content(0, text="x"), closes(0))
    assert result.usage == {
        "input_tokens": 500,
        "output_tokens": 54,
        "cache_read_tokens": 320,
        "cache_write_tokens": None,
        "reasoning_tokens": None,
    }
    assert result.of(Cache) == [Cache(status="hit", tokens=320)]
    billed = {"billed_units": {"input_tokens": 8, "output_tokens": 50}}
    assert result.events("provider.event") == [{"round": 1, "event": "usage", "data": billed}]


def test_without_usage_there_is_none() -> None:
    assert read(start(), end(usage=None)).usage is None


# -- how it ends


@pytest.mark.parametrize("reason", ["COMPLETE", "STOP_SEQUENCE", "MAX_TOKENS", "TOOL_CALL"])
def test_finish_reasons_are_coheres_own_words(reason: str) -> None:
    result = whole(reason=reason)
    assert (result.end["finish_reason"], result.error) == (reason, None)


@pytest.mark.parametrize(
    ("last", "code", "message"),
    [
        (end("ERROR", error="it broke"), "ERROR", "it broke"),
        (end("ERROR"), "ERROR", "the generation ended with ERROR"),
        (end("ERROR_LIMIT"), "ERROR_LIMIT", "the generation ended with ERROR_LIMIT"),
        (end("TIMEOUT"), "TIMEOUT", "the generation ended with TIMEOUT"),
        (end(None, error="it broke"), "error", "it broke"),
        ({"message": "internal"}, "error", "internal"),
        ({"type": "error", "error": {"type": "overloaded", "message": "busy"}}, "overloaded", "busy"),
    ],
)
def test_a_failed_generation(last: Data, code: str, message: str) -> None:
    result = read(start(), opens(0), content(0, text="so far"), last, content(0, text=" lost"))
    assert result.error == ProviderError(code, message)
    assert result.events("model.failed") == [{"round": 1, "code": code, "message": message}]
    assert result.content == [{"type": "text", "text": "so far", "incomplete": True}]
    assert result.end["incomplete"] is True


def test_an_end_may_name_the_message_and_no_reason() -> None:
    result = read({"id": "gen_a", **end(None)})
    assert (result.end["response_id"], result.end["finish_reason"], result.error) == ("gen_a", None, None)


def test_usage_of_a_failed_generation_counts() -> None:
    assert (read(start(), end("TIMEOUT")).usage or {})["output_tokens"] == 54


@pytest.mark.parametrize("until", [0, 1, 3])
def test_without_message_end_the_message_is_incomplete(until: int) -> None:
    events = [start(), opens(0), content(0, text="Hal"), closes(0)]
    result = read(*events[:until])
    assert result.error == ProviderError("incomplete_stream", "the stream ended without its terminal event")
    assert result.end["incomplete"] is True
    assert [b["text"] for b in result.content] == ["Hal"] * (until > 2)


def test_a_start_that_comes_again_is_ignored_and_another_spoils_the_stream() -> None:
    events = [opens(0), content(0, text="x"), closes(0), end()]
    assert read(start(), start(), *events).items == read(start(), *events).items
    assert read(start(), *events[:2], start(), *events[2:]).error is None
    result = read(start(), *events[:2], start("gen_b"), content(0, text="y"))
    assert result.error is not None
    assert result.error.code == "corrupt_stream"
    assert [b["text"] for b in result.content] == ["x"]
    nameless = ProviderError("corrupt_stream", "message '' begins inside of message None")
    assert read(start(None), *events[:2], start(None)).error == nameless
    assert read(start(None), tool(0), start(None)).error == nameless
    assert read(start(None), start(None), *events).error is None
    assert read(*events[:2], start(), *events[2:]).error is None, "the first to come, if late"


def test_what_comes_behind_the_end_is_kept_and_changes_nothing() -> None:
    result = read(start(), opens(0), content(0, text="Hi"), closes(0), end(usage=None), content(0, text="late"), end())
    assert result.content == [{"type": "text", "text": "Hi"}]
    assert [p["event"] for p in result.events("provider.event")] == ["content-delta", "message-end"]


# -- odd inputs


def test_events_are_known_by_their_type_or_their_name() -> None:
    told = [("content-delta", {"delta": {"message": {"content": {"text": "a"}}}}), ("message-end", {})]
    result = read(*told)
    assert result.content == [{"type": "text", "text": "a"}]
    assert result.error is None


def test_log_probabilities_and_unknown_content_are_kept() -> None:
    odd = [{**content(0, text="x"), "logprobs": {"text": "x"}}, opens(1, "hologram", depth=1), content(1, text="y")]
    result = whole(opens(0), *odd, closes(0), closes(1))
    assert [p["data"] for p in result.events("provider.event")[:3]] == odd
    assert result.content[0] == {"type": "text", "text": "x"}


@pytest.mark.parametrize("index", [None, -1, True, "0", 2**31, 2**70])
def test_an_index_that_is_none_means_the_block_under_way(index: Any) -> None:
    result = whole(
        opens(0, text="a"),
        closes(0),
        opens(index, text="b"),
        content(index, text="c"),
        closes(index),
        tool(index),
        arguments(index, "{}"),
        tool_end(index),
    )
    assert [b.get("text") for b in result.content] == ["a", "bc", None]
    assert "incomplete_blocks" not in result.end


@pytest.mark.parametrize("data", ["text", ["list"], None, 7, {}, {"type": "debug", "prompt": "p"}, {"type": 5}])
def test_unknown_events_are_kept(data: Any) -> None:
    result = read(start(), ("", data), opens(0, text="ok"), closes(0), end(usage=None))
    assert [p["data"] for p in result.events("provider.event")] == [data]
    assert result.content == [{"type": "text", "text": "ok"}]


VARIED = [
    start(),
    opens(0, "thinking", thinking=""),
    content(0, thinking="Größe 🙂"),
    closes(0),
    plan("Ich – "),
    plan("schaue"),
    tool(0),
    arguments(0, '{"a": "'),
    arguments(0, 'ü"}'),
    tool_end(0),
    opens(1),
    content(1, text="Ja\u2028"),
    *cites(0, start=0, end=2, text="Ja", type="TEXT_CONTENT", content_index=1),
    closes(1),
    end("TOOL_CALL"),
]
_STREAM = streams.sse(VARIED)


@given(st.sets(st.integers(0, len(_STREAM)), max_size=12))
def test_every_split_of_the_bytes_gives_the_same_items(cuts: set[int]) -> None:
    assert streams.split(API, _STREAM, cuts) == read(*((e["type"], e) for e in VARIED)).items


@given(streams.mutated(VARIED))
def test_a_stream_that_was_tampered_with_raises_nothing(events: list[Any]) -> None:
    streams.check(API, events)


@given(streams.strange(streams.keys(VARIED), streams.words(VARIED) | {"error", "ERROR"}))
def test_nothing_that_is_json_raises(events: list[Any]) -> None:
    streams.check(API, events)
