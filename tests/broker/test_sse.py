"""SSE bytes: what is written is read back, and every way to split the bytes gives the same events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import MessageDelta, encode
from broker.sse import HEARTBEAT, Decoder, Event, comment, frame, retry
from tests.broker.streams import NASTY, TEXTS

BOM = b"\xef\xbb\xbf"


def read(*chunks: bytes) -> list[Event]:
    decoder = Decoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def told(data: str, event: str = "message", id: str = "", retry: int | None = None) -> Event:
    return Event(event, data, id, retry)


CASES: list[tuple[str, bytes, list[Event]]] = [
    ("one", b"data: a\n\n", [told("a")]),
    ("two", b"data: a\n\ndata: b\n\n", [told("a"), told("b")]),
    ("crlf", b"event: e\r\ndata: a\r\n\r\ndata: b\r\n\r\n", [told("a", "e"), told("b")]),
    ("cr", b"event: e\rdata: a\r\rdata: b\r\r", [told("a", "e"), told("b")]),
    ("mixed ends", b"data: a\r\ndata: b\rdata: c\n\r\n", [told("a\nb\nc")]),
    ("cr and lf are two ends", b"data: a\n\r\ndata: b\r\n\n", [told("a"), told("b")]),
    ("lines of data", b"data: a\ndata:\ndata: b\n\n", [told("a\n\nb")]),
    ("empty data", b"data\n\n", [told("")]),
    ("empty data, colon", b"data:\n\n", [told("")]),
    ("two empty lines", b"data\ndata\n\n", [told("\n")]),
    ("one blank is cut", b"data:a\n\ndata:  a\n\n", [told("a"), told(" a")]),
    ("no data, no event", b"event: e\nid: 1\n\ndata: a\n\n", [told("a", id="1")]),
    ("comment", b": hb\n\n:\ndata: a\n: x\n\n", [told("a")]),
    ("heartbeat in between", b"data: a\n\n: hb\ndata: b\n\n", [told("a"), told("b")]),
    ("id stays", b"id: 1\ndata: a\n\ndata: b\n\n", [told("a", id="1"), told("b", id="1")]),
    ("id emptied", b"id: 1\ndata: a\n\nid\ndata: b\n\n", [told("a", id="1"), told("b")]),
    ("id with NUL", b"id: 1\ndata: a\n\nid: 2\0\ndata: b\n\n", [told("a", id="1"), told("b", id="1")]),
    ("id with blank", b"id:  1 \ndata: a\n\n", [told("a", id=" 1 ")]),
    ("event does not stay", b"event: e\ndata: a\n\ndata: b\n\n", [told("a", "e"), told("b")]),
    ("event emptied", b"event: e\nevent:\ndata: a\n\n", [told("a")]),
    ("last event name", b"event: e\nevent: f\ndata: a\n\n", [told("a", "f")]),
    ("retry", b"retry: 20\ndata: a\n\ndata: b\n\n", [told("a", retry=20), told("b")]),
    ("no retry", b"retry: 2s\nretry: -1\nretry:\nretry: 1.5\nretry: \xd9\xa1\ndata: a\n\n", [told("a")]),
    ("unknown fields", b"Data: x\ndatax: x\n data: x\nfoo\ndata: a\n\n", [told("a")]),
    ("unfinished block", b"data: a\n\ndata: b\n", [told("a")]),
    ("unfinished line", b"data: a\n\ndata: b", [told("a")]),
    ("bom", BOM + b"data: a\n\n", [told("a")]),
    ("bom, then blank", BOM + b"\ndata: a\n\n", [told("a")]),
    ("bom twice", BOM + BOM + b"data: a\n\ndata: b\n\n", [told("b")]),
    ("bom later", b"data: a\n\n" + BOM + b"data: b\n\ndata: c\n\n", [told("a"), told("c")]),
    ("bom in data", b"data: " + BOM + b"a\n\n", [told("\ufeffa")]),
    (
        "separators",
        "data: a\u2028b\u2029c\u0085d\x0b\x0c\x1c\n\n".encode(),
        [told("a\u2028b\u2029c\u0085d\x0b\x0c\x1c")],
    ),
    ("NUL in data", b"data: a\0b\n\n", [told("a\0b")]),
    ("emoji", "data: 🎉👩‍👩‍👧é\n\n".encode(), [told("🎉👩‍👩‍👧é")]),
    ("broken utf-8", b"data: a\xf0\x9f\ndata: \xffb\n\n", [told("a\ufffd\n\ufffdb")]),
    ("colons", b"data: a:b: c\n\n", [told("a:b: c")]),
    ("blank lines", b"\n\r\n\r\n\ndata: a\n\n\n\n", [told("a")]),
]


@pytest.mark.parametrize(("stream", "events"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_every_split_gives_the_same_events(stream: bytes, events: list[Event]) -> None:
    assert read(stream) == events
    assert read(*(bytes([byte]) for byte in stream)) == events
    for i in range(len(stream) + 1):
        assert read(stream[:i], stream[i:]) == events
        for j in range(i, len(stream) + 1):
            assert read(stream[:i], b"", stream[i:j], stream[j:]) == events


_ALPHABET = st.sampled_from(
    [
        b"data",
        b"event",
        b"id",
        b"retry",
        b":",
        b" ",
        b"\r",
        b"\n",
        b"\r\n",
        b"\n\n",
        b"a",
        b"7",
        b"\0",
        BOM,
        "é🎉".encode(),
        b"\xff",
    ]
)


@given(st.lists(_ALPHABET, max_size=40).map(b"".join), st.lists(st.integers(0, 100), max_size=6))
def test_any_bytes_in_any_split_give_the_same_events(stream: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[a:b] for a, b in pairwise(places)]
    one, other = Decoder(), Decoder()
    assert one.feed(stream) == [event for chunk in chunks for event in other.feed(chunk)]
    assert (one.last_event_id, one.retry) == (other.last_event_id, other.retry)


_LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=12)


@given(st.lists(st.tuples(_LINE.filter(bool), TEXTS, st.none() | _LINE), max_size=5), st.data())
def test_what_is_written_is_read_back(written: list[tuple[str, str, str | None]], data: st.DataObject) -> None:
    stream, last_id, expected = b"", "", []
    for event, text, id in written:
        stream += frame(event, text.encode(), id) + HEARTBEAT
        last_id = last_id if id is None else id
        normal = text.replace("\r\n", "\n").replace("\r", "\n")
        expected.append(Event(event, normal, last_id, None))
    cut = data.draw(st.integers(0, len(stream)))
    assert read(stream[:cut], stream[cut:]) == expected


@pytest.mark.parametrize("text", [NASTY, "a\rb", "\r", "\0", "🎉" * 3])
def test_an_items_text_survives_the_wire_as_one_line(text: str) -> None:
    """U+2028, U+2029, U+0085, a lone CR, NUL, and emoji across packets."""
    data = encode(MessageDelta(text=text), ts=1.0).data
    stream = frame("message.delta", data, "R:1")
    assert len(stream.decode().splitlines()) == 4
    for cut in range(len(stream)):
        (event,) = read(stream[:cut], stream[cut:])
        assert event == Event("message.delta", data.decode(), "R:1", None)


def test_a_frame_has_the_layout_of_the_protocol() -> None:
    assert frame("message.delta", b"{}", "R:17") == b"id: R:17\nevent: message.delta\ndata: {}\n\n"
    assert frame("end", b"{}") == b"event: end\ndata: {}\n\n"
    assert retry(2000) == b"retry: 2000\n\n"
    assert comment("runcast") == b": runcast\n\n"
    assert comment("a\r\nb") == b": a\n: b\n\n"


@pytest.mark.parametrize(("event", "id"), [("a\nb", None), ("a\r", "1"), ("a", "1\n2"), ("a", "1\r"), ("a", "1\0")])
def test_names_and_ids_that_would_break_out_of_their_line_are_refused(event: str, id: str | None) -> None:
    with pytest.raises(ValueError, match="one line"):
        frame(event, b"{}", id)


def test_the_last_event_id_is_what_a_reconnect_sends() -> None:
    decoder = Decoder("R:3")
    assert decoder.feed(b"data: a\n\n") == [told("a", id="R:3")]
    decoder.feed(b"id: R:4\n")
    assert decoder.last_event_id == "R:3"  # its block is not complete
    decoder.feed(b"\n")
    assert decoder.last_event_id == "R:4"  # though it had no data
    assert decoder.feed(b"retry: 50\n\n") == []
    assert decoder.retry == 50


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: 123456\n\ndata: 1\n\n", [("123456", False), ("1", False)]),
        (b"data: 1234567\n\ndata: 1\n\n", [("123456", True), ("1", False)]),
        (b"data: 123456\ndata: 456789\n\ndata: 1\n\n", [("123456\n45678", True), ("1", False)]),
        (b"data\n" * 40 + b"\ndata: 1\n\n", [("\n" * 12, True), ("1", False)]),
        (b": 123456789012345\nfoo: 123456789012345\ndata: 1\n\n", [("1", False)]),
        (b"event: 123456789012345\ndata: 1\n\n", [("1", True)]),
    ],
)
def test_what_is_longer_than_the_limit_is_cut_and_says_so(stream: bytes, events: list[tuple[str, bool]]) -> None:
    """12 bytes a line, and as many characters of data an event."""
    for cut in range(len(stream)):
        decoder = Decoder(limit=12)
        read = decoder.feed(stream[:cut]) + decoder.feed(stream[cut:])
        assert [(event.data, event.cut) for event in read] == events, cut


def test_a_long_line_in_small_chunks_costs_linear_time() -> None:
    decoder = Decoder()
    chunk = b"x" * 1024
    decoder.feed(b"data: ")
    for _ in range(20_000):  # 20 MiB: joined at each chunk, this would take minutes
        decoder.feed(chunk)
    (event,) = decoder.feed(b"\n\n")
    assert len(event.data) == 20_000 * 1024
