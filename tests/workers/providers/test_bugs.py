"""Minimal inputs from public fault reports: the right result of each.

The chunks lie beside the repository; what is right is written here, in full.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.workers.providers import recordings
from workers.merged import MergedStream


def merge(name: str, *, snapshots: bool = False) -> dict[str, Any]:
    bug = recordings.load_bug(name)
    stream = MergedStream(bug.api, snapshots=snapshots)
    stream.feed(bug.stream)
    stream.close()
    result = stream.result()
    assert result["error"] is None
    return result


def only_choice(name: str, *, snapshots: bool = False) -> dict[str, Any]:
    (choice,) = merge(name, snapshots=snapshots)["choices"]
    assert isinstance(choice, dict)
    return choice


def valid(id: str, name: str, raw: str, value: dict[str, Any]) -> dict[str, Any]:
    head = {"id": id, "name": name, "arguments_raw": raw}
    return {**head, "arguments_json": value, "arguments_valid": True}


PARIS = '{"city":"Paris"}'
TOKYO = '{"city":"Tokyo"}'
CALLS: dict[str, list[dict[str, Any]]] = {
    "01_missing_index_parallel": [
        valid("call_a", "get_weather", PARIS, {"city": "Paris"}),
        valid("call_b", "get_time", TOKYO, {"city": "Tokyo"}),
    ],
    "02_missing_index_continuation": [valid("call_a", "get_weather", PARIS, {"city": "Paris"})],
    "03_same_index_new_id": [
        valid("call_a", "get_weather", PARIS, {"city": "Paris"}),
        valid("call_b", "get_weather", TOKYO, {"city": "Tokyo"}),
    ],
    "04_name_repeated": [valid("call_a", "final_result", '{"x":1}', {"x": 1})],
    "05_id_and_name_repeated": [valid("call_a", "f", '{"x":1}', {"x": 1})],
    "07_duplicate_index_in_first_chunk": [
        valid("functions.list_files:0", "list_files", ' {"path": "."}', {"path": "."})
    ],
    "16_args_before_name": [valid("call_a", "f", '{"a":1}', {"a": 1})],
    "23_anthropic_input_in_block_start": [valid("toolu_1", "f", '{"a": 1}', {"a": 1})],
    "24_anthropic_input_in_start_then_delta": [valid("toolu_1", "f", '{"a":1}', {"a": 1})],
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    choice = only_choice(name)
    assert choice["tool_calls"] == CALLS[name]
    assert choice["finish_reason"] in ("tool_calls", "tool_use")
    assert choice["text"] == ""


def test_arguments_that_are_sent_again_are_no_valid_call() -> None:
    (call,) = only_choice("10_final_chunk_resends_full_args")["tool_calls"]
    assert call["arguments_raw"] == '{"city": "Seattle"}{"city": "Seattle"}'
    assert (call["arguments_json"], call["arguments_valid"]) == (None, False)
    assert (call["error"]["code"], call["error"]["position"]) == ("trailing", 19)
    assert call["error"]["repair"] == {"city": "Seattle"}


def test_arguments_that_the_length_cut_are_no_valid_call() -> None:
    choice = only_choice("11_truncated_args_length")
    (call,) = choice["tool_calls"]
    raw = '{"to": "alice", "amount": 100, "conf'
    assert (call["id"], call["name"], call["arguments_raw"]) == ("call_a", "send", raw)
    assert (call["arguments_json"], call["arguments_valid"]) == (None, False)
    assert (call["error"]["code"], call["error"]["position"]) == ("truncated", len(raw))
    assert call["error"]["repair"] == {"to": "alice", "amount": 100}
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("name", "text", "input_tokens", "output_tokens", "cached"),
    [
        ("12_cumulative_usage_every_chunk", "abc", 10, 3, None),
        ("13_usage_then_usageless_chunk", "hi", 10, 3, None),
        ("14_finish_reason_twice", "hi", 10, 3, None),
        ("20_anthropic_delta_without_input", "hi", 140, 25, 40),
    ],
)
def test_usage(name: str, text: str, input_tokens: int, output_tokens: int, cached: int | None) -> None:
    result = merge(name)
    usage = result["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (input_tokens, output_tokens)
    assert usage["cache_read_tokens"] == cached
    (choice,) = result["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text, "end_turn" if "anthropic" in name else "stop")


def test_growing_snapshots_are_read_as_such_where_the_adapter_is_told() -> None:
    name = "17_cumulative_content_snapshots"
    assert only_choice(name, snapshots=True)["text"] == "Hello world"
    assert only_choice(name)["text"] == "HelHelloHello worHello world", "and never guessed"


def blocks(name: str) -> list[dict[str, Any]]:
    bug = recordings.load_bug(name)
    stream = MergedStream(bug.api)
    stream.feed(bug.stream)
    stream.close()
    message = stream.merger.message()
    assert message is not None
    content = message["content"]
    assert isinstance(content, list)
    return content


def test_thoughts_between_texts_keep_their_places_and_signatures() -> None:
    assert blocks("21_anthropic_multi_thinking_redacted") == [
        {"type": "reasoning", "text": "one", "signature": "SIG1"},
        {"type": "reasoning", "text": "", "redacted": "RED"},
        {"type": "text", "text": "mid"},
        {"type": "reasoning", "text": "two", "signature": "SIG2"},
        {"type": "text", "text": "end"},
    ]


def test_a_thought_that_was_never_closed_says_so() -> None:
    assert blocks("22_anthropic_unsigned_thinking") == [
        {"type": "reasoning", "text": "Let me reason", "incomplete": True}
    ]


def test_every_report_is_asserted() -> None:
    recordings.require()
    here = {
        *CALLS,
        "10_final_chunk_resends_full_args",
        "11_truncated_args_length",
        "12_cumulative_usage_every_chunk",
        "13_usage_then_usageless_chunk",
        "14_finish_reason_twice",
        "17_cumulative_content_snapshots",
        "20_anthropic_delta_without_input",
        "21_anthropic_multi_thinking_redacted",
        "22_anthropic_unsigned_thinking",
    }
    assert here == set(recordings.bugs())
