"""The bridge's lines → items: each kind, every split, and how calls end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.items import Cache, Cost, Event, MessageDelta, ReasoningDelta, Summary, ToolFailed, ToolStarted, Usage
from workers.hermes.bridge_counts import Counts
from workers.hermes.bridge_lines import PROTOCOL, BridgeLines, call_line
from workers.hermes.calls import Ask, Batch

HELLO = {"type": "hello", "protocol": PROTOCOL, "hermes_version": "1.2", "callbacks": ["a"], "lacks": []}
SESSION = {"type": "session", "session_id": "s1", "model": "m", "provider": "p"}


def _bytes(*records: dict[str, Any] | bytes) -> bytes:
    return b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records)


def _read(*records: dict[str, Any] | bytes) -> tuple[BridgeLines, Batch]:
    lines = BridgeLines(1 << 16)
    return lines, lines.feed(_bytes(*records)) + lines.close()


def _texts(batch: Batch) -> list[tuple[int, int, str]]:
    return [(i.round, i.index, i.text) for i in batch if isinstance(i, (MessageDelta, ReasoningDelta))]


def _text(*pieces: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": piece} for piece in pieces]


def _tool(name: str = "t", call_id: str = "c1", **more: Any) -> list[dict[str, Any]]:
    about = {"id": call_id, "name": name}
    return [{"type": "tool_started", **about, "args": {}}, {"type": "tool_ended", **about, "result": "r", **more}]


def _result(final: str | None, **more: Any) -> dict[str, Any]:
    return {"type": "result", "final_response": final, "completed": True, "failed": False, **more}


WHOLE = _bytes(
    *(HELLO, SESSION, {"type": "reasoning", "text": "hm "}, *_text("Let ", "me\u2028", "😀"), *_tool(duration=0.5)),
    {
        "type": "usage",
        "prompt": 100,
        "output": 5,
        "cache_read": 20,
        "reasoning": 1,
        "cost": 0.5,
        "cost_status": "actual",
    },
    {"type": "ask", "id": "ask_1", "kind": "question", "payload": {"question": "?"}, "choices": ["a"], "free": True},
    *(*_text("\n\nDone."), b"no json", {"type": "unheard of"}, _result("Done.", session_id="s2", model="m")),
)


def test_every_split_gives_the_same() -> None:
    whole = BridgeLines()
    expected = whole.feed(WHOLE) + whole.close()
    assert len(expected) > 14
    for at in range(len(WHOLE) + 1):
        lines = BridgeLines()
        assert lines.feed(WHOLE[:at]) + lines.feed(WHOLE[at:]) + lines.close() == expected
        assert lines.told == whole.told


def test_byte_by_byte() -> None:
    whole, lines = BridgeLines(), BridgeLines()
    assert [i for b in WHOLE for i in lines.feed(bytes([b]))] + lines.close() == whole.feed(WHOLE) + whole.close()


def test_the_call_line_carries_any_text() -> None:
    line = call_line({"prompt": "a\nb\u2028\ud800", "approvals": "ask"})
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"type": "call", "protocol": 1, "prompt": "a\nb\u2028\ud800", "approvals": "ask"}


def test_the_greeting() -> None:
    lines, batch = _read({**HELLO, "lacks": ["x_callback", "y_callback"], "approvals": True})
    assert lines.hello is not None
    assert (lines.hello.hermes_version, lines.hello.lacks, lines.hello.approvals) == (
        *("1.2", ("x_callback", "y_callback"), True),
    )
    [warning] = batch
    assert isinstance(warning, Event)
    assert (warning.name, warning.payload["code"]) == ("warning", "bridge_lacks")
    assert "x_callback, y_callback" in warning.payload["message"]


@pytest.mark.parametrize(
    "record", [{"type": "unavailable", "reason": "too old"}, {**HELLO, "protocol": 2}, {**HELLO, "protocol": None}]
)
def test_greetings_that_refuse(record: dict[str, Any]) -> None:
    lines, batch = _read(record)
    assert (lines.hello, batch, lines.greeted) == (None, [], True)
    assert lines.unavailable
    assert not _read({**SESSION})[0].greeted


def test_blocks_within_a_round_are_numbered_and_tools_end_it() -> None:
    _, batch = _read(
        *({"type": "reasoning", "text": "r1"}, *_text("a", "b"), {"type": "reasoning", "text": "r2"}, *_text("c")),
        *(*_tool(), {"type": "reasoning", "text": "r3"}, *_text("\n\nd"), *_tool(call_id="c2"), *_text("e")),
    )
    assert _texts(batch) == [
        *((1, 0, "r1"), (1, 1, "a"), (1, 1, "b"), (1, 2, "r2"), (1, 3, "c")),
        *((2, 0, "r3"), (2, 1, "\n\nd"), (3, 0, "e")),
    ]


@pytest.mark.parametrize(
    ("before", "final", "told"),
    [
        (_text("An", "swer.\n"), "Answer.", ["An", "swer.\n"]),
        (_text("Ans"), "Answer.", ["Ans", "wer."]),
        ([], "Answer.", ["Answer."]),
        ([*_text("I look. "), *_tool()], "Answer.", ["I look. ", "\n\nAnswer."]),
        ([*_text("Answer. "), *_tool()], "Answer.", ["Answer. "]),
        ([*_text("Answer.")], None, ["Answer."]),
        ([], "⚠️ No reply: the model returned nothing", []),
        (_text("Answer."), "", ["Answer."]),
    ],
)
def test_what_the_result_has_beyond_the_stream_is_told_once(before: Any, final: str | None, told: list[str]) -> None:
    _, batch = _read(*before, _result(final))
    assert [text for *_, text in _texts(batch)] == told
    assert not [i for i in batch if isinstance(i, Event)]


def test_a_result_that_says_something_else_is_reported() -> None:
    _, batch = _read(*_text("This"), _result("That"))
    [mismatch] = [i for i in batch if isinstance(i, Event)]
    assert (mismatch.name, mismatch.payload) == ("merge.mismatch", {"round": 1, "reported": "That"})


@pytest.mark.parametrize("how", [{"failed": True}, {"interrupted": True}])
def test_the_words_of_a_failure_are_no_text(how: dict[str, Any]) -> None:
    _, batch = _read(*_text("half"), _result("Something went wrong", **how))
    assert [text for *_, text in _texts(batch)] == ["half"]


def test_a_turn_limit_keeps_the_text_and_not_the_notice() -> None:
    final = "A summary.\n\n⚠️ No reply: the maximum was reached"
    lines, batch = _read(
        *_text("x"), *_tool(), _result(final, completed=False, turn_exit_reason="max_iterations_reached(1/1)")
    )
    assert [text for *_, text in _texts(batch)] == ["x", "\n\nA summary."]
    failure = lines.verdict(None, "")
    assert failure is not None
    assert (failure.code, failure.retryable) == ("turn_limit", False)


def test_tools_keep_their_ids_and_open_ones_fail_at_the_end() -> None:
    started = {"type": "tool_started", "name": "t", "args": {"a": 1}}
    _, batch = _read(
        *({**started, "id": "same"}, {**started, "id": "same"}, {**started, "id": ""}),
        *({"type": "tool_ended", "id": "same", "name": "t", "result": "r1", "is_error": True}, _result("x")),
    )
    ids = [i.call_id for i in batch if isinstance(i, ToolStarted)]
    assert len(set(ids)) == 3
    failed = [(i.call_id, i.error) for i in batch if isinstance(i, ToolFailed)]
    assert failed[0] == (ids[0], "r1")
    assert [call_id for call_id, _ in failed[1:]] == ids[1:]
    assert "Hermes ended" in failed[1][1]


def test_usage_comes_as_what_was_added_in_our_meaning() -> None:
    counts = Counts()
    first = counts.add(
        {"prompt": 1100, "input": 1000, "output": 77, "cache_read": 100, "cache_write": 0, "reasoning": 7}
    )
    assert first == [
        Usage(
            input_tokens=1100,
            output_tokens=77,
            cache_read_tokens=100,
            cache_write_tokens=0,
            reasoning_tokens=7,
            total={
                "input_tokens": 1100,
                "output_tokens": 77,
                "cache_read_tokens": 100,
                "cache_write_tokens": 0,
                "reasoning_tokens": 7,
            },
        ),
        Cache(status="hit", tokens=100),
    ]
    again = counts.add({"prompt": 2300, "output": 117, "cache_read": 100})
    assert isinstance(again[0], Usage)
    assert (again[0].input_tokens, again[0].output_tokens, again[0].reasoning_tokens) == (1200, 40, None)
    assert again[0].total["input_tokens"] == 2300
    assert again[0].total["reasoning_tokens"] == 7, "what is not told any more is not forgotten"
    assert len(again) == 1, "no more of the cache was read"
    assert counts.add({"prompt": 2300, "output": 117, "cache_read": 100}) == []


def test_counts_without_a_sum_are_added_up_and_a_counter_set_back_begins_again() -> None:
    counts = Counts()
    [usage, _] = counts.add({"input": 10, "cache_read": 5, "cache_write": 2})
    assert isinstance(usage, Usage)
    assert usage.input_tokens == 17
    [usage] = counts.add({"input": 4, "cache_read": 0, "cache_write": 0})
    assert isinstance(usage, Usage)
    assert (usage.input_tokens, usage.total["input_tokens"]) == (4, 21)
    assert Counts().add({"prompt": True, "output": -1, "input": "7"}) == []


def test_costs_only_where_hermes_knows_them() -> None:
    counts = Counts()
    assert counts.add({"cost": 0.0, "cost_status": "unknown"}) == []
    assert not counts.priced
    assert counts.add({"cost": 0.1, "cost_status": "estimated"}) == [Cost(amount="0.1", total="0.1", estimated=True)]
    assert counts.add({"cost": 0.3, "cost_status": "actual"}) == [Cost(amount="0.2", total="0.3", estimated=False)]
    assert counts.priced
    free = Counts()
    assert free.add({"cost": 0.0, "cost_status": "included"}) == [Cost(amount="0", total="0", estimated=False)]


def test_a_session_that_rotates_and_a_model_that_falls_back() -> None:
    lines, batch = _read(
        SESSION,
        {"type": "compressed", "summary": "short", "session_id": "s2", "old_session_id": "s1", "in_place": False},
        *({**SESSION, "session_id": "s2"}, {**SESSION, "session_id": "s2", "model": "m2", "provider": "p2"}),
        {"type": "compressed", "summary": None, "session_id": "s2", "old_session_id": "", "in_place": True},
    )
    first, summary, rotated, fallback, in_place = batch
    assert first == Event(name="hermes.session", payload={"hermes_session_id": "s1", "model": "m"})
    assert summary == Summary(text="short", replaces={"hermes_session_id": "s1", "in_place": False})
    assert isinstance(rotated, Event)
    assert rotated.payload == {"hermes_session_id": "s2", "model": "m", "rotated_from": "s1"}
    assert isinstance(fallback, Event)
    assert (fallback.name, fallback.payload["model"], fallback.payload["from_model"]) == ("fallback", "m2", "m")
    assert in_place == Summary(text="", replaces={"hermes_session_id": "s2", "in_place": True})
    assert (lines.told.session_id, lines.told.model, lines.told.provider) == ("s2", "m2", "p2")


@pytest.mark.parametrize(
    ("kind", "message", "name", "fields"),
    [
        ("lifecycle", "⏳ Retrying in 2.5s (attempt 1/3)...", "retry", {"wait_s": 2.5, "attempt": 1, "of": 3}),
        ("lifecycle", "⏱️ Rate limited. Waiting 1.0s (attempt 2/3)...", "retry", {"wait_s": 1.0}),
        ("lifecycle", "⚠️ Billing exhausted — switching to fallback provider...", "fallback", {}),
        ("warn", "something is odd", "warning", {"code": "notice"}),
        ("lifecycle", "❌ API failed after 3 retries — HTTP 500", "warning", {"code": "model_error"}),
        ("compacted", "✓ done", "hermes.status", {"kind": "compacted", "message": "✓ done"}),
    ],
)
def test_notices(kind: str, message: str, name: str, fields: dict[str, Any]) -> None:
    _, [event] = _read({"type": "status", "kind": kind, "message": message})
    assert isinstance(event, Event)
    assert event.name == name
    assert fields.items() <= event.payload.items()


def test_a_subagent_speaks_for_itself() -> None:
    _, [event] = _read({"type": "subagent", "event": "tool", "name": "terminal", "subagent_id": "sa-1", "goal": None})
    assert event == Event(
        name="hermes.subagent",
        payload={"subagent_id": "sa-1", "what": "tool", "tool": "terminal"},
        component_id="subagent:sa-1",
    )


def test_an_approval_and_a_question() -> None:
    _, batch = _read(
        {"type": "ask", "id": "1", "kind": "approval", "payload": {"command": "c"}, "choices": ["once", "deny"]},
        {"type": "ask", "id": "2", "kind": "question", "payload": {}, "free": True, "otherwise": "as you like"},
    )
    assert batch == [
        Ask(key="1", kind="approval", payload={"command": "c"}, choices=("once", "deny"), free=False, otherwise="deny"),
        Ask(key="2", kind="question", payload={}, choices=(), free=True, otherwise="as you like"),
    ]


@pytest.mark.parametrize("line", [b"[1]", b"7", b'"text"', b"Traceback", b"\xff\xfe", b"{", b"[" * 40_000])
def test_lines_that_are_no_record_are_reported_and_no_text(line: bytes) -> None:
    _, batch = _read(line, *_text("a"))
    assert [text for *_, text in _texts(batch)] == ["a"]
    [event] = [i for i in batch if isinstance(i, Event)]
    assert event.payload["code"] == "stray_output"


def test_a_line_beyond_the_limit_is_left_out_and_said_so() -> None:
    _, batch = _read(*_text("x" * (1 << 16)), *_text("after"))
    assert [text for *_, text in _texts(batch)] == ["after"]
    [event] = [i for i in batch if isinstance(i, Event)]
    assert event.payload["code"] == "line_too_long"


def test_records_of_a_newer_bridge_are_kept() -> None:
    record = {"type": "mood", "value": 3}
    assert _read(record)[1] == [Event(name="hermes.record", payload={"record": record})]


@pytest.mark.parametrize(
    ("result", "code", "retryable"),
    [
        (_result("fine"), None, False),
        (_result(None), "empty_reply", True),
        (_result("⚠️ No reply: the model returned empty content", turn_exit_reason="empty"), "empty_reply", True),
        (_result("explainer.no_reply_prefixexplainer.empty_response"), "empty_reply", True),
        (_result("x", failed=True, error="HTTP 401: bad key"), "provider_auth", False),
        (_result("no entry", failed=True, error="", failure_reason="auth"), "provider_auth", False),
        (_result("API call failed after 3 retries: HTTP 429: slow down", failed=True), "provider_rate_limit", True),
        (_result("patience", failed=True, failure_reason="rate_limit"), "provider_rate_limit", True),
        (_result("x", failed=True, error="HTTP 500: broken"), "provider_error", True),
        (_result("x", failed=True, error="HTTP 400: bad request"), "provider_error", False),
        (_result("API call failed after 3 retries: Connection error.", failed=True), "provider_error", True),
        (_result("x", failed=True, error="the disk is full"), "hermes_failed", False),
        (_result("x", completed=False, partial=True, error="truncated"), "hermes_failed", False),
        (_result("x", completed=False, turn_exit_reason="guardrail"), "hermes_failed", False),
        (_result("x", completed=False, interrupted=True), "interrupted", True),
    ],
)
def test_the_verdict(result: dict[str, Any], code: str | None, retryable: bool) -> None:
    failure = _read(result)[0].verdict(None, "")
    assert (failure.code if failure else None, bool(failure and failure.retryable)) == (code, retryable)


@pytest.mark.parametrize(
    "said", ["⚠️ No reply: none is needed.", "explainer.no_reply_prefix", "Yes.\n\n⚠️ No reply: none came back."]
)
def test_what_the_model_said_is_no_notice_whatever_it_looks_like(said: str) -> None:
    lines, batch = _read(*_text(said, "\n"), _result(said))
    assert lines.verdict(None, "") is None
    assert [text for *_, text in _texts(batch)] == [said, "\n"]
    assert not [item for item in batch if isinstance(item, Event)]


def test_text_that_was_streamed_is_an_answer() -> None:
    assert _read(*_text("x"), _result(None))[0].verdict(0, "") is None
    unanswered = _read(*_text("x"), *_tool(), _result(None))[0].verdict(0, "")
    assert unanswered is not None
    assert unanswered.code == "empty_reply"


def test_hermes_own_words_are_the_message() -> None:
    said = _read(_result("Your key was rejected.", failed=True, error="HTTP 401: no"))[0].verdict(0, "")
    assert said is not None
    assert said.message == "Your key was rejected."
    bare = _read(_result("explainer.key", failed=True, error="explainer.key", turn_exit_reason="lost"))[0].verdict(
        0, ""
    )
    assert bare is not None
    assert bare.message == "Hermes failed (lost)"


@pytest.mark.parametrize(
    ("exit_code", "code", "retryable"),
    [(-9, "hermes_died", True), (143, "interrupted", True), (1, "no_result", True), (None, "no_result", True)],
)
def test_the_verdict_where_no_result_came(exit_code: int | None, code: str, retryable: bool) -> None:
    failure = _read(HELLO, *_text("x"))[0].verdict(exit_code, "one\nlast words\n")
    assert failure is not None
    assert (failure.code, failure.retryable) == (code, retryable)
    assert code == "interrupted" or "last words" in failure.message


@pytest.mark.parametrize(
    ("code", "message", "expected", "retryable"),
    [
        ("not_configured", "run hermes setup", "not_configured", False),
        ("not_configured", "HTTP 401: expired", "provider_auth", False),
        ("hermes_session_busy", "later", "hermes_session_busy", True),
        ("approvals_unavailable", "HTTP 401", "approvals_unavailable", False),
    ],
)
def test_the_verdict_where_the_call_could_not_begin(code: str, message: str, expected: str, retryable: bool) -> None:
    lines, batch = _read(HELLO, {"type": "failed", "code": code, "message": message})
    failure = lines.verdict(1, "")
    assert failure is not None
    assert (failure.code, failure.message, failure.retryable) == (expected, message, retryable)
    assert (batch, lines.told.finished) == ([], True)
