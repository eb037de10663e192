"""Recorded streams of all providers → the message that the provider's own SDK made of them, or a better one.

``-k anthropic`` picks a provider, ``-k bedrock.converse`` an API. ``DIFFERENT`` lists each place where the right
result is not the SDK's, with the reason; the test fails as well where such a difference is none any more.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from broker.items import Item
from tests.workers.providers import recordings
from tests.workers.providers.recordings import Difference, Recording, usage_in_our_meaning
from workers.merged import MergedStream
from workers.providers.decoding import DONE, Decoded, StreamDecoder

_SMALL = 1_500
"""Streams up to this many bytes are split at every place."""

_EMPTY_FIRST = "the SDK keeps the empty string of Azure's first chunk, which is about the prompt; a value is set once"

_FROM_THE_REQUEST = "the stream names no model; the SDK fills in the one that it asked for"

_INVENTED = "the stream names no response; the SDK invents an id"

_WRITTEN_ANEW = "the SDK parses the arguments and writes them anew; ours are the bytes that came"

DIFFERENT: dict[str, list[Difference]] = {
    "azure/chat_model_router": [
        ("id", "chatcmpl-CYPS1lijGoK8gd9lYzY3r9Sx50nbt", _EMPTY_FIRST),
        ("model", "gpt-5-nano-2025-08-07", _EMPTY_FIRST),
    ],
    "cohere/tool": [
        ("choices.0.tool_calls.0.arguments_raw", '{"location": "San Francisco"}', _WRITTEN_ANEW),
        ("choices.0.tool_calls.1.arguments_raw", '{"city": "San Francisco"}', _WRITTEN_ANEW),
    ],
    "bedrock/nova_tool": [("model", None, _FROM_THE_REQUEST)],
    "bedrock/thinking": [("model", None, _FROM_THE_REQUEST)],
    "bedrock/empty_text_delta": [("model", None, _FROM_THE_REQUEST)],
    "bedrock/tool_no_args": [("model", None, _FROM_THE_REQUEST)],
    "ollama/text": [("id", None, _INVENTED)],
    "ollama/tools_two": [("id", None, _INVENTED)],
    "openai/responses_id_rotation": [
        ("id", "capture-id-1", "each event has another id; the SDK shows the last, an id is set once"),
    ],
    "openai/responses_multi_items": [
        ("model", "gpt-4o", "the last snapshot leaves the model out, and the SDK forgets it; a value is set once"),
    ],
    "anthropic/incomplete_partial_json_response": [
        (
            "choices.0.tool_calls.0.arguments_json",
            None,
            "the SDK closes brackets until the cut arguments parse, and shows the half call as a whole one",
        ),
    ],
}

NAMES = [pytest.param(name, id=f"{name}:{api}") for name, api in recordings.apis().items()] or [
    pytest.param("", id="no recordings", marks=pytest.mark.skip(reason="no recorded provider streams"))
]


@functools.cache
def load(name: str) -> Recording:
    return recordings.load(name)


def merge(api: str, chunks: Iterable[bytes]) -> tuple[list[Item], dict[str, Any]]:
    stream = MergedStream(api)
    items = [item for chunk in chunks for item in stream.feed(chunk)]
    items += stream.close()
    return items, stream.result()


@functools.cache
def whole(name: str) -> tuple[list[Item], dict[str, Any]]:
    recording = load(name)
    return merge(recording.api, [recording.stream])


def test_the_recordings_are_there() -> None:
    recordings.require()
    assert len(recordings.names()) == 69
    assert len(recordings.bugs()) == 18
    assert DIFFERENT.keys() <= set(recordings.names())
    assert sum(map(len, DIFFERENT.values())) == 13
    assert all(reason for differences in DIFFERENT.values() for *_, reason in differences)


@pytest.mark.parametrize("name", NAMES)
def test_the_message_is_the_sdks(name: str) -> None:
    recording = load(name)
    _, result = whole(name)
    if "error" in recording.expected:
        assert result["error"] is not None
        return
    assert result["error"] is None
    expected = {"model": recording.expected["model"], "choices": recording.expected["choices"]}
    if recording.expected["id"] is not None:
        expected["id"] = recording.expected["id"]
    told = {"choices": result["choices"], "model": result["model"], "id": result["id"]}
    assert _comparable(told, expected) == _right(name, expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_usage_is_the_sdks_in_our_meaning(name: str) -> None:
    recording = load(name)
    if "error" in recording.expected:
        pytest.skip("the stream ends in an error")
    _, result = whole(name)
    expected = usage_in_our_meaning(recording.api, recording.expected["usage"])
    right = _right(name, {"usage": expected})["usage"]
    assert {field: result["usage"][field] for field in right} == right


@pytest.mark.parametrize("name", NAMES)
def test_every_split_gives_the_same_items(name: str) -> None:
    recording = load(name)
    expected = whole(name)
    stream = recording.stream
    assert merge(recording.api, [bytes([b]) for b in stream]) == expected, "byte by byte"
    if len(stream) <= _SMALL:
        cuts: Sequence[list[int]] = [[cut] for cut in range(1, len(stream))]
    else:
        dice = random.Random(name)
        cuts = [sorted(dice.sample(range(1, len(stream)), dice.choice((1, 2, 7, 40)))) for _ in range(40)]
    for places in cuts:
        parts = [stream[a:b] for a, b in pairwise([0, *places, len(stream)])]
        assert merge(recording.api, parts) == expected, f"cut at {places}"


@pytest.mark.parametrize("name", NAMES)
def test_the_framing_makes_no_difference(name: str) -> None:
    """Server-sent events, JSON lines, and a JSON array of the same events."""
    recording = load(name)
    pieces = [p for p in _decoded(recording.stream) if p.event != DONE]
    values = [json.dumps(p.data) for p in pieces]
    _, expected = whole(name)
    for stream in ("\n".join(values), json.dumps([p.data for p in pieces], indent=1), "".join(map(_frame, values))):
        assert merge(recording.api, [stream.encode()])[1] == expected


def _decoded(stream: bytes) -> list[Decoded]:
    decoder = StreamDecoder()
    return [piece for piece in decoder.feed(stream) + decoder.close() if isinstance(piece, Decoded)]


def _frame(value: str) -> str:
    return f"data: {value}\n\n"


def _right(name: str, expected: dict[str, Any]) -> dict[str, Any]:
    """``expected`` with what we know better. A difference that is none is a mistake of the list."""
    for path, value, _ in DIFFERENT.get(name, []):
        *way, last = path.split(".")
        if path.partition(".")[0] not in expected:  # of the other test
            continue
        target: Any = expected
        for step in way:
            target = target[int(step)] if isinstance(target, list) else target[step]
        assert target[last] != value, f"{path} of {name} is the SDK's by now"
        target[last] = value
    return expected


def _comparable(told: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Only what ``expected`` speaks of: no errors of calls, no ids that the provider did not send."""
    same = {k: v for k, v in told.items() if k in expected}
    same["choices"] = [dict(choice) for choice in told["choices"]]
    for ours, theirs in zip(same["choices"], expected["choices"], strict=False):
        ours["tool_calls"] = [
            _comparable_call(a, b) for a, b in zip(ours["tool_calls"], theirs["tool_calls"], strict=False)
        ] + ours["tool_calls"][len(theirs["tool_calls"]) :]
    return same


def _comparable_call(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    call = {k: v for k, v in ours.items() if k in theirs}
    assert call["id"], "every call has an id"
    if theirs["id"] is None:
        call |= {"id": None, "id_note": theirs["id_note"]}
    return call
