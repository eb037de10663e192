"""The broker as one object: everything that a worker, a gateway or a Python harness needs of one store.

async with broker.open("redis://…") as b:
    async for item in b.stream(run_id, modes={"messages", "tools"}, after=cursor):
        ...
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from broker.artifact_store import ArtifactStore
from broker.bus import Bus
from broker.cursor import Bounds, format_cursor, resolve
from broker.errors import RuncastError, RunNotFound
from broker.hub import Hub
from broker.items import Entry, Mode, Raw, StreamItem, decode, modes_of, parse_modes
from broker.log import RunLog
from broker.owners import Owners
from broker.publisher import Publisher
from broker.queue import Queue
from broker.records import FIRST_EPOCH, RunRecord
from broker.redis import Store
from broker.runs import Runs
from broker.settings import Settings
from broker.sweep import Sweeper
from broker.tail import Tail
from broker.tasks import Tasks
from broker.viewer import Viewer

__all__ = ["Broker", "StreamEntry", "open"]

_AHEAD = 1_000
_AHEAD_BYTES = 1 << 20
"""Items, and bytes of them, that a slow consumer in this process may have waiting before it is demoted to reading at
its own pace. It is waited for as long as it takes."""


@dataclass(frozen=True)
class StreamEntry:
    """One item of a stream, or one control entry: ``type`` is then ``reset`` or ``gap`` and ``seq`` stays where it was.

    ``cursor`` is what to pass as ``after`` to go on behind this entry.
    """

    run_id: str
    seq: int
    type: str
    data: bytes
    """The stored JSON of an item (without ``run_id`` and ``seq``); of a control entry what it says."""

    @property
    def cursor(self) -> str:
        return format_cursor(self.run_id, self.seq)

    @property
    def control(self) -> bool:
        return self.type in ("reset", "gap")

    @cached_property
    def item(self) -> StreamItem | Raw:
        """Decoded on demand. Raises ``InvalidItem`` where a worker stored something that its type does not allow."""
        return decode(self.type, self.data)

    @cached_property
    def fields(self) -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode(self.data)
        return decoded


class Broker:
    """Made by ``open``. Nothing runs in the background until it is used, except where a caller starts ``sweeper``."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store, self.settings, self.keys = store, settings, store.keys
        self.log = RunLog(store)
        self.queue = Queue(store)
        self.bus = Bus(store)
        self.runs = Runs(store, self.log, self.bus, self.queue)
        self.sessions = self.runs.sessions
        self.ledger = self.runs.ledger
        self.owners = Owners(store)
        self.tasks = Tasks(self.runs)
        self.sweeper = Sweeper(self.runs)
        self.tail = Tail(store, settings)
        self.hub = Hub(self.log, self.tail, settings)

    @cached_property
    def artifacts(self) -> ArtifactStore:
        """Where files of runs are kept. Raises ``InvalidRequest`` where the setting names no store."""
        return ArtifactStore(self.settings)

    def publisher(self, claim: RunRecord) -> Publisher:
        """The writer of a run that this process has claimed."""
        return Publisher(
            self.log,
            self.runs,
            claim.run_id,
            owner=claim.owner,
            epoch=claim.epoch,
            last=claim.last,
            settings=self.settings,
        )

    async def stream(
        self,
        run_id: str,
        *,
        modes: str | Iterable[str] | Mode = "events",
        after: int | str | None = None,
        compact: bool = False,
    ) -> AsyncIterator[StreamEntry]:
        """The run's items behind ``after`` (a seq or a cursor; ``None``: from the start), until its fence.

        Replay and live are one: items come in order, each once. The resume rules are those of the wire: a cursor that
        is malformed, foreign or ahead gives one ``reset`` entry and everything from the start; items that retention
        removed give one ``gap`` entry. An outage of the store is waited out. Ends early only when the broker closes.

        Raises ``RunNotFound``, also where the run vanishes meanwhile; ``StoreUnavailable`` where the store is away at
        the very start; ``UnknownMode``; any other ``RuncastError`` where the store refuses a read.
        """
        wanted = modes if isinstance(modes, Mode) else parse_modes(modes)
        record, first = await self.log.bounds(run_id)
        bounds = Bounds(first=first, last=record.last, ended=record.is_ended, final_only=wanted == Mode.FINAL)
        raw = str(after) if isinstance(after, str) else None if after is None else format_cursor(run_id, after)
        resume = resolve(raw, run_id, bounds)
        if resume.done:
            return
        inbox = _Inbox(run_id, wanted, resume.after, compact)
        if resume.reset is not None:
            rewound = resume.reset == "ahead" and record.epoch > FIRST_EPOCH
            inbox.viewer.send(_ENTRIES.reset(run_id, "rewound" if rewound else resume.reset))
        if resume.gap is not None:
            inbox.viewer.send(_ENTRIES.gap(run_id, resume.gap, bounds.first, bounds.last))
        if bounds.final_only:
            inbox.viewer.seq = max(resume.after, bounds.last - 1 if bounds.ended else bounds.last)
        if bounds.ended and bounds.first > bounds.last:
            inbox.viewer.finish("end")
        serving = asyncio.create_task(self._serve(inbox, record, bounds), name=f"stream of {run_id}")
        try:
            async for entry in inbox:
                yield entry
            await serving  # a fault must not look like an end
            if inbox.viewer.reason == "gone":
                raise RunNotFound(run_id)
            if inbox.viewer.reason == "failed":
                raise RuncastError(f"the stream of run {run_id!r} could not go on: the log of this process says why")
        finally:
            inbox.viewer.finish("left")
            await asyncio.gather(serving, return_exceptions=True)

    async def _serve(self, inbox: _Inbox, record: RunRecord, bounds: Bounds) -> None:
        try:
            if not inbox.viewer.closed:
                average = record.bytes // max(bounds.last - bounds.first + 1, 1)
                await self.hub.serve(
                    inbox.viewer, ended=bounds.ended, last=bounds.last, average=average, epoch=record.epoch
                )
        finally:
            inbox.close()

    async def aclose(self) -> None:
        await self.hub.aclose()
        await self.tail.aclose()
        await self.store.aclose()


class _Control(NamedTuple):
    type: str
    fields: dict[str, Any]


class _EntriesFormat:
    """Entries as they are: the format of consumers in this process. A payload is a tuple of entries and controls."""

    name = "entries"
    heartbeat = ()
    goes_on = True

    def opening(self, retry_ms: int) -> tuple[()]:
        return ()

    def retry(self, milliseconds: int) -> tuple[()]:
        return ()

    def items(self, run_id: bytes, entries: Sequence[Entry], modes: Mode) -> tuple[Entry | _Control, ...]:
        if modes & Mode.EVENTS:
            return tuple(entries)
        return tuple(e for e in entries if modes_of(e.type) & modes)

    def reset(self, run_id: str, reason: str) -> tuple[Entry | _Control, ...]:
        return (_Control("reset", {"run_id": run_id, "reason": reason}),)

    def gap(self, run_id: str, requested: int, earliest: int, latest: int) -> tuple[Entry | _Control, ...]:
        fields = {"run_id": run_id, "requested": requested, "earliest": earliest, "latest": latest}
        return (_Control("gap", fields),)

    def cursor(self, run_id: str, seq: int) -> tuple[Entry | _Control, ...]:
        return (_Control("cursor", {"run_id": run_id, "seq": seq}),)

    def end(self, run_id: str, status: str, last_seq: int) -> tuple[()]:
        return ()


_ENTRIES = _EntriesFormat()


class _Inbox:
    """What the hub wrote and the consumer has not taken. Full, it pauses its viewer, as a socket would."""

    def __init__(self, run_id: str, modes: Mode, after: int, compact: bool) -> None:
        self._run_id, self._seq = run_id, after
        self._waiting: deque[Entry | _Control] = deque()
        self._size = 0
        self._filled = asyncio.Event()
        self._closed = False
        self.viewer = Viewer(run_id, format=_ENTRIES, modes=modes, seq=after, write=self._write, compact=compact)

    def _write(self, payload: tuple[Entry | _Control, ...]) -> None:
        self._waiting.extend(payload)
        self._size += sum([_size(part) for part in payload])
        self._filled.set()
        if len(self._waiting) > _AHEAD or self._size > _AHEAD_BYTES:
            self.viewer.pause()

    def close(self) -> None:
        self._closed = True
        self._filled.set()

    async def __aiter__(self) -> AsyncIterator[StreamEntry]:
        while True:
            while self._waiting:
                taken = self._waiting.popleft()
                self._size -= _size(taken)
                if self.viewer.paused and len(self._waiting) <= _AHEAD // 4 and self._size <= _AHEAD_BYTES // 4:
                    self.viewer.resume()
                if (entry := self._entry(taken)) is not None:
                    yield entry
            if self._closed:
                return
            self._filled.clear()
            await self._filled.wait()

    def _entry(self, taken: Entry | _Control) -> StreamEntry | None:
        if isinstance(taken, Entry):
            self._seq = taken.seq
            return StreamEntry(self._run_id, taken.seq, taken.type.decode(), taken.data)
        if taken.type == "cursor":
            self._seq = taken.fields["seq"]
            return None
        if taken.type == "reset":
            self._seq = 0
        return StreamEntry(self._run_id, self._seq, taken.type, msgspec.json.encode(taken.fields))


def _size(part: Entry | _Control) -> int:
    return len(part.data) if isinstance(part, Entry) else 0


@asynccontextmanager
async def open(url: str | None = None, settings: Settings | None = None) -> AsyncIterator[Broker]:
    """Connect to a store: ``redis://…``, ``rediss://…``, ``redis+cluster://…``, ``redis+sentinel://…``, ``unix://…``,
    ``embedded:[DIR]`` or ``memory:[NAME]`` (docs/operations.md, “Stores”).

    ``url`` wins over ``settings.redis_url`` (``RUNCAST_REDIS_URL``). Raises ``StoreUnavailable``, ``LayoutMismatch``,
    ``InvalidRequest`` for a URL that is none.
    """
    settings = settings or Settings()
    broker = Broker(await Store.connect(url or settings.redis_url, settings), settings)
    try:
        yield broker
    finally:
        await broker.aclose()
