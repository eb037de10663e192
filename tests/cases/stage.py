"""Gateways and workers as processes, as many as a case needs, over one Redis: what ``runcast serve`` and ``runcast
worker`` are in a deployment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker.items import FENCES
from tests.e2e.processes import Gateway, SseViewer, Worker, environment, http_json
from tests.servers import eventually

__all__ = ["Stage", "Watching", "stage"]


class Watching:
    """A viewer that comes back until it has the end, watched from the side."""

    def __init__(self, run_id: str, ports: list[int]) -> None:
        self.viewer = SseViewer(run_id, ports)
        self.task = asyncio.create_task(self.viewer.watch())

    async def text(self, count: int, timeout: float = 40.0) -> None:
        """Wait for so many text deltas."""
        await eventually(lambda: len(self.viewer.texts) >= count, timeout)

    async def end(self, timeout: float = 40.0) -> SseViewer:
        return await asyncio.wait_for(self.task, timeout)

    async def leave(self) -> None:
        self.viewer.cut()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Stage:
    def __init__(self, redis_url: str, namespace: str, directory: Path, **settings: object) -> None:
        self.namespace, self.directory, self.settings = namespace, directory, settings
        self.redis_url = redis_url
        self.gateways: list[Gateway] = []
        self.workers: list[Worker] = []

    def environment(self, redis_url: str | None = None) -> dict[str, str]:
        return environment(redis_url or self.redis_url, self.namespace, **self.settings)

    async def gateway(self, redis_url: str | None = None) -> Gateway:
        log = self.directory / f"gateway{len(self.gateways)}.log"
        self.gateways.append(Gateway(self.environment(redis_url), log))
        return await self.gateways[-1].ready()

    def worker(self, redis_url: str | None = None, **env: str) -> Worker:
        log = self.directory / f"worker{len(self.workers)}.log"
        self.workers.append(Worker({**self.environment(redis_url), **env}, log))
        return self.workers[-1]

    async def post(self, path: str, body: Any = None, gateway: int = 0, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await http_json(self.gateways[gateway].port, "POST", path, body, named)

    async def get(self, path: str, gateway: int = 0) -> Any:
        status, answer = await http_json(self.gateways[gateway].port, "GET", path)
        assert status == 200, answer
        return answer

    async def run(self, message: str = "x", script: str = "", runner: str = "scripted", **request: Any) -> str:
        """A new run's id."""
        body = {"runner": runner, "input": {"message": message}, "metadata": {"script": script} if script else {}}
        status, answer = await self.post("/v1/runs", {**body, **request})
        assert status == 201, answer
        return str(answer["run_id"])

    def watch(self, run_id: str, gateway: int = 0) -> Watching:
        return Watching(run_id, [self.gateways[gateway].port])

    async def items(self, run_id: str) -> list[dict[str, Any]]:
        """All stored items, page by page."""
        items: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            page = await self.get(f"/v1/runs/{run_id}/items?limit=1000&after={after}")
            items += page["items"]
            after = page["next"] if page["items"] else None
        return items

    async def fences(self, run_id: str) -> list[str]:
        return [item["type"] for item in await self.items(run_id) if item["type"] in FENCES]

    async def ended(self, run_id: str, timeout: int = 30) -> dict[str, Any]:
        """The run's outcome, waited for."""
        answer = await self.get(f"/v1/runs/{run_id}/result?wait={timeout}")
        outcome: dict[str, Any] = answer["outcome"]
        return outcome

    def close(self) -> None:
        for process in (*self.workers, *self.gateways):
            process.kill()


@asynccontextmanager
async def stage(
    redis_url: str, namespace: str, directory: Path, *, gateways: int = 1, **settings: object
) -> AsyncIterator[Stage]:
    made = Stage(redis_url, namespace, directory, **settings)
    try:
        for _ in range(gateways):
            await made.gateway()
        yield made
    finally:
        made.close()
    for process in (*made.workers, *made.gateways):
        assert "Traceback" not in process.output, process.output
