"""What holds for every provider and every stream: recorded ones, cut, mutated, and bytes by chance."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.compact import compact
from broker.items import Event, Item, Message, Usage, encode
from broker.merge import COUNTS, Merger, merge_entries
from tests.broker.streams import log_of
from tests.workers.providers import recordings
from workers.merged import MergedStream
from workers.providers import ADAPTERS

APIS = sorted(ADAPTERS)
RECORDED = recordings.apis()
by_recording = pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=f"{name}:{api}") for name, api in RECORDED.items()]
    or [pytest.param("", marks=pytest.mark.skip(reason="no recorded provider streams"))],
)
slow = settings(
    max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None
)


@functools.cache
def stream_of(name: str) -> bytes:
    return recordings.load(name).stream


@functools.cache
def items_of(name: str) -> list[Item]:
    return read(RECORDED[name], [stream_of(name)])


def read(api: str, chunks: list[bytes]) -> list[Item]:
    stream = MergedStream(api)
    return [item for chunk in chunks for item in stream.feed(chunk)] + stream.close()


def fold(items: list[Item]) -> Merger:
    merger = Merger()
    for item in items:
        merger.add(item)
    return merger


def messages(merger: Merger) -> dict[int, dict[str, Any] | None]:
    return {choice: merger.message(1, choice) for choice in merger.choices(1)}


def check(items: list[Item]) -> None:
    """Whatever the bytes were."""
    merger = fold(items)
    entries = log_of(items)  # every item can be stored
    assert messages(merge_entries(entries)) == messages(merger)
    assert messages(merge_entries(compact(entries))) == messages(merger)
    usage = [item for item in items if isinstance(item, Usage)]
    for count in COUNTS:
        told = [n for item in usage if (n := getattr(item, count)) is not None]
        assert (sum(told) if told else None) == (usage[-1].total[count] if usage else None)
    events = [item for item in items if isinstance(item, Event)]
    ends = [e.payload.get("choice", 0) for e in events if e.name == "model.completed"]
    assert len(ends) == len(set(ends)), "a choice ends once"
    for name in ("model.started", "model.failed"):
        assert len([e for e in events if e.name == name]) <= 1
    for message in messages(merger).values():
        check_message(message or {})


def check_message(message: dict[str, Any]) -> None:
    encode(Message(message=message))
    for block in message["content"]:
        if block["type"] == "tool_call" and block.get("kind") != "custom":
            assert block["id"]
            assert ("error" in block) == (block["arguments"] is None)
            assert "error" in block or block["name"]


@by_recording
def test_recorded_streams(name: str) -> None:
    check(items_of(name))


@by_recording
@slow
@given(data=st.data())
def test_any_split_gives_the_same_items(name: str, data: st.DataObject) -> None:
    stream = stream_of(name)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(RECORDED[name], chunks) == items_of(name)


@by_recording
@slow
@given(data=st.data())
def test_a_prefix_and_then_the_rest_merge_to_all(name: str, data: st.DataObject) -> None:
    items = items_of(name)
    cut = data.draw(st.integers(0, len(items)))
    merger = fold(items[:cut])
    merger.message()
    for item in items[cut:]:
        merger.add(item)
    assert messages(merger) == messages(fold(items))


@by_recording
@slow
@given(data=st.data())
def test_a_window_that_is_compacted_changes_no_message(name: str, data: st.DataObject) -> None:
    entries = log_of(items_of(name))
    start = data.draw(st.integers(0, len(entries)))
    end = data.draw(st.integers(start, len(entries)))
    window = compact(entries[start:end])
    assert messages(merge_entries([*entries[:start], *window, *entries[end:]])) == messages(merge_entries(entries))
    # A viewer that read any of the merged entries and was cut there goes on behind its last member.
    for read_up_to, entry in enumerate(window, 1):
        rest = [e for e in entries if e.seq > entry.seq]
        resumed = merge_entries([*entries[:start], *window[:read_up_to], *rest])
        assert messages(resumed) == messages(merge_entries(entries))


@by_recording
@slow
@given(data=st.data())
def test_a_stream_that_breaks_off_anywhere_says_so_and_holds_together(name: str, data: st.DataObject) -> None:
    stream = stream_of(name)
    cut = data.draw(st.integers(0, len(stream)))
    merged = MergedStream(RECORDED[name])
    items = merged.feed(stream[:cut]) + merged.close()
    check(items)
    whole = MergedStream(RECORDED[name])
    whole.feed(stream)
    whole.close()
    if merged.error is None and whole.error is None:
        told, right = merged.result(), whole.result()
        assert told["choices"] == right["choices"], "no error, so nothing that counts is missing"


@by_recording
@slow
@given(data=st.data())
def test_damaged_bytes_raise_nothing(name: str, data: st.DataObject) -> None:
    stream = bytearray(stream_of(name))
    for place in data.draw(st.lists(st.integers(0, len(stream) - 1), max_size=6)):
        stream[place] = data.draw(st.integers(0, 255))
    check(read(RECORDED[name], [bytes(stream)]))


@by_recording
@slow
@given(data=st.data())
def test_lines_left_out_repeated_and_exchanged_raise_nothing(name: str, data: st.DataObject) -> None:
    stream = stream_of(name)
    separator = b"\n\n" if b"\n\n" in stream else b"\r\n\r\n" if b"\r\n\r\n" in stream else b"\n"
    parts = stream.split(separator)
    order = data.draw(st.lists(st.integers(0, len(parts) - 1), max_size=len(parts) + 3))
    check(read(RECORDED[name], [separator.join(parts[n] for n in order)]))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("api", APIS)
@given(values=st.lists(_JSON, max_size=5))
def test_any_json_at_all_raises_nothing(api: str, values: list[Any]) -> None:
    check(read(api, ["".join(f"data: {json.dumps(value)}\n\n" for value in values).encode()]))


@pytest.mark.parametrize("api", APIS)
@given(chunks=st.lists(st.binary(max_size=20), max_size=5))
def test_any_bytes_at_all_raise_nothing(api: str, chunks: list[bytes]) -> None:
    items = read(api, chunks)
    check(items)
    assert read(api, [b"".join(chunks)]) == items
