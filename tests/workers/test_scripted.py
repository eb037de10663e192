"""The scripted runner: what a script says is what is emitted, the same each time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from broker.items import (
    Cost,
    Event,
    Final,
    Item,
    Message,
    MessageDelta,
    Raw,
    ReasoningDelta,
    ToolCallDelta,
    ToolCompleted,
    ToolStarted,
    Usage,
)
from broker.merge import text_of
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.servers import eventually
from workers.runner import RunContext, RunnerFailed
from workers.scripted import ScriptedRunner, parse_script


class _Emitted(list[Any]):
    async def publish(self, item: Item | Raw) -> None:
        self.append(item)

    def of(self, *types: type) -> list[Any]:
        return [item for item in self if isinstance(item, types)]


def _context(script: str | None, emitted: _Emitted) -> RunContext:
    metadata = {} if script is None else {"script": script}
    return RunContext(
        run_id="r",
        attempt=1,
        request=RunRequest(runner="scripted", input=RunInput(message="hi"), metadata=metadata),
        session_id=None,
        settings=Settings(),
        publish=emitted.publish,
    )


async def _play(script: str | None) -> tuple[_Emitted, Any, RunContext]:
    emitted = _Emitted()
    context = _context(script, emitted)
    return emitted, await ScriptedRunner().run(context), context


async def test_tokens_rounds_tools_reasoning_usage_and_cost() -> None:
    emitted, outcome, context = await _play("tokens=10 tool=2 reasoning=3 cost=0.10")
    text = "".join(d.text for d in emitted.of(MessageDelta))
    assert text.split() == [f"w{i}" for i in range(1, 11)]
    assert [type(i) for i in emitted.of(ToolStarted, ToolCompleted)] == [ToolStarted, ToolCompleted] * 2
    assert len(emitted.of(ReasoningDelta)) == 9
    assert len(emitted.of(ToolCallDelta)) == 6
    usage, cost = emitted.of(Usage), emitted.of(Cost)
    assert sum(u.output_tokens for u in usage) == usage[-1].total["output_tokens"] == 19
    assert cost[-1].total == "0.30"
    messages = emitted.of(Message)
    assert [m.round for m in messages] == [1, 2, 3]
    assert "".join(text_of(m.message) for m in messages) == text
    assert messages[0].message["content"][-1] == {
        "type": "tool_call",
        "id": "scripted_call_1",
        "name": "clock",
        "arguments": {"round": 1},
    }
    final = context.complete(outcome)
    assert isinstance(final, Final)
    assert (final.message, final.rounds) == (messages[-1].message, 3)
    assert final.usage == usage[-1].total | {"cache_write_tokens": None, "reasoning_tokens": None}


async def test_the_same_script_gives_the_same_items() -> None:
    assert (await _play("tokens=50 tool=1"))[0] == (await _play("tokens=50 tool=1"))[0]


@pytest.mark.parametrize(("script", "error"), [("tokens=9 fail=4", RunnerFailed), ("tokens=9 crash=4", RuntimeError)])
async def test_a_failure_at_k(script: str, error: type[Exception]) -> None:
    emitted = _Emitted()
    with pytest.raises(error):
        await ScriptedRunner().run(_context(script, emitted))
    assert len(emitted.of(MessageDelta)) == 4


async def test_a_failure_after_all_tokens_and_an_end_without_outcome() -> None:
    emitted = _Emitted()
    with pytest.raises(RunnerFailed):
        await ScriptedRunner().run(_context("tokens=3 fail=3", emitted))
    assert (await _play("tokens=3 noend=1"))[1] is None


async def test_size_and_rate() -> None:
    begun = time.monotonic()
    emitted, _, _ = await _play("tokens=20 rate=100 size=1000")
    assert all(len(d.text) == 1000 for d in emitted.of(MessageDelta))
    assert time.monotonic() - begun >= 0.2


async def test_a_stop_ends_a_hanging_script() -> None:
    emitted = _Emitted()
    context = _context("tokens=5 hang=2", emitted)
    running = asyncio.create_task(ScriptedRunner().run(context))
    await eventually(lambda: len(emitted.of(MessageDelta)) == 2)
    assert not running.done()
    context.request_stop("cancelled")
    assert await asyncio.wait_for(running, 30) is None


async def test_the_demo_takes_about_five_seconds_and_names_the_question() -> None:
    begun = time.monotonic()
    emitted, outcome, _ = await _play(None)
    assert isinstance(outcome, Final)
    assert 3 < time.monotonic() - begun < 30
    assert "“hi”" in "".join(d.text for d in emitted.of(MessageDelta))
    assert {"model.started", "model.completed"} <= {e.name for e in emitted.of(Event)}


@pytest.mark.parametrize("script", ["speed=1", "tokens", "tokens=x", "cost=abc", "rate="])
async def test_a_script_that_is_wrong_says_what_is_known(script: str) -> None:
    with pytest.raises(ValueError, match=r"known are tokens|takes a number"):
        parse_script(script)
    with pytest.raises(RunnerFailed) as failed:
        await _play(script)
    assert failed.value.code == "invalid_script"
