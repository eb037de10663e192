"""What a message is where its provider left something out, or off: cut calls, free text, signatures, choices."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from broker.items import (
    Event,
    Item,
    Message,
    MessageDelta,
    ReasoningDelta,
    ToolCallDelta,
    ToolStarted,
    decode,
    encode,
)
from broker.merge import Merger

ARGUMENTS = '{"a":1}'


def fold(*run: Item) -> Merger:
    merger = Merger()
    for item in run:
        merger.add(item)
    return merger


def content(*run: Item) -> list[dict[str, Any]]:
    message = fold(*run).message()
    assert message is not None
    blocks: list[dict[str, Any]] = message["content"]
    return blocks


def completed(**payload: Any) -> Event:
    return Event(name="model.completed", payload={"round": 1, **payload})


def called(id: str = "c", index: int = 0, arguments: str = ARGUMENTS, **fields: Any) -> ToolCallDelta:
    return ToolCallDelta(index=index, call_id=id, name="f", arguments=arguments, **fields)


CUTS: list[dict[str, Any]] = [
    {"incomplete": True},
    {"finish_reason": "length"},
    {"finish_reason": "max_tokens"},
    {"finish_reason": "MAX_TOKENS"},
    {"finish_reason": "model_length"},
    {"finish_reason": "incomplete:max_output_tokens"},
    {"finish_reason": "error"},
    {"finish_reason": "content_filter"},
    {"finish_reason": "tool_calls", "incomplete_blocks": [0]},
]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize(("arguments", "repair"), [(ARGUMENTS, {"a": 1}), ("", None)])
def test_a_call_that_the_end_cut_is_not_valid_though_its_text_parses(
    cut: dict[str, Any], arguments: str, repair: Any
) -> None:
    (block,) = content(called(arguments=arguments), completed(**cut))
    assert (block["arguments"], block["raw"]) == (None, arguments)
    assert block["error"] == {
        "code": "truncated",
        "message": "the stream ended before the call was complete",
        "position": len(arguments),
        "repair": repair,
    }


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "tool_use", "STOP", "completed", "pause_turn"])
def test_other_ends_leave_calls_as_they_are(reason: str) -> None:
    (block,) = content(called(), completed(finish_reason=reason))
    assert block["arguments"] == {"a": 1}


@pytest.mark.parametrize("cut", CUTS[:2], ids=str)
@pytest.mark.parametrize(
    "behind",
    [called("d", 1), MessageDelta(index=1, text="x"), ReasoningDelta(index=1, text="x")],
    ids=lambda i: i.index,
)
def test_the_end_cuts_what_was_under_way_not_what_came_before(cut: dict[str, Any], behind: Item) -> None:
    first, *rest = content(called(), behind, completed(**cut))
    assert first["arguments"] == {"a": 1}
    assert all(block["arguments"] is None for block in rest if block["type"] == "tool_call")


def test_text_that_goes_on_behind_a_call_shows_that_the_call_was_complete() -> None:
    run = [MessageDelta(index=1, text="a"), called(), MessageDelta(index=1, text="b"), completed(incomplete=True)]
    assert [b.get("arguments") for b in content(*run)] == [None, {"a": 1}]
    # and the other way round
    run = [called(), MessageDelta(index=1, text="a"), called(arguments=""), called(arguments=" "), run[-1]]
    assert content(*run)[0]["error"]["code"] == "truncated"


def test_a_call_whose_tool_started_was_complete() -> None:
    (block,) = content(called(), ToolStarted(call_id="c", name="f"), completed(incomplete=True))
    assert block["arguments"] == {"a": 1}


def test_an_end_counts_for_its_choice_only() -> None:
    run = [
        called(),
        called("d", choice=1),
        completed(choice=1, finish_reason="length"),
        completed(finish_reason="stop"),
    ]
    merger = fold(*run)
    messages = [merger.message(1, choice) for choice in merger.choices(1)]
    assert [m["content"][0]["arguments"] for m in messages if m] == [{"a": 1}, None]


def test_partial_keeps_the_calls_of_a_model_that_was_done() -> None:
    for end, arguments in (
        ([], None),
        ([completed(finish_reason="length")], None),
        ([completed(finish_reason="x")], {"a": 1}),
    ):
        message = fold(called(), called("d", 1), *end).partial()
        assert message is not None
        assert [block["arguments"] for block in message["content"]] == [arguments] * 2


def test_blocks_that_were_never_closed_say_so() -> None:
    run = [ReasoningDelta(text="r"), MessageDelta(index=1, text="a"), completed(incomplete_blocks=[1, "x", 7])]
    assert content(*run) == [{"type": "reasoning", "text": "r"}, {"type": "text", "text": "a", "incomplete": True}]


def test_free_text_for_a_tool_is_no_json_and_valid_as_it_is() -> None:
    block = {"type": "tool_call", "id": "c", "name": "f", "kind": "custom", "input": "print(1)"}
    run = [ToolCallDelta(call_id="c", name="f", arguments="print(", kind="custom"), called(arguments="1)")]
    assert content(*run) == [block]
    cut = content(*run, completed(finish_reason="length"))[0]
    assert cut.pop("error")["code"] == "truncated"
    assert cut == block


def test_a_call_without_a_name_is_shown_and_not_valid() -> None:
    (block,) = content(ToolCallDelta(call_id="c", arguments=ARGUMENTS))
    assert (block["name"], block["arguments"], block["raw"]) == ("", None, ARGUMENTS)
    assert block["error"] == {
        "code": "nameless",
        "message": "the call names no tool",
        "position": 0,
        "repair": {"a": 1},
    }
    (block,) = content(ToolCallDelta(call_id="c", arguments="{"))
    assert block["error"]["code"] == "truncated"
    (block,) = content(ToolCallDelta(call_id="c", arguments=ARGUMENTS), called(arguments=""))
    assert (block["name"], block["arguments"]) == ("f", {"a": 1})


def test_signatures_of_texts_and_calls_survive() -> None:
    run = [
        MessageDelta(text="a"),
        MessageDelta(text="b", signature="s1"),
        MessageDelta(text="", signature="s1"),
        MessageDelta(text="c", signature="s2"),
        MessageDelta(text="d"),
        called(index=1, signature="s3"),
        called(index=1, arguments=""),
    ]
    assert content(*run) == [
        {"type": "text", "text": "ab", "signature": "s1"},
        {"type": "text", "text": "cd", "signature": "s2"},
        {"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}, "signature": "s3"},
    ]
    assert content(MessageDelta(text="", signature="s")) == [{"type": "text", "text": "", "signature": "s"}]


def test_the_text_of_every_call_on_request() -> None:
    merger = fold(called(arguments=' {"a": 1}'), called("d", 1, arguments="{"))
    message = merger.message(raw=True)
    assert message is not None
    assert [block["raw"] for block in message["content"]] == [' {"a": 1}', "{"]
    assert "raw" not in content(called())[0]


def test_choices_that_have_content() -> None:
    run = [MessageDelta(text="a", choice=2), MessageDelta(text="a"), MessageDelta(text="b", round=2, choice=1)]
    merger = fold(*run, completed(choice=5, finish_reason="stop"))
    assert (merger.choices(1), merger.choices(), merger.choices(3)) == ([0, 2], [1], [])


def test_new_fields_are_stored_and_read_and_absent_by_default() -> None:
    for item in (called(kind="custom", signature="s"), MessageDelta(text="a", signature="s")):
        assert decode(*encode(item, ts=1.0)) == type(item)(
            **{f: getattr(item, f) for f in item.__struct_fields__} | {"ts": 1.0}
        )
    assert b"signature" not in encode(MessageDelta(text="a")).data + encode(called()).data
    assert called().kind is UNSET


def test_a_message_replaces_what_was_marked() -> None:
    whole = {"role": "assistant", "content": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 2}}]}
    assert fold(called(), Message(message=whole), completed(incomplete=True)).message() == whole
