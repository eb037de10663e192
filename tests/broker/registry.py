"""A run registry over one store, and the steps that most tests begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from broker.bus import Bus
from broker.items import Encoded
from broker.log import RunLog
from broker.queue import Queue
from broker.records import RunRecord
from broker.redis import Store
from broker.requests import RunInput, RunRequest
from broker.runs import Runs
from broker.scripts import SCRIPTS


def delta(text: str = "x", ts: float = 1.5) -> Encoded:
    return Encoded(
        "message.delta", b'{"ts":%.1f,"component_id":"agent","round":1,"index":0,"text":"%b"}' % (ts, text.encode())
    )


FENCE = Encoded("final", b'{"ts":2.0,"component_id":"agent","message":null,"rounds":0}')


def request(message: str = "hello", **fields: Any) -> RunRequest:
    return RunRequest(input=RunInput(message=message), **fields)


class Registry:
    """The parts, wired as the broker wires them. Run ids are of one test alone."""

    def __init__(self, store: Store) -> None:
        self.store, self.keys = store, store.keys
        self.log, self.bus, self.queue = RunLog(store), Bus(store), Queue(store)
        self.runs = Runs(store, self.log, self.bus, self.queue)

    async def queued(self, run_id: str | None = None, **fields: Any) -> RunRecord:
        record, created = await self.runs.create(request(**fields), run_id=run_id or f"r-{uuid4().hex}")
        assert created
        return record

    async def running(self, owner: str = "me", **fields: Any) -> RunRecord:
        record = await self.queued(**fields)
        return await self.runs.claim(record.run_id, record.attempt, owner)

    async def ended(self, **fields: Any) -> RunRecord:
        record = await self.running(**fields)
        await self.log.append(record.run_id, "me", 1, 1, [delta(), FENCE])
        return await self.runs.get(record.run_id)

    async def script(self, name: str, run_id: str, *args: Any, extra_keys: Sequence[bytes] = ()) -> Any:
        """A script called as a worker in another language calls it: EVAL, with the keys that its file names."""
        p = self.keys.partition(run_id)
        every = {
            "record": self.keys.run(run_id),
            "items": self.keys.items(run_id),
            "control": self.keys.control(run_id),
            "live": self.keys.live(p),
            "runs": self.keys.runs(p),
            "bus": self.keys.bus(p),
            "ids": self.keys.ids(run_id),
        }
        keys = [every[key] for key in KEYS_OF[name]] + list(extra_keys)
        return await self.store.call("EVAL", SCRIPTS[name].source, len(keys), *keys, *args)

    async def stored(self, run_id: str) -> list[tuple[bytes, list[bytes]]]:
        return [(id_, fields) for id_, fields in await self.store.call("XRANGE", self.keys.items(run_id), "-", "+")]

    async def field(self, run_id: str, name: str) -> Any:
        return await self.store.call("HGET", self.keys.run(run_id), name)

    async def is_live(self, run_id: str) -> bool:
        key = self.keys.live(self.keys.partition(run_id))
        return await self.store.call("ZSCORE", key, run_id) is not None

    async def news(self, run_id: str) -> list[str]:
        """The kinds of the bus entries about that run, oldest first."""
        entries = await self.store.call("XRANGE", self.keys.bus(self.keys.partition(run_id)), "-", "+")
        events = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in entries]
        return [event[b"kind"].decode() for event in events if event[b"run_id"] == run_id.encode()]


KEYS_OF = {
    "create": ("record", "items", "control", "live", "runs", "bus"),
    "claim": ("record", "bus"),
    "append": ("record", "items", "control", "live", "bus", "ids"),
    "beat": ("record",),
    "takeover": ("record", "items", "control", "live", "runs", "bus", "ids"),
    "cancel": ("record", "items", "control", "live", "bus", "ids"),
    "ask": ("record", "bus"),
    "answer": ("record", "control", "bus"),
}
