"""The runner ``scripted``: deterministic, without a model. For the demo and the tests.

``metadata.script`` holds words ``name=value``; none gives a pleasant demo of about five seconds. The same script gives
the same items, whatever the machine (times aside)::

    {"runner": "scripted", "input": {"message": "hi"}, "metadata": {"script": "tokens=1000 rate=200 tool=1"}}

| word | meaning | default |
|---|---|---|
| ``tokens=N`` | text deltas, spread over the rounds | 60 |
| ``rate=R`` | items a second; 0: as fast as they are taken | 0 with a script |
| ``tool=N`` | tool rounds, each with one call, before the last round | 0 |
| ``tool_s=S`` | seconds that a tool takes | 0 |
| ``reasoning=N`` | reasoning deltas ahead of each round | 0 |
| ``usage=0`` | no usage item; ``usage=1``: one at the end of each round | 1 |
| ``cost=X`` | a cost item a round, of this many dollars (a decimal string) | none |
| ``size=B`` | every delta is padded to this many bytes | 0 |
| ``silence=S`` | seconds of silence in the middle of the text | 0 |
| ``fail=K`` | fails after K text deltas with code ``scripted_failure`` | never |
| ``crash=K`` | raises after K text deltas | never |
| ``hang=K`` | says nothing more after K text deltas, until it is stopped | never |
| ``ask=K`` | asks for an approval after K text deltas; the answer becomes a text delta, ``[approval: once] `` | never |
| ``question=K`` | asks a question after K text deltas; the answer becomes a text delta, ``[answer: blue] `` | never |
| ``patience=S`` | seconds that people have for an answer; 0: the worker's setting | 0 |
| ``noend=1`` | returns without an outcome | 0 |
| ``stubborn=1`` | takes no notice of a stop | 0 |

With ``approvals: "ask"`` each tool call needs an approval, and fails without.

Token ``i`` (from 1, over the whole run) is ``w<i> `` unless the demo text is used.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from typing import Any, cast

import msgspec

from broker.asks import Kind
from broker.items import (
    Cost,
    Event,
    Final,
    Item,
    MessageDelta,
    ReasoningDelta,
    ToolCallDelta,
    ToolCompleted,
    ToolFailed,
    ToolStarted,
    Usage,
)
from workers.runner import Answer, RunContext, RunnerFailed

__all__ = ["Script", "ScriptedRunner", "parse_script"]

_BEFORE = (
    "You asked: “{message}”. No model is behind this answer: it is the scripted runner, which shows how a run streams. "
    "Let me look at the clock of this machine first. "
)
_AFTER = (
    "\n\nThere it is. Every word that you saw was an item of its own in the run's log, and so were the tool's start "
    "and end. Open a second screen on this run, or reload in the middle: nothing is lost, nothing comes twice."
)
_THOUGHTS = ("First a word, then the clock. ", "The clock answered, so sum up. ")
_DEMO_RATE = 18.0
_TOOL = "clock"
_DEMO_MESSAGE_MAX = 200
_CHOICES = ("once", "session", "always", "deny")
_COLOURS = ("red", "green", "blue")


@dataclass(frozen=True)
class Script:
    tokens: int = 60
    rate: float = 0.0
    tool: int = 0
    tool_s: float = 0.0
    reasoning: int = 0
    usage: int = 1
    cost: str = ""
    size: int = 0
    silence: float = 0.0
    fail: int = -1
    crash: int = -1
    hang: int = -1
    ask: int = -1
    question: int = -1
    patience: float = 0.0
    noend: int = 0
    stubborn: int = 0


def parse_script(text: str) -> Script:
    """Raises ``ValueError`` naming the word that is wrong and what is known."""
    kinds: dict[str, type[Any]] = {field.name: type(field.default) for field in fields(Script)}
    values: dict[str, Any] = {}
    for word in text.replace(",", " ").split():
        name, _, value = word.partition("=")
        if name not in kinds:
            raise ValueError(f"{word!r} is no word of a script: known are {', '.join(kinds)}")
        try:
            values[name] = kinds[name](value)
            if name == "cost":
                Decimal(value)
        except (ValueError, InvalidOperation) as error:
            raise ValueError(f"{word!r}: {name} takes a number") from error
    return Script(**values)


class ScriptedRunner:
    name = "scripted"
    stop_grace = 1.0

    async def run(self, context: RunContext) -> Final:
        # A script may ask for what no runner should do: to end without an outcome.
        return cast(Final, await self._play(context))

    async def _play(self, context: RunContext) -> Final | None:
        text = context.request.metadata.get("script", "")
        try:
            script = parse_script(text)
        except ValueError as error:
            raise RunnerFailed("invalid_script", str(error)) from error
        if text.strip():
            return await _Play(context, script, _numbered(script)).run()
        message = context.request.input.message[:_DEMO_MESSAGE_MAX]
        rounds = [re.findall(r"\s*\S+\s*", part) for part in (_BEFORE.format(message=message), _AFTER)]
        demo = Script(tokens=sum(map(len, rounds)), rate=_DEMO_RATE, tool=1, tool_s=0.8, reasoning=6, cost="0.0004")
        return await _Play(context, demo, rounds, [re.findall(r"\S+\s*", thoughts) for thoughts in _THOUGHTS]).run()


def _numbered(script: Script) -> list[list[str]]:
    """The text deltas of each round. A round after the first begins with ``\\n\\n``, as Hermes joins them."""
    rounds: list[list[str]] = []
    count, done = script.tool + 1, 0
    for number in range(1, count + 1):
        upto = script.tokens * number // count
        words = [f"w{i} " for i in range(done + 1, upto + 1)]
        if number > 1 and words:
            words[0] = "\n\n" + words[0]
        rounds.append([word.ljust(script.size, "x") for word in words])
        done = upto
    return rounds


def _call_id(number: int) -> str:
    return f"scripted_call_{number}"


def _call_deltas(number: int, index: int) -> list[ToolCallDelta]:
    """The tool call of a round as a model streams it: the name, then its arguments in two pieces."""
    pieces = ['{"round": ', f"{number}}}"]
    whose: dict[str, Any] = {"call_id": _call_id(number), "round": number, "index": index}
    first = ToolCallDelta(name=_TOOL, **whose)
    return [first, *(ToolCallDelta(arguments=piece, **whose) for piece in pieces)]


class _Stopped(Exception):
    """The run was told to stop."""


class _Play:
    def __init__(
        self, context: RunContext, script: Script, rounds: list[list[str]], thoughts: list[list[str]] | None = None
    ) -> None:
        self._context, self._script, self._rounds = context, script, rounds
        numbered = [f"thought {i} " for i in range(1, script.reasoning + 1)]
        self._thoughts = thoughts or [numbered] * len(rounds)
        self._started = time.monotonic()
        self._sent = 0
        self._words = 0
        self._asked: set[str] = set()
        self._approved = context.request.input.approvals != "ask"
        self._totals = {"input_tokens": 0, "output_tokens": 0, "cache_read_tokens": 0}
        self._cost = Decimal(0)

    async def run(self) -> Final | None:
        try:
            for number, words in enumerate(self._rounds, 1):
                await self._round(number, words)
                if number < len(self._rounds):
                    await self._tool(number)
        except _Stopped:
            return None  # the worker knows why it stopped this run
        return None if self._script.noend else Final(metadata={"script": "done"})

    async def _round(self, number: int, words: list[str]) -> None:
        await self._emit(Event(name="model.started", payload={"round": number, "model": "scripted"}))
        for thought in self._thoughts[number - 1]:
            await self._emit(ReasoningDelta(round=number, text=thought))
        index = 1 if self._script.reasoning else 0
        for word in words:
            await self._turn(number, index)
            await self._emit(MessageDelta(round=number, index=index, text=word))
            self._words += 1
        await self._turn(number, index, end=True)
        last = number == len(self._rounds)
        if not last:
            for part in _call_deltas(number, index + 1):
                await self._emit(part)
        finish = "stop" if last else "tool_calls"
        await self._emit(Event(name="model.completed", payload={"round": number, "finish_reason": finish}))
        await self._count(number, len(words))
        await self._context.end_round()

    async def _turn(self, number: int, index: int, *, end: bool = False) -> None:
        """What the script has in store before the next word."""
        script = self._script
        await self._ask_people(number, index)
        if script.fail == self._words:
            raise RunnerFailed("scripted_failure", f"failed after {self._words} tokens, as the script says")
        if script.crash == self._words:
            raise RuntimeError(f"crashed after {self._words} tokens, as the script says")
        if script.hang == self._words:
            await self._pause(float("inf"))
        if script.silence and not end and self._words == script.tokens // 2:
            await self._pause(script.silence)

    async def _ask_people(self, number: int, index: int) -> None:
        if self._script.ask == self._words and "ask" not in self._asked:
            self._asked.add("ask")
            answer = await self._approval("rm -rf build", "The script wants to remove the folder “build”.")
            await self._emit(MessageDelta(round=number, index=index, text=f"[approval: {answer.value}] "))
        if self._script.question == self._words and "question" not in self._asked:
            self._asked.add("question")
            answer = await self._ask("question", {"question": "Which colour?"}, _COLOURS, free=True, otherwise="none")
            await self._emit(MessageDelta(round=number, index=index, text=f"[answer: {answer.value}] "))

    async def _approval(self, command: str, description: str) -> Answer:
        payload = {"command": command, "description": description}
        return await self._ask("approval", payload, _CHOICES, otherwise="deny")

    async def _ask(self, kind: Kind, payload: dict[str, Any], choices: tuple[str, ...], **more: Any) -> Answer:
        began = time.monotonic()
        answer = await self._context.ask(kind, payload, choices=choices, timeout=self._script.patience or None, **more)
        self._started += time.monotonic() - began  # waiting for people is no debt to be caught up with
        return answer

    async def _tool(self, number: int) -> None:
        tool: dict[str, Any] = {"call_id": _call_id(number), "name": _TOOL, "component_id": f"tool:{_TOOL}"}
        if not self._approved:
            answer = await self._approval(f"{_TOOL} {number}", "The agent wants to look at the clock of this machine.")
            self._approved = answer.value in ("session", "always")
            if answer.value == "deny":
                await self._emit(ToolFailed(error="nobody allowed it", duration_ms=0, **tool))
                return
        await self._emit(ToolStarted(args={"round": number}, **tool))
        await self._pause(self._script.tool_s)
        await self._emit(ToolCompleted(result=f"tick {number}", duration_ms=self._script.tool_s * 1000, **tool))

    async def _count(self, number: int, words: int) -> None:
        if self._script.usage:
            output = words + self._script.reasoning
            spent = {"input_tokens": 100 * number, "output_tokens": output, "cache_read_tokens": 10}
            self._totals = {name: self._totals[name] + n for name, n in spent.items()}
            await self._emit(msgspec.convert({"type": "usage", **spent, "total": self._totals}, Usage))
        if self._script.cost:
            amount = Decimal(self._script.cost)
            self._cost += amount
            await self._emit(Cost(amount=str(amount), total=str(self._cost), estimated=True))

    async def _emit(self, item: Item) -> None:
        if self._script.rate:
            # By the clock of the whole run, so that waits do not add up.
            await self._pause(self._started + self._sent / self._script.rate - time.monotonic())
        elif self._context.stop.is_set() and not self._script.stubborn:
            raise _Stopped
        await self._context.emit(item)
        self._sent += 1

    async def _pause(self, seconds: float) -> None:
        if self._script.stubborn:
            await asyncio.sleep(min(max(seconds, 0), 1e6))
            return
        if self._context.stop.is_set():
            raise _Stopped
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                await self._context.stop.wait()
        except TimeoutError:
            # A tool or a silence is no debt to be caught up with.
            return
        raise _Stopped
