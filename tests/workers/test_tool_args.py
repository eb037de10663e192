"""The item that ends a tool's call repeats, shortened, what it was called with."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from broker.items import MessageDelta, ToolCompleted, ToolFailed, ToolStarted
from workers.tool_args import ARGS_MAX, NAMES_MAX, OPEN_MAX, VALUE_MAX, ToolArgs, shortened


def completed(call_id: str = "c1", **more: Any) -> ToolCompleted:
    return ToolCompleted(call_id=call_id, name="t", **more)


def started(call_id: str = "c1", args: Any = None) -> ToolStarted:
    return ToolStarted(call_id=call_id, name="t", args=args)


@pytest.mark.parametrize("end", [completed(), ToolFailed(call_id="c1", name="t", error="e")])
def test_the_end_of_a_call_repeats_its_arguments(end: ToolCompleted | ToolFailed):
    args = ToolArgs()
    begun = started(args={"command": "ls"})
    assert args.told(begun) is begun
    assert args.told(completed("another")).args is UNSET  # type: ignore[union-attr]
    told = args.told(end)
    assert isinstance(told, (ToolCompleted, ToolFailed))
    assert told.args == {"command": "ls"}
    assert args.told(end) is end  # the call is over


def test_what_the_runner_says_itself_stays():
    args = ToolArgs()
    args.told(started(args={"command": "ls"}))
    own = completed(args={"own": 1})
    assert args.told(own) is own


@pytest.mark.parametrize("item", [MessageDelta(text="x"), completed(), started(args=None)])
def test_other_items_pass_as_they_are(item: Any):
    args = ToolArgs()
    assert args.told(item) is item
    assert args.told(completed()).args is UNSET  # type: ignore[union-attr]


def test_long_arguments_are_shortened():
    long = {f"name{n}": "x" * 10_000 for n in range(100)} | {"short": 1}
    kept = shortened(long)
    assert list(kept) == list(long)[:NAMES_MAX]
    assert all(len(value) == VALUE_MAX and value.endswith("…") for value in kept.values())
    assert shortened({"text": "y" * ARGS_MAX, "n": 7, "deep": {"a": ["z" * ARGS_MAX]}})["n"] == 7
    assert len(shortened("free text " * ARGS_MAX)) == VALUE_MAX


def test_arguments_that_json_cannot_carry_are_left_to_whoever_publishes_them():
    assert shortened({"x": object()}) is UNSET
    args = ToolArgs()
    args.told(started(args={"x": object()}))
    assert args.told(completed()).args is UNSET  # type: ignore[union-attr]


def test_calls_that_never_end_do_not_pile_up():
    args = ToolArgs()
    for n in range(OPEN_MAX + 10):
        args.told(started(f"c{n}", {"n": n}))
    assert args.told(completed("c5")).args is UNSET  # type: ignore[union-attr]
    last = args.told(completed(f"c{OPEN_MAX + 9}"))
    assert msgspec.structs.asdict(last)["args"] == {"n": OPEN_MAX + 9}  # type: ignore[arg-type]
