"""Bytes → decoded events: the three framings, at every split; what cannot be read; what is too long."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.providers.decoding import DONE, Decoded, Piece, StreamDecoder, Unreadable

BOM = b"\xef\xbb\xbf"
A, B = {"a": "é\u2028🎉{[\"'\\"}, {"b": [1, {"c": None}], "d": "}]"}
PRETTY = json.dumps(B, indent=2, ensure_ascii=False).encode()
LINE_A, LINE_B = (json.dumps(v, ensure_ascii=False).encode() for v in (A, B))


def read(*chunks: bytes, limit: int = 10_000) -> list[Piece]:
    decoder = StreamDecoder(limit)
    pieces = [piece for chunk in chunks for piece in decoder.feed(chunk)]
    return pieces + decoder.close()


def both(*pieces: Piece) -> list[Piece]:
    return list(pieces)


TWO = both(Decoded("", A), Decoded("", B))
CASES: list[tuple[str, bytes, list[Piece]]] = [
    ("sse", b"data: %b\n\ndata: %b\n\n" % (LINE_A, LINE_B), TWO),
    (
        "sse, crlf, names",
        b"event: x\r\ndata: %b\r\n\r\nevent: message\r\ndata:%b\r\n\r\n" % (LINE_A, LINE_B),
        both(Decoded("x", A), Decoded("", B)),
    ),
    ("sse, comments", b": hello\n\n: OPENROUTER PROCESSING\n\ndata: %b\n\n: hb\ndata: %b\n\n" % (LINE_A, LINE_B), TWO),
    ("sse, bom, blank first", BOM + b"\n\ndata: %b\n\ndata: %b\n\n" % (LINE_A, LINE_B), TWO),
    ("sse, lines of data", b"data: " + PRETTY.replace(b"\n", b"\ndata: ") + b"\n\n", both(Decoded("", B))),
    ("sse, done", b"data: %b\n\ndata: [DONE]\n\n" % LINE_A, both(Decoded("", A), Decoded(DONE, None))),
    ("sse, no blank line at the end", b"data: %b\n\ndata: %b\n" % (LINE_A, LINE_B), TWO),
    ("sse, no newline at the end", b"data: %b\n\ndata: %b" % (LINE_A, LINE_B), TWO),
    (
        "sse, done without its blank line",
        b"data: %b\n\ndata: [DONE]" % LINE_A,
        both(Decoded("", A), Decoded(DONE, None)),
    ),
    (
        "sse, blank lines lost",
        b"data: %b\ndata: %b\ndata: [DONE]\n\n" % (LINE_A, LINE_B),
        both(*TWO, Decoded(DONE, None)),
    ),
    ("sse, empty data", b"data:\n\ndata: \n\nevent: ping\n\ndata: %b\n\n" % LINE_A, both(Decoded("", A))),
    ("sse, other fields", b"id: 1\nretry: 5\nfoo: bar\ndata: %b\n\n" % LINE_A, both(Decoded("", A))),
    ("lines", LINE_A + b"\n" + LINE_B + b"\n", TWO),
    ("lines, crlf, blank ones", BOM + b"\r\n" + LINE_A + b"\r\n\r\n" + LINE_B, TWO),
    ("one pretty object", PRETTY, both(Decoded("", B))),
    ("pretty objects", PRETTY + b"\n" + PRETTY + b"\n", both(Decoded("", B), Decoded("", B))),
    ("array", b"[%b,%b]" % (LINE_A, LINE_B), TWO),
    ("array, pretty", BOM + b" [\n" + PRETTY + b"\n,\r\n" + LINE_A + b"\n]\n", both(Decoded("", B), Decoded("", A))),
    ("array, unfinished", b"[%b,\n%b" % (LINE_A, LINE_B), TWO),
    (
        "array of other values",
        b'[1, "a,]", [2, [3]], null ]',
        both(*(Decoded("", v) for v in (1, "a,]", [2, [3]], None))),
    ),
    ("empty array", b"[ ]", []),
    ("nothing", b"", []),
    ("white space", b" \r\n\t", []),
    ("bom", BOM, []),
    ("half a bom", BOM[:2], []),
]


@pytest.mark.parametrize(("stream", "pieces"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_every_framing_at_every_split(stream: bytes, pieces: list[Piece]) -> None:
    assert read(stream) == pieces
    for cut in range(len(stream) + 1):
        assert read(stream[:cut], stream[cut:]) == pieces, cut
    assert read(*(bytes([b]) for b in stream)) == pieces


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (b'data: {"a": \n\ndata: {"a":1}\n\n', "broken_json"),
        (b'{"a":1}\n{"a" 1}\n', "broken_json"),
        (b"data: oops\n\n", "broken_json"),
        (b'data: {"a":1}\ndata: oops\n\n', "broken_json"),
        (b"data: " + b"[" * 300 + b"]" * 300 + b"\n\n", "broken_json"),
        (b'data: {"a": "tex', "truncated"),
        (b'{"a":1}\n{"a": "tex', "truncated"),
        (b'[{"a":1},{"a": [', "truncated"),
        (b"<html>502 Bad Gateway</html>", "no_stream"),
        (b"upstream connect error", "no_stream"),
    ],
)
def test_what_cannot_be_read_is_said_in_its_place_at_every_split(stream: bytes, code: str) -> None:
    whole = read(stream)
    broken = [piece for piece in whole if isinstance(piece, Unreadable)]
    assert [piece.code for piece in broken] == [code]
    assert broken[0].message
    assert broken[0].excerpt.strip()[:5] in stream.decode()
    for cut in range(len(stream) + 1):
        assert read(stream[:cut], stream[cut:]) == whole, cut


def test_what_comes_behind_something_unreadable_is_still_read() -> None:
    assert read(b'data: {\n\ndata: {"a":1}\n\n')[1] == Decoded("", {"a": 1})
    assert read(b'{"a":0}\nx\n{"a":1}\n')[2] == Decoded("", {"a": 1})


@pytest.mark.parametrize("value", ['"\\ud83d"', "NaN", "-Infinity", '"a\tb"', "1" * 40])
def test_json_that_only_lax_parsers_take_is_taken(value: str) -> None:
    (piece,) = read(f'data: {{"a": {value}}}\n\n'.encode())
    assert isinstance(piece, Decoded)
    assert repr(piece.data["a"]) == repr(json.loads(value, strict=False))


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    assert read(b'data: {"a": "x\xffy"}\n\n') == [Decoded("", {"a": "x\ufffdy"})]
    assert read(b'{"a": "x\xffy"}\n') == [Decoded("", {"a": "x\ufffdy"})]


LONG = json.dumps({"a": "x" * 100}).encode()
SHORT = b'{"a":1}'


@pytest.mark.parametrize(
    ("stream", "codes"),
    [
        (b"data: %b\n\ndata: %b\n\n" % (LONG, SHORT), ["too_long", ""]),
        (b"data: %b\ndata: %b\n\ndata: %b\n\n" % (LONG[:40], LONG[40:], SHORT), ["too_long", ""]),
        (b"data:\n" * 200 + b"\ndata: %b\n\n" % SHORT, ["too_long", ""]),
        (b": %b\n\ndata: %b\n\n" % (LONG, SHORT), [""]),
        (b"%b\n%b\n" % (SHORT, LONG), ["", "too_long"]),
        (b"[%b,%b]" % (LONG, SHORT), ["too_long", ""]),
        (b"[%b,%b" % (SHORT, LONG[:-1]), ["", "truncated"]),
    ],
)
def test_nothing_longer_than_the_limit_is_held(stream: bytes, codes: list[str]) -> None:
    whole = read(stream, limit=64)
    assert [piece.code if isinstance(piece, Unreadable) else "" for piece in whole] == codes
    for cut in range(len(stream) + 1):
        assert read(stream[:cut], stream[cut:], limit=64) == whole, cut


@pytest.mark.parametrize("head", [b"data: ", b'{"a":"', b'[{"a":"', b": "])
def test_endless_bytes_are_not_collected(head: bytes) -> None:
    decoder = StreamDecoder(1000)
    decoder.feed(head)
    tracemalloc.start()
    for _ in range(500):
        assert decoder.feed(b"x" * 10_000) == []
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000


_WORDS = (
    b"data:",
    b"event: x",
    b" ",
    b"\n",
    b"\r",
    b"\n\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b",",
    b":",
    b"a",
    b"1",
)
_MORE = (LINE_A, LINE_B, BOM, b"[DONE]", "é".encode(), b"\xff", b": hb\n")
_BYTES = st.lists(st.sampled_from([*_WORDS, *_MORE]), max_size=30).map(b"".join)


@given(_BYTES, st.lists(st.integers(0, 200), max_size=8), st.sampled_from([5, 30, 10_000]))
def test_any_bytes_in_any_split_give_the_same_and_raise_nothing(stream: bytes, cuts: list[int], limit: int) -> None:
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    assert read(stream, limit=limit) == read(*(stream[a:b] for a, b in pairwise(places)), limit=limit)


@given(st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=8), max_size=3), max_size=6), st.data())
def test_what_was_written_is_read_in_every_framing(values: list[dict[str, Any]], data: st.DataObject) -> None:
    raw = [json.dumps(v, ensure_ascii=data.draw(st.booleans())).encode() for v in values]
    expected = [Decoded("", value) for value in values]
    streams = [
        b"".join(b"data: %b\n\n" % r for r in raw),
        b"".join(r + b"\n" for r in raw),
        b"[" + b",".join(raw) + b"]",
    ]
    for stream in streams:
        cut = data.draw(st.integers(0, len(stream)))
        assert read(stream[:cut], stream[cut:]) == expected
