"""Listeners of the event bus: one subscription per partition for the whole process, fanned out to bounded queues.

The bus is live and lossy by design: it tells that something happened, the runs' records tell what is. So a listener
that does not keep up is cut (and counted), not served from a log.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from broker.api import Broker
from broker.errors import BadRequest
from broker.tail import RawEntries, Subscription
from gateway import metrics

__all__ = ["FAMILIES", "BusFeed", "Kinds", "Listener", "parse_kinds", "render_event"]

FAMILIES = ("run", "session", "task", "worker")
QUEUE_EVENTS = 1_000
QUEUE_BYTES = 1 << 20
_KIND = re.compile(r"(?:\*|(?P<family>[a-z]{1,16})\.(?:\*|[a-z_]{1,32}(?:\.[a-z_]{1,32}){0,2}))\Z")


class Kinds:
    """Which kinds a listener wants: exact names and families (``run.*``). None named means all."""

    def __init__(self, names: Iterable[str]) -> None:
        names = set(names)
        self._all = not names or "*" in names
        self._exact = frozenset(names)
        self._prefixes = tuple(name[:-1] for name in names if name.endswith(".*"))

    def __contains__(self, kind: str) -> bool:
        return self._all or kind in self._exact or kind.startswith(self._prefixes)


def parse_kinds(values: Iterable[str]) -> Kinds:
    """``run.*,worker.lost``, or several such strings. Raises ``BadRequest``, listing the families."""
    names = [name.strip() for value in values for name in value.split(",") if name.strip()]
    for name in names:
        match = _KIND.match(name)
        if match is None or match["family"] not in (None, *FAMILIES):
            known = ", ".join(f"{family}.*" for family in FAMILIES)
            raise BadRequest(f"unknown kind {name[:64]!r}: kinds are *, {known}, or one name of those", field="kinds")
    return Kinds(names)


class Listener:
    """One consumer's bounded queue of frames. ``dropped`` says why nothing more will come."""

    def __init__(self, kinds: Kinds, session_id: str | None) -> None:
        self._kinds = kinds
        self._session_id = session_id
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self.dropped: str | None = None

    def wants(self, kind: str, session_id: str) -> bool:
        return kind in self._kinds and self._session_id in (None, session_id)

    def offer(self, frame: bytes) -> None:
        """Queue a frame; never blocks. Past the bound the queue is given up, and the listener with it."""
        if self.dropped is not None:
            return
        if len(self._frames) >= QUEUE_EVENTS or self._bytes + len(frame) > QUEUE_BYTES:
            self.drop("too_slow")
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._filled.set()

    def drop(self, reason: str) -> None:
        if self.dropped is None:
            self.dropped = reason
            metrics.LISTENERS_DROPPED.labels(reason).inc()
            self._frames.clear()
            self._bytes = 0
            self._filled.set()

    def take(self) -> bytes:
        """All frames that wait, joined."""
        frames = b"".join(self._frames)
        self._frames.clear()
        self._bytes = 0
        self._filled.clear()
        return frames

    async def filled(self) -> None:
        await self._filled.wait()


class BusFeed:
    """Follows the bus of every partition while anybody listens."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._subscriptions: list[Subscription] = []
        self._lock = asyncio.Lock()

    async def attach(self, broker: Broker, listener: Listener) -> None:
        """What happens from now on reaches ``listener``. Raises ``StoreUnavailable``."""
        async with self._lock:
            if not self._subscriptions:
                await self._follow(broker)
            self._listeners.add(listener)
        metrics.LISTENERS.inc()

    def detach(self, listener: Listener) -> None:
        """Harmless when repeated, or for a listener that was never attached."""
        if listener not in self._listeners:
            return
        self._listeners.remove(listener)
        metrics.LISTENERS.dec()
        if not self._listeners and not self._lock.locked():
            self._close()

    def _close(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()
        self._subscriptions = []

    async def _follow(self, broker: Broker) -> None:
        keys = [broker.keys.bus(partition) for partition in range(broker.keys.partitions)]
        newest = await broker.store.pipeline([("XREVRANGE", key, "+", "-", "COUNT", 1) for key in keys])
        try:
            for key, entries in zip(keys, newest, strict=True):
                after = entries[0][0] if entries else b"0-0"
                self._subscriptions.append(broker.tail.subscribe(key, after, self._receive))
        except BaseException:
            self._close()
            raise

    def _receive(self, entries: RawEntries) -> None:
        for _, fields in entries:
            event = dict(zip(fields[::2], fields[1::2], strict=False))
            kind = event.get(b"kind", b"").decode("utf-8", "replace")
            session_id = event.get(b"session_id", b"").decode("utf-8", "replace")
            wanting = [listener for listener in self._listeners if listener.wants(kind, session_id)]
            if wanting:
                metrics.BUS_EVENTS.labels(_family(kind)).inc()
                frame = render_event(kind, event)
                for listener in wanting:
                    listener.offer(frame)


def render_event(kind: str, event: Mapping[bytes, bytes]) -> bytes:
    """A bus entry → its frame: named by its kind, without an id, for nobody can resume the bus."""
    body: dict[str, Any] = {"kind": kind}
    for name in (b"run_id", b"session_id"):
        if event.get(name):
            body[name.decode()] = event[name].decode("utf-8", "replace")
    if event.get(b"ts"):
        body["ts"] = _number(event[b"ts"])
    body.update((k, v) for k, v in _payload(event.get(b"d", b"")).items() if k not in body)
    return b"event: %b\ndata: %b\n\n" % (_one_line(kind), msgspec.json.encode(body))


def _family(kind: str) -> str:
    """Whoever writes the bus may name kinds as he likes."""
    family = kind.partition(".")[0]
    return family if family in FAMILIES else "other"


def _one_line(kind: str) -> bytes:
    return kind.encode().replace(b"\n", b"").replace(b"\r", b"")


def _number(raw: bytes) -> float | None:
    try:
        return float(raw)
    except ValueError:
        return None


def _payload(raw: bytes) -> dict[str, Any]:
    """The entry's JSON object. An entry that somebody else wrote may hold anything: it is passed on without it."""
    try:
        payload = msgspec.json.decode(raw) if raw else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return payload if isinstance(payload, dict) else {}
