"""What a fence keeps of what a run did before its last message."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.items import Event, Item, Message, MessageDelta, ToolCompleted, ToolFailed, ToolStarted
from broker.merge import Merger
from broker.steps import MESSAGE_BYTES, RESULT_CHARACTERS, STEPS_BYTES, TOOLS_MAX, Steps


def folded(*items: Item) -> Steps:
    merger = Merger()
    steps = Steps(merger)
    for at, item in enumerate(items, 1):
        merger.add(item)
        steps.add(item, float(at))
    return steps


def call(number: int, name: str = "read", *, result: Any = "ok", round_: int = 1) -> list[Item]:
    """Text of a round, and a tool that it called."""
    return [
        MessageDelta(text=f"t{number} ", round=round_),
        ToolStarted(call_id=f"c{number}", name=name, args={"n": number}),
        ToolCompleted(call_id=f"c{number}", name=name, result=result, duration_ms=5.0),
    ]


def said(round_: int, text: str) -> Message:
    return Message(round=round_, message={"role": "assistant", "content": [{"type": "text", "text": text}]})


def brief(steps: list[dict[str, Any]]) -> list[Any]:
    return [s.get("call_id") or s.get("round") or s["count"] for s in steps]


def test_earlier_rounds_and_their_tools_in_order():
    steps = folded(*call(1), *call(2), said(1, "one"), *call(3, round_=2), MessageDelta(text="end", round=3)).told()
    assert brief(steps) == [1, "c1", "c2", 2, "c3"]
    assert (steps[0]["message"]["content"], steps[0]["ts"]) == ([{"type": "text", "text": "one"}], 7.0)
    known = {"type": "tool", "round": 1, "call_id": "c1", "name": "read", "result": "ok", "duration_ms": 5.0, "ts": 3.0}
    assert steps[1] == known
    [block] = [b for b in steps[3]["message"]["content"] if b["type"] == "tool_call"]
    assert (block["id"], block["arguments"]) == ("c3", {"n": 3})


def test_one_round_has_no_steps():
    assert folded(MessageDelta(text="all"), said(1, "all")).told() == []


def test_a_tool_that_nothing_was_said_behind():
    steps = folded(*call(1), MessageDelta(text="x", round=2), *call(2, round_=2)).told()
    assert [(s.get("call_id"), s.get("behind")) for s in steps] == [(None, None), ("c1", None), ("c2", True)]


def test_failures_objects_and_odd_text():
    items = [ToolStarted(call_id="c", name="n"), ToolFailed(call_id="c", name="n", error="no \ud800")]
    steps = folded(*items, *call(2, result={"a": [1, "\ud800"]}), MessageDelta(text="x", round=2)).told()
    assert [s.get("error", s.get("result")) for s in steps[1:]] == ["no \ufffd", '{"a":[1,"\ufffd"]}']
    assert json.dumps(steps)


def test_what_came_before_a_restart_counts_for_nothing():
    again = Event(name="run.restarted", payload={"attempt": 2})
    assert folded(*call(1), MessageDelta(text="x", round=2), again, MessageDelta(text="y")).told() == []


def test_long_parts_are_cut():
    long = MessageDelta(text="x" * 10 * MESSAGE_BYTES)
    steps = folded(long, *call(1, result="y" * 10 * RESULT_CHARACTERS), MessageDelta(text="end", round=2)).told()
    assert len(json.dumps(steps[0])) < 1.1 * MESSAGE_BYTES
    assert len(steps[1]["result"]) == RESULT_CHARACTERS + 1


def test_of_too_many_the_newest_stay_and_it_is_said_how_many_went():
    rounds = [item for n in range(1, 201) for item in call(n, result="y" * 2_000, round_=n)]
    steps = folded(*rounds, MessageDelta(text="end", round=201)).told()
    assert steps[0] == {"type": "left_out", "count": 400 - (len(steps) - 1)}
    assert (steps[-1]["call_id"], steps[1]["type"]) == ("c200", "message")
    assert 0.9 * STEPS_BYTES < len(json.dumps(steps, separators=(",", ":"))) <= STEPS_BYTES


def test_the_memory_of_a_run_that_never_ends_is_bounded():
    rounds = [item for n in range(TOOLS_MAX + 5) for item in call(n)]
    steps = folded(*rounds, MessageDelta(text="end", round=2))
    assert len(steps._tools) == TOOLS_MAX
    kept = steps.told()
    assert kept[0]["count"] == TOOLS_MAX + 5 + 1 - (len(kept) - 1)


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 6_000))
def test_they_fit_into_whatever_room_there_is(tools: list[int], room: int):
    items: list[Item] = []
    for round_, count in enumerate(tools, 1):
        items.append(MessageDelta(text=f"round {round_}", round=round_))
        for n in range(count):
            items += call(100 * round_ + n, result="z" * 50 * n, round_=round_)
    whole, steps = folded(*items).told(), folded(*items).told(room)
    assert not steps or len(json.dumps(steps, separators=(",", ":"))) <= room
    kept = [s for s in steps if s["type"] != "left_out"]
    # Rounds from the newest on, and of the oldest that is kept its beginning.
    rest = [s for s in whole if kept and s["round"] > kept[0]["round"]]
    first = [s for s in whole if kept and s["round"] == kept[0]["round"]]
    mine = [s for s in kept if s["round"] == kept[0]["round"]]
    assert kept == [*first[: len(mine)], *rest]
    if kept and len(kept) < len(whole):
        assert steps[0] == {"type": "left_out", "count": len(whole) - len(kept)}
