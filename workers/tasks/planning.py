"""What a planner is asked, what is made of its answer, and what a step's run is told. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from broker.task_model import RISKS, PlannedStep, Step, Task, is_done
from broker.task_plan import TITLE_MAX, plan_faults

__all__ = ["PlanRefused", "message_text", "plan_of", "planning_prompt", "step_prompt"]

_EARLIER_MAX = 4_000
_EARLIER_TOTAL = 24_000
_SAID_MAX = 8_000
_FAULTS_MAX = 10
_OBJECT = re.compile(r'\{[ \t\r\n]*"')
"""How an object with a field begins."""
_VAIN_MAX = 4 << 20
"""Characters of objects that are broken, read in vain, after which no plan is looked for: an answer of braces alone is
all beginnings."""
_VAIN_EACH = 10_000
"""What a broken object counts for besides, however short it is."""

_ASKED = """\
Make a plan for the goal below. Do not carry it out, change nothing, and run no tools: your whole answer is the plan.

Answer with one JSON object and nothing else:

{{"steps": [{{"title": "…", "instruction": "…", "risk": "low", "approval": false}}]}}

- 1 to {most} steps, in the order in which they are to be done; as few as will do.
- "title": a few words, up to {title} characters.
- "instruction": all that an agent needs to do this step. It knows the goal and the results of the steps before it.
- "risk": one of {risks}: what could go wrong if the step were done badly. Reading is low; changing what can be changed
  back is medium; what is hard to undo, or seen by others, is high; what destroys or costs is critical.
- "approval": true where a person should look at the step before it is done.
- No other fields.

The goal:

{goal}
"""
_AGAIN = """

An answer that you gave before cannot be used:
{faults}

It was:

{said}
"""


class PlanRefused(Exception):
    """An answer that is no plan. ``faults``: why, a sentence each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def planning_prompt(task: Task) -> str:
    """What the planner is asked; after an answer that was refused, with what was wrong with it."""
    asked = _ASKED.format(most=task.options.max_steps, title=TITLE_MAX, risks=", ".join(RISKS), goal=task.goal)
    if not task.plan_errors:
        return asked
    faults = "\n".join(f"- {fault}" for fault in task.plan_errors)
    return asked + _AGAIN.format(faults=faults, said=(task.plan_said or "")[:_SAID_MAX])


def plan_of(text: str, most: int) -> list[PlannedStep]:
    """The plan in a planner's answer: the first JSON object in it that has ``steps``, whatever stands around it.

    Raises ``PlanRefused``.
    """
    found = next(_objects(text), None)
    if found is None:
        raise PlanRefused(["there is no JSON object with “steps” in the answer"])
    steps = found["steps"]
    if not isinstance(steps, list) or not 1 <= len(steps) <= most:
        has = f"has {len(steps)} steps" if isinstance(steps, list) else "is no list"
        raise PlanRefused([f"“steps” {has}: a list of 1 to {most} is needed"])
    planned, faults = _converted(steps)
    faults = faults or plan_faults(planned, most)
    if faults:
        raise PlanRefused(faults[:_FAULTS_MAX])
    return planned


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The objects in a text, those within others left out. In time that is bounded, whatever the text."""
    decoder, found, left = json.JSONDecoder(), _OBJECT.search(text), _VAIN_MAX
    while found is not None and left > 0:
        start = found.start()
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            end = start + 1
            left -= getattr(error, "pos", len(text)) - start + _VAIN_EACH
        else:
            if "steps" in value:
                yield value
        found = _OBJECT.search(text, end)


def _converted(steps: list[Any]) -> tuple[list[PlannedStep], list[str]]:
    planned, faults = [], []
    for place, step in enumerate(steps):
        try:
            if isinstance(step, dict) and "metadata" in step:
                raise msgspec.ValidationError("Object contains unknown field `metadata`")
            planned.append(msgspec.convert(step, PlannedStep))
        except (ValueError, RecursionError) as error:  # halves of characters, say
            faults.append(f"steps[{place}]: {error}")
    return planned, faults


def step_prompt(task: Task, step: Step) -> str:
    """What the run of a step is told: the goal, the plan, what the steps before said, and its own instruction."""
    titles = "\n".join(f"{s.n}. {s.title}{_mark(s, step)}" for s in task.steps)
    earlier = _earlier(task, step)
    # The beginning is what lists of runs show.
    head = f"Step {step.n} of {len(task.steps)} of a task: {step.title}"
    parts = [head, f"The task's goal:\n\n{task.goal}"]
    parts.append(f"The plan:\n\n{titles}")
    if earlier:
        parts.append(f"What the steps before said:\n\n{earlier}")
    parts.append(f"Do this step now, and only this one; the others are done elsewhere:\n\n{step.instruction}")
    return "\n\n".join(parts)


def _mark(step: Step, now: Step) -> str:
    if step.n == now.n:
        return "  ← this step"
    if step.state == "rejected":
        return f"  (rejected by a person: {step.reason})"
    return "  (done)" if is_done(step) else ""


def _earlier(task: Task, now: Step) -> str:
    """The newest results in full, older ones as long as there is room."""
    told: list[str] = []
    left = _EARLIER_TOTAL
    for step in reversed(task.steps[: now.n - 1]):
        text = (step.result or "")[: min(_EARLIER_MAX, left)]
        if step.state == "completed" and text:
            told.append(f"Step {step.n}, {step.title}:\n{text}")
            left -= len(text)
    return "\n\n".join(reversed(told))


def message_text(message: Any) -> str:
    """The text of a merged message: its text blocks, joined."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (block.get("text") for block in content if isinstance(block, dict) and block.get("type") == "text")
    return "".join(text for text in texts if isinstance(text, str))
