"""The stored form: golden files, round trips, and what a renderer and the append script rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import items
from broker.errors import InvalidItem, UnknownMode
from broker.items import Encoded, Event, Item, MessageDelta, Mode, Raw, decode, encode, from_fields, modes_of
from tests.broker.streams import ANY_ITEM, ITEMS, JSON, TEXTS

GOLDEN = Path(__file__).parent / "golden"
LINE_ENDS = ("\r", "\n", "\u2028", "\u2029", "\u0085")

GOLDEN_ITEMS: dict[str, Item | Raw] = {
    "text": MessageDelta(ts=1764445312.345, text=" hello"),
    "text, every field": MessageDelta(
        ts=1764445312.5,
        component_id="step:2",
        parent_run_id="run_parent",
        session_id="s-1",
        round=3,
        index=4,
        choice=1,
        text='é 🎉 \u2028\u2029\u0085 \r\n\0\t"\\/ “—”',
    ),
    "text, cut": MessageDelta(ts=1.0, truncated_bytes=12, text=""),
    "reasoning": items.ReasoningDelta(ts=2.0, text="hm"),
    "reasoning, signed": items.ReasoningDelta(ts=2.0, index=1, signature="c2ln"),
    "reasoning, redacted": items.ReasoningDelta(ts=2.0, redacted={"type": "redacted_thinking", "data": "b64"}),
    "refusal": items.RefusalDelta(ts=3.0, text="I cannot"),
    "annotation": items.Annotation(ts=4.0, index=1, annotation={"type": "url_citation", "url": "https://a.example"}),
    "message": items.Message(
        ts=5.0,
        round=2,
        message={
            "role": "assistant",
            "content": [{"type": "text", "text": "hi"}, {"type": "tool_call", "id": "c", "name": "f", "arguments": {}}],
            "finish_reason": "tool_calls",
            "later_field": [1, 2.5, None, True],
        },
    ),
    "call, first fragment": items.ToolCallDelta(ts=6.0, call_id="c1", name="f", arguments='{"a":'),
    "call, later fragment": items.ToolCallDelta(ts=6.0, index=1, arguments="1}"),
    "tool started": items.ToolStarted(
        ts=7.0, component_id="tool:f", call_id="c1", name="f", args={"a": 1}, preview="f 1"
    ),
    "tool progress": items.ToolProgress(ts=7.0, call_id="c1", name="f", preview="half"),
    "tool completed": items.ToolCompleted(ts=7.0, call_id="c1", name="f", result="ok", duration_ms=12.5),
    "tool failed": items.ToolFailed(ts=7.0, call_id="c1", name="f", error="no such file", result={"exit": 2}),
    "usage": items.Usage(ts=8.0, input_tokens=10, output_tokens=3, total={"input_tokens": 30, "output_tokens": None}),
    "cost": items.Cost(ts=9.0, amount="0.0012", total="0.0100", estimated=True),
    "cache": items.Cache(ts=10.0, status="hit", tokens=900),
    "summary": items.Summary(ts=11.0, text="so far", replaces={"rounds": [1, 2]}),
    "event": Event(ts=12.0, name="run.restarted", payload={"attempt": 2, "reason": "worker_lost"}),
    "event, every field": Event(
        ts=12.0, component_id="step:1", parent_run_id="p", session_id="s", truncated_bytes=1, name="warning", payload={}
    ),
    "final": items.Final(
        ts=13.0,
        message={"role": "assistant", "content": [{"type": "text", "text": "hi"}]},
        rounds=2,
        usage={"input_tokens": 1},
        cost={"total": "0.01", "currency": "USD"},
        hermes_session_id="20251129_220000_abcdef",
        metadata={"confidence": 0.9},
    ),
    "final, empty": items.Final(ts=13.0),
    "failed": items.Failed(ts=14.0, code="worker_lost", message="its worker vanished", retryable=True, partial={}),
    "cancelled": items.Cancelled(ts=15.0),
    "unknown type": Raw("later.type", {"ts": 16.0, "component_id": "agent", "anything": {"a": [1]}}),
}


def golden(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / name).read_text("utf-8").splitlines()]


def test_the_golden_file_has_every_case_and_every_type() -> None:
    lines = golden("items.jsonl")
    assert [line["case"] for line in lines] == list(GOLDEN_ITEMS)
    assert items.TYPES.keys() <= {line["t"] for line in lines}


@pytest.mark.parametrize("line", golden("items.jsonl"), ids=lambda line: line["case"])
def test_todays_code_reads_and_writes_the_stored_format(line: dict[str, Any]) -> None:
    """If this fails, the format has changed: a rolling deploy would read entries that it does not understand."""
    item = GOLDEN_ITEMS[line["case"]]
    stored = Encoded(line["t"], line["d"].encode())
    assert encode(item) == stored
    assert decode(stored.type.encode(), stored.data) == item
    assert encode(decode(*stored)) == stored


@pytest.mark.parametrize("line", golden("foreign.jsonl"), ids=lambda line: line["case"])
def test_todays_code_reads_what_other_writers_store(line: dict[str, Any]) -> None:
    """Left out fields, fields in another order, fields that came later, white space."""
    item = decode(line["t"], line["d"].encode())
    assert json.loads(encode(item).data) == line["reads_as"]


@given(ITEMS, st.floats(1, 2e9))
def test_encode_then_decode_is_the_item(item: Item, ts: float) -> None:
    encoded = encode(item, ts=ts)
    stamped = item if item.ts else msgspec.structs.replace(item, ts=ts)
    assert encoded == encode(stamped)
    assert decode(encoded.type, encoded.data) == decode(encoded.type.encode(), encoded.data) == stamped


@given(ITEMS)
def test_a_stored_item_is_one_line_for_every_reader_and_can_be_spliced(item: Item) -> None:
    data = encode(item, ts=1764445312.345).data
    assert data.startswith(b'{"ts":')
    assert data.endswith(b"}")
    assert not any(end in data.decode() for end in LINE_ENDS)
    assert len(data.decode().splitlines()) == 1
    spliced = json.loads(b'{"run_id":"r","seq":7,' + data[1:])
    assert (spliced["run_id"], spliced["seq"]) == ("r", 7)
    assert "type" not in spliced


@given(st.sampled_from(sorted(ANY_ITEM)).flatmap(lambda name: ANY_ITEM[name]), st.dictionaries(TEXTS, JSON, max_size=3))
def test_unknown_fields_are_kept(item: Item, extra: dict[str, Any]) -> None:
    encoded = encode(item, ts=3.0)
    fields = json.loads(encoded.data)
    extra = {f"x-{name}": value for name, value in extra.items()}
    again = encode(from_fields(encoded.type, {**fields, **extra}))
    assert json.loads(again.data) == {**fields, **extra}
    decode(again.type, again.data)


@pytest.mark.parametrize("ts", [0, 0.0, -0.0])
def test_an_item_without_time_gets_the_publishers(ts: float) -> None:
    assert encode(MessageDelta(ts=ts, text="a"), ts=5.5).data.startswith(b'{"ts":5.5,"component_id":"agent",')
    assert encode(Raw("x", {"ts": ts}), ts=5.5).data == b'{"ts":5.5,"component_id":"agent"}'


@pytest.mark.parametrize(
    ("text", "stored"),
    [("\ud83d", "\ufffd"), ("a\udc80b", "a\ufffdb"), ("\ud83c\udf89", "🎉"), ("ok", "ok")],
)
def test_lone_surrogates_become_replacement_characters(text: str, stored: str) -> None:
    for item in (MessageDelta(text=text), Event(name="e", payload={text: [text]}), Raw("x", {"text": text})):
        fields = json.loads(encode(item, ts=1.0).data)
        assert fields.get("text", stored) == stored
        assert fields.get(stored, [stored]) == [stored]


def _deep() -> Any:
    value: Any = []
    for _ in range(50_000):
        value = [value]
    return value


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, _deep(), {"a": ["\ud800", object()]}], ids=range(4))
def test_values_without_a_json_form_are_refused(value: Any) -> None:
    for item in (items.ToolCompleted(call_id="c", name="f", result=value), Raw("x", {"v": value})):
        with pytest.raises(InvalidItem):
            encode(item)


def test_something_else_than_an_item_is_refused() -> None:
    with pytest.raises(InvalidItem, match="str is no item class"):
        encode("text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("message.delta", b'{"ts":1.0}'),
        ("message.delta", b'{"ts":1.0,"text":5}'),
        ("message.delta", b"[]"),
        ("message.delta", b'{"ts":1.0,"text":"a"'),
        ("message.delta", b'{"ts":1.0,"text":"\xff"}'),
        ("event", b'{"ts":1.0}'),
        ("event", b'{"ts":1.0,"name":5}'),
        ("event", b'{"ts":"x","name":"n"}'),
        ("later.type", b"[]"),
        ("later.type", b'{"a":' + b"[" * 50_000),
    ],
)
def test_what_is_no_item_is_refused(type_: str | bytes, data: bytes) -> None:
    with pytest.raises(InvalidItem):
        decode(type_, data)


@given(st.binary(max_size=40), st.sampled_from([*items.TYPES, "later.type"]))
def test_decode_raises_nothing_but_invalid_item(data: bytes, type_: str) -> None:
    try:
        decode(type_, data)
    except InvalidItem:
        return


@pytest.mark.parametrize(
    "type_", ["", "A", "a b", "a" * 65, "a\n", "é", "end", "reset", "gap", "cursor", "open", "error"]
)
def test_impossible_types_are_refused(type_: str) -> None:
    with pytest.raises(InvalidItem) as caught:
        from_fields(type_, {})
    assert caught.value.field == "type"


@pytest.mark.parametrize(
    "fields", [{"ts": "soon"}, {"ts": [1]}, {"component_id": 5}, {"session_id": {}}, {"parent_run_id": 1}]
)
@pytest.mark.parametrize("type_", ["later.type", "message.delta"])
def test_the_envelope_is_checked_in_unknown_types_too(type_: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidItem):
        from_fields(type_, {"text": "a", **fields})


def test_an_events_payload_stands_beside_its_name() -> None:
    data = encode(
        Event(name="warning", payload={"a": 1, "name": "other", "ts": 9, "seq": 4, "run_id": "x"}), ts=1.0
    ).data
    assert data == b'{"ts":1.0,"component_id":"agent","name":"warning","a":1}'


@pytest.mark.parametrize(
    ("values", "modes"),
    [
        ("", Mode.EVENTS),
        ([], Mode.EVENTS),
        (" , ", Mode.EVENTS),
        ("messages", Mode.MESSAGES),
        ("messages,tools", Mode.MESSAGES | Mode.TOOLS),
        (["messages", "tools,final"], Mode.MESSAGES | Mode.TOOLS | Mode.FINAL),
        (" Messages , USAGE ", Mode.MESSAGES | Mode.USAGE),
        ("cost,cost", Mode.COST),
    ],
)
def test_modes(values: str | list[str], modes: Mode) -> None:
    assert items.parse_modes(values) == modes


@pytest.mark.parametrize("values", ["message", "all", "messages;tools", "63", "messages,nope"])
def test_unknown_modes_are_refused_and_the_known_ones_listed(values: str) -> None:
    with pytest.raises(UnknownMode, match="messages, tools, usage, cost, events, final"):
        items.parse_modes(values)


def test_every_item_is_an_event_and_fences_are_everything() -> None:
    for name in items.TYPES:
        assert modes_of(name.encode()) & Mode.EVENTS
    for fence in items.FENCES:
        assert modes_of(fence.encode()) == Mode(63)
    assert modes_of(b"later.type") == Mode.EVENTS
    assert set(items.STATUS_OF_FENCE) == set(items.FENCES)
