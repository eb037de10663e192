"""The table of the chat events: what an item is called there, what it carries, and under which id."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import (
    Annotation,
    Cache,
    Cancelled,
    Cost,
    Entry,
    Event,
    Failed,
    Final,
    Item,
    Message,
    MessageDelta,
    Mode,
    Raw,
    ReasoningDelta,
    RefusalDelta,
    Summary,
    ToolCallDelta,
    ToolCompleted,
    ToolFailed,
    ToolProgress,
    ToolStarted,
    Usage,
    encode,
)
from gateway.formats.webui import Turn, WebuiFormat
from gateway.formats.webui_events import PREVIEW_MAX, Chat
from tests.webui.wire import Block, blocks_of

TEXT = {"type": "text", "text": "hello"}
CALL = {"type": "tool_call", "id": "c1", "name": "terminal", "arguments": {"command": "ls"}}
BEFORE = (
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "second"},
    {"role": "user", "content": "q"},
)
ENCODED = tuple(msgspec.Raw(msgspec.json.encode(message)) for message in BEFORE)
TURN = Turn(Chat("run_1", "ses_1"), ENCODED, left_out=4, title="A chat", model="asked", provider="p")
FORMAT = WebuiFormat(TURN)


def shown(item: Item | Raw, seq: int = 7, fmt: WebuiFormat = FORMAT) -> list[Block]:
    stored = encode(item, ts=1764445312.5)
    return blocks_of(fmt.items(b"run_1", [Entry(seq, stored.type.encode(), stored.data)], Mode.EVENTS))


def only(item: Item | Raw) -> Block:
    [block] = shown(item)
    return block


NAMED: list[tuple[Item, str, dict[str, Any]]] = [
    (MessageDelta(text="é 😀"), "token", {"text": "é 😀"}),
    (ReasoningDelta(text="hm"), "reasoning", {"text": "hm"}),
    (
        Message(message={"role": "assistant", "content": [TEXT, CALL]}),
        "interim_assistant",
        {"text": "hello", "already_streamed": True},
    ),
    (
        Message(message={"role": "assistant", "content": [TEXT]}, interim=True),
        "interim_assistant",
        {"text": "hello", "already_streamed": True},
    ),
    (
        ToolStarted(call_id="c1", name="terminal", args={"command": "ls"}, preview="ls"),
        "tool",
        {"event_type": "tool.started", "name": "terminal", "preview": "ls", "args": {"command": "ls"}, "tid": "c1"},
    ),
    (
        ToolCompleted(call_id="c1", name="terminal", result="a b", duration_ms=1234.0, args={"command": "ls"}),
        "tool_complete",
        {
            "event_type": "tool.completed",
            "name": "terminal",
            "preview": "a b",
            "args": {"command": "ls"},
            "tid": "c1",
            "is_error": False,
            "duration": 1.234,
        },
    ),
    (
        ToolFailed(call_id="c1", name="terminal", error="no such file"),
        "tool_complete",
        {"event_type": "tool.completed", "preview": "no such file", "args": {}, "is_error": True, "duration": None},
    ),
    (
        Usage(
            input_tokens=3, output_tokens=1, total={"input_tokens": 13, "output_tokens": 4, "reasoning_tokens": None}
        ),
        "metering",
        {"session_id": "ses_1", "usage": {"input_tokens": 13, "output_tokens": 4}, "tps": None},
    ),
    (Cost(amount="0.1", total="0.25"), "metering", {"session_id": "ses_1", "usage": {"estimated_cost": 0.25}}),
    (Summary(text="shorter"), "compressed", {"session_id": "ses_1", "new_session_id": "ses_1"}),
    (
        Event(
            name="approval.requested",
            payload={"request_id": "q1", "command": "rm", "description": "d", "choices": ["once"]},
        ),
        "approval",
        {"approval_id": "q1", "command": "rm", "description": "d", "pending_count": 1, "session_id": "ses_1"},
    ),
    (
        Event(
            name="question.asked",
            payload={"request_id": "q2", "question": "Which?", "choices": ["a", "b"], "free": True},
        ),
        "clarify",
        {"clarify_id": "q2", "question": "Which?", "choices_offered": ["a", "b"], "session_id": "ses_1"},
    ),
    (Event(name="warning", payload={"code": "c", "message": "m"}), "warning", {"type": "c", "message": "m"}),
    (Event(name="retry", payload={"message": "again", "attempt": 2}), "warning", {"type": "retry", "message": "again"}),
    (Event(name="fallback", payload={"message": "other"}), "warning", {"type": "fallback", "message": "other"}),
    (Event(name="limit", payload={"message": "most"}), "warning", {"type": "limit", "message": "most"}),
    (Event(name="title", payload={"title": "T"}), "title", {"title": "T", "session_id": "ses_1"}),
    (Event(name="todo", payload={"todos": [{"id": 1}]}), "todo_state", {"todos": [{"id": 1}], "session_id": "ses_1"}),
    (
        Event(name="goal", payload={"state": "idle", "session_id": "x"}),
        "goal",
        {"state": "idle", "session_id": "ses_1"},
    ),
    (Event(name="run.restarted", payload={"attempt": 2}), "warning", {"type": "restarted", "attempt": 2}),
]


@pytest.mark.parametrize(("item", "event", "payload"), NAMED, ids=[f"{e}-{n}" for n, (_, e, _) in enumerate(NAMED)])
def test_an_item_is_one_event_with_its_id(item: Item, event: str, payload: dict[str, Any]):
    block = only(item)
    assert (block.id, block.event, block.retry) == ("run_1:7", event, None)
    assert {name: block.data.get(name) for name in payload} == payload


NAMELESS: list[Item | Raw] = [
    Message(message={"role": "assistant", "content": [TEXT]}),
    Message(message={"role": "assistant", "content": [CALL]}, choice=1),
    MessageDelta(text="of another answer", choice=1),
    ReasoningDelta(text="of another answer", choice=1),
    ReasoningDelta(signature="s"),
    RefusalDelta(text="no"),
    Annotation(annotation={}),
    ToolCallDelta(call_id="c", arguments="{"),
    ToolProgress(call_id="c", name="n"),
    Cache(status="hit"),
    Event(name="run.started"),
    Event(name="input.answered", payload={"request_id": "q"}),
    Raw("of.a.newer.worker", {"text": "x"}),
]


@pytest.mark.parametrize("item", NAMELESS, ids=str)
def test_an_item_without_a_name_there_moves_the_position(item: Item | Raw):
    assert only(item) == Block("run_1:7", "", None)


def test_an_item_that_cannot_be_read_moves_the_position():
    wire = FORMAT.items(b"run_1", [Entry(3, b"message.delta", b'{"ts":1.0,"text":7}')], Mode.EVENTS)
    assert wire == b"id: run_1:3\n\n"


def test_the_end_of_a_turn():
    message = {"role": "assistant", "content": [{"type": "reasoning", "text": "hm"}, TEXT, CALL]}
    usage = {"input_tokens": 10, "output_tokens": 2, "cache_read_tokens": None}
    fence = Final(message=message, usage=usage, cost={"total": "0.5"}, hermes_session_id="rotated", rounds=1)
    done, metering, end = shown(fence)
    assert (done.id, done.event, metering.id, metering.event) == (None, "done", None, "metering")
    assert end == Block("run_1:7", "stream_end", {"session_id": "ses_1"}, 3_600_000)
    assert (
        done.data["usage"] == metering.data["usage"] == {"input_tokens": 10, "output_tokens": 2, "estimated_cost": 0.5}
    )
    session = done.data["session"]
    assert session["session_id"] == "ses_1"
    assert session["messages"][:3] == list(BEFORE)
    [said] = session["messages"][3:]
    assert (said["role"], said["content"], said["reasoning"], said["timestamp"]) == (
        "assistant",
        "hello",
        "hm",
        1764445312.5,
    )
    assert (session["message_count"], session["_messages_offset"], session["title"]) == (8, 4, "A chat")
    assert (session["_messages_truncated"], session["model"], session["model_provider"]) == (True, "asked", "p")
    assert "rotated" not in json.dumps([done.data, end.data])


def test_counts_are_the_sessions_so_far():
    """A page takes them for the session's: what this turn used is the difference to what it knew before."""
    before = {"input_tokens": 100, "output_tokens": 7, "estimated_cost": 0.1}
    fmt = WebuiFormat(Turn(Chat("run_1", "ses_1", before), BEFORE))
    [live] = shown(Usage(input_tokens=4, total={"input_tokens": 4, "output_tokens": None}), fmt=fmt)
    assert live.data["usage"] == {"input_tokens": 104}
    [cost] = shown(Cost(amount="0.2", total="0.2", currency="USD"), fmt=fmt)
    assert cost.data["usage"] == {"estimated_cost": 0.3}
    done, metering, _ = shown(Final(usage={"input_tokens": 10}), fmt=fmt)
    expected = {"input_tokens": 110, "output_tokens": 7, "estimated_cost": 0.1}
    assert done.data["usage"] == metering.data["usage"] == expected
    assert expected.items() <= done.data["session"].items()


def test_the_end_of_a_turn_has_its_earlier_rounds():
    call = {"type": "tool_call", "id": "c1", "name": "read", "arguments": {"path": "a"}}
    steps = [
        {"type": "left_out", "count": 3},
        {"type": "message", "round": 1, "message": {"role": "assistant", "content": [TEXT, call]}, "ts": 5.0},
        {"type": "tool", "round": 1, "call_id": "c1", "name": "read", "result": "all of it", "ts": 6.0},
        {"type": "tool", "round": 2, "call_id": "c2", "name": "stop", "error": "no", "ts": 7.0, "behind": True},
    ]
    done, *_ = shown(Final(message={"role": "assistant", "content": [TEXT]}, steps=steps))
    session = done.data["session"]
    first, tool, last, behind = session["messages"][len(BEFORE) :]
    assert (first["content"], first["timestamp"]) == ("hello", 5.0)
    assert first["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"path":"a"}'}
    assert (tool["role"], tool["tool_call_id"], tool["name"], tool["content"]) == ("tool", "c1", "read", "all of it")
    assert (last["content"], last["timestamp"]) == ("hello", 1764445312.5)
    assert (behind["tool_call_id"], behind["content"], behind["is_error"]) == ("c2", "no", True)
    assert session["message_count"] == 4 + len(BEFORE) + 4


def test_the_end_of_a_turn_without_an_answer():
    done, _, end = shown(Final())
    assert done.data["session"]["messages"] == list(BEFORE)
    assert end.event == "stream_end"


def test_the_model_that_answered_counts_for_the_next_turn():
    done, *_ = shown(Final(message={"role": "assistant", "content": [TEXT], "model": "answered"}))
    assert (done.data["session"]["model"], done.data["session"]["model_provider"]) == ("answered", "p")


@pytest.mark.parametrize(
    ("code", "type_"),
    [
        ("provider_rate_limit", "rate_limit"),
        ("provider_auth", "auth_mismatch"),
        ("empty_reply", "no_response"),
        ("turn_limit", "tool_limit_reached"),
        ("worker_lost", "interrupted"),
        ("anything", "error"),
    ],
)
def test_a_failure_is_one_apperror_with_its_id(code: str, type_: str):
    block = only(Failed(code=code, message="why", retryable=True))
    assert (block.id, block.event, block.retry) == ("run_1:7", "apperror", 3_600_000)
    assert block.data["hint"]
    assert "recovery_control" not in block.data
    known = {"type": type_, "code": code, "message": "why", "session_id": "ses_1", "stream_id": "run_1"}
    assert known.items() <= block.data.items()


def test_a_cancel_is_one_cancel_with_its_id():
    block = only(Cancelled(message="by a person"))
    assert (block.id, block.event, block.retry) == ("run_1:7", "cancel", 3_600_000)
    assert {"message": "by a person", "type": "cancelled", "session_id": "ses_1"}.items() <= block.data.items()


@pytest.mark.parametrize("signal", [FORMAT.gap("run_1", 3, 9, 20), FORMAT.reset("run_1", "rewound")])
def test_a_recovery_signal_is_no_item(signal: bytes):
    [block] = blocks_of(signal)
    assert (block.id, block.event, block.retry) == (None, "apperror", 3_600_000)
    known = {"type": "interrupted", "recovery_control": True, "session_id": "ses_1", "stream_id": "run_1"}
    assert known.items() <= block.data.items()
    assert block.data["message"]
    assert block.data["hint"]


def test_a_relayed_item_has_the_id_that_its_service_gave_it():
    assert only(MessageDelta(text="x", source_id="event:7")).id == "event:7"
    assert only(ToolProgress(call_id="c", name="n", source_id="event:8")) == Block("event:8", "", None)
    assert only(Raw("of.a.newer.worker", {"source_id": "event:8"})) == Block("event:8", "", None)
    assert shown(Final(source_id="event:9"))[-1].id == "event:9"


def test_of_what_a_service_does_not_know_the_fence_alone_has_an_id():
    assert shown(Event(name="run.started", source_id=None)) == []
    # A browser keeps the highest number: one of ours would be ahead of the service's that follow.
    assert only(MessageDelta(text="x", source_id=None)).id is None
    assert only(Failed(code="worker_lost", message="m", source_id=None)).id == "run_1:7"


@pytest.mark.parametrize("id_", ["a\nb", "a\rb", "a\0b", ""])
def test_an_id_that_no_line_can_carry_is_replaced(id_: str):
    assert only(MessageDelta(text="x", source_id=id_)).id == "run_1:7"


def test_long_results_are_cut_and_objects_are_told_as_text():
    assert len(only(ToolCompleted(call_id="c", name="n", result="x" * 10_000)).data["preview"]) == PREVIEW_MAX + 1
    assert only(ToolCompleted(call_id="c", name="n", result={"a": [1]})).data["preview"] == '{"a":[1]}'
    assert only(ToolStarted(call_id="c", name="n", args="free text")).data["args"] == {"input": "free text"}


def test_control_frames_and_what_breaks_a_silence():
    assert FORMAT.opening(2000) == b""
    assert FORMAT.heartbeat == b": heartbeat\n\n"
    assert FORMAT.retry(150) == b"retry: 150\n\n"
    assert FORMAT.end("run_1", "completed", 9) == b""
    assert FORMAT.cursor("run_1", 9) == b"id: run_1:9\n\n"


def test_without_a_turn_the_run_stands_for_itself():
    done, _, end = shown(Final(message={"role": "assistant", "content": [TEXT]}), fmt=WebuiFormat())
    assert end.data == {"session_id": ""}
    assert [m["content"] for m in done.data["session"]["messages"]] == ["hello"]
    assert WebuiFormat().name != FORMAT.name


def test_modes_hide_what_they_hide_elsewhere():
    stored = [encode(item, ts=1.0) for item in (MessageDelta(text="x"), Usage(), Final())]
    entries = [Entry(n, e.type.encode(), e.data) for n, e in enumerate(stored, 1)]
    events = [b.event for b in blocks_of(FORMAT.items(b"run_1", entries, Mode.USAGE))]
    assert events == ["metering", "done", "metering", "stream_end"]


@given(st.text(max_size=60))
def test_any_text_is_one_line(text: str):
    stored = encode(MessageDelta(text=text), ts=1.0)
    wire = FORMAT.items(b"run_1", [Entry(1, b"message.delta", stored.data)], Mode.EVENTS).decode()
    assert len(wire.splitlines()) == 4
    assert [b.data["text"] for b in blocks_of(wire.encode())] == [text]


@given(st.lists(st.integers(0, len(NAMED) + len(NAMELESS) - 1), max_size=12), st.integers(0, 12))
def test_where_a_batch_is_cut_changes_nothing(order: list[int], cut: int):
    every = [*(item for item, _, _ in NAMED), *NAMELESS]
    stored = [encode(every[n], ts=1.0) for n in order]
    entries = [Entry(n, e.type.encode(), e.data) for n, e in enumerate(stored, 1)]
    whole = FORMAT.items(b"run_1", entries, Mode.EVENTS)
    parts = (FORMAT.items(b"run_1", part, Mode.EVENTS) for part in (entries[:cut], entries[cut:]))
    assert b"".join(parts) == whole
