"""The events of a run at Hermes' API server → items, and how it ended; also from the recordings of real servers.

The recordings lie beside the repository and are not part of it; in CI they must be there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import Event, MessageDelta, ToolCompleted, ToolFailed, ToolStarted
from workers.hermes.api_approvals import Approvals
from workers.hermes.api_events import UNSEEN, ApiEvents, RunEnd
from workers.hermes.api_verdict import judge_end
from workers.hermes.calls import Ask, Batch

FIXTURES = Path(__file__).resolve().parents[2].parent / "shared" / "fixtures" / "hermes"
RECORDINGS = (
    "api_01_runs_tool",
    "api_05_runs_approval",
    "api_06_runs_stop",
    "api_07_runs_err",
    "api_10_sess_stream",
)


def _recording(name: str) -> bytes:
    if not FIXTURES.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"the recordings are not at {FIXTURES}")
        pytest.skip("no recordings of Hermes beside the repository")
    lines = [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text().splitlines()]
    return "".join(line["d"] for line in lines if "d" in line).encode()


def _stream(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)


def _read(*events: dict[str, Any]) -> tuple[ApiEvents, Batch]:
    seen = ApiEvents()
    return seen, seen.feed(_stream(*events))


def _text(batch: Batch) -> str:
    return "".join(item.text for item in batch if isinstance(item, MessageDelta))


def _rounds(batch: Batch) -> list[int]:
    return [item.round for item in batch if isinstance(item, MessageDelta)]


def _delta(text: str) -> dict[str, Any]:
    return {"event": "message.delta", "delta": text}


def _tool(name: str, **more: Any) -> list[dict[str, Any]]:
    ended = {"event": "tool.completed", "tool": name, "duration": 0.5, "error": False, **more}
    return [{"event": "tool.started", "tool": name, "preview": "p"}, ended]


def _completed(output: str, **more: Any) -> dict[str, Any]:
    return {"event": "run.completed", "output": output, **more}


def _failed(**more: Any) -> dict[str, Any]:
    return {"event": "run.failed", **more}


# Recordings.


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_split_of_a_recording_gives_the_same(name: str) -> None:
    raw = _recording(name)
    whole = ApiEvents()
    expected = whole.feed(raw)
    for at in range(len(raw)):
        seen = ApiEvents()
        assert seen.feed(raw[:at]) + seen.feed(raw[at:]) == expected, at
        assert seen.end == whole.end
    seen = ApiEvents()
    assert [made for byte in raw for made in seen.feed(bytes([byte]))] == expected


def test_the_recording_of_a_tool_round() -> None:
    seen, batch = ApiEvents(), []
    batch = seen.feed(_recording("api_01_runs_tool"))
    answer = "Final answer: the **tool** ran and\nprinted what I expected. Goodbye w20.\n"
    assert _text(batch) == f"Let me run a command first. \n\n{answer}"
    assert _rounds(batch) == [1] * 6 + [2] * 12
    started = next(item for item in batch if isinstance(item, ToolStarted))
    ended = next(item for item in batch if isinstance(item, ToolCompleted))
    assert (started.name, started.preview) == ("terminal", "echo hello-from-tool + 1 command")
    assert (ended.call_id, ended.duration_ms) == (started.call_id, 33.0)
    assert len(batch) == 20
    assert (seen.reported, judge_end(seen)) == ({"input_tokens": 2300, "output_tokens": 117}, None)


def test_the_recording_of_an_approval() -> None:
    seen = ApiEvents()
    batch = seen.feed(_recording("api_05_runs_approval"))
    [ask] = [made for made in batch if isinstance(made, Ask)]
    assert ask.payload == {"command": "rm -rf /srv/hermes/victim", "description": "delete in root path"}
    assert ask.choices == ("once", "session", "always", "deny")
    assert judge_end(seen) is None


def test_the_recordings_of_a_stop_and_of_a_rejected_key() -> None:
    seen = ApiEvents()
    batch = seen.feed(_recording("api_06_runs_stop"))
    assert _text(batch).split() == [f"w{n:02d}" for n in range(9)]
    assert seen.end == RunEnd("cancelled")
    seen = ApiEvents()
    assert seen.feed(_recording("api_07_runs_err")) == []
    failure = judge_end(seen)
    assert failure is not None
    assert (failure.code, failure.message) == ("provider_auth", "HTTP 401: bad key (fake)")


def test_the_recording_of_a_session_stream() -> None:
    seen = ApiEvents()
    batch = seen.feed(_recording("api_10_sess_stream"))
    assert _text(batch).endswith("\n\nFinal answer: the **tool** ran and\nprinted what I expected. Goodbye w20.\n")
    assert set(_rounds(batch)) == {1, 2}
    started = next(item for item in batch if isinstance(item, ToolStarted))
    assert started.args == {"command": "echo hello-from-tool; pwd"}
    assert len([item for item in batch if isinstance(item, ToolCompleted)]) == 1
    assert not [item for item in batch if isinstance(item, Event)]
    assert (seen.reported["input_tokens"], judge_end(seen)) == (2300, None)


# Tools and rounds.


def test_an_end_belongs_to_the_oldest_open_call_of_its_name() -> None:
    one, one_ends = _tool("a")
    other, other_ends = _tool("b", error=True, preview='{"error": "no such file"}')
    _, batch = _read(one, one, other, other_ends, one_ends, one_ends, one_ends)
    assert [(type(item).__name__, item.call_id) for item in batch if not isinstance(item, Ask)] == [
        ("ToolStarted", "hermes_call_1"),
        ("ToolStarted", "hermes_call_2"),
        ("ToolStarted", "hermes_call_3"),
        ("ToolFailed", "hermes_call_3"),
        ("ToolCompleted", "hermes_call_1"),
        ("ToolCompleted", "hermes_call_2"),
        ("ToolCompleted", "hermes_call_4"),  # its start went unseen
    ]
    failed = next(item for item in batch if isinstance(item, ToolFailed))
    assert (failed.error, failed.duration_ms) == ("no such file", 500.0)


def test_a_round_begins_behind_a_tool_and_behind_a_call_of_the_model() -> None:
    spoken = {"event": "reasoning.available", "text": "the answer's text"}
    _, batch = _read(spoken, _delta("a"), _delta("b"), spoken, _delta("c"), *_tool("t"), *_tool("t"), _delta("d"))
    assert _rounds(batch) == [1, 1, 2, 3]
    assert _text(batch) == "abcd", "what it calls reasoning is none of the text"
    _, batch = _read(*_tool("t"), _delta("a"))
    assert _rounds(batch) == [2]


def test_what_is_said_beside_a_tool_comes_once() -> None:
    spoken = {"event": "reasoning.available", "text": "x"}
    streamed = {"event": "message.interim", "text": "Let me.", "already_streamed": True}
    whole = {**streamed, "already_streamed": False}
    _, batch = _read(_delta("Let me. "), spoken, streamed, *_tool("t"), _delta("Done."))
    assert (_text(batch), _rounds(batch)) == ("Let me. Done.", [1, 2])
    _, batch = _read(_delta("Let me. "), spoken, whole, *_tool("t"), _delta("Done."))
    assert _text(batch) == "Let me. Done."
    _, batch = _read(spoken, whole, *_tool("t"), spoken, {**whole, "text": "More."}, *_tool("t"))
    assert (_text(batch), _rounds(batch)) == ("Let me.More.", [1, 2])


def test_calls_that_are_open_at_the_end_failed() -> None:
    started, _ = _tool("t")
    _, batch = _read(started, {"event": "run.cancelled"})
    assert isinstance(batch[-1], ToolFailed)
    seen, batch = _read(started)
    assert [type(item) for item in seen.close()] == [ToolFailed]
    assert seen.close() == []


# The end.


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([_delta("one "), _delta("two\n"), _completed("one two")], "one two\n"),
        ([_delta("one "), _completed("one two")], "one two"),
        ([_completed("one two")], "one two"),
        ([_delta("a"), *_tool("t"), _completed("b")], "a\n\nb"),
        ([_delta("a"), *_tool("t"), _delta("\n\nb"), _completed("b c")], "a\n\nb c"),
        ([_delta("cut "), {"event": "reasoning.available"}, _delta("and on"), _completed("cut and on")], "cut and on"),
        ([_delta("one"), _completed("  ")], "one"),
        ([_delta("one"), _completed("one"), _delta("behind the end")], "one"),
    ],
)
def test_the_text_is_whole_and_nothing_comes_twice(events: list[dict[str, Any]], text: str) -> None:
    seen, batch = _read(*events)
    assert _text(batch) == text
    assert judge_end(seen) is None
    assert not [item for item in batch if isinstance(item, Event)]


def test_another_text_at_the_end_is_reported() -> None:
    _, batch = _read(_delta("one"), _completed("two"))
    assert _text(batch) == "one"
    assert batch[-1] == Event(name="merge.mismatch", payload={"round": 1, "reported": "two"})


@given(st.lists(st.text(max_size=6), max_size=6), st.integers(0, 40))
def test_whatever_was_lost_of_the_end_is_made_good(pieces: list[str], kept: int) -> None:
    whole = "".join(pieces)
    sent = whole[:kept]
    _, batch = _read(*([_delta(sent)] if sent else []), _completed(whole.strip()))
    assert _text(batch).strip() == whole.strip()


def test_usage_of_zero_was_not_counted() -> None:
    seen, _ = _read(_completed("x", usage={"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}))
    assert seen.reported == {}
    seen, _ = _read(_completed("x", usage={"input_tokens": 4, "output_tokens": 0, "total_tokens": 4}))
    assert seen.reported == {"input_tokens": 4, "output_tokens": 0}


# A stream that breaks.


def test_what_is_told_again_is_left_out() -> None:
    events = [{**event, "seq": n} for n, event in enumerate([_delta("a"), *_tool("t"), _delta("b"), _completed("b")])]
    for cut in range(len(events) + 1):
        for again in range(cut + 1):
            seen = ApiEvents()
            batch = seen.feed(_stream(*events[:cut]) + b'data: {"half')
            seen.reconnected()
            batch += seen.feed(_stream(*events[again:]))
            assert _text(batch) == "ab"
            assert [type(item) for item in batch if isinstance(item, ToolCompleted)] == [ToolCompleted]
            assert seen.end is not None


def test_a_polled_end_is_as_good_as_the_event() -> None:
    seen, batch = _read(_delta("one "))
    batch += seen.lost()
    assert seen.polled({"status": "running"}) == []
    usage = {"input_tokens": 3, "output_tokens": 2}
    batch += seen.polled({"status": "completed", "output": "one two", "usage": usage})
    assert (_text(batch), seen.reported, judge_end(seen)) == ("one two", usage, None)
    assert seen.polled({"status": "completed", "output": "again"}) == []


def test_behind_a_loss_another_text_is_no_contradiction() -> None:
    seen, batch = _read(_delta("Let me."))
    batch += seen.lost()
    batch += seen.polled({"status": "completed", "output": "Done."})
    assert (_text(batch), _rounds(batch)) == ("Let me.\n\nDone.", [1, 2])
    assert not [item for item in batch if isinstance(item, Event) and item.name == "merge.mismatch"]


def test_an_approval_is_found_by_polling() -> None:
    seen = ApiEvents()
    asked = {"event": "approval.request", "command": "rm", "request_id": "r", "choices": ["once", "deny"]}
    [ask] = seen.polled({"status": "waiting_for_approval", "approval": asked})
    assert isinstance(ask, Ask)
    assert (ask.key, ask.choices) == ("r", ("once", "deny"))
    [ask] = seen.polled({"status": "waiting_for_approval"})
    assert isinstance(ask, Ask)
    assert ask.key == UNSEEN
    approvals = Approvals(yolo=False)
    assert approvals.read([Ask("approval_1", "approval", {})])[1] == []
    assert approvals.read([ask]) == ([], []), "it may be the one that is open"


# Whatever else comes.


def test_events_that_are_no_items_and_such_that_are_not_known() -> None:
    subagent = {"event": "subagent.start", "run_id": "r", "timestamp": 1.0, "goal": "look"}
    unknown = {"event": "run.something", "a": 1}
    truncated = {"event": "replay.truncated", "oldest_retained_seq": 7}
    seen, batch = _read({"event": "approval.responded"}, subagent, unknown, truncated)
    assert seen.heard == 4
    assert batch[0] == Event(name="subagent.start", payload={"goal": "look"})
    assert batch[1] == Event(name="hermes.record", payload={"record": unknown})
    assert isinstance(batch[2], Event)
    assert batch[2].payload["code"] == "events_lost"


@pytest.mark.parametrize(
    "data", [b"data: {", b"data: [1]", b'data: "x"', b'data: {"event": {}}', b"data: \xff", b"data: {}"]
)
def test_broken_events_end_nothing(data: bytes) -> None:
    seen = ApiEvents()
    batch = seen.feed(data + b"\n\n" + _stream(_delta("on")))
    assert _text(batch) == "on"
    assert len(batch) == 2


@given(
    st.dictionaries(
        st.sampled_from(["delta", "tool", "preview", "duration", "error", "choices", "usage", "seq"]),
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.lists(st.integers())),
    ),
    st.sampled_from(["message.delta", "tool.started", "tool.completed", "approval.request", "run.completed"]),
)
def test_fields_of_the_wrong_kind_raise_nothing(fields: dict[str, Any], name: str) -> None:
    seen, _ = _read({**fields, "event": name})
    seen.close()


def test_an_event_that_is_too_long_is_left_out_and_said_so() -> None:
    seen = ApiEvents(event_max=1000)
    batch = seen.feed(_stream(_delta("x" * 2000), _delta("on")))
    assert _text(batch) == "on"
    assert isinstance(batch[0], Event)
    assert batch[0].payload["code"] == "line_too_long"
