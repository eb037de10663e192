"""Which viewers that own a run are attached to it, in all gateways together.

Each has a name in a sorted set beside the run, scored with the time (the store's) at which its gateway last said that
it is there. A gateway that dies stops saying so: after ``stale`` seconds its owners count for nothing. ``arrivals`` in
the record counts how many ever came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.errors import RunNotFound
from broker.ids import check_id
from broker.redis import Store

__all__ = ["Owners", "Roll"]

_KEPT = 10
"""The set itself is kept so many times longer than a name in it counts."""


class Roll(NamedTuple):
    """Who is attached: name → when it was last said to be; and how many ever came."""

    there: Mapping[str, float]
    arrivals: int
    fresh_from: float
    """Who was last heard of before that has lost its gateway."""

    def fresh(self, names: Mapping[str, float] | None = None) -> dict[str, float]:
        """Of ``names`` (default: of all) those that count."""
        return {name: at for name, at in (self.there if names is None else names).items() if at >= self.fresh_from}


class Owners:
    """Every method raises ``StoreUnavailable`` where Redis is away, and ``InvalidId``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refresh = max(store.settings.disconnect_grace / 2, 1.0)
        """A gateway says every so many seconds that an owner is there."""
        self.stale = 3 * self.refresh

    async def come(self, run_id: str, name: str) -> None:
        """One more. Raises ``RunNotFound``."""
        record = self._store.keys.run(check_id(run_id))
        if not await self._store.call(b"HEXISTS", record, b"status"):
            raise RunNotFound(run_id)
        await self._say(run_id, (b"HINCRBY", record, b"arrivals", 1), name)

    async def stay(self, run_id: str, name: str) -> None:
        """It is still there."""
        await self._say(run_id, (b"PING",), name)

    async def _say(self, run_id: str, first: tuple[bytes | int, ...], name: str) -> None:
        key, now = self._store.keys.owners(run_id), await self._now()
        kept = int(self.stale * _KEPT * 1000)
        await self._store.pipeline([first, (b"ZADD", key, now, name), (b"PEXPIRE", key, kept)], atomic=True)

    async def leave(self, run_id: str, name: str) -> None:
        """It has left. Harmless when repeated."""
        await self._store.call(b"ZREM", self._store.keys.owners(run_id), name)

    async def roll(self, run_id: str) -> Roll:
        """Who is there now. Raises ``RunNotFound``."""
        keys, now = self._store.keys, await self._now()
        status, arrivals, flat = await self._store.pipeline(
            [
                (b"HGET", keys.run(check_id(run_id)), b"status"),
                (b"HGET", keys.run(run_id), b"arrivals"),
                (b"ZRANGE", keys.owners(run_id), 0, -1, b"WITHSCORES"),
            ],
            atomic=True,
        )
        if status is None:
            raise RunNotFound(run_id)
        there = {name.decode(): float(at) for name, at in zip(flat[::2], flat[1::2], strict=True)}
        return Roll(there, int(arrivals or 0), now - self.stale)

    async def _now(self) -> float:
        seconds, micros = await self._store.call(b"TIME")
        return int(seconds) + int(micros) / 1e6
