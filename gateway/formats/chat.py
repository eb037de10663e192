"""The frames of a chat: tokens, then one ``done`` or ``error``, then ``[DONE]``. Pure.

Source of the form: docs/chat.md, “Frames”. Clients of it read line by line or cut at blank lines, and parse whatever
stands behind ``data:``: so there is no block without an event and its data, and a heartbeat belongs to the block that
follows it. Frames of a run's items have their cursor as an id. An ``error`` without one is the gateway's own: the run
goes on without this viewer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from broker.answer import failure_of
from broker.items import FENCES, Entry, Mode, escape, modes_of, scrub
from gateway.chat.replies import Style, reply_of

__all__ = ["CHAT", "DONE", "ChatFormat", "error_frame"]

DONE = b"data: [DONE]\n\n"
"""Behind the last frame, always: the response ends there."""
_SAID = frozenset({b"message.delta", b"refusal.delta"})
_FENCES = frozenset(name.encode() for name in FENCES)
_GOES_ON = "The run goes on: GET /v1/runs/{run_id}/stream?format=chat with Last-Event-ID goes on with this answer"
_WHOLE = "GET /v1/runs/{run_id}/result has the whole answer once the run has ended"


class _Delta(msgspec.Struct):
    text: str = ""
    choice: int = 0


_delta = msgspec.json.Decoder(_Delta)
_object = msgspec.json.Decoder(dict[str, Any])


class ChatFormat:
    """Implements ``Format``. One for each run, since its last frame names the session and spells as its caller does."""

    name: ClassVar[str] = "chat"
    heartbeat: ClassVar[bytes] = b": hb\n"
    goes_on: ClassVar[bool] = False

    def __init__(self, run_id: str = "", session_id: str | None = None, style: Style = Style.LEGACY) -> None:
        self._run_id, self._session_id, self._style = run_id, session_id, style

    def opening(self, retry_ms: int) -> bytes:
        return b""

    def retry(self, milliseconds: int) -> bytes:
        """This gateway is shutting down."""
        return self.broken("This gateway is shutting down.", goes_on=True)

    def broken(self, why: str, *, goes_on: bool = False) -> bytes:
        """The end of a stream that ends ahead of its run, or without what it was to show."""
        hint = (_GOES_ON if goes_on else _WHOLE).format(run_id=self._run_id or "{run_id}")
        return error_frame(f"{why} {hint}")

    def items(self, run_id: bytes, entries: Sequence[Entry], modes: Mode) -> bytes:
        everything = bool(modes & Mode.EVENTS)
        frames = []
        for entry in entries:
            if entry.type in _SAID and (everything or modes_of(entry.type) & modes):
                frames.append(self._token(run_id, entry))
            elif entry.type in _FENCES:
                frames.append(self._closing(run_id, entry))
        return b"".join(frames)

    def reset(self, run_id: str, reason: str) -> bytes:
        if reason == "rewound":
            return self.broken("Some of this answer was lost by the server's store.")
        return self.broken(f"The position that was named is none in this run ({reason}).")

    def gap(self, run_id: str, requested: int, earliest: int, latest: int) -> bytes:
        return self.broken("Some of this answer is not kept any more.")

    def cursor(self, run_id: str, seq: int) -> bytes:
        return b""  # a block without data would break clients that parse what they cut out

    def end(self, run_id: str, status: str, last_seq: int) -> bytes:
        return b""

    def _token(self, run_id: bytes, entry: Entry) -> bytes:
        try:
            delta = _delta.decode(entry.data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # of a careless worker: nobody can read it
            return b""
        if delta.choice or not delta.text:  # of several answers the first is the chat's
            return b""
        return _frame(b"%b:%d" % (run_id, entry.seq), b"token", {"token": delta.text})

    def _closing(self, run_id: bytes, entry: Entry) -> bytes:
        id_ = b"%b:%d" % (run_id, entry.seq)
        fields = _fields(entry.data)
        if entry.type != b"final":
            return _frame(id_, b"error", {"error": failure_of(fields)}) + DONE
        return _frame(id_, b"done", reply_of(fields, self._session_id, self._style)) + DONE


def error_frame(why: str) -> bytes:
    """The end of a stream that is none of its run's: it has no id."""
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode({"error": why}) + DONE


def _frame(id_: bytes, event: bytes, payload: Any) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id_, event, escape(msgspec.json.encode(payload)))


def _fields(data: bytes) -> dict[str, Any]:
    """A fence's JSON. A worker in another language may have sent what the store lets through and msgspec does not read
    (bytes that are no UTF-8, ``1e999``): its run has an end all the same."""
    try:
        return _object.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        found = scrub(json.loads(data.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


CHAT = ChatFormat()
"""Stands for the format where the run is not known yet."""
