"""Hermes' standard output → items. Pure: bytes in, items out; no clock, no IO.

Three kinds of lines are known (docs/workers.md):

- stream-json: ``system/init``, ``text``, ``tool_use``, ``tool_result``, and one ``result`` at the end;
- the seed dialect: ``{"type": "message.delta", "delta": "…"}``;
- a line that is no JSON object is text of the model, a bare JSON string or number included.

Other objects are no text: they become ``event hermes.record``. Text lines ahead of a stream-json ``init`` are stray
output of Hermes' start (a warning, a notice) and become ``event warning``; where no ``init`` ever comes they are what
the command had to say.

Rounds: stream-json does not mark them. Text that follows tool activity opens the next round. The ``\\n\\n`` by which
Hermes joins rounds stays in the text as it was sent: all deltas together are the whole text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from broker.items import Cache, Event, Item, MessageDelta, Usage
from workers.hermes.lines import LineSplitter, TooLong
from workers.hermes.notices import MESSAGE_MAX, is_no_reply, left_out, warning
from workers.hermes.seen import HermesResult
from workers.hermes.tool_calls import ToolCalls

__all__ = ["OutputParser", "is_record"]

_HELD_MAX = 64 * 1024
_NEVER_ENDED = "Hermes ended before this call's result"


@dataclass(slots=True)
class OutputParser:
    """One run's output. ``feed`` what was read, ``close`` at its end; the attributes say what was seen so far."""

    line_max: int = 16 << 20
    session_id: str | None = None
    model: str | None = None
    round: int = 1
    result: HermesResult | None = None
    structured: bool = False
    """A stream-json record was seen: then a ``result`` is owed."""
    answered: bool = False
    """There is text of the model after the last tool activity."""
    limited: bool = False
    error: str = ""
    closed: bool = False
    guidance: str = ""
    """Text lines that were no answer: what the command said instead of starting."""
    _splitter: LineSplitter = field(init=False)
    _held: list[str] = field(default_factory=list)
    _calls: ToolCalls = field(default_factory=ToolCalls)
    _round_text: list[str] = field(default_factory=list)
    _tools_since_text: bool = False
    _recorded: bool = False
    """There was a record, of whatever dialect."""

    def __post_init__(self) -> None:
        self._splitter = LineSplitter(self.line_max)

    @property
    def no_reply(self) -> str:
        told = "" if self.result is None else self.result.text
        # What the model said itself is no notice of Hermes.
        said = not self._tools_since_text and told.strip() == "".join(self._round_text).strip()
        return told if is_no_reply(told) and not said else ""

    @property
    def duration_ms(self) -> float | None:
        return None if self.result is None else self.result.duration_ms

    def heard(self, stderr: str) -> list[Item]:
        """Standard error says nothing that the records do not."""
        return []

    def feed(self, chunk: bytes) -> list[Item]:
        return [item for line in self._splitter.feed(chunk) for item in self._line(line, "\n")]

    def close(self, *, succeeded: bool = True) -> list[Item]:
        """The end of the output. ``succeeded``: the exit code was 0, so plain lines are an answer."""
        items = [item for line in self._splitter.close() for item in self._line(line, "")]
        if self._held:
            text = self._release()
            if succeeded:
                items += self._text(text)
            else:
                self.guidance = text.strip()
        return items + self._calls.close(_NEVER_ENDED)

    # Lines.

    def _line(self, line: bytes | TooLong, end: str) -> Iterable[Item]:
        if isinstance(line, TooLong):
            return [left_out(line.size, self.line_max)]
        if not line.strip():
            return self._plain(end) if line or self._round_text or self._held else []
        text = line.decode("utf-8", "replace")
        record = _object(text)
        if record is None and not end and self._recorded and text.lstrip().startswith("{"):
            # Hermes was killed while it wrote: half a record is no word of the model.
            return [warning("torn_record", text)]
        if record is None or not (self.structured or isinstance(record.get("type"), str)):
            # An answer may be JSON, or end with some.
            return self._plain(text + end)
        return self._record(record)

    def _plain(self, text: str) -> list[Item]:
        if self.result is not None:
            return [warning("stray_output", text.strip())] if text.strip() else []
        if self.structured or (not self._held and self._round_text):
            # Blank lines between records are no text of anybody.
            return self._text(text) if text.strip() or not self.structured else []
        self._held.append(text)
        return self._text(self._release()) if sum(map(len, self._held)) > _HELD_MAX else []

    def _release(self) -> str:
        text = "".join(self._held)
        self._held.clear()
        return text

    def _record(self, record: dict[str, Any]) -> list[Item]:
        self._recorded = True
        kind = record.get("type")
        if kind == "message.delta" and isinstance(text := record.get("delta", record.get("text")), str):
            return self._text(self._release()) + self._text(text)
        if self.result is not None:
            return [warning("stray_record", f"a record after the result: {kind!r}")]
        items: list[Item] = []
        if self._held:
            items.append(warning("stray_output", self._release().strip()))
        if kind == "system" and record.get("subtype") == "init":
            self.structured = True
            return items + self._init(record)
        if kind == "text" and isinstance(record.get("text"), str):
            self.structured = True
            return items + self._text(record["text"])
        if kind == "tool_use":
            self.structured = True
            return items + self._tool_use(record)
        if kind == "tool_result":
            self.structured = True
            return items + self._tool_result(record)
        if kind == "result":
            self.structured = True
            return items + self._result(record)
        return [*items, Event(name="hermes.record", payload={"record": record})]

    # Records.

    def _init(self, record: dict[str, Any]) -> list[Item]:
        self.model = _str(record.get("model"))
        return self._session(_str(record.get("session_id")), first=True)

    def _session(self, session_id: str | None, *, first: bool = False) -> list[Item]:
        if not session_id or session_id == self.session_id:
            return []
        previous, self.session_id = self.session_id, session_id
        payload: dict[str, Any] = {"hermes_session_id": session_id}
        if self.model:
            payload["model"] = self.model
        if previous is not None and not first:
            payload["rotated_from"] = previous
        return [Event(name="hermes.session", payload=payload)]

    def _text(self, text: str) -> list[Item]:
        if not text:
            return []
        if self._tools_since_text:
            self.round += 1
            self._tools_since_text = False
            self._round_text.clear()
        self._round_text.append(text)
        self.answered = self.answered or bool(text.strip())
        return [MessageDelta(text=text, round=self.round)]

    def _tool_use(self, record: dict[str, Any]) -> list[Item]:
        name = _str(record.get("name")) or "unknown"
        self._tool_activity()
        return [self._calls.start(name, wire_id=_str(record.get("tool_call_id")), args=record.get("input"))]

    def _tool_result(self, record: dict[str, Any]) -> list[Item]:
        call = self._calls.take(_str(record.get("name")) or "unknown", _str(record.get("tool_call_id")))
        self._tool_activity()
        error = "" if record.get("is_error") else None
        return [self._calls.end(call, record.get("output"), _number(record.get("duration_ms")), error=error)]

    def _tool_activity(self) -> None:
        self._tools_since_text = True
        self.answered = False

    def _result(self, record: dict[str, Any]) -> list[Item]:
        exit_code = record.get("exit_code")
        self.result = result = HermesResult(
            exit_code=exit_code if isinstance(exit_code, int) else 0,
            text=_str(record.get("text")) or "",
            session_id=_str(record.get("session_id")),
            error=_str(record.get("error")) or None,
            duration_ms=_number(record.get("duration_ms")),
            usage=_usage(record.get("tokens")),
        )
        items = self._calls.close(_NEVER_ENDED)
        items += self._reconcile(result)
        items += self._session(result.session_id)
        return items + _usage_items(result.usage)

    def _reconcile(self, result: HermesResult) -> list[Item]:
        """``result.text`` is the last round's text, stripped. What it has beyond the deltas is emitted; any other
        difference is reported.

        Where ``error`` is set, or nothing was answered, the text is Hermes' own wording of the failure.
        """
        if result.error or not result.text.strip() or is_no_reply(result.text):
            return []
        streamed, whole = "".join(self._round_text), result.text.strip()
        if self._tools_since_text and streamed.strip() == whole:
            self.answered = True  # the answer came with the last tools, and stands
            return []
        begun = "" if self._tools_since_text else streamed.lstrip()
        if begun.rstrip() == whole:
            return []
        if not begun:
            joint = "\n\n" if self._round_text else ""  # as Hermes itself joins a round to the text before it
            return self._text(joint + whole)
        if whole.startswith(begun):
            return self._text(whole[len(begun) :])
        return [Event(name="merge.mismatch", payload={"round": self.round, "reported": result.text[:MESSAGE_MAX]})]


def is_record(line: bytes) -> bool:
    """A JSON object that says what it is, rather than text that looks like one."""
    return isinstance((_object(line.decode("utf-8", "replace")) or {}).get("type"), str)


def _object(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _str(value: Any) -> str | None:
    """A string that says something."""
    return value if isinstance(value, str) and value else None


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _usage(tokens: Any) -> dict[str, int | None] | None:
    """Hermes' counts in our meaning: its ``input`` leaves out what was read from and written to the cache.

    All zero says that nothing was counted (a refused or interrupted call), not that nothing was used.
    """
    if not isinstance(tokens, dict):
        return None
    counts = {k: _count(tokens.get(k)) for k in ("input", "output", "cache_read", "cache_write")}
    if not any(counts.values()):
        return None
    spent = [n for k, n in counts.items() if k != "output" and n is not None]
    return {
        "input_tokens": sum(spent) if counts["input"] is not None else None,
        "output_tokens": counts["output"],
        "cache_read_tokens": counts["cache_read"],
        "cache_write_tokens": counts["cache_write"],
        "reasoning_tokens": None,
    }


def _usage_items(usage: Mapping[str, int | None] | None) -> list[Item]:
    if usage is None:
        return []
    items: list[Item] = [msgspec.convert({"type": "usage", **usage, "total": dict(usage)}, Usage)]
    if usage["cache_read_tokens"]:
        items.append(Cache(status="hit", tokens=usage["cache_read_tokens"]))
    return items
