"""Session channels and the list of sessions, live: one stream of the store each, fanned out to bounded mailboxes.

Both are news about what stands in the store, so a viewer that is slow loses nothing by getting only the newest: what
waits for him is coalesced, by what it is about. Nobody who writes ever waits for a viewer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

import msgspec

from broker.api import Broker
from broker.sessions import Session
from broker.tail import RawEntries, Subscription
from gateway import metrics
from gateway.webui.session_view import frame

__all__ = ["MAILBOX_MAX", "Channels", "ListMailbox", "Mailbox", "SessionMailbox"]

_log = logging.getLogger("runcast.gateway")

MAILBOX_MAX = 64
"""Things that may wait for one viewer of a session. Whoever has more waiting is let go, and comes back."""


class Mailbox(Protocol):
    def news(self, entry: Mapping[bytes, bytes]) -> None: ...


class _Waiting:
    """Frames that were not taken, each under what it is about: a newer one takes the place of an older."""

    def __init__(self) -> None:
        self._frames: dict[Hashable, bytes] = {}
        self._filled = asyncio.Event()
        self.dropped = False

    def put(self, about: Hashable, content: bytes) -> None:
        if self.dropped:
            return
        self._frames.pop(about, None)
        self._frames[about] = content
        if len(self._frames) > MAILBOX_MAX:
            self.dropped = True
            metrics.LISTENERS_DROPPED.labels("too_slow").inc()
            self._frames.clear()
        self._filled.set()

    async def take(self) -> bytes:
        """All that waits, as soon as anything does; ``b""`` once this viewer was dropped."""
        await self._filled.wait()
        content = b"".join(self._frames.values())
        self._frames.clear()
        if not self.dropped:
            self._filled.clear()
        return content


class SessionMailbox(_Waiting):
    """One viewer of one session's channel. ``known``: how many messages of it he has, where he said so."""

    def __init__(self, session_id: str, known: int | None = None) -> None:
        super().__init__()
        self._session_id, self._known = session_id, known
        self._started: deque[str] = deque(maxlen=MAILBOX_MAX)
        self._count: int | None = None

    def opening(self, session: Session | None) -> None:
        """The first frames: the channel stands, and what he missed of the present while it did not."""
        self.put("initial", frame("initial", {"session_id": self._session_id}))
        if session is None:
            return
        if session.active is not None:
            self._turn(session.active.run_id, session.active.created, source="subscribe_recovery", recovered=True)
        if self._known is not None and session.message_count > self._known:
            self._updated(session.message_count, source="subscribe_recovery")

    def news(self, entry: Mapping[bytes, bytes]) -> None:
        """An entry of the session's stream."""
        name, run_id = entry.get(b"name", b"").decode(), entry.get(b"run", b"").decode()
        said = _object(entry.get(b"d", b""))
        if name == "server_turn_started":
            self._turn(run_id, said.get("pending_started_at"), source="run")
        elif name == "session-updated":
            self._updated(int(said.get("message_count") or 0), source="run")
        elif name:
            about = said.get("event_id") if name == "bg_task_complete" else None
            self.put((name, about), frame(name, {"session_id": self._session_id, **said}))

    def _turn(self, run_id: str, created: Any, **more: Any) -> None:
        if run_id in self._started:
            return  # the state told it before the news came, or the other way round
        self._started.append(run_id)
        turn = {"session_id": self._session_id, "stream_id": run_id, "pending_started_at": created}
        self.put("turn", frame("server_turn_started", {**turn, **more}))

    def _updated(self, count: int, **more: Any) -> None:
        if count == self._count:
            return
        self._count = count
        told = {"session_id": self._session_id, "message_count": count, "known_count": self._known}
        self.put("updated", frame("session-updated", {**told, **more}))

    async def take(self) -> bytes:
        content = await super().take()
        if self._count is not None:
            self._known = self._count  # he has been told by now
        return content


class ListMailbox(_Waiting):
    """One viewer of the list of all sessions: one event waits at most, for one session or for several."""

    def __init__(self) -> None:
        super().__init__()
        self._pending: dict[str, Any] | None = None

    def news(self, entry: Mapping[bytes, bytes]) -> None:
        """An entry of the stream of changes."""
        change: dict[str, Any] = {
            "version": int(entry.get(b"version", b"0")),
            "reason": entry.get(b"reason", b"").decode(),
            "session_id": entry.get(b"session", b"").decode(),
        }
        if self._pending is not None and self._pending.get("session_id") != change["session_id"]:
            del change["session_id"]  # of several: look at all
        self._pending = change
        self.put("changed", frame("sessions_changed", {"type": "sessions_changed", **change}))

    async def take(self) -> bytes:
        content = await super().take()
        self._pending = None
        return content


class _Channel:
    """One followed stream and who looks at it here."""

    def __init__(self, subscribe: Callable[[Callable[[RawEntries], None]], Subscription]) -> None:
        self.mailboxes: set[Mailbox] = set()
        self.subscription = subscribe(self._receive)

    def _receive(self, entries: RawEntries) -> None:
        for _, flat in entries:
            entry = dict(zip(flat[::2], flat[1::2], strict=False))
            for mailbox in list(self.mailboxes):
                try:
                    mailbox.news(entry)
                except Exception:  # the reader of all streams must not fall over what somebody wrote into one
                    _log.exception("an entry of %r says nothing", self.subscription.key)


class Channels:
    """Those that are looked at through this process."""

    def __init__(self) -> None:
        self._channels: dict[bytes, _Channel] = {}

    async def attach(self, broker: Broker, key: bytes, mailbox: Mailbox) -> None:
        """What is written to the stream ``key`` from now on reaches ``mailbox``. Raises ``StoreUnavailable``."""
        channel = self._channels.get(key)
        if channel is None:
            newest = await broker.store.call(b"XREVRANGE", key, b"+", b"-", b"COUNT", 1)
            after = newest[0][0] if newest else b"0-0"
            channel = self._channels.get(key)  # somebody else may have come meanwhile
            if channel is None:
                channel = _Channel(lambda sink: broker.tail.subscribe(key, after, sink))
                self._channels[key] = channel
        channel.mailboxes.add(mailbox)
        metrics.LISTENERS.inc()

    def detach(self, key: bytes, mailbox: Mailbox) -> None:
        """Harmless when repeated, or for one that was never attached."""
        channel = self._channels.get(key)
        if channel is None or mailbox not in channel.mailboxes:
            return
        channel.mailboxes.remove(mailbox)
        metrics.LISTENERS.dec()
        if not channel.mailboxes:
            channel.subscription.close()
            del self._channels[key]

    @property
    def followed(self) -> int:
        return len(self._channels)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return said if isinstance(said, dict) else {}
