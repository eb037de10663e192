"""Compaction: the same merge in fewer entries, and cursors that double and lose nothing."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.compact import MAX_TEXT, compact
from broker.items import (
    Annotation,
    Encoded,
    Entry,
    Event,
    Item,
    Message,
    MessageDelta,
    Raw,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
    ToolProgress,
    Usage,
    decode,
    encode,
)
from broker.merge import Merger, merge_entries
from tests.broker.streams import RUNS, entry, log_of


def merged(entries: list[Entry]) -> list[object]:
    return told(merge_entries(entries))


def told(merger: Merger) -> list[object]:
    messages = [merger.message(r, c) for r in range(1, 5) for c in range(2)]
    return [messages, merger.message(), merger.partial(), merger.rounds, merger.usage, merger.cost, merger.outcome]


def text_of_deltas(entries: list[Entry]) -> list[tuple[bytes, str]]:
    """The text of each kind, joined: what an appending viewer has on its screen."""
    texts: dict[bytes, str] = {}
    for item in entries:
        fields = json.loads(item.data)
        texts[item.type] = texts.get(item.type, "") + str(fields.get("text") or fields.get("arguments") or "")
    return sorted((kind, text) for kind, text in texts.items() if text)


@given(RUNS)
def test_the_merge_of_compacted_entries_is_that_of_the_plain_ones(run: list[Item]) -> None:
    log = log_of(run)
    assert merged(compact(log)) == merged(log)
    assert text_of_deltas(compact(log)) == text_of_deltas(log)


@given(RUNS)
def test_a_cut_in_every_possible_place_neither_doubles_nor_loses(run: list[Item]) -> None:
    """A viewer reads compacted entries, is cut, and resumes behind the last id that it got."""
    log = log_of(run)
    whole, text = merged(log), text_of_deltas(log)
    replay = compact(log)
    for read in range(len(replay) + 1):
        last = replay[read - 1].seq if read else 0
        for rest in (log[last:], compact(log[last:])):
            seen = replay[:read] + rest
            assert merged(seen) == whole
            assert text_of_deltas(seen) == text


@given(RUNS)
def test_a_viewer_that_read_plain_items_may_stop_inside_a_window(run: list[Item]) -> None:
    """Live up to any seq, which may lie inside of what is one entry for others; then a compacted replay."""
    log = log_of(run)
    whole = merged(log)
    for seq in range(len(log) + 1):
        assert merged(log[:seq] + compact(log[seq:])) == whole
        assert merged(compact(log[:seq]) + compact(log[seq:])) == whole


@given(RUNS)
def test_ids_ascend_and_each_is_the_last_members(run: list[Item]) -> None:
    log = log_of(run)
    replay = compact(log)
    seqs = [e.seq for e in replay]
    assert seqs == sorted(set(seqs))
    assert bool(log) == bool(replay)
    if log:
        assert seqs[-1] == log[-1].seq
    by_seq = {e.seq: e for e in log}
    for item in replay:
        last = by_seq[item.seq]
        assert item.type == last.type
        assert json.loads(item.data)["ts"] == json.loads(last.data)["ts"]
    assert compact(replay) == [*replay] or len(compact(replay)) <= len(replay)


@given(RUNS)
def test_no_two_neighbours_are_left_that_could_be_one(run: list[Item]) -> None:
    """Compact by compact: joining the pieces of any cut gives at most one entry more for each cut."""
    log = log_of(run)
    for cut in range(len(log) + 1):
        assert len(compact(log[:cut])) + len(compact(log[cut:])) <= len(compact(log)) + 1


@given(RUNS)
def test_every_entry_is_an_item_in_its_stored_form(run: list[Item]) -> None:
    for item in compact(log_of(run)):
        decoded = decode(item.type, item.data)
        assert encode(decoded) == Encoded(item.type.decode(), item.data)
        assert item.data.startswith(b'{"ts":')
        assert len(item.data.decode().splitlines()) == 1


def test_ten_thousand_tokens_are_one_entry() -> None:
    log = log_of(MessageDelta(text=f"tok{i} ") for i in range(5_000))
    (one,) = compact(log)
    assert one.seq == 5_000
    assert (
        one.data == encode(MessageDelta(ts=1764445312.25 + 5_000, text="".join(f"tok{i} " for i in range(5_000)))).data
    )


A = MessageDelta(text="a")


@pytest.mark.parametrize(
    "other",
    [
        MessageDelta(text="b", round=2),
        MessageDelta(text="b", index=1),
        MessageDelta(text="b", choice=1),
        MessageDelta(text="b", choice=0),
        MessageDelta(text="b", component_id="step:1"),
        MessageDelta(text="b", session_id="s"),
        MessageDelta(text="b", parent_run_id="p"),
        MessageDelta(text="b", truncated_bytes=5),
        ReasoningDelta(text="b"),
        RefusalDelta(text="b"),
        Annotation(annotation={}),
        Message(message={"content": "a"}),
        Usage(output_tokens=1),
        ToolProgress(call_id="c", name="f"),
        Event(name="run.restarted", payload={"attempt": 2}),
        Raw("message.delta", {"text": "b", "later_field": 1}),
        Raw("message.delta", {"text": 5}),
        Raw("later.type", {"text": "b"}),
    ],
    ids=str,
)
def test_what_is_not_the_same_block_is_left_alone(other: Item | Raw) -> None:
    log = log_of([A, other, A])
    assert compact(log) == log


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ReasoningDelta(text="a"), ReasoningDelta(text="b", signature="s")),
        (ReasoningDelta(text="a", signature="s"), ReasoningDelta(text="b")),
        (ReasoningDelta(text="a"), ReasoningDelta(redacted="x")),
        (ToolCallDelta(call_id="c", arguments="{"), ToolCallDelta(call_id="d", arguments="}")),
        (ToolCallDelta(arguments="{"), ToolCallDelta(call_id="d", arguments="}")),
        (ToolCallDelta(call_id="c", name="f"), ToolCallDelta(call_id="c", name="f", arguments="}")),
    ],
)
def test_signatures_names_and_other_calls_are_left_alone(first: Item, second: Item) -> None:
    log = log_of([first, second])
    assert compact(log) == log


def test_fragments_of_one_call_are_one() -> None:
    log = log_of(
        [
            ToolCallDelta(call_id="c", name="f", arguments='{"q":'),
            ToolCallDelta(call_id="c", arguments='"\u2028'),
            ToolCallDelta(arguments='x"}'),
        ]
    )
    (one,) = compact(log)
    assert one.seq == 3
    assert decode(one.type, one.data) == ToolCallDelta(
        ts=1764445315.25, call_id="c", name="f", arguments='{"q":"\u2028x"}'
    )


def test_entries_with_a_hole_between_are_not_adjacent() -> None:
    """Who filters before he compacts must not merge across what he filtered out."""
    log = log_of([A, Event(name="run.restarted"), A])
    visible = [log[0], log[2]]
    assert compact(visible) == visible


def test_a_merged_entry_stays_bounded() -> None:
    log = log_of(MessageDelta(text="x" * 1000) for _ in range(1000))
    replay = compact(log)
    assert len(replay) == -(-1000 // (MAX_TEXT // 1000))
    assert all(len(e.data) < MAX_TEXT + 200 for e in replay)
    assert merged(replay) == merged(log)


@given(st.lists(st.integers(0, MAX_TEXT // 4), max_size=12), st.sampled_from(["x", "é", "🎉", "\0", '"']))
def test_the_bound_counts_bytes_of_text(sizes: list[int], character: str) -> None:
    log = log_of(MessageDelta(text=character * size) for size in sizes)
    texts = [json.loads(item.data)["text"] for item in compact(log)]
    assert all(len(text.encode()) <= MAX_TEXT for text in texts)
    for text, following in pairwise(texts):
        assert len((text + following).encode()) > MAX_TEXT


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"ts":1', b'{"ts":null,"text":"a"}', b'{"text":"a"}', b"\xff", b"[" * 50_000]
)
def test_entries_that_cannot_be_read_pass_unchanged(data: bytes) -> None:
    log = [entry(1, encode(A, ts=1.0)), Entry(2, b"message.delta", data), entry(3, encode(A, ts=1.0))]
    assert compact(log) == log


def test_nothing_is_nothing() -> None:
    assert compact([]) == []
