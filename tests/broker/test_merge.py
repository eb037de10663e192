"""Items → messages: rules, order, restarts, calls; and the properties that hold for every run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import items
from broker.arguments import parse_arguments
from broker.items import (
    Annotation,
    Entry,
    Event,
    Item,
    Message,
    MessageDelta,
    Raw,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
    ToolCompleted,
    ToolStarted,
    Usage,
    encode,
)
from broker.merge import Merger, merge_entries, text_of
from tests.broker.streams import RUNS, TEXTS, log_of


def fold(*run: Item | Raw) -> Merger:
    merger = Merger()
    for item in run:
        merger.add(item)
    return merger


def content(*run: Item | Raw) -> list[dict[str, Any]]:
    message = fold(*run).message()
    assert message is not None
    blocks: list[dict[str, Any]] = message["content"]
    return blocks


def told(merger: Merger) -> list[object]:
    messages = [merger.message(r, c) for r in range(1, 5) for c in range(2)]
    return [messages, merger.partial(), merger.rounds, merger.usage, merger.cost, merger.outcome, merger.skipped]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "name": name, "arguments": arguments}


RESTARTED = Event(name="run.restarted", payload={"attempt": 2})


# -- properties


@given(RUNS, st.data())
def test_a_prefix_and_then_the_rest_is_all_and_asking_changes_nothing(run: list[Item], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(run)))
    merger = fold(*run[:cut])
    assert told(merger) == told(fold(*run[:cut]))
    for item in run[cut:]:
        merger.add(item)
    assert told(merger) == told(fold(*run))


@given(RUNS)
def test_stored_items_merge_like_those_that_were_published(run: list[Item]) -> None:
    assert told(merge_entries(log_of(run)))[:-2] == told(fold(*run))[:-2]
    raw = [Raw(e.type.decode(), _fields(e)) for e in log_of(run)]
    assert told(fold(*raw))[:-2] == told(fold(*run))[:-2]


def _fields(entry: Entry) -> dict[str, Any]:
    decoded = items.decode("later.type", entry.data)
    assert isinstance(decoded, Raw)
    return decoded.fields


@given(RUNS)
def test_the_merge_of_a_rounds_items_equals_its_message(run: list[Item]) -> None:
    """A runner asks its merger when a round ends and publishes the answer: whoever merges that sees the same."""
    merger = fold(*run)
    for round in (1, 2):
        for choice in (0, 1):
            message = merger.message(round, choice)
            if message is not None:
                item = Message(round=round, choice=choice, message=message)
                assert fold(*run, item).message(round, choice) == message
                assert fold(item).message(round, choice) == message
                assert merge_entries(log_of([item])).message(round, choice) == message


@given(RUNS, RUNS)
def test_a_restart_discards_what_came_before(first: list[Item], second: list[Item]) -> None:
    assert told(fold(*first, RESTARTED, *second))[:-1] == told(fold(*second))[:-1]


@given(RUNS)
def test_every_merged_message_can_be_stored(run: list[Item]) -> None:
    merger = fold(*run)
    for message in (merger.message(), merger.partial()):
        if message is not None:
            encode(items.Failed(code="x", message="y", partial=message))


@given(st.lists(TEXTS))
def test_text_is_what_was_sent_to_the_letter(texts: list[str]) -> None:
    merger = fold(*(MessageDelta(text=t) for t in texts))
    assert text_of(merger.message()) == "".join(texts)


# -- text, reasoning, refusals, annotations


def test_equal_deltas_are_two_deltas() -> None:
    assert content(*[MessageDelta(text="ha")] * 3) == [text("hahaha")]


def test_blocks_stand_in_the_order_of_their_first_content() -> None:
    run = [
        ReasoningDelta(index=0, text="hm"),
        MessageDelta(index=1, text=""),
        ToolCallDelta(index=2, call_id="c", name="f"),
        MessageDelta(index=1, text="a"),
        ReasoningDelta(index=0, text="!"),
        MessageDelta(index=3, text="b"),
        RefusalDelta(index=4, text="no"),
        MessageDelta(index=1, text="c"),
    ]
    assert content(*run) == [
        {"type": "reasoning", "text": "hm!"},
        call("c", "f", {}),
        text("ac"),
        text("b"),
        {"type": "refusal", "text": "no"},
    ]


def test_one_index_used_by_several_kinds_does_not_mix_them() -> None:
    run = [
        ReasoningDelta(text="r"),
        MessageDelta(text="t"),
        ToolCallDelta(call_id="c", name="f"),
        MessageDelta(text="u"),
    ]
    assert content(*run) == [{"type": "reasoning", "text": "r"}, text("tu"), call("c", "f", {})]


def test_choices_never_mix_nor_do_components() -> None:
    merger = fold(
        MessageDelta(text="a"),
        MessageDelta(choice=1, text="x"),
        MessageDelta(choice=0, text="b"),
        MessageDelta(choice=1, text="y"),
        MessageDelta(component_id="step:1", text="s"),
        MessageDelta(text="c"),
    )
    assert merger.message() == {"role": "assistant", "content": [text("abc"), text("s")]}
    assert merger.message(choice=1) == {"role": "assistant", "content": [text("xy")]}
    assert merger.message(choice=2) is None


def test_rounds_are_messages_of_their_own() -> None:
    merger = fold(MessageDelta(text="a"), MessageDelta(round=2, text="b"), MessageDelta(round=1, text="c"))
    assert merger.rounds == 2
    assert text_of(merger.message(1)) == "ac"
    assert text_of(merger.message()) == text_of(merger.message(2)) == "b"
    assert merger.message(3) is None


def test_signatures_and_redacted_reasoning_survive_in_their_place() -> None:
    run = [
        ReasoningDelta(text="a"),
        ReasoningDelta(text="b", signature="s1"),
        ReasoningDelta(text="c"),
        ReasoningDelta(signature="s1"),
        ReasoningDelta(text="d", signature="s2"),
        ReasoningDelta(text="e"),
        ReasoningDelta(index=1, redacted="blob"),
        ReasoningDelta(index=1, redacted=None),
    ]
    assert content(*run) == [
        {"type": "reasoning", "text": "abc", "signature": "s1"},
        {"type": "reasoning", "text": "de", "signature": "s2"},
        {"type": "reasoning", "text": "", "redacted": "blob"},
        {"type": "reasoning", "text": "", "redacted": None},
    ]


def test_annotations_stay_with_their_block() -> None:
    run = [
        MessageDelta(text="a"),
        Annotation(annotation={"n": 1}),
        MessageDelta(text="b"),
        Annotation(index=1, annotation=2),
    ]
    assert content(*run) == [{**text("ab"), "annotations": [{"n": 1}]}, {**text(""), "annotations": [2]}]


# -- tool calls


def test_fragments_join_and_are_parsed_once() -> None:
    run = [
        ToolCallDelta(call_id="c", name="f", arguments='{"ci'),
        ToolCallDelta(arguments='ty":"Par'),
        ToolCallDelta(call_id="c", name="f", arguments='is"}'),
    ]
    assert content(*run) == [call("c", "f", {"city": "Paris"})]


@pytest.mark.parametrize("arguments", ["", " ", "\n"])
def test_empty_arguments_are_an_empty_object(arguments: str) -> None:
    assert content(ToolCallDelta(call_id="c", name="f", arguments=arguments)) == [call("c", "f", {})]


def test_parallel_calls_are_kept_apart_by_index() -> None:
    run = [
        ToolCallDelta(index=1, call_id="a", name="f", arguments='{"x"'),
        ToolCallDelta(index=2, call_id="b", name="g", arguments='{"y"'),
        ToolCallDelta(index=1, arguments=":1}"),
        ToolCallDelta(index=2, arguments=":2}"),
    ]
    assert content(*run) == [call("a", "f", {"x": 1}), call("b", "g", {"y": 2})]


def test_another_id_on_a_used_index_is_another_call() -> None:
    run = [
        ToolCallDelta(call_id="a", name="f", arguments='{"x"'),
        ToolCallDelta(call_id="b", name="g", arguments='{"y"'),
        ToolCallDelta(arguments=":2}"),
        ToolCallDelta(call_id="a", arguments=":1"),
        ToolCallDelta(arguments="}"),
    ]
    assert content(*run) == [call("a", "f", {"x": 1}), call("b", "g", {"y": 2})]


def test_empty_ids_and_names_overwrite_nothing_and_late_ones_are_taken() -> None:
    run = [
        ToolCallDelta(arguments="{"),
        ToolCallDelta(call_id="c", name="f"),
        ToolCallDelta(call_id="", name="", arguments="}"),
    ]
    assert content(*run) == [call("c", "f", {})]


def test_name_fragments_join_before_any_argument_only() -> None:
    run = [
        ToolCallDelta(call_id="c", name="get_"),
        ToolCallDelta(name="weather"),
        ToolCallDelta(name="get_weather"),
        ToolCallDelta(name="get_weather", arguments="{}"),
        ToolCallDelta(name="x"),
    ]
    assert content(*run) == [call("c", "get_weather", {})]


def test_ids_that_were_left_out_are_made_and_stay_the_same() -> None:
    run = [ToolCallDelta(index=0, name="f"), ToolCallDelta(index=1, name="g"), ToolCallDelta(choice=1, name="h")]
    merger = fold(*run)
    assert [block["id"] for block in content(*run)] == ["call_1_1", "call_1_2"]
    other = merger.message(choice=1)
    assert other is not None
    assert other["content"][0]["id"] == "call_1_1_1"
    message = merger.message()
    assert message is not None
    merger.add(Message(message=message))
    assert merger.message() == message


BROKEN = [
    ('{"a":1', "truncated", 6, {"a": 1}),
    ('{"a":"x', "truncated", 7, {"a": "x"}),
    ('{"a":"x\\', "truncated", 8, {"a": "x"}),
    ('{"a":"x\\u12', "truncated", 11, {"a": "x"}),
    ('{"a":"x\\\\', "truncated", 9, {"a": "x\\"}),
    ('{"a":[1,{"b":tru', "truncated", 16, {"a": [1, {"b": True}]}),
    ('{"a":1,', "truncated", 7, {"a": 1}),
    ('{"a":1,"b', "truncated", 9, {"a": 1}),
    ('{"a":1,"b"', "truncated", 10, {"a": 1}),
    ('{"a":1,"b":', "truncated", 11, {"a": 1, "b": None}),
    ('{"a":1,"b":-', "truncated", 12, {"a": 1}),
    ('{"a', "truncated", 3, {}),
    ("{", "truncated", 1, {}),
    ('{"a":1}{"a":1}', "trailing", 7, {"a": 1}),
    ('{"é🎉":1} x', "trailing", 9, {"é🎉": 1}),
    ('{"a":"x\ny"}', "malformed", 7, {"a": "x\ny"}),
    ("{'a':1}", "malformed", 1, None),
    ('{"a":1,}', "malformed", 7, {"a": 1}),
    ('{"a":NaN}', "malformed", 5, None),
    ("Paris", "malformed", 0, None),
    ('```json\n{"a":1}\n```', "malformed", 0, {"a": 1}),
    ("[1]", "no_object", 0, None),
    ("null", "no_object", 0, {}),
    ('"{\\"a\\":1}"', "no_object", 0, {"a": 1}),
    ("5", "no_object", 0, None),
    ('{"a":' * 300 + "1" + "}" * 300, "too_deep", 0, None),
    ("[" * 100_000, "too_deep", 0, None),
]


@pytest.mark.parametrize(("raw", "code", "position", "repair"), BROKEN, ids=[row[0][:20] for row in BROKEN])
def test_broken_arguments_are_kept_raw_with_the_error_and_a_repair(
    raw: str, code: str, position: int, repair: Any
) -> None:
    (block,) = content(ToolCallDelta(call_id="c", name="f", arguments=raw))
    assert (block["arguments"], block["raw"]) == (None, raw)
    error = block["error"]
    assert (error["code"], error["position"]) == (code, position)
    if code != "malformed" or repair is not None:
        assert error["repair"] == repair
    assert error["message"]


def test_a_repaired_candidate_can_be_stored() -> None:
    error = parse_arguments('{"half": "\\ud83d", "none": NaN').error
    assert error is not None
    assert error["repair"] == {"half": "\ufffd", "none": None}


@given(st.text(st.sampled_from('{}[]",:\\ue1-.tfné\n '), max_size=30))
def test_parsing_raises_nothing_and_never_looks_valid_where_it_is_not(raw: str) -> None:
    value, error = parse_arguments(raw)
    assert (error is None) == isinstance(value, dict)
    if error is not None:
        assert 0 <= error["position"] <= len(raw)
        assert error["repair"] is None or isinstance(error["repair"], dict)


@given(st.dictionaries(TEXTS, st.recursive(TEXTS | st.integers() | st.booleans(), st.lists), max_size=3), st.data())
def test_a_truncated_object_is_repaired_to_a_part_of_it(value: dict[str, Any], data: st.DataObject) -> None:
    raw = encode(Raw("x", {"component_id": "a", **value})).data.decode()
    cut = data.draw(st.integers(1, len(raw) - 1))
    parsed = parse_arguments(raw[:cut])
    assert parsed.value is None
    assert parsed.error is not None
    repaired = parsed.error["repair"]
    assert isinstance(repaired, dict)
    assert len(repaired) <= len(value) + 2


def test_a_tool_that_starts_without_call_deltas_gets_its_block() -> None:
    run = [
        MessageDelta(text="let me look"),
        ToolStarted(call_id="c", name="search", args={"q": 1}),
        ToolStarted(call_id="d", name="read"),
        ToolCompleted(call_id="c", name="search", result="x"),
        ToolStarted(call_id="c", name="search", args={"q": 1}),
    ]
    assert content(*run) == [text("let me look"), call("c", "search", {"q": 1}), call("d", "read", {})]


def test_a_tool_that_starts_first_of_all_belongs_to_round_one() -> None:
    merger = fold(ToolStarted(call_id="c", name="f"))
    assert merger.rounds == 1
    assert merger.message(1) == {"role": "assistant", "content": [call("c", "f", {})]}


def test_a_tool_whose_call_is_known_adds_nothing() -> None:
    run = [ToolCallDelta(call_id="c", name="f", arguments='{"a":1}'), ToolStarted(call_id="c", name="f", args={"a": 1})]
    assert content(*run) == [call("c", "f", {"a": 1})]


def test_a_tools_arguments_as_text_are_parsed_like_any_others() -> None:
    assert content(ToolStarted(call_id="c", name="f", args='{"a":1}')) == [call("c", "f", {"a": 1})]
    (block,) = content(ToolStarted(call_id="c", name="f", args="ls -l"))
    assert (block["arguments"], block["raw"]) == (None, "ls -l")


def test_a_tool_behind_its_rounds_message_opens_the_next_round() -> None:
    """A second model call that says nothing and only calls a tool."""
    first = {"role": "assistant", "content": [text("a"), call("c", "f", {})]}
    run = [
        MessageDelta(text="a"),
        ToolStarted(call_id="c", name="f"),
        Message(round=1, message=first),
        ToolStarted(call_id="d", name="f"),
        ToolStarted(call_id="e", name="f"),
    ]
    merger = fold(*run, MessageDelta(round=3, text="b"))
    assert merger.message(1) == first
    assert merger.message(2) == {"role": "assistant", "content": [call("d", "f", {}), call("e", "f", {})]}
    assert text_of(merger.message(3)) == "b"


def test_a_tool_that_the_message_named_and_that_starts_later_adds_nothing() -> None:
    message = {"role": "assistant", "content": [call("c", "f", {})]}
    merger = fold(Message(round=1, message=message), ToolStarted(call_id="c", name="f"))
    assert (merger.rounds, merger.message()) == (1, message)


def test_an_id_that_is_used_again_in_the_next_round_is_another_call() -> None:
    run = [
        MessageDelta(text="a"),
        ToolStarted(call_id="call_0", name="f"),
        MessageDelta(round=2, text="b"),
        ToolStarted(call_id="call_0", name="f", args={"x": 2}),
    ]
    merger = fold(*run)
    assert merger.message(1) == {"role": "assistant", "content": [text("a"), call("call_0", "f", {})]}
    assert merger.message(2) == {"role": "assistant", "content": [text("b"), call("call_0", "f", {"x": 2})]}


def test_tools_without_ids_are_matched_by_name_in_order() -> None:
    run = [
        ToolCallDelta(index=0, call_id="a", name="f"),
        ToolCallDelta(index=1, call_id="b", name="f"),
        ToolStarted(call_id="", name="f"),
        ToolStarted(call_id="", name="f"),
        ToolStarted(call_id="", name="f"),
    ]
    assert [block["id"] for block in content(*run)] == ["a", "b", "call_1_3"]


# -- messages, fences, what may be cut off


def test_a_message_item_is_authoritative_and_its_unknown_fields_are_kept() -> None:
    message = {"role": "model", "content": [text("A"), {"type": "later"}], "finish_reason": "stop", "later_field": [1]}
    merger = fold(MessageDelta(text="a"), MessageDelta(index=1, text="b"), Message(message=message))
    assert merger.message() == message


@pytest.mark.parametrize(
    ("given_content", "blocks"),
    [
        ("hi", [text("hi")]),
        ("", []),
        (None, []),
        ([], []),
        (["hi"], [text("hi")]),
        (text("hi"), [text("hi")]),
        (5, [text("5")]),
    ],
)
def test_a_bare_string_is_one_text_block(given_content: Any, blocks: list[Any]) -> None:
    merger = fold(Message(message={"content": given_content}))
    assert merger.message() == {"role": "assistant", "content": blocks}


def test_deltas_behind_their_message_are_not_lost() -> None:
    run = [MessageDelta(text="a"), Message(message={"content": "A"}), MessageDelta(text="b"), MessageDelta(text="c")]
    assert content(*run) == [text("A"), text("bc")]


def test_what_events_say_of_the_model_is_set_once() -> None:
    merger = fold(
        Event(name="model.started", payload={"model": "m1", "round": 2}),
        MessageDelta(round=2, text="a"),
        Event(name="model.completed", payload={"model": "m2", "finish_reason": "stop", "usage": {"output_tokens": 1}}),
        Event(name="model.completed", payload={"finish_reason": "length", "round": "x", "choice": "y"}),
    )
    assert merger.message() == {
        "role": "assistant",
        "content": [text("a")],
        "model": "m1",
        "finish_reason": "stop",
        "usage": {"output_tokens": 1},
    }


def test_a_model_that_said_nothing_has_no_message() -> None:
    merger = fold(
        Event(name="model.started", payload={"model": "m"}), Event(name="model.completed"), MessageDelta(text="")
    )
    assert (merger.message(), merger.partial(), merger.rounds) == (None, None, 0)


def test_partial_marks_the_calls_that_may_lack_their_end() -> None:
    run = [
        MessageDelta(text="a"),
        ToolCallDelta(index=1, call_id="c", name="f", arguments='{"a":1}'),
        ToolStarted(call_id="c", name="f"),
        ToolCallDelta(index=2, call_id="d", name="f", arguments='{"a":1}'),
        ToolCallDelta(index=3, call_id="e", name="f", arguments='{"a":'),
    ]
    message = fold(*run).partial()
    assert message is not None
    said, started, unstarted, cut = message["content"]
    assert (said, started) == (text("a"), call("c", "f", {"a": 1}))
    for block in (unstarted, cut):
        assert (block["arguments"], block["error"]["code"]) == (None, "truncated")
    assert unstarted["error"]["repair"] == {"a": 1}


def test_partial_is_the_last_rounds_message_so_far() -> None:
    merger = fold(MessageDelta(text="a"), Message(message={"content": "a"}), MessageDelta(round=2, text="b"))
    assert text_of(merger.partial()) == "b"
    assert text_of(fold(MessageDelta(text="a")).partial()) == "a"


def test_a_fence_tells_what_retention_removed() -> None:
    final = items.Final(message={"content": "all of it"}, rounds=3)
    assert (
        text_of(fold(final).message())
        == text_of(fold(MessageDelta(round=3, text="of it"), final).message())
        == "all of it"
    )
    assert fold(final).rounds == 3
    cut = items.Final(message={"content": "all"}, rounds=3, truncated_bytes=6)
    assert text_of(fold(MessageDelta(round=3, text="all of it"), cut).message()) == "all of it"
    failed = items.Failed(code="x", message="y", partial={"content": "part"})
    assert text_of(fold(failed).message()) == "part"
    assert text_of(fold(MessageDelta(text="a"), failed).message()) == "a"
    assert fold(final).outcome == final


def test_usage_adds_up_and_a_null_wipes_nothing() -> None:
    merger = fold(
        Usage(input_tokens=10, output_tokens=1, total={"input_tokens": 10, "output_tokens": 1}),
        Usage(input_tokens=None, output_tokens=4, total={"input_tokens": None, "output_tokens": 5}),
        Usage(output_tokens=2),
        items.Cost(amount="0.1", total="0.1"),
        items.Cost(amount="0.2", total="0.3", estimated=True),
    )
    assert merger.usage == {
        "input_tokens": 10,
        "output_tokens": 7,
        "cache_read_tokens": None,
        "cache_write_tokens": None,
        "reasoning_tokens": None,
    }
    assert merger.cost == {"total": "0.3", "currency": "USD", "estimated": True}
    assert (Merger().usage, Merger().cost) == (None, None)


def test_items_that_are_wrong_are_counted_and_passed_over() -> None:
    merger = fold(
        MessageDelta(text="a"),
        Raw("message.delta", {"text": 5}),
        Raw("message.delta", {"text": "b", "later_field": 1}),
        Raw("message.delta", {"text": object()}),
        Raw("later.type", {"text": "x"}),
    )
    assert (text_of(merger.message()), merger.skipped) == ("ab", 2)
    stored = merge_entries(
        [Entry(1, b"message.delta", b"[]"), Entry(2, b"later.type", b"["), *log_of([MessageDelta(text="a")])]
    )
    assert (text_of(stored.message()), stored.skipped) == ("a", 1)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (None, ""),
        ({}, ""),
        ({"content": "a"}, "a"),
        ({"content": [text("a"), {"type": "reasoning", "text": "r"}, text("b"), "c", {"type": "text"}]}, "ab"),
    ],
)
def test_text_of_a_message(message: dict[str, Any] | None, said: str) -> None:
    assert text_of(message) == said
