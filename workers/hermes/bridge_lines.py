"""The bridge's lines → items and asks. Pure: bytes in, a batch out; docs/hermes-bridge.md has the protocol.

Any split of the same bytes gives the same batches, taken together. Rounds: text or reasoning that follows tool activity
opens the next one. Within a round the blocks are numbered as they come, reasoning and text each for itself. The
``\\n\\n`` by which Hermes joins rounds stays in the text as it was sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from broker.items import Event, Item, MessageDelta, ReasoningDelta, Summary
from workers.hermes.bridge_counts import Counts
from workers.hermes.bridge_verdict import exit_code_of, of_refusal, of_result, without_result
from workers.hermes.calls import Ask, Batch, Told
from workers.hermes.lines import LineSplitter, TooLong
from workers.hermes.notices import code_of, is_no_reply, item_of, warning
from workers.hermes.tool_calls import ToolCalls
from workers.hermes.verdict import Failure

__all__ = ["PROTOCOL", "BridgeLines", "Hello", "call_line"]

PROTOCOL = 1
_MESSAGE_MAX = 8_000
_NOTICE = re.compile(r"\n\n(?=⚠️? No reply:)")
_UNENDED = "Hermes ended before this call's result"


@dataclass(frozen=True, slots=True)
class Hello:
    """What the bridge found. ``lacks``: callbacks that it would use and that this Hermes does not have."""

    hermes_version: str = ""
    python: str = ""
    callbacks: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    approvals: bool = False


def call_line(call: Mapping[str, Any]) -> bytes:
    """The first line that the bridge reads. A lone surrogate, which UTF-8 cannot carry, travels escaped."""
    return json.dumps({"type": "call", "protocol": PROTOCOL, **call}).encode() + b"\n"


class BridgeLines:
    """One call's lines. The attributes say what was seen so far."""

    def __init__(self, line_max: int = 16 << 20) -> None:
        self.told = Told()
        self.hello: Hello | None = None
        self.unavailable: str | None = None
        """Why this Hermes cannot be driven; no call was made then."""
        self.failed: Failure | None = None
        """Why the call could not begin."""
        self.result: Mapping[str, Any] | None = None
        self.round = 1
        self._line_max = line_max
        self._splitter = LineSplitter(line_max)
        self._tools = ToolCalls()
        self._counts = Counts()
        self._text: list[str] = []
        """Of the round under way."""
        self._previous = ""
        """The text of the round before it."""
        self._block: type[Item] | None = None
        self._index = 0
        self._tools_since = False

    @property
    def greeted(self) -> bool:
        """The first line came: whether this Hermes can be driven is known."""
        return self.hello is not None or self.unavailable is not None

    def feed(self, chunk: bytes) -> Batch:
        return [item for line in self._splitter.feed(chunk) for item in self._line(line)]

    def close(self) -> Batch:
        """The end of the output, whatever ended it."""
        return [*(item for line in self._splitter.close() for item in self._line(line)), *self._tools.close(_UNENDED)]

    def _line(self, line: bytes | TooLong) -> Batch:
        if isinstance(line, TooLong):
            allowed = f"HERMES_LINE_MAX_BYTES allows {self._line_max:,}"
            return [warning("line_too_long", f"a line of {line.size:,} bytes was left out: {allowed}")]
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            return [warning("stray_output", line.decode("utf-8", "replace"))] if line.strip() else []
        handler = self._KINDS.get(str(record.get("type")))
        # A newer bridge may say more than is known here.
        return handler(self, record) if handler else [Event(name="hermes.record", payload={"record": record})]

    # How it begins and ends.

    def _hello(self, record: Mapping[str, Any]) -> Batch:
        if record.get("protocol") != PROTOCOL:
            self.unavailable = f"its bridge speaks protocol {record.get('protocol')!r}, not {PROTOCOL}"
            return []
        self.hello = Hello(
            hermes_version=str(record.get("hermes_version") or ""),
            python=str(record.get("python") or ""),
            callbacks=tuple(record.get("callbacks") or ()),
            lacks=tuple(record.get("lacks") or ()),
            approvals=bool(record.get("approvals")),
        )
        self.told.metadata["hermes_version"] = self.hello.hermes_version
        if not self.hello.lacks:
            return []
        said = f"this Hermes ({self.hello.hermes_version}) has no {', '.join(self.hello.lacks)}"
        return [warning("bridge_lacks", f"{said}: what they would tell is missing from this stream")]

    def _unavailable(self, record: Mapping[str, Any]) -> Batch:
        self.unavailable = str(record.get("reason") or "it gave no reason")
        return []

    def _failed(self, record: Mapping[str, Any]) -> Batch:
        code, message = str(record.get("code") or "hermes_failed"), str(record.get("message") or "")
        self.failed = Failure(code, message[:_MESSAGE_MAX], retryable=code == "hermes_session_busy")
        self.told.finished = True
        return []

    def _result(self, record: Mapping[str, Any]) -> Batch:
        self.result, self.told.finished = record, True
        self.told.exit_code = exit_code_of(record)
        batch: Batch = [*self._tools.close(_UNENDED)]
        if not record.get("failed") and not record.get("interrupted"):
            batch += self._reconcile(self._answer(record))
        return batch + self._session(record)

    def _session(self, record: Mapping[str, Any]) -> Batch:
        told = self.told
        session_id, model, provider = (_str(record.get(key)) for key in ("session_id", "model", "provider"))
        batch: Batch = []
        if session_id and session_id != told.session_id:
            payload = {"hermes_session_id": session_id, "model": model, "rotated_from": told.session_id}
            batch.append(Event(name="hermes.session", payload={k: v for k, v in payload.items() if v}))
        if model and told.model and (model, provider or told.provider) != (told.model, told.provider):
            payload = {"model": model, "provider": provider, "from_model": told.model, "from_provider": told.provider}
            batch.append(Event(name="fallback", payload=payload))
        told.session_id = session_id or told.session_id
        told.model, told.provider = model or told.model, provider or told.provider
        return batch

    # What the model says.

    def _said(self, record: Mapping[str, Any]) -> Batch:
        return self._emit_text(str(record.get("text") or ""))

    def _emit_text(self, text: str) -> Batch:
        if not text:
            return []
        self._enter(MessageDelta)
        self._text.append(text)
        return [MessageDelta(text=text, round=self.round, index=self._index)]

    def _interim(self, record: Mapping[str, Any]) -> Batch:
        """A whole piece of text that was not streamed."""
        return self._emit_text(self._joint() + str(record.get("text") or ""))

    def _reasoned(self, record: Mapping[str, Any]) -> Batch:
        text = str(record.get("text") or "")
        if not text:
            return []
        self._enter(ReasoningDelta)
        return [ReasoningDelta(text=text, round=self.round, index=self._index)]

    def _enter(self, block: type[Item]) -> None:
        if self._tools_since:
            self.round += 1
            self._tools_since = False
            self._previous, self._block, self._index = "".join(self._text), None, 0
            self._text.clear()
        if self._block not in (None, block):
            self._index += 1
        self._block = block

    def _joint(self) -> str:
        """As Hermes itself joins a text to what was said before it."""
        return "\n\n" if self._text or self._previous else ""

    @property
    def _streamed(self) -> str:
        """What was said after the last tool."""
        return "" if self._tools_since else "".join(self._text)

    def _answer(self, result: Mapping[str, Any]) -> str:
        """``final_response`` without the notice that Hermes appends where it stopped at its turn limit.

        What the model said itself is no notice, whatever it looks like.
        """
        final = str(result.get("final_response") or "").strip()
        whole = is_no_reply(final) or final == self._streamed.strip()
        return final if whole else _NOTICE.split(final, maxsplit=1)[0]

    def _reconcile(self, final: str) -> Batch:
        """``final_response`` is the last round's text, stripped. What it has beyond the deltas is emitted; any other
        difference is reported."""
        whole, begun = final.strip(), self._streamed.lstrip()
        if not whole or is_no_reply(whole) or begun.rstrip() == whole:
            return []
        if not begun:
            # Text from before a tool's call may be all that there is to an answer: it was told already.
            told = "".join(self._text) or self._previous
            return [] if told.strip() == whole else self._emit_text(self._joint() + whole)
        if whole.startswith(begun):
            return self._emit_text(whole[len(begun) :])
        return [Event(name="merge.mismatch", payload={"round": self.round, "reported": whole[:_MESSAGE_MAX]})]

    # What it does.

    def _generating(self, record: Mapping[str, Any]) -> Batch:
        name = str(record.get("name") or "unknown")
        return [Event(name="hermes.tool_generating", payload={"tool": name}, component_id=f"tool:{name}")]

    def _tool_started(self, record: Mapping[str, Any]) -> Batch:
        self._tools_since = True
        name = str(record.get("name") or "unknown")
        return [self._tools.start(name, wire_id=_str(record.get("id")) or None, args=record.get("args"))]

    def _tool_ended(self, record: Mapping[str, Any]) -> Batch:
        self._tools_since = True
        call = self._tools.take(str(record.get("name") or "unknown"), _str(record.get("id")) or None)
        seconds = record.get("duration")
        duration_ms = seconds * 1_000 if isinstance(seconds, (int, float)) else None
        error = "" if record.get("is_error") else None
        return [self._tools.end(call, record.get("result"), duration_ms, error=error)]

    def _subagent(self, record: Mapping[str, Any]) -> Batch:
        payload = {k: v for k, v in record.items() if k not in ("type", "name", "event") and v is not None}
        payload["what"] = record.get("event")
        if record.get("name"):
            payload["tool"] = record["name"]
        who = _str(record.get("subagent_id"))
        return [Event(name="hermes.subagent", payload=payload, component_id=f"subagent:{who}" if who else "agent")]

    # What happens besides.

    def _status(self, record: Mapping[str, Any]) -> Batch:
        kind, message = str(record.get("kind") or ""), str(record.get("message") or "")
        code = code_of(message.strip().partition("\n")[0])
        if code or kind == "warn":
            return [item_of(message)]
        return [Event(name="hermes.status", payload={"kind": kind, "message": message[:_MESSAGE_MAX]})]

    def _counted(self, record: Mapping[str, Any]) -> Batch:
        items = self._counts.add(record)
        self.told.usage, self.told.priced = self._counts.usage, self._counts.priced
        return [*items]

    def _compressed(self, record: Mapping[str, Any]) -> Batch:
        session = record.get("old_session_id") or record.get("session_id")
        replaces = {"hermes_session_id": session, "in_place": bool(record.get("in_place"))}
        return [Summary(text=str(record.get("summary") or ""), replaces=replaces)]

    def _ask(self, record: Mapping[str, Any]) -> Batch:
        return [
            Ask(
                key=str(record["id"]),
                kind="question" if record.get("kind") == "question" else "approval",
                payload=record.get("payload") or {},
                choices=tuple(map(str, record.get("choices") or ())),
                free=bool(record.get("free")),
                otherwise=str(record.get("otherwise") or "deny"),
            )
        ]

    _KINDS: ClassVar[Mapping[str, Callable[[BridgeLines, Mapping[str, Any]], Batch]]] = {
        "hello": _hello,
        "unavailable": _unavailable,
        "failed": _failed,
        "session": _session,
        "text": _said,
        "interim": _interim,
        "reasoning": _reasoned,
        "tool_generating": _generating,
        "tool_started": _tool_started,
        "tool_ended": _tool_ended,
        "subagent": _subagent,
        "status": _status,
        "usage": _counted,
        "compressed": _compressed,
        "ask": _ask,
        "result": _result,
    }

    def verdict(self, exit_code: int | None, stderr: str) -> Failure | None:
        """``None``: completed. ``exit_code`` is the process's own, where there is no result."""
        if self.failed is not None:
            return of_refusal(self.failed)
        if self.result is None:
            return without_result(exit_code, stderr)
        return of_result(self.result, streamed=self._streamed.strip())


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None
