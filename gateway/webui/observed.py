"""``/api/sessions/{id}/events``: the runs of a session on one connection, one after the other.

A viewer with a cursor gets the rest of the run that it names, then the runs that follow it; one without gets what
comes. The response ends behind the closing event of the first run that was live when the viewer came to it, or that
began after him. Where the cursor is no good, or something is missing behind it, one snapshot of the session stands for
what he lacks, and then he is live.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from enum import Enum
from typing import Any, ClassVar

from broker.api import Broker
from broker.errors import RuncastError, RunNotFound
from broker.items import Mode
from broker.log import LogState
from broker.viewer import Viewer
from gateway.formats.webui import WebuiFormat
from gateway.webui.channels import Channels
from gateway.webui.resume import Action, Asked, Log, Resume, Route, resolve, run_in
from gateway.webui.session_view import compact, frame
from gateway.webui.turns import Turns

__all__ = ["Observer"]

_RELAYED_MAX = 20
"""Runs of a session, from the newest, among which the id of a runner service's item is looked for."""


class _After(Enum):
    """What follows a run."""

    NEXT = "it had ended before the viewer came to it: the next one"
    END = "it was the one that the viewer was attached to: the end"
    SNAPSHOT = "something of it is missing: a snapshot, then live"


class Observer:
    """One viewer. ``more`` gives his next frames; once ``over``, nothing more comes."""

    def __init__(self, broker: Broker, channels: Channels, turns: Turns, session_id: str, asked: Asked) -> None:
        self._broker, self._channels, self._turns = broker, channels, turns
        self._session_id, self._asked = session_id, asked
        self._bell = _Bell()
        self._seen: set[str] = set()
        self._waiting: deque[tuple[str, int | None]] = deque()
        """Runs to come, each with the seq behind which it begins; ``None``: its present end."""
        self._then = _After.NEXT
        self._frames = self._observe()
        self._closing: asyncio.Task[None] | None = None
        self.over = False

    async def more(self) -> bytes:
        """Frames, or ``b""`` at the end. A store that is away ends it too: its client comes back."""
        if self.over:
            await asyncio.Event().wait()  # whoever looks at `over` cancels this
        try:
            return await anext(self._frames)
        except (StopAsyncIteration, RuncastError):
            self.over = True
            return self._retry()

    def leave(self) -> None:
        """The viewer is gone."""
        self._closing = asyncio.get_running_loop().create_task(self._frames.aclose())

    def _retry(self) -> bytes:
        # The closing event tells an EventSource to stay away for an hour. There is more to come here: the next turn.
        return b"retry: %d\n\n" % self._broker.settings.retry_ms

    async def _observe(self) -> AsyncGenerator[bytes, None]:
        key = self._broker.keys.session_events(self._session_id)
        # Before anything is read: no run that begins meanwhile is missed.
        await self._channels.attach(self._broker, key, self._bell)
        try:
            if not await self._plan():
                yield await self._snapshot()
            while True:
                replays = bool(self._waiting) and self._waiting[0][1] is not None
                run_id, after = self._waiting.popleft() if self._waiting else (await self._next(), 0)
                async with aclosing(self._run(run_id, after)) as parts:
                    async for part in parts:
                        yield part
                if self._then is _After.NEXT and not replays:
                    return  # it was live, or began, after he came, and had ended by the time that he got to it
                if self._then is _After.END:
                    return
                if self._then is _After.SNAPSHOT:
                    yield await self._snapshot()
        finally:
            self._channels.detach(key, self._bell)

    # Which runs.

    async def _plan(self) -> bool:
        """What to show first. False: a snapshot comes before it."""
        runs = await self._broker.sessions.runs_of(self._session_id)
        run_id, resume = await self._resume(runs)
        if resume.action is not Action.FOLLOW or run_id is None:
            await self._go_live(runs)
            return resume.action is Action.LIVE
        self._seen = set(runs)
        self._waiting.append((run_id, resume.after))
        self._waiting.extend((later, 0) for later in runs[runs.index(run_id) + 1 :])
        return True

    async def _resume(self, runs: Sequence[str]) -> tuple[str | None, Resume]:
        run_id, ids = run_in(self._asked), None
        if run_id not in runs:
            run_id, ids = await self._relayed(runs)
        try:
            state = await self._broker.log.state(run_id) if run_id is not None else None
        except RunNotFound:
            state = None
        if state is None or run_id is None:
            return None, resolve(self._asked, None, Route.SESSION)
        log = Log(run_id, state.first, state.last, state.is_ended, ids)
        return run_id, resolve(self._asked, log, Route.SESSION)

    async def _relayed(self, runs: Sequence[str]) -> tuple[str | None, Mapping[str, int] | None]:
        """The run of which the cursor is an item's id at a runner service. Services count anew for each run: one that
        several runs have says nothing."""
        if not self._asked.ids:
            return None, None
        raw = self._asked.header or self._asked.after_event_id
        newest = runs[-_RELAYED_MAX:]
        seqs = [await self._broker.log.seq_of(run_id, raw) for run_id in newest]
        found = [(run_id, {raw: seq}) for run_id, seq in zip(newest, seqs, strict=True) if seq is not None]
        return found[0] if len(found) == 1 else (None, None)

    async def _go_live(self, runs: Sequence[str]) -> None:
        """``runs`` were read first: one that began since is shown from its start, as it is not among them."""
        session = await self._broker.sessions.get(self._session_id)
        self._seen = set(runs)
        self._waiting.clear()
        if session.active is not None:
            run_id = session.active.run_id
            self._waiting.append((run_id, None if run_id in self._seen else 0))
            self._seen.add(run_id)

    async def _next(self) -> str:
        """The next run of the session, once there is one."""
        while True:
            self._bell.clear()
            runs = await self._broker.sessions.runs_of(self._session_id)
            fresh = [run_id for run_id in runs if run_id not in self._seen]
            if fresh:
                self._seen.add(fresh[0])
                return fresh[0]
            await self._bell.rung()

    async def _snapshot(self) -> bytes:
        """The session as it stands, in place of what is missing; what follows is live."""
        runs = await self._broker.sessions.runs_of(self._session_id)
        session = await self._broker.sessions.get(self._session_id)
        await self._go_live(runs)
        return frame("session_snapshot", {"session": compact(session)})

    # One run.

    async def _run(self, run_id: str, after: int | None) -> AsyncGenerator[bytes, None]:
        self._then = _After.SNAPSHOT
        try:
            state = await self._broker.log.state(run_id)
            turn = await self._turns.format_of(self._broker, run_id)
        except RunNotFound:
            return
        if after is None:
            after = max(state.last - 1 if state.is_ended else state.last, state.first - 1, 0)
        elif after + 1 < state.first:
            return
        attached = _Attached(self._broker, run_id, _Observed(turn), after)
        async with aclosing(attached.frames(state)) as parts:
            async for part in parts:
                yield part
        if attached.viewer.reason == "end":
            self._then = _After.NEXT if state.is_ended else _After.END
            yield self._retry()
        elif attached.viewer.reason in ("drain", "stalled", "memory"):
            self._then = _After.END


class _Observed:
    """A turn's frames for somebody who watches its session: what is missing is told by a snapshot, not by the turn."""

    name: ClassVar[str] = "webui:observed"
    heartbeat: ClassVar[bytes] = b""
    goes_on: ClassVar[bool] = False

    def __init__(self, turn: WebuiFormat) -> None:
        self.items, self.cursor, self.end = turn.items, turn.cursor, turn.end
        self.opening, self.retry = turn.opening, turn.retry

    def gap(self, run_id: str, requested: int, earliest: int, latest: int) -> bytes:
        return b""

    def reset(self, run_id: str, reason: str) -> bytes:
        return b""


class _Attached:
    """A run's viewer whose frames wait here. Past the high-water mark he is paused, as a full socket would do it."""

    def __init__(self, broker: Broker, run_id: str, format: Any, after: int) -> None:
        self._hub, self._high = broker.hub, broker.settings.high_water
        self._kept: list[bytes] = []
        self._size = 0
        self._filled = asyncio.Event()
        self.viewer = Viewer(run_id, format=format, modes=Mode.EVENTS, seq=after, write=self._write, peer=self)

    def _write(self, frames: bytes) -> None:
        self._kept.append(frames)
        self._size += len(frames)
        self._filled.set()
        if self._size > self._high:
            self.viewer.pause()

    def waiting(self) -> int:
        return self._size

    def close(self) -> None:
        """What waits is still sent, and nothing behind it."""

    def abort(self) -> None:
        self._take()

    async def frames(self, state: LogState) -> AsyncGenerator[bytes, None]:
        """Until the viewer is finished, with whatever reason."""
        serving = asyncio.create_task(
            self._hub.serve(
                self.viewer, ended=state.is_ended, last=state.last, average=state.average, epoch=state.epoch
            ),
            name=f"observer of {self.viewer.run_id}",
        )
        serving.add_done_callback(lambda _: self._filled.set())
        try:
            while self._kept or not serving.done():
                if self._kept:
                    yield self._take()
                else:
                    self._filled.clear()
                    await self._filled.wait()
            serving.result()  # a fault must not look like an end
        finally:
            self.viewer.finish("left")
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def _take(self) -> bytes:
        content = b"".join(self._kept)
        self._kept, self._size = [], 0
        if self.viewer.paused:
            self.viewer.resume()
        return content


class _Bell:
    """A mailbox that keeps nothing: something happened, look."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def news(self, entry: Mapping[bytes, bytes]) -> None:
        self._rung.set()

    def clear(self) -> None:
        self._rung.clear()

    async def rung(self) -> None:
        await self._rung.wait()
