"""Frames of the native format, byte for byte."""

from __future__ import annotations

import json

import pytest

from broker.errors import BadRequest
from broker.items import TYPES, Entry, MessageDelta, Mode, encode
from broker.sse import Decoder
from gateway.formats import FORMATS, get_format
from gateway.formats.native import NATIVE

RUN = b"run_01"


def entry(seq: int, type_: str, **fields: object) -> Entry:
    body = json.dumps({"ts": 1.5, "component_id": "agent", **fields}, separators=(",", ":"))
    return Entry(seq, type_.encode(), body.encode())


def test_a_frame_is_the_protocols() -> None:
    assert NATIVE.items(RUN, [entry(17, "message.delta", index=0, text=" hello")], Mode.EVENTS) == (
        b"id: run_01:17\n"
        b"event: message.delta\n"
        b'data: {"run_id":"run_01","seq":17,"ts":1.5,"component_id":"agent","index":0,"text":" hello"}\n\n'
    )


def test_frames_of_a_batch_are_joined_in_order() -> None:
    frames = NATIVE.items(RUN, [entry(n, "usage", n=n) for n in range(1, 51)], Mode.EVENTS)
    events = Decoder().feed(frames)
    assert [event.id for event in events] == [f"run_01:{n}" for n in range(1, 51)]


@pytest.mark.parametrize("type_", sorted(TYPES))
def test_modes_show_what_they_have_in_common_with_a_type(type_: str) -> None:
    for modes in map(Mode, range(1, 64)):
        shown = NATIVE.items(RUN, [entry(1, type_)], modes) != b""
        assert shown == bool(TYPES[type_].MODES & modes)


def test_unknown_types_are_shown_under_events_only() -> None:
    item = [entry(1, "from.the.future")]
    assert NATIVE.items(RUN, item, Mode.EVENTS)
    assert NATIVE.items(RUN, item, Mode.MESSAGES | Mode.TOOLS | Mode.FINAL) == b""


def test_invented_types_fill_no_memory() -> None:
    for n in range(5_000):
        NATIVE.items(RUN, [entry(1, "x" * (n % 60 + 1) + "_" * (n // 60 % 60))], Mode.TOOLS)
    assert len(NATIVE._shown[int(Mode.TOOLS)]) <= 1_024


def test_text_survives_every_line_separator() -> None:
    text = "a\u2028b\u2029c\u0085d\r\ne\0 😀"
    stored = encode(MessageDelta(text=text), ts=1.0)
    frames = NATIVE.items(RUN, [Entry(1, stored.type.encode(), stored.data)], Mode.MESSAGES)
    (event,) = Decoder().feed(frames)
    assert json.loads(event.data)["text"] == text
    assert len(frames.decode().splitlines()) == 4


def test_only_items_and_cursor_carry_an_id() -> None:
    others = [
        NATIVE.opening(2000),
        NATIVE.retry(1),
        NATIVE.heartbeat,
        NATIVE.reset("r", "foreign"),
        NATIVE.gap("r", 0, 5, 9),
        NATIVE.end("r", "completed", 9),
    ]
    assert not any(b"id: " in frame for frame in others)
    assert NATIVE.cursor("r", 7) == b'id: r:7\nevent: cursor\ndata: {"run_id":"r","seq":7}\n\n'


def test_control_frames() -> None:
    assert NATIVE.opening(2000) == b": runcast\nretry: 2000\n\n"
    assert NATIVE.heartbeat == b": hb\n"
    assert NATIVE.end("r", "completed", 412) == (
        b'event: end\ndata: {"run_id":"r","status":"completed","last_seq":412}\n\n'
    )
    assert NATIVE.gap("r", 1, 5, 9) == (b'event: gap\ndata: {"run_id":"r","requested":1,"earliest":5,"latest":9}\n\n')
    assert NATIVE.reset("r", "ahead") == b'event: reset\ndata: {"run_id":"r","reason":"ahead"}\n\n'


def test_opening_and_heartbeat_dispatch_nothing() -> None:
    decoder = Decoder()
    assert decoder.feed(NATIVE.opening(2000) + NATIVE.heartbeat + NATIVE.retry(5)) == []


def test_unknown_formats_are_refused_with_the_known() -> None:
    assert get_format("native") is FORMATS["native"]
    with pytest.raises(BadRequest, match="native") as caught:
        get_format("xml")
    assert caught.value.field == "format"
