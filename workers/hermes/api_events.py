"""The events of a run at Hermes' API server → items and asks. Pure: bytes or records in, no clock, no IO.

A stream has one JSON object an event: ``message.delta {delta}``, ``tool.started {tool, preview}``, ``tool.completed
{tool, duration, error, preview?}``, ``approval.request {command, description, choices, request_id?}``, and at the end
``run.completed {output, usage}``, ``run.failed {error}``, ``run.cancelled`` or ``run.interrupted``. Newer servers
number them (``seq``) and can tell them again; what was seen already is then left out.

Tools have no ids: an end belongs to the oldest open call of that name. ``reasoning.available`` has the text of the
answer, not the reasoning; what it says is that one call of the model has ended, so the next text opens a round, as
text behind a tool does (a tool that asks a person shows in no other way here).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.items import Event, Item, MessageDelta
from broker.sse import Decoder
from broker.sse import Event as Frame
from workers.hermes.api_dialect import as_run_event
from workers.hermes.calls import Ask, Batch
from workers.hermes.notices import MESSAGE_MAX, warning
from workers.hermes.tool_calls import ToolCalls

__all__ = ["UNNAMED", "UNSEEN", "ApiEvents", "RunEnd"]

UNNAMED = "approval_"
"""How the key of an ask begins whose request came without an id."""
UNSEEN = f"{UNNAMED}unseen"
"""The key of an ask of which only that there is one is known."""

_NEVER_ENDED = "Hermes ended before this call's result"
_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
_ENVELOPE = frozenset({"event", "run_id", "timestamp", "seq"})
_ENDS = {
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
    "run.interrupted": "interrupted",
}
_SILENT = frozenset({"reasoning.available", "approval.responded", "run.steered"})
_SILENT |= {"run.started", "message.started", "assistant.completed", "done"}


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How the server says that a run ended. ``status``: completed, failed, cancelled or interrupted."""

    status: str
    output: str = ""
    """The last round's text, stripped; or Hermes' notice instead of one."""
    error: str = ""
    reason: str = ""
    """Hermes' own word for why a run ended before it was done."""
    notice: str = ""
    """What of ``output`` is Hermes' own: what the model said itself is no notice, whatever it looks like."""


@dataclass(slots=True)
class ApiEvents:
    """One run. ``feed`` the bytes of its stream, ``ended`` a polled status, ``close`` at the end."""

    event_max: int = 16 << 20
    """Bytes of one event; a longer one is left out, and said so."""
    end: RunEnd | None = None
    model: str | None = None
    provider: str | None = None
    reported: dict[str, Any] = field(default_factory=dict)
    """Token counts of the whole run, as far as its end tells them (see ``broker.items.Usage``)."""
    round: int = 1
    answered: bool = False
    """There is text of the model after the last tool activity."""
    heard: int = 0
    """Events that were read; what keeps the connection alive is none."""
    last_seq: int = -1
    _decoder: Decoder = field(init=False)
    _calls: ToolCalls = field(default_factory=ToolCalls)
    _approvals: int = 0
    _content: str = ""
    _text: list[str] = field(default_factory=list)
    _round_text: list[str] = field(default_factory=list)
    _round_over: bool = False
    _lost: bool = False

    def __post_init__(self) -> None:
        self.reconnected()

    def feed(self, chunk: bytes) -> Batch:
        """Any split of the same bytes gives the same. Behind the end of the run nothing is read."""
        return [made for frame in self._decoder.feed(chunk) for made in self._frame(frame)]

    def reconnected(self) -> None:
        """What comes next is a new stream, from its start or from what was asked for."""
        self._decoder = Decoder(limit=self.event_max)

    def lost(self) -> Batch:
        """The rest of the stream cannot be had any more; the run goes on, and its end is asked for."""
        self._lost = True
        message = "the event stream broke off and cannot be taken up again: text and tools may be missing"
        return [warning("stream_lost", message)]

    def polled(self, status: Mapping[str, Any]) -> Batch:
        """The run's status. That of one which has ended has the fields of its last event."""
        name = _str(status.get("status"))
        if self.end is None and name in _ENDS.values():
            return self._run_end(name, status)
        if name != "waiting_for_approval":
            return []
        asked = status.get("approval")
        return self._approval(asked) if isinstance(asked, dict) else [Ask(UNSEEN, "approval", {}, ("once", "deny"))]

    def close(self) -> list[Item]:
        """Calls that are still open have no result any more."""
        return self._calls.close(_NEVER_ENDED)

    # Records.

    def _frame(self, frame: Frame) -> Batch:
        if frame.cut:
            message = f"an event of more than {self.event_max:,} bytes was left out: HERMES_LINE_MAX_BYTES allows that"
            return [warning("line_too_long", message)]
        record = _object(frame.data)
        if record is None:
            return [warning("broken_event", f"an event that is no JSON object: {frame.data}")]
        seq = record.get("seq")
        if isinstance(seq, int):
            if seq <= self.last_seq:
                return []
            self.last_seq = seq
        self.heard += 1
        if "event" not in record:
            record = as_run_event(frame.event, record, self._content)
            self._content = _str(record.get("content")) or self._content
        return self._record(record) if self.end is None else []

    def _record(self, record: dict[str, Any]) -> Batch:
        name = _str(record.get("event"))
        if name == "reasoning.available":
            self._round_over = True
        if name in _SILENT:
            return []
        if name in _ENDS:
            return self._run_end(_ENDS[name], record)
        reading: dict[str, Callable[[dict[str, Any]], Batch]] = {
            "message.delta": self._delta,
            "message.interim": self._interim,
            "tool.started": self._tool_started,
            "tool.completed": self._tool_completed,
            "approval.request": self._approval,
            "replay.truncated": self._truncated,
        }
        if name in reading:
            return reading[name](record)
        if name.startswith("subagent."):
            return [Event(name=name, payload={k: v for k, v in record.items() if k not in _ENVELOPE})]
        return [Event(name="hermes.record", payload={"record": record})]

    def _delta(self, record: dict[str, Any]) -> Batch:
        return list(self._say(_str(record.get("delta"))))

    def _interim(self, record: dict[str, Any]) -> Batch:
        """What the model said beside its tool calls. It was streamed before, or else it comes as a whole."""
        text = _str(record.get("text"))
        if record.get("already_streamed") or "".join(self._round_text).rstrip().endswith(text.strip()):
            return []
        self._round_over = self._round_over and bool(self._round_text)
        return list(self._say(text))

    def _say(self, text: str) -> list[Item]:
        if not text:
            return []
        if self._round_over:
            self._round_over = False
            if self._text or self._calls.count:
                self.round += 1
            self._round_text.clear()
        self._text.append(text)
        self._round_text.append(text)
        self.answered = self.answered or bool(text.strip())
        return [MessageDelta(text=text, round=self.round)]

    def _tool_started(self, record: dict[str, Any]) -> Batch:
        self._tool_activity()
        return [
            self._calls.start(
                _str(record.get("tool")) or "unknown", args=record.get("args"), preview=_str(record.get("preview"))
            )
        ]

    def _tool_completed(self, record: dict[str, Any]) -> Batch:
        self._tool_activity()
        call = self._calls.take(_str(record.get("tool")) or "unknown", None)
        seconds = record.get("duration")
        ms = round(seconds * 1000, 3) if isinstance(seconds, (int, float)) else None
        # Newer servers show the beginning of the result, its secrets blacked out.
        result = _str(record.get("preview")) or None
        error = ("" if result else "the tool failed") if record.get("error") else None
        return [self._calls.end(call, result, ms, error=error)]

    def _tool_activity(self) -> None:
        self._round_over = True
        self.answered = False

    def _approval(self, record: dict[str, Any]) -> Batch:
        self._approvals += 1
        key = _str(record.get("request_id")) or f"{UNNAMED}{self._approvals}"
        choices = record.get("choices")
        named = tuple(c for c in choices if isinstance(c, str)) if isinstance(choices, list) else ()
        payload = {"command": _str(record.get("command")), "description": _str(record.get("description"))}
        return [Ask(key, "approval", payload, named or ("once", "deny"))]

    def _truncated(self, record: dict[str, Any]) -> Batch:
        self._lost = True
        oldest = record.get("oldest_retained_seq")
        return [warning("events_lost", f"the server kept the events from {oldest} on: text and tools may be missing")]

    # The end.

    def _run_end(self, status: str, record: Mapping[str, Any]) -> Batch:
        if isinstance(runtime := record.get("runtime"), Mapping):
            self.model = _str(runtime.get("model")) or self.model
            self.provider = _str(runtime.get("provider")) or self.provider
        output = _str(record.get("output"))
        answer = output.strip() if self._said(output.strip()) else _answer_of(output)
        notice = output.strip().removeprefix(answer).strip()
        self.end = RunEnd(status, output, _str(record.get("error")), _str(record.get("turn_exit_reason")), notice)
        if isinstance(usage := record.get("usage"), Mapping) and any(usage.get(name) for name in _COUNTS):
            # All zero says that nothing was counted, not that nothing was used.
            self.reported = {name: usage[name] for name in _COUNTS if name in usage}
        return [*self.close(), *self._reconcile(answer)]

    def _said(self, whole: str) -> bool:
        return "".join(self._text).rstrip().endswith(whole)

    def _reconcile(self, whole: str) -> list[Item]:
        """``output`` is the last round's text, stripped. What it has beyond the deltas is emitted, any other
        difference is reported; after a loss the rest of the text cannot be told from another one."""
        # Where one answer took several calls of the model, it is longer than the last round.
        if not whole or self._said(whole):
            return []
        begun = "" if self._between() else "".join(self._round_text).lstrip()
        if begun and whole.startswith(begun):
            self._round_over = False
            return self._say(whole[len(begun) :])
        if begun and not self._lost:
            return [Event(name="merge.mismatch", payload={"round": self.round, "reported": whole[:MESSAGE_MAX]})]
        self._round_over = True
        joint = "\n\n" if self._text else ""  # as Hermes itself joins a round to the text before it
        return self._say(joint + whole)

    def _between(self) -> bool:
        """Nothing was said since a tool ran. (The end of a model call alone does not begin a round.)"""
        return self._round_over and not self.answered


def _answer_of(output: str) -> str:
    """The model's own words in ``output``: Hermes appends its notices, or puts them in the place of an answer."""
    text = output.strip()
    for mark in ("⚠️ No reply:", "⚠ No reply:", "explainer."):
        text = text.partition(mark)[0] if text.startswith(mark) or f"\n\n{mark}" in text else text
    return text.strip()


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _str(value: Any) -> str:
    return value if isinstance(value, str) else ""
