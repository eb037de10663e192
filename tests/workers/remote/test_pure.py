"""The parts without IO: answers → pages, positions, requests, pace."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.artifacts import InboundArtifact
from broker.items import Event, Item, decode, encode
from broker.requests import RunInput, RunRequest
from workers.remote.events import Step, Translator
from workers.remote.pages import ServiceEvent, read_page, read_started, read_status
from workers.remote.position import OpenRequest, Position, read_position
from workers.remote.requests import start_body
from workers.remote.seen import Seen
from workers.remote.settings import RemoteSettings
from workers.remote.waiting import Pace

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "text",
        "name",
        "tid",
        "args",
        "usage",
        "session",
        "session_id",
        "ts",
        "type",
        "choices",
        "duration",
        "is_error",
        "source_id",
        "component_id",
        "message",
        "status",
        "approval_id",
        "question",
        "summary",
        "preview",
        "cost",
    ]
)
NAMES = st.sampled_from(
    [
        "token",
        "reasoning",
        "tool",
        "tool_complete",
        "metering",
        "compressed",
        "approval",
        "clarify",
        "warning",
        "done",
        "stream_end",
        "apperror",
        "cancel",
        "interim_assistant",
        "approval.resolved",
        "run.restarted",
        "title",
        "tool.done",
    ]
)


@pytest.mark.parametrize(
    ("answer", "cursor"),
    [
        ({"cursor": "c"}, "c"),
        ({"cursor": 7}, "7"),
        ({"cursor": 0}, "0"),
        ({"cursor": ""}, "old"),
        ({"cursor": None, "events": [{"seq": 3}, {"seq": 4}]}, "4"),
        ({"events": [{"event_id": "e9", "type": "x"}]}, "e9"),
        ({"events": [{"type": "x"}]}, "R:6"),
        ({"events": []}, "old"),
        ({"events": "none", "cursor": True}, "old"),
        ({}, "old"),
    ],
)
def test_the_next_cursor(answer: dict[str, Any], cursor: str) -> None:
    assert read_page(answer, "R", "old", 5).cursor == cursor


@pytest.mark.parametrize(
    ("entry", "id_"),
    [
        ({"event_id": "event:7", "id": "x", "seq": 1}, "event:7"),
        ({"id": "a b", "seq": 1}, "a b"),
        ({"id": 12}, "12"),
        ({"event_id": "line\nbreak", "seq": 3}, "R:3"),
        ({"event_id": " blank", "id": "fine"}, "fine"),
        ({"event_id": "ä"}, "R:6"),
        ({"event_id": "x" * 257, "seq": True}, "R:6"),
        ({"seq": -1}, "R:6"),
        ({}, "R:6"),
    ],
)
def test_the_id_of_an_event(entry: dict[str, Any], id_: str) -> None:
    (event,) = read_page({"events": [entry]}, "R", None, 5).events
    assert event.id == id_


@pytest.mark.parametrize("run_id", [None, "", 5, "a\n", "x" * 201, ["r"]])
def test_a_start_that_names_no_run(run_id: Any) -> None:
    assert read_started({"run_id": run_id}) is None


def test_a_start() -> None:
    started = read_started({"run_id": "", "stream_id": "s", "cursor": ""})
    assert started is not None
    assert (started.run_id, started.cursor) == ("s", None)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ({"status": "running"}, "running"),
        ({"status": "awaiting_approval"}, "running"),
        ({"status": "COMPLETE"}, "completed"),
        ({"status": "running", "terminal_state": "canceled"}, "cancelled"),
        ({"status": "expired"}, "failed"),
        ({"status": 5}, "running"),
        ({}, "running"),
    ],
)
def test_a_status(answer: dict[str, Any], state: str) -> None:
    assert read_status(answer).state == state


def test_a_position_and_its_inverse() -> None:
    request = OpenRequest(key="a1", kind="approval", payload={"command": "ls"}, choices=("once",))
    for position in (Position(run_id="r"), Position(run_id="r", cursor="c ö", count=3, open=(request,), session="s")):
        assert read_position(position.encoded()) == position
    for text in ("", "{}", "[]", '{"run_id": 5}', "\ud800"):
        assert read_position(text) is None


def test_a_request_without_anything() -> None:
    body = start_body(RunRequest(input=RunInput(message="m", max_turns=3)), run_id="r", session_id=None)
    assert (body["session_id"], body["attachments"], body["toolsets"]) == ("r", [], [])
    assert body["metadata"] == {"runcast_run_id": "r", "approvals": "yolo", "max_turns": 3}


def test_seen_is_bounded() -> None:
    seen = Seen("ab", most=2)
    seen.add("b")
    seen.add("c")
    assert [id_ in seen for id_ in "abc"] == [False, True, True]


def test_the_pace_slows_down_and_quickens() -> None:
    pace = Pace(RemoteSettings(poll=0.1, poll_max=0.3))
    assert [round(pace.after(news=news), 3) for news in (True, False, False, False, False, True, False)] == [
        0.1,
        0.1,
        0.15,
        0.225,
        0.3,
        0.1,
        0.1,
    ]


@given(st.lists(st.tuples(NAMES, st.dictionaries(FIELDS, JSON, max_size=6)), max_size=12))
def test_any_event_is_one_thing(said: list[tuple[str, dict[str, Any]]]) -> None:
    """An item that can be read back and carries the id, a request, or the end."""
    translator = Translator()
    for number, (name, payload) in enumerate(said):
        step = translator.feed(ServiceEvent(f"e{number}", name, payload))
        assert sum(part is not None for part in (step.item, step.ask, step.end)) == 1
        for item in (step.item, step.end):
            if item is not None:
                assert _stored(item).source_id == f"e{number}"  # type: ignore[union-attr]
    for item in translator.closing():
        _stored(item)


def _stored(item: Item) -> object:
    encoded = encode(item, ts=1.0)
    read = decode(encoded.type, encoded.data)
    assert not (isinstance(read, Event) and read.name in ("run.restarted", "merge.mismatch", "input.answered"))
    return read


def _cut(events: list[ServiceEvent], at: int) -> tuple[list[Step], list[Item]]:
    """What is said where one attempt does the first ``at`` events and another one the rest."""
    first, second = Translator(), Translator()
    steps = [first.feed(event) for event in events[:at]]
    second.recall((decode(*encode(step.item, ts=1.0)) for step in steps if step.item is not None), first.spent)
    return steps + [second.feed(event) for event in events[at:]], second.closing()


@given(st.lists(st.tuples(NAMES, st.dictionaries(FIELDS, JSON, max_size=6)), max_size=12), st.integers(0, 12))
def test_an_attempt_that_goes_on_says_the_same(said: list[tuple[str, dict[str, Any]]], at: int) -> None:
    events = [ServiceEvent(f"e{n}", name, payload) for n, (name, payload) in enumerate(said)]
    assert _cut(events, at) == _cut(events, 0)


def test_wherever_a_whole_run_is_cut_it_says_the_same() -> None:
    usage = {"input_tokens": 5, "output_tokens": 2, "estimated_cost": 0.5}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "said at the end"}]
    said: list[tuple[str, dict[str, Any]]] = [
        ("reasoning", {"text": "hm"}),
        ("tool", {"name": "web", "args": {}}),
        ("tool_complete", {"name": "web", "preview": "x"}),
        ("tool", {"name": "terminal"}),
        ("metering", {"usage": usage}),
        ("done", {"session": {"messages": messages}, "usage": {**usage, "output_tokens": 9}}),
        ("stream_end", {}),
    ]
    events = [ServiceEvent(f"e{n}", name, payload) for n, (name, payload) in enumerate(said)]
    steps, closing = _cut(events, 0)
    assert [type(item).__name__ for item in closing] == ["ToolFailed", "Usage", "Cost"]
    assert steps[-1].end is not None
    assert "said at the end" in str(steps[-1].end)
    for at in range(len(events)):
        assert _cut(events, at) == (steps, closing), at


def test_files_and_attachments_go_along_as_the_service_takes_them() -> None:
    given = [InboundArtifact(name="a", url="https://x.org/a"), InboundArtifact(name="b", content_base64="YQ==")]
    wanted = RunInput(message="m", artifacts=given, attachments=[{"path": "/c"}, "d"])
    body = start_body(RunRequest(input=wanted), run_id="r", session_id=None)
    assert body["attachments"] == [
        {"name": "a", "url": "https://x.org/a"},
        {"name": "b", "content_base64": "YQ=="},
        {"path": "/c"},
        "d",
    ]
