"""What arrives: both builds of the real Hermes × every mode each has × prompts of every kind.

Each pair of build and mode fills a column of the tables in docs/hermes.md, and must equal it. The marks:

| mark | seen in the run's log |
|---|---|
| ``T`` | text while the model was sending it |
| ``t`` | text, but only when the model had sent it all |
| ``R`` | reasoning |
| ``S`` ``E`` | starts and ends of tools |
| ``A`` ``O`` | their arguments and results |
| ``#`` | the ids that the model gave its calls |
| ``U`` | usage |
| ``Q`` | a person was asked, and the answer reached Hermes |
| ``✓`` or a code | how the run ended |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from broker.api import Broker, StreamEntry
from broker.requests import RunInput, RunRequest
from tests.e2e.hermes import BUILDS, environ_of, hermes_binary, processes, working
from tests.fake_model import FakeModel
from workers.hermes.runner import HermesRunner
from workers.hermes.settings import HermesSettings

__all__ = ["MODES", "PROMPTS", "SOME", "what_arrives"]

MODES = {
    "0.19.0": ("bridge", "api", "text", "quiet"),
    "0.22.2": ("bridge", "stream-json", "api", "text", "quiet"),
}
PROMPTS = {
    "plain": "Say something PLAIN",
    "reasoning": "REASON about it",
    "tool": "Use a TOOL",
    "several tools": "Use MANYTOOLS",
    "long": "A LONG answer",
    "slow": "A SLOW answer",
    "dangerous": "Remove it: DANGER {victim}",
    "dangerous, asked": "Remove it, but ask: DANGER {victim}",
    "question": "Please ASK me",
    "401": "Fail with ERR401",
    "429": "Fail with ERR429",
    "500": "Fail with ERR500",
    "cut": "Be CUT",
    "empty": "Say nothing: EMPTY",
}
SOME = ("tool", "reasoning", "401", "empty")
"""What every test run asks; all of it takes minutes, and is long."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "hermes.md"


@dataclass(frozen=True)
class Seen:
    """One run's items, with the time (monotonic) at which each came."""

    items: list[tuple[float, StreamEntry]]

    def of(self, *types: str) -> list[dict[str, object]]:
        return [entry.fields for _, entry in self.items if entry.type in types]

    def events(self, *names: str) -> list[dict[str, object]]:
        return [fields for fields in self.of("event") if fields["name"] in names]

    @property
    def outcome(self) -> str:
        entry = self.items[-1][1]
        return "✓" if entry.type == "final" else str(entry.fields.get("code"))


async def _run(broker: Broker, kind: str, folder: Path) -> tuple[str, Seen]:
    """One prompt of its own, followed live; approvals are given, questions answered."""
    victim = folder / kind.replace(", ", "-")
    victim.mkdir()
    (victim / "file").write_text("to be removed\n")
    prompt = f"{uuid4().hex[:8]}: " + PROMPTS[kind].format(victim=victim)
    approvals = "ask" if kind in ("dangerous, asked", "question") else "yolo"
    request = RunRequest(input=RunInput(message=prompt, approvals=approvals))
    record, _ = await broker.runs.create(request)
    seen = await _follow(broker, record.run_id)
    if seen.outcome == "approvals_unavailable" and kind == "question":
        # A mode that cannot ask: what does the agent's question come to?
        request = RunRequest(input=RunInput(message=prompt))
        seen = await _follow(broker, (await broker.runs.create(request))[0].run_id)
    if kind.startswith("dangerous") and seen.outcome == "✓":
        assert not victim.exists(), "it was approved"
    return prompt, seen


async def _follow(broker: Broker, run_id: str) -> Seen:
    items: list[tuple[float, StreamEntry]] = []
    async for entry in broker.stream(run_id):
        items.append((time.monotonic(), entry))
        name = entry.fields.get("name") if entry.type == "event" else None
        if name in ("approval.requested", "question.asked"):
            answer = "once" if name == "approval.requested" else "blue"
            await broker.runs.answer(run_id, entry.fields["request_id"], answer)
    return Seen(items)


def _marks(model: FakeModel, prompt: str, seen: Seen) -> str:
    tools = seen.of("tool.completed", "tool.failed")
    started = seen.of("tool.started")
    marks = [
        _text_mark(model, prompt, seen),
        "R" if seen.of("reasoning.delta") else "",
        "S" if started else "",
        "A" if any(fields.get("args") for fields in started) else "",
        "#" if any(str(fields["call_id"]) == "call_1" for fields in started) else "",
        "E" if tools else "",
        "O" if any(fields.get("result") for fields in tools) else "",
        "U" if seen.of("usage") else "",
        "Q" if _asked(seen) else "",
        seen.outcome,
    ]
    return " ".join(mark for mark in marks if mark)


def _text_mark(model: FakeModel, prompt: str, seen: Seen) -> str:
    arrived = [at for at, entry in seen.items if entry.type == "message.delta"]
    replies = [reply for reply in model.replies if prompt in reply.prompt and reply.pieces]
    if not arrived or not replies:
        return "t" if arrived else ""
    first, last = replies[-1].pieces[0][0], replies[-1].pieces[-1][0]
    return "T" if any(first <= at <= last for at in arrived) else "t"


def _asked(seen: Seen) -> bool:
    asked = seen.events("approval.requested", "question.asked")
    answered = {fields["request_id"] for fields in seen.events("input.answered") if fields["how"] == "answered"}
    return bool(asked) and all(fields["request_id"] in answered for fields in asked)


def documented(build: str, mode: str) -> dict[str, str]:
    """The column of that mode in the table under the heading that names the build."""
    section = DOCUMENT.read_text().partition(f"\n### Hermes {build}\n")[2].partition("\n#")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    if not rows or mode not in rows[0]:
        return {}
    column = rows[0].index(mode)
    return {row[0]: row[column].strip("`") for row in rows[2:]}


async def what_arrives(
    build: str, mode: str, broker: Broker, model: FakeModel, home: Path, folder: Path, kinds: Sequence[str] = SOME
) -> str:
    """Run those prompts, several at once; returns the column as a table, once it equals the documented one."""
    trace = uuid4().hex
    runner = HermesRunner(HermesSettings(bin=hermes_binary(BUILDS[build]), mode=mode), environ=environ_of(home, trace))
    async with working(broker, {"hermes": runner}):
        runs = await asyncio.gather(*(_run(broker, kind, folder) for kind in kinds))
    arrived = {kind: _marks(model, *run) for kind, run in zip(kinds, runs, strict=True)}
    table = "\n".join(f"| {kind} | `{marks}` |" for kind, marks in arrived.items())
    assert not processes(trace), "no process is left"
    said = {kind: marks for kind, marks in documented(build, mode).items() if kind in kinds or kind not in PROMPTS}
    assert arrived == said, f"Hermes {build}, mode {mode}:\n{table}"
    return table
