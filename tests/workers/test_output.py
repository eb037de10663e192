"""Hermes' output → items: the cases of its dialects, and any split of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import Cache, Event, Item, MessageDelta, ToolCompleted, ToolFailed, ToolStarted, Usage
from workers.hermes.output import OutputParser


def _bytes(*records: object) -> bytes:
    return b"".join((r if isinstance(r, str) else json.dumps(r)).encode() + b"\n" for r in records)


def _parse(raw: bytes, *, succeeded: bool = True, cuts: Sequence[int] = ()) -> tuple[OutputParser, list[Item]]:
    parser = OutputParser()
    edges = [0, *sorted(min(c, len(raw)) for c in cuts), len(raw)]
    items = [item for a, b in pairwise(edges) for item in parser.feed(raw[a:b])]
    return parser, items + parser.close(succeeded=succeeded)


def _text(items: list[Item]) -> str:
    return "".join(item.text for item in items if isinstance(item, MessageDelta))


def _events(items: list[Item], name: str) -> list[dict[str, object]]:
    return [item.payload for item in items if isinstance(item, Event) and item.name == name]


INIT = {"type": "system", "subtype": "init", "model": "m", "session_id": "s1", "timestamp": 1}
RESULT = {
    "type": "result",
    "session_id": "s1",
    "exit_code": 0,
    "text": "two",
    "tokens": {"input": 100, "output": 7, "total": 137, "cache_read": 20, "cache_write": 10},
    "duration_ms": 5,
}
TOOLS = _bytes(
    INIT,
    {"type": "text", "text": "one "},
    {"type": "tool_use", "name": "terminal", "input": {"command": "a"}},
    {"type": "tool_use", "name": "terminal", "input": {"command": "b"}},
    {"type": "tool_use", "name": "read", "input": {}, "tool_call_id": "x1"},
    {"type": "tool_result", "name": "read", "output": "r", "duration_ms": 1, "is_error": False, "tool_call_id": "x1"},
    {"type": "tool_result", "name": "terminal", "output": "A", "duration_ms": 2, "is_error": False},
    {"type": "tool_result", "name": "terminal", "output": '{"exit_code": 3, "error": null}', "is_error": True},
    {"type": "text", "text": "\n\ntwo"},
    RESULT,
)


def test_a_run_with_tools_one_to_one() -> None:
    parser, items = _parse(TOOLS)
    assert [type(i) for i in items] == [
        *(Event, MessageDelta, ToolStarted, ToolStarted, ToolStarted, ToolCompleted, ToolCompleted, ToolFailed),
        *(MessageDelta, Usage, Cache),
    ]
    started = [i for i in items if isinstance(i, ToolStarted)]
    ended = [i for i in items if isinstance(i, (ToolCompleted, ToolFailed))]
    assert [i.call_id for i in started] == ["hermes_call_1", "hermes_call_2", "x1"]
    assert [i.call_id for i in ended] == ["x1", "hermes_call_1", "hermes_call_2"]
    assert isinstance(ended[2], ToolFailed)
    assert ended[2].error == "exit code 3"
    assert [i.round for i in items if isinstance(i, MessageDelta)] == [1, 2]
    assert parser.round == 2
    assert parser.answered


def test_usage_in_our_meaning_counts_cache_as_input() -> None:
    _, items = _parse(TOOLS)
    usage = next(i for i in items if isinstance(i, Usage))
    assert (usage.input_tokens, usage.output_tokens) == (130, 7)
    assert (usage.cache_read_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == (20, 10, None)
    assert usage.total["input_tokens"] == 130


def test_counts_that_are_all_zero_are_no_usage() -> None:
    _, items = _parse(_bytes(INIT, {**RESULT, "text": "", "tokens": {"input": 0, "output": 0, "cache_read": 0}}))
    assert not any(isinstance(i, Usage) for i in items)


@given(st.lists(st.integers(0, len(TOOLS)), max_size=6))
def test_any_split_of_the_bytes_gives_the_same_items(cuts: list[int]) -> None:
    assert _parse(TOOLS, cuts=cuts)[1] == _parse(TOOLS)[1]


def test_every_split_point_inside_multi_byte_characters() -> None:
    raw = _bytes(INIT).rstrip() + '\n{"type": "text", "text": "aé漢😀"}\n'.encode()
    whole = _parse(raw)[1]
    assert _text(whole) == "aé漢😀"
    for cut in range(len(raw)):
        assert _parse(raw, cuts=[cut])[1] == whole


def test_invalid_utf8_is_replaced_and_nothing_else_is_lost() -> None:
    _, items = _parse(_bytes(INIT) + b'{"type": "text", "text": "a\xff\xfeb"}\n')
    assert _text(items) == "a\ufffd\ufffdb"


def test_a_line_of_five_megabytes_is_one_delta() -> None:
    _, items = _parse(_bytes(INIT, {"type": "text", "text": "y" * (5 << 20)}), cuts=range(0, 5 << 20, 65_536))
    assert _text(items) == "y" * (5 << 20)


def test_a_line_beyond_the_limit_is_reported() -> None:
    parser = OutputParser(line_max=100)
    items = parser.feed(_bytes({"type": "text", "text": "z" * 200}, {"type": "text", "text": "ok"}))
    assert _text(items) == "ok"
    assert _events(items, "warning")[0]["code"] == "line_too_long"


@pytest.mark.parametrize("line", ['"hello"', "42", "[1, 2]", "null", "{not json", "plain words"])
def test_lines_that_are_no_object_are_text_of_the_model_as_they_stand(line: str) -> None:
    assert _text(_parse(_bytes(line))[1]) == line + "\n"
    assert _text(_parse(line.encode())[1]) == line
    inside = _parse(_bytes(INIT, {"type": "text", "text": "a "}, line, RESULT))[1]
    assert line in _text(inside)


def test_plain_lines_keep_their_blank_lines() -> None:
    assert _text(_parse(b"one\n\ntwo\n")[1]) == "one\n\ntwo\n"


def test_the_seed_dialect() -> None:
    parser, items = _parse(_bytes({"type": "message.delta", "delta": "He"}, {"type": "message.delta", "delta": "llo"}))
    assert _text(items) == "Hello"
    assert not parser.structured
    assert parser.answered


def test_unknown_objects_are_events_and_no_text() -> None:
    _, items = _parse(_bytes(INIT, {"type": "status", "state": "thinking"}, {"no": "type"}))
    assert _text(items) == ""
    assert [e["record"] for e in _events(items, "hermes.record")] == [
        {"type": "status", "state": "thinking"},
        {"no": "type"},
    ]


@pytest.mark.parametrize("ahead", [b"", b"Hello\n", b'{"type": "message.delta", "delta": "Hello"}\n'])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_answer_that_is_json_or_ends_with_some_is_text(ahead: bytes, end: bytes) -> None:
    answer = b'{"reply": "Hello", "confidence": 0.9}'
    _, items = _parse(ahead + answer + end)
    assert _text(items) == ("Hello" if b"type" in ahead else ahead.decode()) + (answer + end).decode()
    assert not any(isinstance(item, Event) for item in items)


@pytest.mark.parametrize(
    ("before", "said"),
    [(_bytes(INIT, {"type": "text", "text": "a"}), "a"), (_bytes({"type": "message.delta", "delta": "b"}), "b")],
)
@pytest.mark.parametrize("torn", ['{"type": "text", "te', '{"type":"result","session_id":"s1","exit_code":0'])
def test_a_record_that_was_torn_off_is_no_text(before: bytes, said: str, torn: str) -> None:
    _, items = _parse(before + torn.encode())
    assert _text(items) == said
    assert _events(items, "warning") == [{"code": "torn_record", "message": torn}]


def test_lines_ahead_of_init_are_a_warning_and_not_part_of_the_answer() -> None:
    _, items = _parse(_bytes("tirith: not installed", INIT, {"type": "text", "text": "hi"}))
    assert _text(items) == "hi"
    assert _events(items, "warning")[0]["message"] == "tirith: not installed"


def test_plain_lines_of_a_failed_command_are_its_guidance() -> None:
    parser, items = _parse(b"\nIt looks like Hermes isn't configured yet\n", succeeded=False)
    assert items == []
    assert "isn't configured" in parser.guidance


def test_a_session_id_that_rotates_is_recorded() -> None:
    parser, items = _parse(_bytes(INIT, {"type": "text", "text": "two"}, {**RESULT, "session_id": "s2"}))
    assert _events(items, "hermes.session") == [
        {"hermes_session_id": "s1", "model": "m"},
        {"hermes_session_id": "s2", "model": "m", "rotated_from": "s1"},
    ]
    assert parser.session_id == "s2"


def test_a_result_with_more_than_the_deltas_emits_the_rest() -> None:
    more = _parse(_bytes(INIT, {"type": "text", "text": "tw"}, RESULT))[1]
    assert _text(more) == "two"
    none = _parse(_bytes(INIT, RESULT))[1]
    assert _text(none) == "two"


def test_an_answer_that_came_with_the_last_tools_is_not_said_twice() -> None:
    use = {"type": "tool_use", "name": "memory", "input": {}}
    end = {"type": "tool_result", "name": "memory", "output": "ok"}
    parser, items = _parse(_bytes(INIT, {"type": "text", "text": "two\n"}, use, end, RESULT))
    assert _text(items) == "two\n"
    assert parser.answered


def test_a_result_that_differs_is_reported_and_changes_nothing() -> None:
    _, items = _parse(_bytes(INIT, {"type": "text", "text": "other"}, RESULT))
    assert _text(items) == "other"
    assert _events(items, "merge.mismatch") == [{"round": 1, "reported": "two"}]


def test_a_call_that_never_ended_is_closed() -> None:
    _, items = _parse(_bytes(INIT, {"type": "tool_use", "name": "terminal", "input": {}}))
    assert isinstance(items[-1], ToolFailed)
    assert items[-1].call_id == "hermes_call_1"


def test_a_repeated_id_is_another_call() -> None:
    use = {"type": "tool_use", "name": "t", "input": {}, "tool_call_id": "same"}
    end = {"type": "tool_result", "name": "t", "output": "", "tool_call_id": "same"}
    _, items = _parse(_bytes(INIT, use, end, use, end))
    starts = [i.call_id for i in items if isinstance(i, ToolStarted)]
    ends = [i.call_id for i in items if isinstance(i, ToolCompleted)]
    assert starts == ends
    assert len(set(starts)) == 2


def test_records_after_the_result_are_reported() -> None:
    parser, items = _parse(_bytes(INIT, {"type": "text", "text": "two"}, RESULT, RESULT))
    assert parser.result is not None
    assert _events(items, "warning")[0]["code"] == "stray_record"


@given(st.binary(max_size=300))
def test_nothing_raises(raw: bytes) -> None:
    _parse(raw)
    _parse(_bytes(INIT) + raw)


_field = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2))
_names = ("text", "delta", "name", "input", "output", "tokens", "tool_call_id", "exit_code", "session_id", "error")


@given(
    st.sampled_from(["system", "text", "tool_use", "tool_result", "result", "message.delta", 7]),
    st.dictionaries(st.sampled_from(_names), _field),
)
def test_records_with_fields_of_any_type_do_not_raise(kind: object, fields: dict[str, object]) -> None:
    _parse(_bytes(INIT, {**fields, "type": kind}, {**fields, "type": kind, "subtype": "init"}))
