"""The event bus: one capped stream per partition, for whoever wants to know what happens to runs and workers.

The scripts write ``run.*`` entries in the step that makes them true. The bus is news, not the record: its streams are
trimmed exactly at ``bus_max_entries``, and what counts is the run's record.

Fields of an entry: ``kind``, ``run_id``, ``session_id`` (both may be empty), ``ts`` (seconds), ``d`` (a JSON object).
Kinds of runs: ``run.created``, ``run.started``, ``run.cancel_requested``, ``run.requeued``, ``run.completed``,
``run.failed``, ``run.cancelled``; their ``d`` has ``status``, ``attempt`` and ``last_seq``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from broker import metrics
from broker.errors import InvalidRequest
from broker.redis import Store

__all__ = ["Bus"]

_KIND = re.compile(r"[a-z_]{1,32}(\.[a-z_]{1,32}){1,3}\Z")


class Bus:
    """The bus of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keys(self) -> list[bytes]:
        """The streams of all partitions, for whoever follows them."""
        return [self._store.keys.bus(p) for p in range(self._store.keys.partitions)]

    async def announce(
        self, kind: str, name: str, payload: Mapping[str, Any], *, run_id: str = "", session_id: str = ""
    ) -> None:
        """Tell listeners about ``name``, which is no run: a worker, say. Its partition is the name's.

        Not repeatable: after ``StoreUnavailable`` it may have been told already. Raises ``InvalidRequest`` where
        ``kind`` is none.
        """
        if not _KIND.match(kind):
            raise InvalidRequest(f"{kind[:64]!r} is no kind: words of a-z and “_” joined by “.” are", field="kind")
        body = msgspec.json.encode({"name": name, **payload})
        # Entries carry the store's time, not this machine's: they are compared with those of the scripts.
        seconds, micros = await self._store.call(b"TIME")
        ts = b"%d.%06d" % (int(seconds), int(micros))
        key = self._store.keys.bus(self._store.keys.partition(name))
        cap = self._store.settings.bus_max_entries
        fields = (b"kind", kind, b"run_id", run_id, b"session_id", session_id, b"ts", ts, b"d", body)
        await self._store.call(b"XADD", key, b"MAXLEN", cap, b"*", *fields)
        metrics.ANNOUNCED.inc()
