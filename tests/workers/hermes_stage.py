"""A worker whose Hermes is made of stand-ins, for the tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from broker import api
from broker.api import Broker, StreamEntry
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.workers.installed import Installed
from workers.hermes.runner import HermesRunner
from workers.worker import Worker

__all__ = ["HermesStage", "Said", "on_stage"]


class Said(list[StreamEntry]):
    """The items of a run, from its first to its fence."""

    def of(self, *types: str) -> list[dict[str, Any]]:
        return [entry.fields for entry in self if entry.type in types]

    def events(self, *names: str) -> list[dict[str, Any]]:
        return [fields for fields in self.of("event") if fields["name"] in names]

    @property
    def text(self) -> str:
        return "".join(fields["text"] for fields in self.of("message.delta"))

    @property
    def fence(self) -> dict[str, Any]:
        return self[-1].fields

    @property
    def outcome(self) -> str:
        """``final``, ``cancelled``, or the code of the failure."""
        assert sum(entry.type in ("final", "failed", "cancelled") for entry in self) == 1
        return str(self.fence["code"]) if self[-1].type == "failed" else self[-1].type


class HermesStage:
    def __init__(self, broker: Broker, worker: Worker, hermes: Installed) -> None:
        self.broker, self.worker, self.hermes = broker, worker, hermes

    async def create(self, message: str, *, metadata: dict[str, str] | None = None, **more: Any) -> str:
        deadline_s = more.pop("deadline_s", None)
        request = RunRequest(input=RunInput(message=message, **more), metadata=metadata or {}, deadline_s=deadline_s)
        return (await self.broker.runs.create(request))[0].run_id

    async def watch(self, run_id: str) -> AsyncIterator[StreamEntry]:
        async with asyncio.timeout(40):
            async for entry in self.broker.stream(run_id):
                yield entry

    async def follow(self, run_id: str) -> Said:
        return Said([entry async for entry in self.watch(run_id)])

    async def run(self, message: str, **more: Any) -> Said:
        return await self.follow(await self.create(message, **more))


@contextlib.asynccontextmanager
async def on_stage(
    hermes: Installed, directory: Path, *, broker: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[HermesStage]:
    """Serves runs while inside; nothing of Hermes is left afterwards."""
    made = Settings(redis_url=f"memory:{uuid4().hex}", data_dir=directory, beat=0.2, worker_drain=1.0, **(broker or {}))
    async with api.open(settings=made) as opened:
        runner = HermesRunner(hermes.settings(**settings), environ=hermes.env)
        worker = Worker(opened, runners={"hermes": runner}, sweep=False)
        task = asyncio.create_task(worker.run())
        try:
            yield HermesStage(opened, worker, hermes)
        finally:
            worker.drain()
            await asyncio.wait_for(task, 40)
    assert hermes.left == []
