"""A worker that relays a small runner service, for the tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import SecretStr

from broker import api
from broker.api import Broker, StreamEntry
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.gateways import until
from tests.runner_service import RunnerService, ServiceRun, serving
from tests.servers import eventually
from workers.remote.runner import RemoteRunner
from workers.remote.settings import RemoteSettings
from workers.worker import Worker

__all__ = ["KEY", "Stage", "Staging", "staged"]

KEY = "rk-0123456789abcdef"
FAST: dict[str, Any] = {"poll": 0.02, "poll_max": 0.1, "status_after": 0.3, "outage": 5.0}


class Stage:
    """A broker, a worker whose only runner is ``remote``, and the service."""

    def __init__(self, broker: Broker, service: RunnerService, worker: Worker | None) -> None:
        self.broker, self.service, self.worker = broker, service, worker

    async def create(self, message: str = "hello", **more: Any) -> str:
        fields = {name: more.pop(name) for name in ("model", "provider", "toolsets", "approvals") if name in more}
        request = RunRequest(runner="remote", input=RunInput(message=message, **fields), **more)
        record, _ = await self.broker.runs.create(request)
        return record.run_id

    async def started(self, number: int = 1) -> ServiceRun:
        """The service's run, once it was asked for."""
        await eventually(lambda: len(self.service.runs) >= number)
        return self.service.runs[number - 1]

    async def has(self, run_id: str, seq: int) -> None:
        """Wait until the log ends there."""

        async def there() -> bool:
            return (await self.broker.log.state(run_id)).last >= seq

        await until(there)

    async def asked(self, run_id: str, count: int = 1) -> list[Any]:
        """What the run asks people, once it is so much."""

        async def there() -> bool:
            return len((await self.broker.runs.get(run_id)).asks) >= count

        await until(there)
        return list((await self.broker.runs.get(run_id)).asks)

    async def follow(self, run_id: str) -> list[StreamEntry]:
        async with asyncio.timeout(30):
            return [entry async for entry in self.broker.stream(run_id)]

    async def run(self, *, play: Callable[[ServiceRun], None], **more: Any) -> list[StreamEntry]:
        """A run whose service has played its part already."""
        self.service.play = play
        return await self.follow(await self.create(**more))


Staging = Callable[..., AbstractAsyncContextManager[Stage]]


def store_settings(url: str, directory: Path, **more: Any) -> Settings:
    fast = {"beat": 0.1, "sweep": 0.2, "lease": 1.0, "block": 1.0, "worker_drain": 2.0, "requeue_after": 0.5}
    return Settings(redis_url=url, namespace=f"t{uuid4().hex[:12]}", data_dir=directory, **{**fast, **more})


@asynccontextmanager
async def staged(
    url: str, directory: Path, *, limits: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[Stage]:
    """``more``: the store's settings; ``limits``: the runner's. Nobody here is ever taken for lost."""
    settings = store_settings(url, directory, **{"lease": 600.0, **more})
    async with serving() as service, api.open(settings=settings) as broker:
        remote = RemoteSettings(url=service.url, key=SecretStr(KEY), **{**FAST, **(limits or {})})
        worker = Worker(broker, runners={"remote": RemoteRunner(remote)}, sweep=False)
        working = asyncio.create_task(worker.run())
        try:
            yield Stage(broker, service, worker)
        finally:
            worker.drain()
            worker.drain()
            await asyncio.wait_for(working, 20)
