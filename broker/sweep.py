"""The sweep: finds runs whose worker is gone, runs that no queue holds, and indexes of runs that no longer are.

Every process sweeps everything; the scripts' compare-and-set lets one of them win. A run is lost when its beat has not
moved for a lease *of this sweeper's own unbroken observation*: whenever the store was away, or the sweeper itself was
held up (a stopped process, a suspended machine), all counts start again. So neither an outage of Redis nor a pause of
this process ends a healthy run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from broker import metrics
from broker.errors import RuncastError, StoreUnavailable
from broker.redis import Stats
from broker.runs import Runs

__all__ = ["Observation", "SweepCounts", "Sweeper"]

_log = logging.getLogger("runcast.sweep")

_CHUNK = 500
_PRUNE_EVERY = 60.0
_PRUNE_PAGE = 200
_SOONEST = 0.05
_FIELDS = (b"status", b"owner", b"attempt", b"beat", b"queue", b"queue_entry")


class SweepCounts(NamedTuple):
    """What one sweep saw and did."""

    live: int = 0
    failed: int = 0
    cancelled: int = 0
    requeued: int = 0
    """Lost runs that got their next attempt."""
    mended: int = 0
    """Queued runs that no queue held."""
    forgotten: int = 0


class _Row(NamedTuple):
    """What the sweep reads of a live run."""

    run_id: str
    status: str
    owner: str
    attempt: int
    beat: str
    queue: str
    queue_entry: str
    waits: bool
    """For its turn in its session."""


class Observation:
    """Since when each run's (owner, beat) has stood still, as one observer saw it. Pure: times are arguments."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[str, str], float]] = {}

    def restart(self) -> None:
        """The observation was broken: nothing seen before counts."""
        self._seen.clear()

    def update(self, beats: Mapping[str, tuple[str, str]], began: float, read: float, lease: float) -> list[str]:
        """Take in what was read of all running runs, between the moments ``began`` and ``read``.

        Returns those that had stood still for ``lease`` seconds when the reading began.
        """
        seen: dict[str, tuple[tuple[str, str], float]] = {}
        lost = []
        for run_id, beat in beats.items():
            before = self._seen.get(run_id)
            if before is None or before[0] != beat:
                seen[run_id] = (beat, read)
                continue
            seen[run_id] = before
            if began - before[1] >= lease:
                lost.append(run_id)
        self._seen = seen
        return lost

    def next_due(self, lease: float) -> float | None:
        """When the first of the runs will have stood still for ``lease`` seconds; ``None`` where there is none."""
        return min(since for _, since in self._seen.values()) + lease if self._seen else None


class Sweeper:
    """One process's sweep. ``clock`` is monotonic seconds."""

    def __init__(self, runs: Runs, clock: Callable[[], float] = time.monotonic) -> None:
        self._runs, self._clock = runs, clock
        self._store, self._settings = runs.store, runs.store.settings
        self._observation = Observation()
        self._interruptions = self._store.interruptions
        self._last_began: float | None = None
        self._pruned: float | None = None
        self._offsets: dict[int, int] = {}

    async def run_forever(self) -> None:
        """Sweep every ``settings.sweep`` seconds, and when a run's lease is over. An error ends one sweep, not this."""
        while True:
            await self._sweep_counted()
            await asyncio.sleep(self._pause())

    async def _sweep_counted(self) -> None:
        began = time.perf_counter()
        result = "failed"
        try:
            await self.sweep_once()
            result = "done"
        except StoreUnavailable as error:
            result = "store_away"
            _log.info("the sweep waits for the store: %s", error)
        except Exception:
            _log.exception("a sweep failed; the next one comes")
        metrics.SWEEPS.labels(result).inc()
        _tell_connections(self._store.stats)
        metrics.SWEEP_SECONDS.observe(time.perf_counter() - began)

    def _pause(self) -> float:
        due = self._observation.next_due(self._settings.lease)
        if due is None:
            return self._settings.sweep
        # A lease that is over by now was looked at already, or waits for a store that is away.
        left = due - self._clock()
        return min(self._settings.sweep, max(left, _SOONEST)) if left > 0 else self._settings.sweep

    async def sweep_once(self, now: float | None = None) -> SweepCounts:
        """One sweep; ``now`` stands for the clock where it is given. Raises ``StoreUnavailable``.

        Cancelled in between, what was done is done: each step is one script.
        """
        began = self._clock() if now is None else now
        if self._last_began is not None and began - self._last_began > 2 * self._settings.sweep:
            self._observation.restart()
        self._last_began = began
        rows, vanished = await self._read()
        read = self._clock() if now is None else now
        if self._store.interruptions != self._interruptions:
            self._interruptions = self._store.interruptions
            self._observation.restart()
        beats = {row.run_id: (row.owner, row.beat) for row in rows if row.status == "running"}
        lost = self._observation.update(beats, began, read, self._settings.lease)
        ends = [await self._take_over(run_id, beats[run_id]) for run_id in lost]
        for run_id in vanished:
            await self._runs.forget(run_id)
        forgotten = len(vanished)
        if self._pruned is None or began - self._pruned >= _PRUNE_EVERY:
            forgotten += await self.prune()
            await self._runs.queue.prune_consumers()
            self._pruned = began
        counts = SweepCounts(
            live=len(rows),
            failed=ends.count("failed"),
            cancelled=ends.count("cancelled"),
            requeued=ends.count("queued"),
            mended=await self._runs.mend([row for row in rows if row.status == "queued"]),
            forgotten=forgotten,
        )
        await self._runs.ledger.sweep({row.run_id for row in rows})
        _tell(counts)
        _tell_live(rows)
        return counts

    async def _read(self) -> tuple[list[_Row], list[str]]:
        """All live runs, and the ids among them that have no record."""
        keys = self._store.keys
        listed = await self._store.pipeline([(b"ZRANGE", keys.live(p), 0, -1) for p in range(keys.partitions)])
        ids = [run_id.decode() for part in listed for run_id in part]
        rows: list[_Row] = []
        vanished: list[str] = []
        for start in range(0, len(ids), _CHUNK):
            part = ids[start : start + _CHUNK]
            asked = [(b"HMGET", keys.run(run_id), *_FIELDS, b"waits") for run_id in part]
            for run_id, (*values, waits) in zip(part, await self._store.pipeline(asked), strict=True):
                if None in values:
                    vanished.append(run_id)
                else:
                    status, owner, attempt, beat, queue, entry = (value.decode() for value in values)
                    rows.append(_Row(run_id, status, owner, int(attempt), beat, queue, entry, waits is not None))
        return rows, vanished

    async def _take_over(self, run_id: str, seen: tuple[str, str]) -> str | None:
        try:
            record = await self._runs.find(run_id)
            if record is None or (record.owner, record.beat) != seen:
                return None
            status = await self._runs.takeover(record)
            if status == "queued":
                await self._runs.ledger.audit.note("attempt", run_id=run_id, attempt=record.attempt + 1)
            elif status is not None:
                await self._runs.ledger.try_settle(run_id)
        except StoreUnavailable:
            raise
        except RuncastError as error:
            _log.error("run %s is lost, and could not be taken over: %s", run_id, error)
            return None
        if status is not None:
            _log.warning("run %s lost its worker (attempt %d): it is %s now", run_id, record.attempt, status)
        return status

    async def prune(self) -> int:
        """Take ended runs whose record has expired out of ``runs``, up to a page of each partition; → how many."""
        keys = self._store.keys
        seconds, _ = await self._store.call(b"TIME")
        oldest = int(seconds) - self._settings.record_ttl
        commands = [
            (b"ZRANGEBYSCORE", keys.runs(p), b"-inf", oldest, b"LIMIT", self._offsets.get(p, 0), _PRUNE_PAGE)
            for p in range(keys.partitions)
        ]
        pages = await self._store.pipeline(commands)
        forgotten = 0
        for p, page in enumerate(pages):
            gone = await self._without_record([run_id.decode() for run_id in page])
            for run_id in gone:
                await self._runs.forget(run_id)
            forgotten += len(gone)
            # Runs that are older than that and still have a record are open yet: the next page begins after them.
            self._offsets[p] = self._offsets.get(p, 0) + len(page) - len(gone) if len(page) == _PRUNE_PAGE else 0
        return forgotten

    async def _without_record(self, run_ids: Iterable[str]) -> list[str]:
        ids = list(run_ids)
        there = await self._store.pipeline([(b"EXISTS", self._store.keys.run(run_id)) for run_id in ids])
        return [run_id for run_id, exists in zip(ids, there, strict=True) if not exists]


def _tell_connections(stats: Stats) -> None:
    metrics.STORE_CONNECTIONS.labels("idle").set(stats.connections - stats.in_use)
    metrics.STORE_CONNECTIONS.labels("in_use").set(stats.in_use)
    metrics.STORE_CONNECTIONS.labels("reading").set(stats.links)
    metrics.STORE_WAITING.set(stats.waiting)


def _tell_live(rows: Sequence[_Row]) -> None:
    """One that waits for its session is in no queue: no worker is to blame."""
    seen = ["waiting" if row.status == "queued" and row.waits else row.status for row in rows]
    for status in ("queued", "waiting", "running"):
        metrics.LIVE_RUNS.labels(status).set(seen.count(status))


def _tell(counts: SweepCounts) -> None:
    for action in ("failed", "cancelled", "requeued", "mended", "forgotten"):
        metrics.SWEPT.labels(action).inc(getattr(counts, action))
