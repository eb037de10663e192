"""The frames of the WebUI's chats. Source of the form: docs/webui.md, “The chat stream”. Pure.

An item becomes one event, with the item's id; one that has no name in the WebUI becomes a block with nothing but its
id, so that a client's position never falls behind. The fence becomes all that closes a turn there, in one piece, so
that nobody can stop between its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET

from broker.errors import InvalidItem
from broker.items import Cancelled, Entry, Failed, Final, Mode, Raw, StreamItem, decode, escape, modes_of
from broker.transcript import final_messages
from gateway.formats.webui_events import Chat, Named, cancelled, failed, metering, named, recovery, spent

__all__ = ["RETRY_MS", "WEBUI", "Turn", "WebuiFormat"]

RETRY_MS = 3_600_000
"""What a client that takes no notice of the end waits until it asks again. A native EventSource would wait 3 s."""
_CLOSING = b"retry: %d\n" % RETRY_MS
_FENCES = (Final, Failed, Cancelled)
_UNPRINTABLE = ("\n", "\r", "\0")


@dataclass(frozen=True)
class Turn:
    """A run as a turn of its session: what its closing event needs beside the fence.

    ``before``: messages of the session up to and with what this run was asked, as JSON. ``left_out``: how many older
    ones the session has, which are not among them. ``model`` and ``provider``: those that were asked for.
    """

    chat: Chat = field(default_factory=Chat)
    before: tuple[msgspec.Raw, ...] = ()
    left_out: int = 0
    title: str = ""
    model: str | None = None
    provider: str | None = None


class WebuiFormat:
    """Implements ``Format``. One for each run that is shown as a turn, since what closes it names its session."""

    heartbeat: ClassVar[bytes] = b": heartbeat\n\n"
    goes_on: ClassVar[bool] = False

    def __init__(self, turn: Turn | None = None) -> None:
        # Frames are shared by the name, and those of a turn are not those of a run without one.
        self.name = "webui" if turn is None else "webui:turn"
        self._turn = turn or Turn()

    def opening(self, retry_ms: int) -> bytes:
        return b""

    def retry(self, milliseconds: int) -> bytes:
        return b"retry: %d\n\n" % milliseconds

    def items(self, run_id: bytes, entries: Sequence[Entry], modes: Mode) -> bytes:
        chat = Chat(run_id.decode(), self._turn.chat.session_id, self._turn.chat.before)
        shown = entries if modes & Mode.EVENTS else [e for e in entries if modes_of(e.type) & modes]
        return b"".join([self._blocks(chat, entry) for entry in shown])

    def reset(self, run_id: str, reason: str) -> bytes:
        return self._recovery(run_id, "Some of what was shown here was lost by the server's store.")

    def gap(self, run_id: str, requested: int, earliest: int, latest: int) -> bytes:
        return self._recovery(run_id, "Some of this turn is not kept any more.")

    def cursor(self, run_id: str, seq: int) -> bytes:
        return b"id: %b:%d\n\n" % (run_id.encode(), seq)

    def end(self, run_id: str, status: str, last_seq: int) -> bytes:
        return b""

    def _recovery(self, run_id: str, message: str) -> bytes:
        return _CLOSING + _event(recovery(Chat(run_id, self._turn.chat.session_id), message))

    def _blocks(self, chat: Chat, entry: Entry) -> bytes:
        try:
            item = decode(entry.type, entry.data)
        except InvalidItem:  # of a careless worker: it has no name that we know, and a place all the same
            return b"id: %b:%d\n\n" % (chat.run_id.encode(), entry.seq)
        source = item.fields.get("source_id", UNSET) if isinstance(item, Raw) else item.source_id
        id_ = _id(chat, entry, source)
        if isinstance(item, _FENCES):
            # Nothing follows a fence, so a number of ours does no harm, and whoever has it is known by it.
            return self._closing(item, chat, id_ or _id(chat, entry, UNSET))
        event = named(item, chat)
        if event is not None:
            return id_ + _event(event)
        # A client of a relayed run counts by the service's ids: ours would be of no use to it.
        return b"" if source is None else id_ + b"\n"

    def _closing(self, fence: StreamItem, chat: Chat, id_: bytes) -> bytes:
        if isinstance(fence, Failed):
            return _CLOSING + id_ + _event(failed(fence, chat))
        if isinstance(fence, Cancelled):
            return _CLOSING + id_ + _event(cancelled(fence, chat))
        assert isinstance(fence, Final)
        usage = {**chat.before, **spent(fence.usage, fence.cost, chat)}
        done = _event(Named("done", {"session": {**self._session(fence, chat), **usage}, "usage": usage}))
        end = _event(Named("stream_end", {"session_id": chat.session_id}))
        return done + _event(metering(chat, usage)) + _CLOSING + id_ + end

    def _session(self, fence: Final, chat: Chat) -> dict[str, Any]:
        turn = self._turn
        item = {name: value for name, value in msgspec.structs.asdict(fence).items() if value is not UNSET}
        messages = [*turn.before, *final_messages(chat.run_id, "final", item, fence.ts)]
        title = {"title": turn.title} if turn.title else {}
        count = turn.left_out + len(messages)
        known = {"session_id": chat.session_id, "messages": messages, "message_count": count, **title}
        # A page takes this for its session from now on, and begins the next turn with what stands here.
        model = {"model": (fence.message or {}).get("model") or turn.model, "model_provider": turn.provider}
        open_ = {"active_stream_id": None, "pending_user_message": None}
        older = {"_messages_offset": turn.left_out, "_messages_truncated": turn.left_out > 0}
        return {**known, **model, **older, **open_}


def _id(chat: Chat, entry: Entry, source: Any) -> bytes:
    """The id line: the service's own id of an item that was relayed, else ``run:seq``.

    No line where the service knows nothing of the item: a number of ours between its numbers would be higher than
    those that follow, and a browser keeps the highest.
    """
    if source is None:
        return b""
    if isinstance(source, str) and source and not any(char in source for char in _UNPRINTABLE):
        return b"id: %b\n" % source.encode("utf-8", "replace")
    return b"id: %b:%d\n" % (chat.run_id.encode(), entry.seq)


def _event(event: Named) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.event.encode(), escape(msgspec.json.encode(event.payload)))


WEBUI = WebuiFormat()
"""For runs that are shown by their own address: without a session."""
