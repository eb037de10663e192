"""A gateway in this process, over a store of the test's own: through ASGI, or behind a real uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import uvicorn

from broker import api
from broker.api import Broker
from broker.items import Event, Final, Item, MessageDelta, encode
from broker.runs import RunRecord
from broker.settings import Settings
from gateway.app import Gateway, create_app
from gateway.transport import StreamProtocol
from tests.servers import eventually

Serve = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture
def memory_settings(tmp_path: Path) -> Settings:
    return Settings(
        redis_url=f"memory:{uuid4().hex}",
        namespace=f"t{uuid4().hex[:12]}",
        data_dir=tmp_path / "data",
        partitions=4,
        block=0.2,
        heartbeat=0.2,
        body_max_bytes=20_000,
        item_max_bytes=10_000,
        result_wait_max=60.0,
    )


@pytest.fixture
async def broker(memory_settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=memory_settings) as opened:
        yield opened


@asynccontextmanager
async def lifespan_of(gateway: Gateway) -> AsyncIterator[None]:
    async with gateway.api.router.lifespan_context(gateway.api):
        yield


@pytest.fixture
async def gateway(broker: Broker) -> AsyncIterator[Gateway]:
    made = create_app(broker=broker)
    async with lifespan_of(made):
        yield made


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(gateway, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as opened:
        yield opened


@pytest.fixture
def serve() -> Serve:
    """A real server for a gateway: ``async with serve(gateway) as address``."""
    return serving


@asynccontextmanager
async def serving(gateway: Gateway, port: int = 0) -> AsyncIterator[str]:
    config = uvicorn.Config(gateway, port=port, log_level="warning", http=StreamProtocol, lifespan="on")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    try:
        await eventually(lambda: server.started or task.done())
        assert not task.done(), task
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        async with asyncio.timeout(30):
            await task


class Script:
    """A run that a test plays: created, claimed and appended to, without a worker."""

    def __init__(self, broker: Broker, record: RunRecord) -> None:
        self._broker = broker
        self.record = record

    @property
    def id(self) -> str:
        return self.record.run_id

    async def claim(self) -> RunRecord:
        self.record = await self._broker.runs.claim(self.id, self.record.attempt, f"owner-{self.id}")
        return self.record

    async def append(self, *items: Item) -> int:
        encoded = [encode(item, ts=1764445312.345) for item in items]
        last = (await self._broker.runs.get(self.id)).last
        return await self._broker.log.append(self.id, self.record.owner, self.record.epoch, last + 1, encoded)

    async def say(self, *texts: str) -> int:
        return await self.append(*(MessageDelta(text=text) for text in texts))

    async def ask(self, request_id: str = "q1", **fields: Any) -> None:
        """Registered and shown, as a worker does it; an approval of ``rm -rf build`` unless said otherwise."""
        given: dict[str, Any] = {
            "kind": "approval",
            "payload": {"command": "rm -rf build", "description": "deletes the folder “build”"},
            "choices": ["once", "session", "always", "deny"],
            "free": False,
            "timeout": 300.0,
            **fields,
        }
        asked = await self._broker.runs.asks.ask(self.id, self.record.owner, self.record.epoch, request_id, **given)
        name = {"approval": "approval.requested", "question": "question.asked"}[given["kind"]]
        shown = {"request_id": request_id, "choices": given["choices"], "free": given["free"]}
        times = {"timeout_s": given["timeout"], "expires_at": asked.expires_at}
        await self.append(Event(name=name, payload={**given["payload"], **shown, **times}))

    async def settled(self, request_id: str, answer: str, how: str = "answered") -> None:
        """The item that closes an ask on every screen."""
        said = {"request_id": request_id, "kind": "approval", "answer": answer, "how": how}
        await self.append(Event(name="input.answered", payload=said))

    async def end(self, **fields: Any) -> int:
        return await self.append(Final(message={"role": "assistant", "content": "done"}, rounds=1, **fields))


Play = Callable[..., Any]


@pytest.fixture
def play(broker: Broker) -> Play:
    """Makes a run: ``run = await play("prompt")``; claimed unless ``claim=False``."""

    async def make(message: str = "hello", *, claim: bool = True, **fields: Any) -> Script:
        from broker.requests import RunInput, RunRequest

        request = RunRequest(input=RunInput(message=message), runner="scripted", **fields)
        record, _ = await broker.runs.create(request)
        script = Script(broker, record)
        if claim:
            await script.claim()
        return script

    return make


__all__ = ["Play", "Script", "Serve"]
