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
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from broker.items import (
    Cache,
    Event,
    Item,
    MessageDelta,
    ToolCompleted,
    ToolFailed,
    ToolStarted,
    Usage,
)
from workers.hermes.lines import LineSplitter, TooLong

__all__ = ["HermesResult", "OutputParser", "is_no_reply"]

_HELD_MAX = 64 * 1024
_STRAY_MAX = 4_000
_ERROR_MAX = 500
_NO_REPLY = ("⚠️ No reply", "⚠ No reply", "explainer.no_reply_prefix")
"""How Hermes words its notice that the model said nothing. The last is the bare key, of builds without catalogs."""


@dataclass(frozen=True, slots=True)
class HermesResult:
    """The ``result`` line."""

    exit_code: int
    text: str
    session_id: str | None
    error: str | None
    duration_ms: float | None
    usage: dict[str, int | None] | None


@dataclass(slots=True)
class _OpenCall:
    wire_id: str | None
    name: str
    call_id: str


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
    tools: int = 0
    guidance: str = ""
    """Text lines that were no answer: what the command said instead of starting."""
    _splitter: LineSplitter = field(init=False)
    _held: list[str] = field(default_factory=list)
    _open: list[_OpenCall] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)
    _round_text: list[str] = field(default_factory=list)
    _tools_since_text: bool = False

    def __post_init__(self) -> None:
        self._splitter = LineSplitter(self.line_max)

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
        return items + self._close_calls("Hermes ended before this call's result")

    # Lines.

    def _line(self, line: bytes | TooLong, end: str) -> Iterable[Item]:
        if isinstance(line, TooLong):
            message = f"a line of {line.size:,} bytes was left out: HERMES_LINE_MAX_BYTES allows {self.line_max:,}"
            return [_warning("line_too_long", message)]
        if not line.strip():
            return self._plain(end) if line or self._round_text or self._held else []
        text = line.decode("utf-8", "replace")
        record = _object(text)
        return self._plain(text + end) if record is None else self._record(record)

    def _plain(self, text: str) -> list[Item]:
        if self.result is not None:
            return [_warning("stray_output", text.strip()[:_STRAY_MAX])] if text.strip() else []
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
        kind = record.get("type")
        if kind == "message.delta" and isinstance(text := record.get("delta", record.get("text")), str):
            return self._text(self._release()) + self._text(text)
        if self.result is not None:
            return [_warning("stray_record", f"a record after the result: {kind!r}")]
        items: list[Item] = []
        if self._held:
            items.append(_warning("stray_output", self._release().strip()[:_STRAY_MAX]))
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
        wire_id = _str(record.get("tool_call_id")) or None
        call = _OpenCall(wire_id, name, self._new_id(wire_id))
        self._open.append(call)
        self._tool_activity()
        args = record.get("input")
        return [ToolStarted(call_id=call.call_id, name=name, args=args, component_id=f"tool:{name}")]

    def _tool_result(self, record: dict[str, Any]) -> list[Item]:
        name = _str(record.get("name")) or "unknown"
        call = self._match(_str(record.get("tool_call_id")) or None, name)
        self._tool_activity()
        output = record.get("output")
        return [_tool_end(call, output, _number(record.get("duration_ms")), failed=bool(record.get("is_error")))]

    def _tool_activity(self) -> None:
        self._tools_since_text = True
        self.answered = False

    def _new_id(self, wire_id: str | None) -> str:
        """Hermes' id, or one made of the call's place in the run: the same whenever the same output is read."""
        self.tools += 1
        call_id = wire_id or f"hermes_call_{self.tools}"
        if call_id in self._ids:  # an id that comes again is another call
            call_id = f"{call_id}.{self.tools}"
        self._ids.add(call_id)
        return call_id

    def _match(self, wire_id: str | None, name: str) -> _OpenCall:
        """The open call of that id; without id the oldest open one of that name; else one whose start went unseen."""
        for call in self._open:
            if (call.wire_id == wire_id) if wire_id else (call.name == name):
                self._open.remove(call)
                return call
        return _OpenCall(wire_id, name, self._new_id(wire_id))

    def _close_calls(self, why: str) -> list[Item]:
        ended: list[Item] = [
            ToolFailed(call_id=c.call_id, name=c.name, error=why, component_id=f"tool:{c.name}") for c in self._open
        ]
        self._open.clear()
        return ended

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
        items = self._close_calls("Hermes ended before this call's result")
        items += self._reconcile(result)
        items += self._session(result.session_id)
        return items + _usage_items(result.usage)

    def _reconcile(self, result: HermesResult) -> list[Item]:
        """``result.text`` is the last round's text, stripped. What it has beyond the deltas is emitted; any other
        difference is reported.

        Where ``error`` is set, or nothing was answered, the text is Hermes' own wording of the failure.
        """
        if result.error or not result.text.strip() or is_no_reply(result):
            return []
        streamed = "".join(self._round_text) if not self._tools_since_text else ""
        begun, whole = streamed.lstrip(), result.text.strip()
        if begun.rstrip() == whole:
            return []
        if not begun:
            joint = "\n\n" if self._round_text else ""  # as Hermes itself joins a round to the text before it
            return self._text(joint + whole)
        if whole.startswith(begun):
            return self._text(whole[len(begun) :])
        return [Event(name="merge.mismatch", payload={"round": self.round, "reported": result.text[:_STRAY_MAX]})]


def is_no_reply(result: HermesResult) -> bool:
    """Exit code 0, and yet the model said nothing: the text is Hermes' notice of that, not an answer."""
    return result.text.lstrip().startswith(_NO_REPLY)


def _object(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _warning(code: str, message: str) -> Event:
    return Event(name="warning", payload={"code": code, "message": message})


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _tool_end(call: _OpenCall, output: Any, duration_ms: float | None, *, failed: bool) -> Item:
    component = f"tool:{call.name}"
    if not failed:
        return ToolCompleted(
            call_id=call.call_id, name=call.name, result=output, duration_ms=duration_ms, component_id=component
        )
    return ToolFailed(
        call_id=call.call_id,
        name=call.name,
        error=_error_of(output),
        result=output,
        duration_ms=duration_ms,
        component_id=component,
    )


def _error_of(output: Any) -> str:
    """One line about a failed tool: what its result calls the error, else its exit code, else its beginning."""
    text = output if isinstance(output, str) else json.dumps(output)
    record = _object(text) or {}
    if isinstance(error := record.get("error"), str) and error:
        return error[:_ERROR_MAX]
    if isinstance(code := record.get("exit_code"), int):
        return f"exit code {code}"
    return text[:_ERROR_MAX] or "the tool failed"


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


def _usage_items(usage: dict[str, int | None] | None) -> list[Item]:
    if usage is None:
        return []
    items: list[Item] = [msgspec.convert({"type": "usage", **usage, "total": usage}, Usage)]
    if usage["cache_read_tokens"]:
        items.append(Cache(status="hit", tokens=usage["cache_read_tokens"]))
    return items
