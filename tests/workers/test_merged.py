"""What ``runcast merge`` prints: field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.merge import COUNTS
from workers.merged import MergedStream
from workers.providers import UnknownApi


def merged(*chunks: dict[str, Any], api: str = "openai.chat", done: bool = True) -> dict[str, Any]:
    stream = MergedStream(api)
    for chunk in chunks:
        stream.feed(b"data: " + json.dumps({"id": "r", "model": "m", **chunk}).encode() + b"\n\n")
    if done:
        stream.feed(b"data: [DONE]\n\n")
    stream.close()
    return stream.result()


def choice(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def called(arguments: str, id: str = "a", **more: Any) -> dict[str, Any]:
    return {"index": 0, "id": id, "function": {"name": "f", "arguments": arguments}, **more}


def test_every_field() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    result = merged(
        choice(reasoning="hm", content="hi"),
        choice(refusal="no", tool_calls=[called('{"x": 1}')]),
        choice(finish="stop") | {"usage": usage},
    )
    call = {"id": "a", "name": "f", "arguments_raw": '{"x": 1}', "arguments_json": {"x": 1}, "arguments_valid": True}
    assert result == {
        "id": "r",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": "hi",
                "reasoning": "hm",
                "refusal": "no",
                "tool_calls": [call],
                "finish_reason": "stop",
            }
        ],
        "usage": dict(zip(COUNTS, (5, 2, 3, None, None), strict=True)),
        "error": None,
    }


def test_a_stream_that_says_nothing() -> None:
    empty = {"index": 0, "text": "", "reasoning": "", "refusal": None, "tool_calls": [], "finish_reason": None}
    result = merged(done=False)
    assert result["choices"] == [empty]
    assert result["usage"] == dict.fromkeys(COUNTS)
    assert result["error"] == {"code": "incomplete_stream", "message": "the stream ended without a finish reason"}
    assert merged(choice(finish="stop"))["choices"] == [empty | {"finish_reason": "stop"}]


def test_choices_that_skip_a_number() -> None:
    result = merged(choice(2, content="c"), choice(2, finish="stop"), choice(0, finish="stop"))
    assert [(c["index"], c["text"], c["finish_reason"]) for c in result["choices"]] == [
        (0, "", "stop"),
        (2, "c", "stop"),
    ]


@pytest.mark.parametrize(("raw", "shown"), [("", "{}"), (" \n", "{}"), (' {"x":1} ', ' {"x":1} ')])
def test_no_arguments_are_an_empty_object(raw: str, shown: str) -> None:
    (call,) = merged(choice(finish="stop", tool_calls=[called(raw)]))["choices"][0]["tool_calls"]
    assert (call["arguments_raw"], call["arguments_valid"]) == (shown, True)
    assert "error" not in call


def test_a_call_that_is_not_valid() -> None:
    (call,) = merged(choice(finish="length", tool_calls=[called("")]))["choices"][0]["tool_calls"]
    assert (call["arguments_raw"], call["arguments_json"], call["arguments_valid"]) == ("", None, False)
    assert call["error"]["code"] == "truncated"


def test_free_text_is_neither_json_nor_invalid() -> None:
    told = {"index": 0, "id": "a", "custom": {"name": "run", "input": "1+"}}
    result = merged(choice(finish="stop", tool_calls=[told]))
    assert result["choices"][0]["tool_calls"] == [
        {
            "id": "a",
            "name": "run",
            "arguments_raw": "1+",
            "arguments_json": None,
            "arguments_valid": None,
            "custom_text_input": True,
        }
    ]


def test_an_error_stands_beside_what_came_before_it() -> None:
    result = merged(choice(content="hi"), {"error": {"code": 500, "message": "oh"}})
    assert result["error"] == {"code": "500", "message": "oh"}
    assert result["choices"][0]["text"] == "hi"


def test_an_api_that_is_not_known() -> None:
    with pytest.raises(UnknownApi, match=r"known are anthropic\.messages"):
        MergedStream("openai")
