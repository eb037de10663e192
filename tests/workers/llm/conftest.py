"""Runs of ``llm`` through a worker, against an endpoint that the test plays."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import SecretStr

from broker import api
from broker.settings import Settings
from tests.workers.llm.stage import KEY, Stage, Staging
from workers.llm.runner import LlmRunner
from workers.llm.settings import LlmSettings, VendorKeys
from workers.worker import Worker


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, no setting and no proxy, whatever the machine's environment has."""
    for name in list(os.environ):
        if name.upper().endswith(("_API_KEY", "_PROXY")) or name.upper().startswith(("LLM_", "SSL_CERT_")):
            monkeypatch.delenv(name)


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    """``async with staging(endpoint.url, api=…) as stage``; ``LlmSettings`` by keyword."""

    @asynccontextmanager
    async def stage(base_url: str, *, store: str = "", **settings: Any) -> AsyncIterator[Stage]:
        fast = {"key": SecretStr(KEY), "model": "gpt-4o", "retry_wait": 0.01, "price_as": "openai"}
        runner = LlmRunner(LlmSettings(base_url=base_url, **{**fast, **settings}), VendorKeys())
        store_settings = Settings(
            redis_url=store or f"memory:{uuid4().hex}",
            namespace=f"t{uuid4().hex[:12]}",
            data_dir=tmp_path,
            beat=0.1,
            block=1.0,
            worker_drain=2.0,
        )
        async with api.open(settings=store_settings) as broker:
            worker = Worker(broker, runners={"llm": runner}, sweep=False)
            working = asyncio.create_task(worker.run())
            try:
                yield Stage(broker, runner, worker)
            finally:
                worker.drain()
                worker.drain()
                await asyncio.wait_for(working, 20)
                await runner.aclose()

    return stage
