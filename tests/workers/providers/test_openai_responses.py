"""OpenAI's Responses: small streams, and what may be wrong with them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import Annotation, Message, MessageDelta, ReasoningDelta, RefusalDelta, ToolCallDelta, Usage
from tests.workers.providers import streams
from tests.workers.providers.streams import Told, check, mutated, split, sse, strange
from workers.providers.openai_responses import OpenAIResponses

API = "openai.responses"


def read(*events: Any, round: int = 1) -> Told:
    return streams.read(API, events, round=round)


def event(type: str, place: int | None = 0, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{type}", **({} if place is None else {"output_index": place}), **fields}


def created(id: str = "r1") -> dict[str, Any]:
    return event("created", None, response={"id": id, "model": "gpt-x", "status": "in_progress", "output": []})


def end(*output: dict[str, Any], status: str = "completed", **fields: Any) -> dict[str, Any]:
    response = {"id": "r1", "model": "gpt-x", "status": status, "output": list(output), **fields}
    return event(status, None, response=response)


def added(place: int | None = 0, **item: Any) -> dict[str, Any]:
    return event("output_item.added", place, item=item)


def done(place: int | None = 0, **item: Any) -> dict[str, Any]:
    return event("output_item.done", place, item=item)


def say(delta: str, place: int | None = 0, n: int = 0, **fields: Any) -> dict[str, Any]:
    return event("output_text.delta", place, content_index=n, delta=delta, **fields)


def part(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "output_text", "text": text, **fields}


def message(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "id": "m", "role": "assistant", "content": list(parts), **fields}


def reasoning(*summary: str, text: str = "", **fields: Any) -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": s} for s in summary]
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"type": "reasoning", "id": "rs", "summary": parts, "content": content, **fields}


def function(arguments: str = "", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "id": "fc", "call_id": "c1", "name": "f", "arguments": arguments, **fields}


def arguments(delta: str, place: int | None = 0, **fields: Any) -> dict[str, Any]:
    return event("function_call_arguments.delta", place, delta=delta, **fields)


def agrees(told: Told) -> bool:
    return not told.events("merge.mismatch") and not told.of(Message)


# -- the frame


def test_text_and_the_frame() -> None:
    told = read(
        created(),
        event("in_progress", None, response={"id": "r1"}),
        added(**message()),
        say("He"),
        say("He"),
        event("output_text.done", content_index=0, text="HeHe"),
        done(**message(part("HeHe"), phase="final_answer")),
        end(message(part("HeHe")), service_tier="flex"),
        round=2,
    )
    assert [(d.text, d.round, d.index) for d in told.of(MessageDelta)] == [("He", 2, 0), ("He", 2, 0)]
    assert told.events("model.started") == [{"round": 2, "model": "gpt-x", "response_id": "r1"}]
    frame = {"round": 2, "finish_reason": "completed", "model": "gpt-x", "response_id": "r1"}
    assert told.end == frame | {"service_tier": "flex"}
    assert told.error is None
    assert agrees(told)
    kept = {"type": "message", "id": "m", "role": "assistant", "phase": "final_answer"}
    assert told.events("provider.event") == [
        {"round": 2, "event": "response.output_item.done", "data": {"output_index": 0, "item": kept}},
    ]


def test_the_end_is_told_once() -> None:
    adapter = OpenAIResponses()
    assert adapter.feed("", end())
    assert adapter.close() == []


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"reason": "max_output_tokens"}, "incomplete:max_output_tokens"),
        ({"reason": "content_filter"}, "incomplete:content_filter"),
        (None, "incomplete"),
    ],
)
def test_an_incomplete_response_says_why(details: Any, reason: str) -> None:
    told = read(
        created(), added(**function()), arguments('{"a": 1}'), end(status="incomplete", incomplete_details=details)
    )
    assert told.end["finish_reason"] == reason
    assert told.error is None
    (call,) = told.content
    assert call["arguments"] is None
    assert call["error"]["code"] == "truncated"


def test_usage_comes_from_the_last_snapshot() -> None:
    usage = {
        "input_tokens": 90,
        "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 5},
        "output_tokens": 15,
        "output_tokens_details": {"reasoning_tokens": 7},
        "total_tokens": 105,
    }
    told = read(created(), end(usage=usage))
    assert told.usage == {
        "input_tokens": 90,
        "output_tokens": 15,
        "cache_read_tokens": 64,
        "cache_write_tokens": 5,
        "reasoning_tokens": 7,
    }
    assert len(told.of(Usage)) == 1
    assert read(created(), end(usage=None)).of(Usage) == []


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        ({"type": "error", "code": "rate_limit", "message": "slow", "param": None}, "rate_limit", "slow"),
        ({"type": "error", "error": {"type": "quota", "code": None, "message": "no"}}, "quota", "no"),
        ({"type": "error", "code": None, "message": "oh"}, "provider_error", "oh"),
        ({"error": {"code": 503, "message": "busy"}}, "503", "busy"),
        ({"type": "error", "error": "plain"}, "provider_error", "plain"),
    ],
)
def test_an_error_event(error: dict[str, Any], code: str, text: str) -> None:
    failed = end(status="failed", error={"code": "other", "message": "again"}, usage={"input_tokens": 3})
    told = read(created(), say("Hel"), error, failed)
    assert told.error is not None
    assert (told.error.code, told.error.message) == (code, text)
    assert told.events("model.failed") == [{"round": 1, "code": code, "message": text}]
    assert (told.end["finish_reason"], told.end["incomplete"]) == ("failed", True)
    assert told.content == [{"type": "text", "text": "Hel"}]
    assert told.usage is not None
    assert told.usage["input_tokens"] == 3


def test_a_failed_response() -> None:
    told = read(created(), end(status="failed", error={"code": "server_error", "message": "oh"}))
    assert told.error is not None
    assert (told.error.code, told.error.message) == ("server_error", "oh")
    silent = read(created(), end(status="cancelled", error=None))
    assert silent.error is not None
    assert silent.error.code == "response_cancelled"


def test_without_a_terminal_event_it_is_incomplete() -> None:
    told = read(created(), added(**function()), arguments('{"a": 1}'))
    assert told.error is not None
    assert told.error.code == "incomplete_stream"
    assert (told.end["finish_reason"], told.end["incomplete"]) == (None, True)
    assert told.content[0]["arguments"] is None


def test_a_second_response_in_the_stream_is_corrupt() -> None:
    told = read(created(), say("a"), created(), say("b"), created("r2"), say("c"), end(message(part("c"))))
    assert told.error is not None
    assert told.error.code == "corrupt_stream"
    assert told.content == [{"type": "text", "text": "ab"}]
    assert told.end["incomplete"] is True


def test_behind_the_terminal_event_nothing_belongs_to_the_message() -> None:
    told = read(created(), say("a"), end(), say("b"))
    assert told.content == [{"type": "text", "text": "a"}]
    assert [e["event"] for e in told.events("provider.event")] == ["response.output_text.delta"]


def test_a_hole_in_the_numbers_is_told_once() -> None:
    def numbered(*numbers: int) -> list[dict[str, Any]]:
        return read(*(say("a") | {"sequence_number": n} for n in numbers), end()).events("warning")

    assert numbered(0, 1, 2) == numbered(0, 0, 0) == numbered(5, 6) == []
    (warning,) = numbered(0, 1, 5, 9)
    assert warning == {"round": 1, "code": "sequence_gap", "message": "the stream's events 2 to 4 did not arrive"}


def test_the_name_of_the_event_counts_where_its_data_has_no_type() -> None:
    adapter = OpenAIResponses()
    items = adapter.feed("response.output_text.delta", {"output_index": 0, "content_index": 0, "delta": "a"})
    assert MessageDelta(text="a") in items


# -- messages


def test_parts_and_items_are_blocks_of_their_own() -> None:
    told = read(created(), say("a"), say("b", n=1), say("c", place=1), say("d"), end())
    assert [b["text"] for b in told.content] == ["ad", "b", "c"]
    assert [d.index for d in told.of(MessageDelta)] == [0, 1, 2, 0]


def test_the_place_counts_and_not_the_id() -> None:
    told = read(
        added(**message()), say("a", item_id="x"), say("b", item_id="y"), done(**message(part("ab")) | {"id": "z"})
    )
    assert told.content == [{"type": "text", "text": "ab"}]


def test_without_a_place_the_id_counts_and_else_the_latest_item() -> None:
    told = read(
        added(None, **message(id="m1")),
        added(None, **message(id="m2")),
        say("a", None, item_id="m1"),
        say("b", None, item_id="m2"),
        say("c", None),
        done(None, **message(part("a!"), id="m1")),
        end(),
    )
    assert [b["text"] for b in told.content] == ["a!", "bc"]
    assert agrees(told)


def test_another_item_at_a_used_place_is_another() -> None:
    told = read(
        added(**function()), arguments("{}"), added(**function(call_id="c2", id="fc2")), arguments('{"b":2}'), end()
    )
    assert [(b["id"], b["arguments"]) for b in told.content] == [("c1", {}), ("c2", {"b": 2})]


def test_an_item_that_is_added_twice_is_one() -> None:
    told = read(added(**function()), arguments('{"a":'), added(**function()), arguments("1}"), end())
    assert [(b["id"], b["arguments"]) for b in told.content] == [("c1", {"a": 1})]


def test_a_refusal_is_no_text() -> None:
    refused = {"type": "refusal", "refusal": "I can't."}
    told = read(
        created(),
        added(**message()),
        event("content_part.added", content_index=0, part={"type": "refusal", "refusal": ""}),
        event("refusal.delta", content_index=0, delta="I can"),
        event("refusal.done", content_index=0, refusal="I can't"),
        event("content_part.done", content_index=0, part=refused),
        end(message(refused)),
    )
    assert [d.text for d in told.of(RefusalDelta)] == ["I can", "'t", "."]
    assert told.content == [{"type": "refusal", "text": "I can't."}]
    assert agrees(told)


def test_a_part_may_begin_with_text() -> None:
    told = read(event("content_part.added", content_index=0, part=part("Hel")), say("lo"), end(message(part("Hello"))))
    assert told.content == [{"type": "text", "text": "Hello"}]
    assert agrees(told)


def test_annotations_come_with_their_event_or_with_the_part() -> None:
    one, two = {"type": "url_citation", "url": "u"}, {"type": "file_citation", "file_id": "f"}
    told = read(
        say("x", n=1),
        event("output_text.annotation.added", content_index=1, annotation_index=0, annotation=one),
        event("content_part.done", content_index=1, part=part("x", annotations=[one, two])),
        end(message(part(""), part("x", annotations=[one, two]))),
    )
    assert [(a.index, a.annotation) for a in told.of(Annotation)] == [(0, one), (0, two)]
    assert told.content == [{"type": "text", "text": "x", "annotations": [one, two]}]
    assert agrees(told)


def test_logprobs_are_kept() -> None:
    told = read(say("a", logprobs=[{"token": "a", "logprob": -0.5}]), say("b", logprobs=[]), end())
    data = [{"token": "a", "logprob": -0.5}]
    assert told.events("provider.event") == [{"round": 1, "index": 0, "event": "logprobs", "data": data}]


# -- reasoning


def test_each_summary_part_is_a_block_and_the_last_is_signed() -> None:
    def summary(delta: str, n: int) -> dict[str, Any]:
        return event("reasoning_summary_text.delta", summary_index=n, delta=delta)

    told = read(
        added(**reasoning(encrypted_content="half")),
        event("reasoning_summary_part.added", summary_index=0, part={"type": "summary_text", "text": ""}),
        summary("one", 0),
        event("reasoning_summary_text.done", summary_index=0, text="one"),
        summary("tw", 1),
        event("reasoning_summary_part.done", summary_index=1, part={"type": "summary_text", "text": "two"}),
        done(**reasoning("one", "two", encrypted_content="sealed")),
        say("so", place=1),
        end(reasoning("one", "two", encrypted_content="sealed"), message(part("so"))),
    )
    assert told.content == [
        {"type": "reasoning", "text": "one"},
        {"type": "reasoning", "text": "two", "signature": "sealed"},
        {"type": "text", "text": "so"},
    ]
    assert agrees(told)


def test_reasoning_text_of_other_servers() -> None:
    told = read(
        added(**reasoning()),
        event("content_part.added", content_index=0, part={"type": "reasoning_text", "text": ""}),
        event("reasoning_text.delta", content_index=0, delta="h"),
        event("reasoning.delta", content_index=0, delta="m"),
        event("reasoning_text.done", content_index=0, text="hm."),
        end(reasoning(text="hm.")),
    )
    assert [d.text for d in told.of(ReasoningDelta)] == ["h", "m", "."]
    assert told.content == [{"type": "reasoning", "text": "hm."}]


def test_summary_and_text_of_one_item_are_two_blocks() -> None:
    item = reasoning("short", text="long")
    told = read(
        event("reasoning_text.delta", content_index=0, delta="long"),
        event("reasoning_summary_text.delta", summary_index=0, delta="short"),
        end(item),
    )
    assert [b["text"] for b in told.content] == ["long", "short"]
    assert agrees(told)


def test_reasoning_that_is_only_sealed_is_a_block() -> None:
    told = read(added(**reasoning()), done(**reasoning(encrypted_content="sealed")), say("a", place=1), end())
    assert told.content == [{"type": "reasoning", "text": "", "signature": "sealed"}, {"type": "text", "text": "a"}]


def test_a_snapshot_without_the_reasoning_does_not_take_it_away() -> None:
    told = read(event("reasoning_text.delta", content_index=0, delta="hm"), say("a", place=1), end(message(part("a"))))
    assert [b["type"] for b in told.content] == ["reasoning", "text"]
    assert agrees(told)


# -- calls


def test_a_call_comes_in_fragments() -> None:
    told = read(
        added(**function()),
        arguments('{"a"'),
        arguments(": 1}"),
        event("function_call_arguments.done", arguments='{"a": 1}'),
        done(**function('{"a": 1}')),
        end(function('{"a": 1}')),
    )
    calls = told.of(ToolCallDelta)
    assert [(d.call_id, d.arguments) for d in calls] == [("c1", ""), ("c1", '{"a"'), ("c1", ": 1}")]
    assert calls[0].name == "f"
    assert told.content == [{"type": "tool_call", "id": "c1", "name": "f", "arguments": {"a": 1}}]
    assert agrees(told)


def test_free_text_for_a_custom_tool_is_no_json() -> None:
    custom = {"type": "custom_tool_call", "id": "ctc", "call_id": "c1", "name": "run"}
    told = read(
        added(**custom, input=""),
        event("custom_tool_call_input.delta", delta='{"pri'),
        event("custom_tool_call_input.done", input='{"print'),
        done(**custom, input='{"print'),
        end(custom | {"input": '{"print'}),
    )
    assert told.content == [{"type": "tool_call", "kind": "custom", "id": "c1", "name": "run", "input": '{"print'}]
    assert told.of(ToolCallDelta)[0].kind == "custom"
    assert agrees(told)


def test_the_arguments_that_a_call_begins_with_count_where_none_follow() -> None:
    told = read(added(**function("{}")), arguments('{"a":1}'), end(function('{"a":1}')))
    assert told.content[0]["arguments"] == {"a": 1}
    assert agrees(told)
    alone = read(added(**function('{"b":2}')), end())
    assert alone.content[0]["arguments"] == {"b": 2}
    whole = read(done(**function('{"c":3}')), end())
    assert whole.content[0]["arguments"] == {"c": 3}


def test_a_call_is_told_of_once_its_name_is_known() -> None:
    told = read(arguments('{"a":'), arguments("1}"), done(**function('{"a":1}')), end())
    assert [(d.call_id, d.name, d.arguments) for d in told.of(ToolCallDelta)] == [("c1", "f", '{"a":1}')]
    nameless = read(arguments('{"a":1}'), end())
    assert [d.call_id for d in nameless.of(ToolCallDelta)] == ["call_1_1"]
    assert nameless.content[0]["error"]["code"] == "nameless"


def test_an_id_that_is_left_out_is_the_items_or_made() -> None:
    told = read(
        added(0, **function(call_id=None)),
        added(1, **function(call_id="", id="")),
        added(2, **function(call_id="own")),
        end(),
        round=4,
    )
    assert [b["id"] for b in streams.told(told.items, None, 4).content] == ["fc", "call_4_2", "own"]


def test_calls_that_run_side_by_side_do_not_mix() -> None:
    told = read(
        added(0, **function()),
        added(1, **function(call_id="c2", id="fc2", name="g")),
        arguments('{"a":', 0),
        arguments('{"b":', 1),
        arguments("1}", 0),
        arguments("2}", 1),
        end(),
    )
    assert [(b["name"], b["arguments"]) for b in told.content] == [("f", {"a": 1}), ("g", {"b": 2})]


# -- what the provider runs itself


def test_a_search_is_kept_whole_and_in_its_place() -> None:
    search = {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"query": "q"}}
    told = read(
        added(0, type="web_search_call", id="ws", status="in_progress"),
        event("web_search_call.searching", 0, item_id="ws"),
        done(0, **search),
        say("a", place=1),
        end(search, message(part("a"))),
    )
    assert told.events("provider.block") == [{"round": 1, "index": 0, "block": search}]
    names = [e["event"] for e in told.events("provider.event")]
    assert names == ["response.output_item.added", "response.web_search_call.searching"]
    assert told.of(MessageDelta)[0].index == 1
    assert told.content == [{"type": "text", "text": "a"}]
    assert agrees(told)


@pytest.mark.parametrize("kind", ["mcp_call", "code_interpreter_call", "image_generation_call", "of_next_year"])
def test_an_item_that_only_the_last_snapshot_has_is_kept(kind: str) -> None:
    item = {"type": kind, "id": "x", "result": "QUJD"}
    told = read(say("a"), end(message(part("a")), item))
    assert told.events("provider.block") == [{"round": 1, "index": 1, "block": item}]


def test_unknown_events_and_parts_are_kept() -> None:
    sound = {"type": "output_audio", "data": "QUJD"}
    told = read({"type": "response.of_next_year", "x": 1}, [1], done(**message(sound)), end(message(sound)))
    kept = [(e["event"], e["data"]) for e in told.events("provider.event")]
    assert kept[:2] == [("response.of_next_year", {"type": "response.of_next_year", "x": 1}), ("", [1])]
    assert [e["block"] for e in told.events("provider.block")] == [sound]


# -- snapshots


def test_a_longer_snapshot_adds_its_tail() -> None:
    told = read(
        say("Hel"),
        added(1, **function()),
        arguments('{"a"', 1),
        end(message(part("Hello")), function('{"a":1}'), message(part("more"), id="m2")),
    )
    assert [d.text for d in told.of(MessageDelta)] == ["Hel", "lo", "more"]
    assert [b.get("text", b.get("arguments")) for b in told.content] == ["Hello", {"a": 1}, "more"]
    assert agrees(told)


@pytest.mark.parametrize(
    "last",
    [
        event("output_text.done", content_index=0, text="Hallo you"),
        event("content_part.done", content_index=0, part=part("Hallo you")),
        done(**message(part("Hallo you"))),
        end(message(part("Hallo you"))),
    ],
    ids=["text", "part", "item", "response"],
)
def test_a_snapshot_that_differs_replaces_and_is_reported(last: dict[str, Any]) -> None:
    told = read(created(), say("Hello"), last, end())
    assert told.content == [{"type": "text", "text": "Hallo you"}]
    (mismatch,) = told.events("merge.mismatch")
    assert mismatch["differences"] == [
        {"what": "text", "index": 0, "type": "text", "streamed": 5, "snapshot": 9, "position": 1},
    ]
    assert told.message is not None
    assert (told.message["finish_reason"], told.message["model"]) == ("completed", "gpt-x")
    assert len(told.of(Message)) == 1


def test_everything_else_survives_a_difference() -> None:
    cited = {"type": "url_citation", "url": "u"}
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": "ls"}
    output = [
        reasoning("why", encrypted_content="sealed"),
        message(part("new", annotations=[cited]), {"type": "refusal", "refusal": "no"}),
        function('{"a":1'),
        custom,
    ]
    told = read(say("old", place=1), end(*output))
    assert told.content == [
        {"type": "reasoning", "text": "why", "signature": "sealed"},
        {"type": "text", "text": "new", "annotations": [cited]},
        {"type": "refusal", "text": "no"},
        told.content[3],
        {"type": "tool_call", "kind": "custom", "id": "c2", "name": "run", "input": "ls"},
    ]
    assert (told.content[3]["arguments"], told.content[3]["raw"]) == (None, '{"a":1')


def test_a_difference_counts_without_a_terminal_event_too() -> None:
    told = read(say("Hello"), event("output_text.done", content_index=0, text="Hallo"))
    assert told.content == [{"type": "text", "text": "Hallo"}]
    assert told.error is not None


def test_other_signatures_and_annotations_are_differences() -> None:
    sealed = read(done(**reasoning("a", encrypted_content="one")), end(reasoning("a", encrypted_content="two")))
    assert sealed.content == [{"type": "reasoning", "text": "a", "signature": "two"}]
    cited = read(
        say("a"),
        event("output_text.annotation.added", content_index=0, annotation={"url": "x"}),
        end(message(part("a", annotations=[{"url": "y"}]))),
    )
    assert cited.content == [{"type": "text", "text": "a", "annotations": [{"url": "y"}]}]


def test_a_complete_response_has_no_blocks_that_its_snapshot_lacks() -> None:
    told = read(say("a"), say("b", place=1), end(message(part("a"))))
    assert told.content == [{"type": "text", "text": "a"}]
    assert told.events("merge.mismatch")[0]["differences"][0]["what"] == "block"
    for silent in (end(), end(message(part(""))), end(message(part("a")), status="incomplete")):
        assert [b["text"] for b in read(say("a"), say("b", place=1), silent).content] == ["a", "b"]


def test_blocks_stand_in_the_responses_order() -> None:
    told = read(
        say("b", place=1), say("a", place=0), say("c", place=1), end(message(part("a")), message(part("bc"), id="n"))
    )
    assert [b["text"] for b in told.content] == ["a", "bc"]
    assert told.events("merge.mismatch")[0]["differences"] == [{"what": "order"}]


def test_a_snapshots_items_are_found_by_id_then_place_then_type() -> None:
    moved = read(
        event("reasoning_text.delta", 0, content_index=0, delta="hm"),
        added(1, **message(id="m1")),
        say("a", place=1),
        added(2, **message(id="m2")),
        say("b", place=2),
        end(message(part("a"), id="m1"), message(part("b"), id="m2")),
    )
    assert [b["text"] for b in moved.content] == ["hm", "a", "b"]
    assert agrees(moved)
    renamed = read(
        added(0, **reasoning()), added(1, **message(id="m1")), say("a", place=1), end(message(part("a"), id="other"))
    )
    assert agrees(renamed)


# -- any events


ITEMS = [
    reasoning("why", encrypted_content="s"),
    message(part("a\u2028b", annotations=[{"url": "u"}]), {"type": "refusal", "refusal": "no"}, id="m1"),
    function('{"a": [1]}'),
    {"type": "custom_tool_call", "id": "x", "call_id": "c2", "name": "run", "input": "ls"},
    {"type": "web_search_call", "id": "ws"},
]
STREAM: list[dict[str, Any]] = [
    created(),
    added(0, **reasoning()),
    event("reasoning_summary_text.delta", 0, summary_index=0, delta="why", sequence_number=3),
    done(0, **ITEMS[0]),
    added(1, **message(id="m1")),
    say("a\u2028", 1, item_id="m1", sequence_number=4),
    event("output_text.annotation.added", 1, content_index=0, annotation={"url": "u"}),
    event("refusal.delta", 1, content_index=1, delta="no"),
    done(1, **ITEMS[1]),
    added(2, **function()),
    arguments('{"a": ', 2),
    event("function_call_arguments.done", 2, arguments='{"a": [1]}'),
    added(3, **ITEMS[3] | {"input": ""}),
    event("custom_tool_call_input.delta", 3, delta="ls"),
    done(4, **ITEMS[4]),
    end(*ITEMS, usage={"input_tokens": 3, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 2}}),
]
WORDS = ["type", "output_index", "content_index", "item", "part", "delta", "response", "output", "content", "summary"]
OTHERS = [str(e["type"]) for e in STREAM] + [
    "message",
    "reasoning",
    "function_call",
    "id",
    "text",
    "output_text",
    "error",
]


def test_the_whole_stream_agrees_with_its_snapshot() -> None:
    told = read(*STREAM)
    assert agrees(told)
    assert [b["type"] for b in told.content] == ["reasoning", "text", "refusal", "tool_call", "tool_call"]


@given(st.sets(st.integers(1, len(STREAM) - 2)))
def test_whatever_is_lost_before_the_snapshot_the_message_is_the_same(lost: set[int]) -> None:
    told = read(*(e for n, e in enumerate(STREAM) if n not in lost))
    assert told.content == read(*STREAM).content
    assert [e["block"] for e in told.events("provider.block")] == [ITEMS[4]]


@given(mutated([*STREAM, {"type": "error", "message": "oh"}, end(status="failed")]))
def test_a_stream_that_was_spoiled_raises_nothing(events: list[Any]) -> None:
    check(API, events)


@given(strange(WORDS, OTHERS))
def test_events_without_sense_raise_nothing(events: list[Any]) -> None:
    check(API, events)


@given(st.booleans(), st.lists(st.integers(0, len(sse(STREAM)))))
def test_every_split_gives_the_same_items(named: bool, cuts: list[int]) -> None:
    stream = sse(STREAM, named=named)
    assert split(API, stream, (c % len(stream) for c in cuts)) == split(API, stream, [])
