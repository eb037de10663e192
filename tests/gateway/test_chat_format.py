"""Frames of the chat format, byte for byte, and what every client of it may rely on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.answer import answer_of
from broker.items import (
    TYPES,
    Cancelled,
    Entry,
    Event,
    Failed,
    Final,
    Item,
    MessageDelta,
    Mode,
    ReasoningDelta,
    RefusalDelta,
    ToolStarted,
    Usage,
    encode,
)
from broker.merge import Merger
from broker.sse import Decoder
from gateway.chat.replies import Style
from gateway.formats.chat import CHAT, DONE, ChatFormat, error_frame
from gateway.formats.webui import WebuiFormat

RUN = b"run_01"
LEGACY, V1 = ChatFormat("run_01", "s1"), ChatFormat("run_01", "s1", Style.V1)
BLOCK = '{"confidence": "90%", "riskLevel": "LOW"}'


def final(*texts: str, **fields: Any) -> Final:
    content = [{"type": "text", "text": text} for text in texts]
    return Final(message={"role": "assistant", "content": content}, **fields)


def entry(item: Item, seq: int = 7) -> Entry:
    stored = encode(item, ts=1.5)
    return Entry(seq, stored.type.encode(), stored.data)


def frames(*items: Item, format: ChatFormat = LEGACY, modes: Mode = Mode.EVENTS) -> bytes:
    return format.items(RUN, [entry(item, seq) for seq, item in enumerate(items, 1)], modes)


def naive(wire: bytes) -> list[tuple[str, Any]]:
    """As clients do it: cut at blank lines, take what stands behind ``event:`` and ``data:``, parse it."""
    events = []
    for block in wire.decode().split("\n\n")[:-1]:
        [data] = [line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: ")]
        [event] = [line.removeprefix("event: ") for line in block.split("\n") if line.startswith("event: ")] or [""]
        events.append((event, data if data == "[DONE]" else json.loads(data)))
    return events


def test_the_frames_of_the_contract() -> None:
    assert frames(MessageDelta(text="Hello")) == b'id: run_01:1\nevent: token\ndata: {"token":"Hello"}\n\n'
    told = final(f"Hello there\n{BLOCK}")
    assert frames(told) == (
        b"id: run_01:1\nevent: done\n"
        b'data: {"reply":"Hello there","confidence":0.9,"risk_level":"low","flagForReview":false,"session_id":"s1"}\n\n'
        b"data: [DONE]\n\n"
    )
    assert frames(told, format=V1) == (
        b"id: run_01:1\nevent: done\n"
        b'data: {"reply":"Hello there","confidence":0.9,"risk_level":"low","flag_for_review":false,"session_id":"s1"}\n'
        b"\ndata: [DONE]\n\n"
    )
    assert frames(Failed(code="hermes_timeout", message="x")) == (
        b'id: run_01:1\nevent: error\ndata: {"error":"Hermes execution timed out"}\n\ndata: [DONE]\n\n'
    )
    assert naive(frames(Cancelled())) == [("error", {"error": "The run was cancelled"}), ("", "[DONE]")]


def test_without_a_session_of_ours_it_is_hermes_own() -> None:
    [(_, done), _] = naive(frames(final("x", hermes_session_id="20250101_000000_abcdef"), format=CHAT))
    assert done["session_id"] == "20250101_000000_abcdef"


def test_refusals_are_text() -> None:
    assert naive(frames(RefusalDelta(text="No"))) == [("token", {"token": "No"})]


@pytest.mark.parametrize("item", [ReasoningDelta(text="hm"), MessageDelta(text="b", choice=1), MessageDelta(text="")])
def test_what_is_no_token(item: Item) -> None:
    assert frames(item) == b""


@pytest.mark.parametrize(
    "type_", sorted(set(TYPES) - {"message.delta", "refusal.delta", "final", "failed", "cancelled"})
)
def test_no_other_item_leaves_a_trace(type_: str) -> None:
    assert LEGACY.items(RUN, [Entry(1, type_.encode(), b'{"ts":1.5,"text":"x","name":"x"}')], Mode.EVENTS) == b""
    assert LEGACY.items(RUN, [Entry(1, b"from.the.future", b'{"ts":1.5,"text":"x"}')], Mode.EVENTS) == b""


@pytest.mark.parametrize("data", [b'{"ts":1.5,"text":5}', b'{"ts":1.5,"text":"\xff"}', b'{"ts":1.5,"text":"a"', b"[]"])
def test_a_careless_workers_token_is_left_out(data: bytes) -> None:
    assert LEGACY.items(RUN, [Entry(1, b"message.delta", data)], Mode.EVENTS) == b""


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b'{"ts":1.5,"message":{"content":"a\xff"}}', "a\ufffd"),
        (b'{"ts":1.5,"usage":{"input_tokens":1e999},"message":{"content":"a"}}', "a"),
        (b'{"ts":1.5,"usage":{"input_tokens":1e999},"message":{"content":"a\\ud800"}}', "a\ufffd"),
        (b'{"ts":1.5}', ""),
        (b"[1]", ""),
        (b"no JSON", ""),
        (b'{"a":' * 100_000, ""),
    ],
)
def test_a_fence_that_is_broken_ends_the_stream_all_the_same(data: bytes, reply: str) -> None:
    [(event, done), last] = naive(LEGACY.items(RUN, [Entry(1, b"final", data)], Mode.EVENTS))
    assert (event, done["reply"], last) == ("done", reply, ("", "[DONE]"))
    [(event, error), last] = naive(LEGACY.items(RUN, [Entry(1, b"failed", data)], Mode.EVENTS))
    assert (event, last) == ("error", ("", "[DONE]"))
    assert error["error"]


def test_modes_filter_tokens_and_nothing_else() -> None:
    said = [MessageDelta(text="a"), ToolStarted(call_id="1", name="x"), final("a")]
    assert len(naive(frames(*said, modes=Mode.MESSAGES))) == 3
    assert [event for event, _ in naive(frames(*said, modes=Mode.TOOLS))] == ["done", ""]
    assert [event for event, _ in naive(frames(*said, modes=Mode.FINAL))] == ["done", ""]


def test_line_separators_of_any_kind_stay_within_their_line() -> None:
    text = "a\u2028b\u2029c\u0085d\r\ne\0 😀"
    wire = frames(MessageDelta(text=text), final(text))
    assert len(wire.decode().splitlines()) == 4 + 4 + 2
    token, done, _ = Decoder().feed(wire)
    assert json.loads(token.data)["token"] == json.loads(done.data)["reply"] == text


# What is no item.


def test_whatever_else_ends_the_stream_is_one_error_without_an_id() -> None:
    ends = [
        LEGACY.retry(5),
        LEGACY.reset("run_01", "rewound"),
        LEGACY.reset("run_01", "malformed"),
        LEGACY.gap("run_01", 0, 5, 9),
        LEGACY.broken("It is so."),
        error_frame("why"),
        CHAT.retry(5),
    ]
    for wire in ends:
        [(event, payload), last] = naive(wire)
        assert (event, list(payload), last) == ("error", ["error"], ("", "[DONE]"))
        assert b"id:" not in wire
    assert "Last-Event-ID" in naive(ends[0])[0][1]["error"]
    assert "/v1/runs/run_01/result" in naive(ends[3])[0][1]["error"]
    assert "malformed" in naive(ends[2])[0][1]["error"]


def test_nothing_may_follow_them() -> None:
    assert not LEGACY.goes_on
    assert not WebuiFormat().goes_on


def test_there_is_no_block_without_data() -> None:
    assert (LEGACY.opening(2000), LEGACY.cursor("run_01", 9), LEGACY.end("run_01", "completed", 9)) == (b"", b"", b"")
    assert LEGACY.heartbeat == b": hb\n"
    assert naive(LEGACY.heartbeat * 3 + frames(MessageDelta(text="a"))) == [("token", {"token": "a"})]


TEXT = st.text(max_size=6) | st.sampled_from(["\n\n", "data: x", "event: done", "[DONE]", BLOCK, "```"])
ITEMS = st.one_of(
    TEXT.map(lambda text: MessageDelta(text=text)),
    TEXT.map(lambda text: MessageDelta(text=text, round=2)),
    TEXT.map(lambda text: ReasoningDelta(text=text)),
    st.just(Usage(input_tokens=1)),
    TEXT.map(lambda text: Event(name="warning", payload={"text": text})),
)


@given(st.lists(ITEMS, max_size=12), st.sampled_from(["final", "failed", "cancelled"]), st.booleans())
def test_any_run_is_tokens_then_one_end_then_done(items: list[Item], fence: str, hides: bool) -> None:
    merger = Merger()
    for item in sorted(items, key=lambda item: getattr(item, "round", 1)):
        merger.add(item)
    ends: dict[str, Item] = {"final": Final(message=merger.message()), "cancelled": Cancelled()}
    end = ends.get(fence, Failed(code="x", message="y"))
    ordered = [*sorted(items, key=lambda item: getattr(item, "round", 1)), end]
    wire = frames(*ordered, modes=Mode.FINAL if hides else Mode.EVENTS)
    events = naive(wire)
    *tokens, (last, payload), done = events
    assert {event for event, _ in tokens} <= {"token"}
    assert (last, done) == ("done" if fence == "final" else "error", ("", "[DONE]"))
    assert wire.count(DONE) >= 1
    assert wire.endswith(DONE)
    ids = [event.id for event in Decoder().feed(wire)]
    assert ids == sorted(ids, key=lambda id_: int(id_.split(":")[1]))
    if fence == "final":
        answer = answer_of({"message": merger.message()}, "s1")
        assert payload["reply"] == answer.reply
        said = "".join(token["token"] for _, token in tokens)
        assert hides or answer.reply in said or answer.reply in BLOCK


def test_a_run_that_is_cut_anywhere_goes_on_there() -> None:
    items = [*(MessageDelta(text=f"w{n} ") for n in range(5)), final("w4")]
    stored = [entry(item, seq) for seq, item in enumerate(items, 1)]
    whole = LEGACY.items(RUN, stored, Mode.EVENTS)
    for cut in range(len(stored) + 1):
        head, tail = (LEGACY.items(RUN, part, Mode.EVENTS) for part in (stored[:cut], stored[cut:]))
        assert head + tail == whole
