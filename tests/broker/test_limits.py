"""The size limit: text is split and nothing of it is lost; anything else is cut, marked, and still of its type."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import items
from broker.errors import InvalidItem
from broker.items import Event, Item, MessageDelta, Raw, ReasoningDelta, RefusalDelta, ToolCallDelta, decode, encode
from broker.limits import Fit, fit
from broker.merge import Merger
from tests.broker.streams import ITEMS, NASTY

LIMITS = st.integers(512, 4096)
LONG = st.builds(
    lambda alphabet, n: (alphabet * n)[:n],
    st.text(st.sampled_from(NASTY + "ab "), min_size=1, max_size=20),
    st.integers(0, 9_000),
)


def merge(fitted: Fit) -> dict[str, Any] | None:
    merger = Merger()
    for encoded in fitted.encoded:
        merger.add(decode(*encoded))
    return merger.message()


def merge_one(item: Item) -> dict[str, Any] | None:
    merger = Merger()
    merger.add(item)
    return merger.message()


@given(ITEMS, st.floats(1, 2e9))
def test_an_item_that_fits_is_as_it_was(item: Item, ts: float) -> None:
    encoded = encode(item, ts=ts)
    assert fit(item, len(encoded.data), ts) == Fit([encoded], 0, 0)


@given(LONG, LIMITS, st.sampled_from([MessageDelta, RefusalDelta, ReasoningDelta]))
def test_text_is_split_and_none_of_it_is_lost(text: str, limit: int, cls: type[Any]) -> None:
    item = cls(ts=5.0, round=2, index=3, component_id="c", session_id="s", text=text)
    fitted = fit(item, limit)
    assert all(len(encoded.data) <= limit for encoded in fitted.encoded)
    parts = [decode(*encoded) for encoded in fitted.encoded]
    assert [{**_fields(part), "text": ""} for part in parts] == [{**_fields(item), "text": ""}] * len(parts)
    assert "".join(_fields(part)["text"] for part in parts) == text
    assert (fitted.split, fitted.truncated_bytes) == (len(parts) - 1, 0)
    assert merge(fitted) == merge_one(item)


def _fields(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__struct_fields__}


@pytest.mark.parametrize("character", ["a", "é", "—", "🎉", "\u2028", "\0", '"'])
def test_the_parts_are_nearly_full(character: str) -> None:
    fitted = fit(MessageDelta(text=character * 100_000), 4096, 1.0)
    assert all(len(encoded.data) > 3500 for encoded in fitted.encoded[:-1])


def test_a_character_of_two_surrogates_is_not_torn() -> None:
    text = "\ud83c\udf89" * 2_000
    fitted = fit(MessageDelta(text=text), 512, 1.0)
    assert "".join(json.loads(e.data)["text"] for e in fitted.encoded) == "🎉" * 2_000


def test_a_signature_stands_behind_the_last_part_and_a_name_in_the_first() -> None:
    signed = fit(ReasoningDelta(text="x" * 2_000, signature="s"), 512, 1.0)
    assert [("signature" in json.loads(e.data)) for e in signed.encoded] == [False] * signed.split + [True]
    call = fit(ToolCallDelta(call_id="c", name="f", arguments=json.dumps({"a": "x" * 2_000})), 512, 1.0)
    assert [("name" in json.loads(e.data)) for e in call.encoded] == [True] + [False] * call.split
    assert all(json.loads(e.data)["call_id"] == "c" for e in call.encoded)
    assert merge(call) == {
        "role": "assistant",
        "content": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": "x" * 2_000}}],
    }


def test_unknown_fields_of_a_split_delta_are_kept() -> None:
    fitted = fit(Raw("message.delta", {"ts": 2.0, "text": "x" * 2_000, "later_field": [1]}), 512)
    assert fitted.split > 0
    assert all(json.loads(e.data)["later_field"] == [1] for e in fitted.encoded)
    assert all(json.loads(e.data)["ts"] == 2.0 for e in fitted.encoded)


def test_what_stands_beside_a_long_text_is_cut_where_it_is_too_long_itself() -> None:
    fitted = fit(ReasoningDelta(text="é" * 2_000, signature="s" * 5_000), 1024, 1.0)
    assert all(len(encoded.data) <= 1024 for encoded in fitted.encoded)
    parts = [json.loads(e.data) for e in fitted.encoded]
    assert "".join(part["text"] for part in parts) == "é" * 2_000
    assert parts[-1]["truncated_bytes"] == fitted.truncated_bytes > 4_000
    assert "truncated_bytes" not in parts[0]


BIG = "long " * 2_000
OVERSIZED: list[Item | Raw] = [
    items.Annotation(annotation={"url": BIG}),
    items.Message(message={"role": "assistant", "content": [{"type": "text", "text": BIG}], "finish_reason": "stop"}),
    items.ToolStarted(call_id="c", name="f", args={"path": "a", "content": BIG}),
    items.ToolStarted(call_id="c", name="f", args=[BIG]),
    items.ToolStarted(call_id=BIG, name=BIG, preview=BIG),
    items.ToolProgress(call_id="c", name="f", preview=BIG),
    items.ToolCompleted(call_id="c", name="f", result=BIG, duration_ms=3.5),
    items.ToolCompleted(call_id="c", name="f", result=list(range(5_000))),
    items.ToolCompleted(call_id="c", name="f", result={f"key{i}": i for i in range(2_000)}),
    items.ToolCompleted(call_id="c", name="f", result={BIG: BIG}),
    items.ToolCompleted(call_id="c", name="f", result=[[["🎉" * 3_000], "é" * 3_000], '"' * 9_000, "\0" * 9_000]),
    items.ToolFailed(call_id="c", name="f", error=BIG),
    items.Usage(total={f"t{i}": i for i in range(2_000)}),
    items.Cost(amount="1", total="2", currency=BIG),
    items.Cache(status="hit", what=BIG),
    items.Summary(text=BIG, replaces=[BIG] * 3),
    Event(name="warning", payload={"message": BIG, "n": 1}),
    Event(name="warning", payload={f"key{i}": BIG for i in range(500)}),
    Event(name=BIG, component_id=BIG, session_id=BIG, parent_run_id=BIG),
    items.Final(message={"content": [{"type": "text", "text": BIG}] * 20}, metadata={"a": BIG}, usage={"a": BIG}),
    items.Failed(code="x", message=BIG, partial={"content": BIG}),
    items.Cancelled(partial={"content": [{"type": "text", "text": BIG}]}),
    Raw("later.type", {"anything": BIG}),
    Raw("later.type", {f"key{i}": i for i in range(5_000)}),
    Raw("final", {**{f"key{i}": i for i in range(5_000)}, "rounds": 3}),
    Raw("message.delta", {"text": "a", "later_field": BIG}),
]


@pytest.mark.parametrize("limit", [512, 1024, 4096])
@pytest.mark.parametrize("item", OVERSIZED, ids=lambda item: str(item)[:40])
def test_any_longer_item_is_cut_marked_and_still_of_its_type(item: Item | Raw, limit: int) -> None:
    fitted = fit(item, limit, 1.0)
    (encoded,) = fitted.encoded
    whole = encode(item, ts=1.0)
    assert encoded.type == whole.type
    assert len(encoded.data) <= limit
    decode(*encoded)
    kept, fields = json.loads(encoded.data), json.loads(whole.data)
    assert (
        kept.pop("truncated_bytes") == fitted.truncated_bytes == len(whole.data) - len(encode(Raw("x", kept)).data) > 0
    )
    for name, value in kept.items():
        assert type(value) is type(fields[name])
        if isinstance(value, str):
            assert fields[name].startswith(value)
    if not (isinstance(item, Event) or limit < 1024):
        assert len(encoded.data) > limit // 8


def test_short_fields_survive_beside_a_long_one() -> None:
    item = items.ToolStarted(
        call_id="c", name="f", args={"path": "/etc/hosts", "content": BIG, "mode": 420}, preview="p"
    )
    (encoded,) = fit(item, 1024, 1.0).encoded
    cut = decode(*encoded)
    assert isinstance(cut, items.ToolStarted)
    assert (cut.call_id, cut.name, cut.preview) == ("c", "f", "p")
    assert (cut.args["path"], cut.args["mode"]) == ("/etc/hosts", 420)
    assert BIG.startswith(cut.args["content"])
    assert len(cut.args["content"]) > 600


def test_nesting_without_end_is_cut_too() -> None:
    value: Any = BIG
    for _ in range(200):
        value = {"a": [value]}
    fitted = fit(items.ToolCompleted(call_id="c", name="f", result=value), 2048, 1.0)
    assert len(fitted.encoded[0].data) <= 2048
    decode(*fitted.encoded[0])


def test_an_item_that_was_cut_before_adds_up() -> None:
    once = fit(items.Summary(text=BIG), 4096, 1.0)
    twice = fit(decode(*once.encoded[0]), 1024)
    assert json.loads(twice.encoded[0].data)["truncated_bytes"] == once.truncated_bytes + twice.truncated_bytes


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | LONG,
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(LONG.map(lambda t: t[:600]), inner, max_size=5),
    max_leaves=12,
)


@given(_JSON, LIMITS, st.sampled_from(["tool.completed", "event", "later.type", "summary"]))
def test_whatever_the_value_it_fits(value: Any, limit: int, type_: str) -> None:
    fields = {"call_id": "c", "name": "n", "text": "t", "result": value, "replaces": value, "ts": 2.0}
    fitted = fit(Raw(type_, fields), limit)
    (encoded,) = fitted.encoded
    assert len(encoded.data) <= limit
    decode(*encoded)
    assert ("truncated_bytes" in json.loads(encoded.data)) == (fitted.truncated_bytes > 0)


def test_values_without_a_json_form_are_refused() -> None:
    with pytest.raises(InvalidItem):
        fit(items.Summary(text="a", replaces=object()), 1024)
