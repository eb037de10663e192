"""Watches Hermes' session store and tells its viewers when the list of conversations changed.

A look costs three ``stat`` calls; the store is read, in a thread, only after one of them changed. What a viewer waits
for is the newest list, never a queue of older ones: a slow one skips, and delays nobody.

``running`` is what the probe answers from: it holds while looks succeed, lasts over hiccups such as a store that is
locked for a moment, and falls when the store cannot be read any more or the task died.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gateway.webui.hermes_store import UnknownStore, read_sessions, signature

__all__ = ["SessionWatcher", "Snapshot"]

_log = logging.getLogger("runcast.gateway")
_PATIENCE = 10
"""Looks that may fail in a row."""
_SETTLED = 2.0
"""Seconds: a file that was written so lately may be written again within the resolution of its time stamp."""

Signature = tuple[tuple[int, int, int], ...]


class Snapshot(NamedTuple):
    """``version`` is 0 before the first look, and grows with every change. ``frame`` is the event that shows it."""

    version: int
    sessions: list[dict[str, Any]]
    frame: bytes


def _snapshot(version: int, sessions: list[dict[str, Any]]) -> Snapshot:
    return Snapshot(
        version, sessions, b"event: sessions_changed\ndata: %b\n\n" % msgspec.json.encode(_Changed(sessions))
    )


class _Changed(msgspec.Struct):
    sessions: list[dict[str, Any]]


class SessionWatcher:
    """``async with watcher.watching():`` and read ``snapshot``. ``interval`` is in seconds."""

    def __init__(self, home: Path, *, interval: float = 1.0) -> None:
        self._home, self._interval = home, interval
        self.snapshot = _snapshot(0, [])
        self._news = asyncio.Event()
        self._looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._good_until = 0.0
        self._seen: Signature | None = None
        self._why = ""

    @property
    def running(self) -> bool:
        """Whether what it shows is what is there."""
        return self._task is not None and not self._task.done() and time.monotonic() < self._good_until

    async def looked(self, timeout: float) -> None:
        """Returns after the first look, however it went, or after ``timeout`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._looked.wait()

    async def after(self, version: int) -> Snapshot:
        """The newest snapshot, once it is newer than ``version``. Cancelled at will."""
        while self.snapshot.version <= version:
            await self._news.wait()
        return self.snapshot

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watches until it is left."""
        self._task = asyncio.create_task(self._watch(), name="runcast-hermes-sessions")
        try:
            yield
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            began = time.monotonic()
            good = await self._look()
            took = time.monotonic() - began
            # A store that takes long to read is read less often, and that is no failure either.
            pause = max(self._interval, 2 * took)
            if good:
                self._good_until = time.monotonic() + _PATIENCE * self._interval + 2 * pause
            self._looked.set()
            await asyncio.sleep(pause)

    async def _look(self) -> bool:
        """One look. False: it failed, and what was seen before stands."""
        try:
            found = await asyncio.to_thread(self._read)
        except (OSError, sqlite3.Error, UnknownStore) as error:
            self._failed(f"{type(error).__name__}: {error}")
            return False
        except Exception as error:
            # Whatever a damaged store makes of a query: it must not end the watch, and nobody would see why.
            _log.exception("reading Hermes' session store failed")
            self._failed(type(error).__name__)
            return False
        self._why = ""
        if found is not None and (found != self.snapshot.sessions or self.snapshot.version == 0):
            self._changed(found)
        return True

    def _read(self) -> list[dict[str, Any]] | None:
        """In a thread. ``None``: nothing changed since the last look."""
        at = signature(self._home)
        if at == self._seen:
            return None
        self._seen = None
        sessions = read_sessions(self._home)
        newest = max(written for _, written, _ in at)
        if time.time_ns() - newest > _SETTLED * 1e9:
            self._seen = at
        return sessions

    def _changed(self, sessions: list[dict[str, Any]]) -> None:
        self.snapshot = _snapshot(self.snapshot.version + 1, sessions)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _failed(self, why: str) -> None:
        if why != self._why:
            _log.warning("Hermes' sessions under %s cannot be read: %s", self._home, why)
        self._why = why
