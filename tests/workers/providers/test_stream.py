"""Decoder and adapter together: what ends a response, and which error counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.items import Annotation, Event, Item, MessageDelta, ToolCallDelta
from workers.providers import ADAPTERS, UnknownApi, get_adapter, make_adapter
from workers.providers.stream import ProviderStream

STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def say(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def read(*chunks: bytes, limit: int = 10_000) -> tuple[ProviderStream, list[Item]]:
    stream = ProviderStream(make_adapter("openai.chat"), limit=limit)
    items = [item for chunk in chunks for item in stream.feed(chunk)]
    return stream, items + stream.close()


def texts(items: list[Item]) -> str:
    return "".join(item.text for item in items if isinstance(item, MessageDelta))


def named(items: list[Item], name: str) -> list[dict[str, Any]]:
    return [item.payload for item in items if isinstance(item, Event) and item.name == name]


def test_a_hole_ends_the_response_and_what_came_before_it_stays() -> None:
    stream, items = read(say("a") + b'data: {"choices\n\n' + say("b"), say("c"))
    assert texts(items) == "a"
    assert stream.error is not None
    assert stream.error.code == "broken_json"
    (failed,) = named(items, "model.failed")
    assert (failed["code"], failed["excerpt"]) == ("broken_json", '{"choices')
    assert named(items, "model.completed")[0]["incomplete"] is True


def test_bytes_that_end_in_the_middle_are_an_incomplete_stream_only_where_something_is_missing() -> None:
    stream, items = read(say("a") + b'data: {"choi')
    assert stream.error is not None
    assert stream.error.code == "incomplete_stream"
    assert named(items, "provider.event")[0]["code"] == "truncated"
    stream, items = read(say("a") + b"data: " + json.dumps(STOP).encode() + b'\n\ndata: {"choi')
    assert (stream.error, texts(items)) == (None, "a")


def test_the_providers_own_error_counts_before_ours() -> None:
    stream, _ = read(b'data: {"error": {"code": "x", "message": "y"}}\n\ndata: {\n\n')
    assert stream.error is not None
    assert (stream.error.code, stream.error.message) == ("x", "y")


def test_a_page_of_html_is_no_stream() -> None:
    stream, items = read(b"<html>\n<body>502</body>\n</html>\n")
    assert stream.error is not None
    assert stream.error.code == "no_stream"
    assert "502" in named(items, "model.failed")[0]["excerpt"]


def test_an_error_as_the_whole_answer() -> None:
    stream, _ = read(json.dumps({"error": {"code": "invalid_api_key", "message": "no"}}, indent=2).encode())
    assert stream.error is not None
    assert stream.error.code == "invalid_api_key"


def test_the_limit_is_the_decoders() -> None:
    stream, items = read(say("a") + say("x" * 200), limit=100)
    assert stream.error is not None
    assert (stream.error.code, texts(items)) == ("too_long", "a")


def test_nothing_at_all_is_incomplete() -> None:
    stream, items = read()
    assert stream.error is not None
    assert (stream.error.code, items) == ("incomplete_stream", [])


def test_half_a_character_in_arguments_and_at_the_very_end() -> None:
    def call(arguments: str, **more: str) -> bytes:
        told = '{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"arguments":"%s"%s}}]}}]}'
        name = "".join(f',"{k}":"{v}"' for k, v in more.items())
        return b"data: " + (told % (arguments, name)).encode() + b"\n\n"

    _, items = read(call('{\\"x\\":\\"\\ud83d', name="f"), call('\\ude00\\"}'), call("\\ud83d", name="f"))
    deltas = [item for item in items if isinstance(item, ToolCallDelta)]
    assert [(d.arguments, d.call_id) for d in deltas] == [('{"x":"', "a"), ('😀"}', "a"), ("\ufffd", "a")]
    assert deltas[0].name == "f"
    assert not isinstance(deltas[-1].name, str)


def test_adapters_are_found_by_name() -> None:
    for api in ADAPTERS:
        assert get_adapter(api).api == api
    with pytest.raises(UnknownApi, match=r"openai\.chat, openai\.responses"):
        get_adapter("openai")
    with pytest.raises(UnknownApi, match="snapshots"):
        make_adapter("ollama.chat", snapshots=True)


def test_what_json_cannot_carry_is_in_the_items_as_it_will_be_stored() -> None:
    """Else the worker's message would not be that of a viewer, who reads it from the log."""
    stream = ProviderStream(make_adapter("mistral.chat"))
    items = stream.feed(b'data: {"choices":[{"delta":{"content":[{"type":"reference","ids":[NaN,"\\ud83d"]}]}}]}\n\n')
    (annotation,) = [item.annotation for item in items if isinstance(item, Annotation)]
    assert annotation == {"type": "reference", "ids": [None, "\ufffd"]}
