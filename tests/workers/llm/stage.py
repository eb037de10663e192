"""A worker that runs ``llm``, for the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from broker.api import Broker, StreamEntry
from broker.requests import RunInput, RunRequest
from workers.llm.runner import LlmRunner
from workers.worker import Worker

__all__ = ["KEY", "Stage", "Staging"]

KEY = "sk-test-0123456789abcdef"


class Stage:
    """A worker whose only runner is ``llm``."""

    def __init__(self, broker: Broker, runner: LlmRunner, worker: Worker) -> None:
        self.broker, self.runner, self.worker = broker, runner, worker

    async def create(self, message: str = "hello", *, metadata: dict[str, str] | None = None, **more: Any) -> str:
        deadline_s = more.pop("deadline_s", None)
        request = RunRequest(
            runner="llm",
            input=RunInput(message=message, **more),
            metadata=metadata or {},
            deadline_s=deadline_s,
        )
        record, _ = await self.broker.runs.create(request)
        return record.run_id

    async def follow(self, run_id: str) -> list[StreamEntry]:
        async with asyncio.timeout(30):
            return [entry async for entry in self.broker.stream(run_id)]

    async def run(self, message: str = "hello", **more: Any) -> list[StreamEntry]:
        return await self.follow(await self.create(message, **more))


Staging = Callable[..., AbstractAsyncContextManager[Stage]]
