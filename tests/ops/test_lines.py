"""Export lines: what is written is read back; what is no item is refused, saying why."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import InvalidItem
from broker.items import Entry, encode
from ops.lines import Splitter, item_of_line, line_of_item


def stored(line: bytes) -> tuple[str, dict[str, object]]:
    encoded = encode(item_of_line(line), ts=7.0)
    return encoded.type, json.loads(encoded.data)


def test_a_line_becomes_an_item_with_its_fields_and_defaults() -> None:
    assert stored(b'{"type":"message.delta","data":{"text":"a","of_later":[1]}}') == (
        "message.delta",
        {"ts": 7.0, "component_id": "agent", "text": "a", "of_later": [1]},
    )


def test_time_and_component_are_kept() -> None:
    _, fields = stored(b'{"type":"message.delta","ts":3.5,"component_id":"step:2","data":{"text":"a"}}')
    assert (fields["ts"], fields["component_id"]) == (3.5, "step:2")


def test_a_type_that_this_version_does_not_know_passes() -> None:
    assert stored(b'{"type":"from.the_future","data":{"deep":{"x":[null]}}}')[1]["deep"] == {"x": [None]}


def test_data_may_be_left_out() -> None:
    assert stored(b'{"type":"final"}')[0] == "final"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nonsense", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'"text"', "an object is needed"),
        (b"{}", "type is needed"),
        (b'{"type":5}', "type is needed"),
        (b'{"type":"Message"}', "is no item type"),
        (b'{"type":"end"}', "control frame"),
        (b'{"type":"error"}', "control frame"),
        (b'{"type":"message.delta","text":"a"}', "unknown field 'text'"),
        (b'{"type":"message.delta","data":{}}', "text"),
        (b'{"type":"message.delta","data":{"text":5}}', "text"),
        (b'{"type":"message.delta","data":[]}', "data must be an object"),
        (b'{"type":"message.delta","ts":"now","data":{"text":"a"}}', "ts must be a number"),
        (b'{"type":"message.delta","ts":true,"data":{"text":"a"}}', "ts must be a number"),
        (b'{"type":"message.delta","component_id":1,"data":{"text":"a"}}', "component_id"),
        (b'{"type":"event","data":{"no":"name"}}', "name"),
    ],
)
def test_what_is_no_item_is_refused_saying_why(line: bytes, why: str) -> None:
    with pytest.raises(InvalidItem, match=why):
        item_of_line(line)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
names = st.text("abc_", min_size=1, max_size=6).filter(lambda n: n not in ("ts",))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(names, json_values, max_size=4), st.floats(1, 1e10), st.sampled_from(["agent", "tool:x"]))
def test_out_and_in_again_is_the_same_item(fields: dict[str, object], ts: float, component: str) -> None:
    data = json.dumps({"ts": ts, "component_id": component, **fields}).encode()
    line = line_of_item(Entry(1, b"of.later", data))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert stored(line) == ("of.later", json.loads(data))


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_lines_are_the_same_however_the_bytes_are_cut(ending: bytes) -> None:
    text = "ä one".encode() + ending + ending + b"two" + ending + b"three"
    for cut in range(len(text) + 1):
        splitter = Splitter()
        lines = [*splitter.feed(text[:cut]), *splitter.feed(text[cut:]), splitter.end()]
        assert lines == ["ä one".encode(), b"", b"two", b"three"]


def test_nothing_is_left_after_a_last_newline() -> None:
    splitter = Splitter()
    assert list(splitter.feed(b"a\n")) == [b"a"]
    assert splitter.end() is None


def test_a_line_is_bounded() -> None:
    splitter = Splitter(limit=10)
    assert list(splitter.feed(b"123456789\n12345")) == [b"123456789"]
    with pytest.raises(InvalidItem, match="10 bytes"):
        list(splitter.feed(b"678901"))
