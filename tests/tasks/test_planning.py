"""A planner's answer: what is a plan, and what is said of one that is none."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.task_model import PlannedStep, Task, Trouble
from broker.task_plan import INSTRUCTION_MAX, TITLE_MAX, first_task
from workers.tasks.planning import PlanRefused, message_text, plan_of, planning_prompt, step_prompt

STEP = {"title": "Look", "instruction": "Look around.", "risk": "low", "approval": False}
PLAN = json.dumps({"steps": [STEP]})


@pytest.mark.parametrize(
    "text",
    [
        PLAN,
        f"Here is the plan:\n\n```json\n{PLAN}\n```\nShall I begin?",
        f'{{"thought": "hm"}} {PLAN}',
        f"a set {{1, 2}} and then {PLAN} and {{",
        f"{PLAN}\n{json.dumps({'steps': []})}",
        f'{{"thought": {PLAN} and so on',
        '{"a": oops ' * 100 + PLAN,
    ],
)
def test_a_plan_is_found_whatever_stands_around_it(text: str) -> None:
    assert plan_of(text, 5) == [PlannedStep(**STEP)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("I would look first.", "no JSON object"),
        ('{"plan": []}', "no JSON object"),
        ('{"steps": []}', "0 steps"),
        ('{"steps": {}}', "is no list"),
        (json.dumps({"steps": [STEP] * 6}), "6 steps"),
        (json.dumps({"steps": [{"title": "x"}]}), "missing required field `instruction`"),
        (json.dumps({"steps": [{**STEP, "risk": "none"}]}), "Invalid enum value 'none'"),
        (json.dumps({"steps": [{**STEP, "approval": "yes"}]}), "Expected `bool | null`"),
        (json.dumps({"steps": [{**STEP, "tool": "rm"}]}), "unknown field `tool`"),
        (json.dumps({"steps": [{**STEP, "metadata": {"a": "b"}}]}), "unknown field `metadata`"),
        (json.dumps({"steps": [{**STEP, "title": " "}]}), "steps[0].title is empty"),
        (json.dumps({"steps": [{**STEP, "title": "x" * (TITLE_MAX + 1)}]}), "201 characters"),
        (json.dumps({"steps": [{**STEP, "instruction": "x" * (INSTRUCTION_MAX + 1)}]}), "8193 bytes"),
        (json.dumps({"steps": ["look"]}), "Expected `object`"),
        (json.dumps({"steps": [{**STEP, "\ud800": 1}]}), "steps[0]: 'utf-8' codec can't encode"),
        (json.dumps({"steps": [{**STEP, "risk": "\ud800"}]}), "steps[0]: 'utf-8' codec can't encode"),
        (json.dumps({"steps": [STEP, {**STEP, "title": "\ud800"}]}), "steps[1].title cannot be written"),
    ],
)
def test_what_is_no_plan_is_told_why(answer: str, fault: str) -> None:
    with pytest.raises(PlanRefused) as refused:
        plan_of(answer, 5)
    assert fault in str(refused.value)
    assert msgspec.json.encode(refused.value.faults)  # the planner is told


@given(st.text(max_size=200) | st.text('{}[]":,steps ', max_size=80))
def test_no_answer_crashes(text: str) -> None:
    with contextlib.suppress(PlanRefused):
        assert plan_of(text, 5)


@pytest.mark.parametrize("part", ["{", "[", '"', "\\", '{"', "{ ", '{"a":', '{"a":[', '{"a":1,', '{"x":[[],[],[],'])
def test_an_answer_that_is_all_beginnings_is_looked_through_in_bounded_time(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    class Counting(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            nonlocal read
            read += 10_000
            try:
                return super().raw_decode(s, idx)
            except json.JSONDecodeError as error:
                read += error.pos - idx
                raise

    monkeypatch.setattr(json, "JSONDecoder", Counting)
    text = part * ((256 << 10) // len(part))
    with pytest.raises(PlanRefused):
        plan_of(text, 5)
    assert read < 5 << 20


def test_deep_nesting_is_no_plan() -> None:
    with pytest.raises(PlanRefused):
        plan_of('{"steps": ' + "[" * 100_000, 5)


def task(**fields: object) -> Task:
    made = first_task("t", {"goal": "The goal {braces} kept.", "steps": [], "max_steps": 7}, 1.0)
    return Task(**{**{f: getattr(made, f) for f in made.__struct_fields__}, **fields})


def test_the_planner_is_told_the_limits_and_what_was_wrong() -> None:
    first = planning_prompt(task())
    assert "The goal {braces} kept." in first
    assert "1 to 7 steps" in first
    again = planning_prompt(task(plan_errors=("steps[0]: no title",), plan_said="{...}"))
    assert again.startswith(first)
    assert "- steps[0]: no title" in again
    assert "{...}" in again


def test_a_step_knows_the_goal_the_plan_and_the_results_before_it() -> None:
    steps = [{"title": f"T{n}", "instruction": f"Do {n}."} for n in (1, 2, 3)]
    made = first_task("t", {"goal": "G", "steps": steps}, 1.0)
    done = msgspec.structs.replace(made.steps[0], state="completed", result="r1 " * 3_000)
    gone = msgspec.structs.replace(
        made.steps[1], state="rejected", passed=True, reason="no", error=Trouble(code="c", message="m")
    )
    said = step_prompt(msgspec.structs.replace(made, steps=(done, gone, made.steps[2])), made.steps[2])
    assert said.endswith("Do 3.")
    assert "1. T1  (done)" in said
    assert "2. T2  (rejected by a person: no)" in said
    assert "3. T3  ← this step" in said
    assert 3_900 < said.count("r1 ") * 3 < 4_100  # a long result is cut


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (None, ""),
        ({"content": "plain"}, "plain"),
        (
            {
                "content": [
                    {"type": "reasoning", "text": "hm"},
                    {"type": "text", "text": "a"},
                    {"type": "text", "text": "b"},
                ]
            },
            "ab",
        ),
        ({"content": [None, {"type": "text"}]}, ""),
    ],
)
def test_the_text_of_a_message(message: object, text: str) -> None:
    assert message_text(message) == text
