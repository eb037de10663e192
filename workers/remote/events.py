"""The events of a runner service → items: one event, one item, so that seqs here and there run side by side. Pure.

| event of the service | item |
|---|---|
| ``token``, ``token.delta``, ``message.delta`` | ``message.delta`` |
| ``reasoning``, ``reasoning.delta`` | ``reasoning.delta`` |
| ``tool``, ``tool.started``; ``tool.updated``, ``tool.progress`` | ``tool.started``; ``tool.progress`` |
| ``tool_complete``, ``tool.done``, ``tool.completed``, ``tool.failed`` | ``tool.completed`` or ``tool.failed`` |
| ``metering``, ``usage.updated``, ``usage.final`` with other counts than before | ``usage`` |
| ``compressed`` | ``summary`` |
| ``warning`` | ``event warning {code, message}`` |
| ``approval``, ``approval.request``, ``approval.requested`` | an approval, asked of a person |
| ``clarify``, ``clarify.requested`` | a question, the same |
| ``approval.resolved``, ``clarify.resolved`` | ``event``; the request is no longer open |
| ``stream_end``, ``run.completed``; ``done`` where the service says that nothing follows | ``final`` |
| ``cancel``, ``cancelled``, ``run.cancelled`` | ``cancelled`` |
| ``apperror``, ``error``, ``failed``, ``run.failed`` | ``failed`` |
| anything else | ``event`` of that name, with the payload's fields |

A service says nothing of rounds: all of a run is round 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from broker.asks import pending_payload
from broker.items import Cancelled, Event, Failed, Final, Item, MessageDelta, ReasoningDelta, Summary, ToolStarted
from workers.remote.pages import ServiceEvent, Status, read_status
from workers.remote.position import OpenRequest
from workers.remote.spending import Spending
from workers.remote.tools import ToolCalls, text_in
from workers.runner import Outcome

__all__ = ["Step", "Translator"]

_TEXT = frozenset({"token", "token.delta", "message.delta"})
_REASONING = frozenset({"reasoning", "reasoning.delta"})
_STARTED = frozenset({"tool", "tool.started"})
_PROGRESS = frozenset({"tool.updated", "tool.progress"})
_ENDED = frozenset({"tool_complete", "tool.done", "tool.completed", "tool.failed"})
_METERING = frozenset({"metering", "usage.updated", "usage.final"})
_APPROVAL = frozenset({"approval", "approval.request", "approval.requested"})
_QUESTION = frozenset({"clarify", "clarify.requested"})
_RESOLVED = frozenset({"approval.resolved", "clarify.resolved"})
_COMPLETED = frozenset({"stream_end", "run.completed"})
_CANCELLED = frozenset({"cancel", "cancelled", "run.cancelled"})
_FAILED = frozenset({"apperror", "error", "failed", "run.failed"})
_OURS = frozenset({"run.restarted", "merge.mismatch", "log.rewound", "input.answered", "stop.requested"})
"""Names that say something of our log."""
_CHOICES = ("once", "session", "always", "deny")
_ENVELOPE = frozenset({"ts", "component_id", "parent_run_id", "truncated_bytes", "source_id", "run_id", "seq"})
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NAME_MAX = 64
_MESSAGE_MAX = 4_000


@dataclass(frozen=True, slots=True)
class Step:
    """What one event comes to: an item, a request to a person, or the run's end. ``settled``: the key of a request
    that somebody answered at the service. ``session``: the agent's session from now on."""

    item: Item | None = None
    ask: OpenRequest | None = None
    end: Outcome | None = None
    settled: str | None = None
    session: str | None = None


class Translator:
    """Of one run. Fed each event once, in order; an attempt that goes on is told of the items so far first."""

    def __init__(self) -> None:
        self.done = False
        """The agent is done; what the service calls the stream's end follows, or nothing."""
        self._tools = ToolCalls()
        self._spending = Spending()
        self._text = False
        self._kind, self._index = "", -1
        self._reply: str | None = None

    @property
    def spent(self) -> str:
        """What the service said of the cost so far; told as an item at the end only."""
        return self._spending.spent

    def recall(self, items: Iterable[object], spent: str = "0") -> None:
        """The items of earlier attempts, and what ``spent`` was when the last of them was emitted."""
        self._spending.recall_cost(spent)
        for item in items:
            self._tools.recall(item)
            self._spending.recall(item)
            self._text = self._text or isinstance(item, MessageDelta)
            if isinstance(item, (MessageDelta, ReasoningDelta)):
                self._kind, self._index = type(item).__name__, item.index
            elif isinstance(item, ToolStarted):
                self._kind = "tool"
            elif isinstance(item, Event) and item.name == "done":
                self.done, self._reply = True, _reply(item.payload, {})
                self._spending.note(item.payload)

    def feed(self, event: ServiceEvent) -> Step:
        step = self._step(event)
        if step.item is not None:
            item = msgspec.structs.replace(step.item, source_id=event.id)
            return Step(item, settled=step.settled, session=step.session)
        if step.end is not None:
            return Step(end=msgspec.structs.replace(step.end, source_id=event.id))
        return step

    def asks(self, event: ServiceEvent) -> OpenRequest | None:
        """What the event asks a person, if it does."""
        if event.name in _APPROVAL:
            choices = _texts(event.payload.get("choices")) or _CHOICES
            return _request(event, "approval", choices, ("approval_id", "request_id", "id"))
        if event.name in _QUESTION:
            choices = _texts(event.payload.get("choices_offered")) or _texts(event.payload.get("choices"))
            return _request(event, "question", choices, ("clarify_id", "request_id", "id"))
        return None

    def closing(self) -> list[Item]:
        """What is to be said before the fence."""
        return [*self._tools.closing(), *self._spending.closing()]

    def completed(self) -> Final:
        """The outcome of a run that ended well. Its text is what was streamed; else what ``done`` had."""
        if self._text or self._reply is None:
            return Final()
        return Final(message={"role": "assistant", "content": [{"type": "text", "text": self._reply}]})

    def ended(self, status: Status) -> Outcome:
        """The outcome where the service names the run's state, and sent no event for it."""
        match status.state:
            case "failed":
                return Failed(code="remote_failed", message=status.message or "the service says that the run failed")
            case "cancelled":
                return Cancelled(message=status.message or "the run was cancelled at the service")
            case _:
                return self.completed()

    def _step(self, event: ServiceEvent) -> Step:
        name, payload = event.name, event.payload
        if (ask := self.asks(event)) is not None:
            return Step(ask=ask)
        if (end := self._end(event)) is not None:
            return Step(end=end)
        if name == "compressed":
            session = text_in(payload, "new_session_id")
            sessions = {key: payload[key] for key in ("session_id", "new_session_id") if key in payload}
            return Step(Summary(text=text_in(payload, "summary", "text") or "", replaces=sessions), session=session)
        if name in _RESOLVED:
            return Step(_event(event), settled=text_in(payload, "approval_id", "clarify_id", "request_id", "id"))
        if name == "done":
            return self._note_done(event)
        return Step(self._item(event) or _event(event))

    def _item(self, event: ServiceEvent) -> Item | None:
        name, payload = event.name, event.payload
        if name in _TEXT or (name == "interim_assistant" and payload.get("already_streamed") is False):
            text = text_in(payload, "text", "delta", "content")
            self._text = self._text or text is not None
            return None if text is None else MessageDelta(text=text, index=self._block("MessageDelta"))
        if name in _REASONING:
            text = text_in(payload, "text", "delta", "content")
            return None if text is None else ReasoningDelta(text=text, index=self._block("ReasoningDelta"))
        if name in _STARTED:
            self._kind = "tool"
            return self._tools.started(payload, event.id)
        if name in _PROGRESS:
            return self._tools.progress(payload)
        if name in _ENDED:
            return self._tools.ended(payload, failed=name == "tool.failed")
        return self._spending.counted(payload) if name in _METERING else None

    def _block(self, kind: str) -> int:
        """The index of a delta: what follows something of another kind is a block of its own."""
        if kind != self._kind:
            self._kind, self._index = kind, self._index + 1
        return self._index

    def _note_done(self, event: ServiceEvent) -> Step:
        self.done = True
        payload = event.payload
        self._spending.note(payload)
        session = payload.get("session")
        session = session if isinstance(session, Mapping) else {}
        self._reply = _reply(payload, session)
        # The whole conversation lies in `session`: it is kept by its service.
        short = {key: value for key, value in payload.items() if key != "session"}
        if "message_count" in session:
            short["message_count"] = session["message_count"]
        if self._reply is not None and not self._text:
            short["text"] = self._reply  # nothing else in the log has it
        return Step(_event(event, short), session=text_in(session, "session_id", "id"))

    def _end(self, event: ServiceEvent) -> Outcome | None:
        name, payload = event.name, event.payload
        said = text_in(payload, "message", "error", "text")
        if name in _CANCELLED:
            return Cancelled(message=(said or "the run was cancelled at the service")[:_MESSAGE_MAX])
        if name in _FAILED:
            code = text_in(payload, "type", "code") or ""
            message = (said or "the service says that the run failed")[:_MESSAGE_MAX]
            return Failed(code=code if _CODE.fullmatch(code) else "remote_failed", message=message)
        if name in _COMPLETED or (name == "done" and event.terminal):
            return self._completed_by(event)
        return None

    def _completed_by(self, event: ServiceEvent) -> Outcome:
        if event.name == "done" or not self.done:
            self._note_done(event)
        return self.ended(read_status(event.payload))


def _event(event: ServiceEvent, payload: Mapping[str, Any] | None = None) -> Event:
    """The event under its own name, without what would be taken for the item's envelope."""
    name = f"service.{event.name}" if event.name in _OURS else event.name
    fields = {k: v for k, v in (event.payload if payload is None else payload).items() if k not in _ENVELOPE}
    if not isinstance(fields.get("session_id", ""), str):
        del fields["session_id"]
    if event.name == "warning":
        fields = {**fields, "code": text_in(fields, "code", "type") or "warning"}
    # An item has a type and a name already.
    fields |= {f"{key}_": fields.pop(key) for key in ("type", "name") if key in fields and event.name != "warning"}
    return Event(name=name[:_NAME_MAX] or "message", payload=fields)


def _request(event: ServiceEvent, kind: str, choices: tuple[str, ...], keys: tuple[str, ...]) -> OpenRequest:
    key = text_in(event.payload, *keys) or event.id
    asked = _event(event).payload
    left_out = {*keys, "choices", "choices_offered"}
    payload = {name: value for name, value in asked.items() if name not in left_out}
    return OpenRequest(key=key, kind=kind, payload=pending_payload(payload), choices=choices)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str) and text) if isinstance(value, list) else ()


def _reply(payload: Mapping[str, Any], session: Mapping[str, Any]) -> str | None:
    """The agent's last word, where the service gives it with the end."""
    if (said := text_in(payload, "text", "output", "final_response")) is not None:
        return said
    messages = session.get("messages")
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            return text_in(message, "content", "text")
    return None
