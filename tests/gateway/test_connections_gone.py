"""A connection that is gone leaves nothing that only the garbage collector would find."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from broker import api
from broker.api import Broker
from broker.settings import Settings
from broker.viewer import Viewer
from gateway.app import create_app
from gateway.server import config
from gateway.transport import StreamProtocol, StreamResponse
from tests.gateways import Response, say, until, writing
from tests.servers import RedisServer, free_port


@pytest.fixture
async def broker(redis7: RedisServer, namespace: str) -> AsyncIterator[Broker]:
    settings = Settings(redis_url=redis7.url, namespace=namespace, partitions=4, port=free_port())
    async with api.open(settings=settings) as opened:
        yield opened


@pytest.fixture
async def port(broker: Broker) -> AsyncIterator[int]:
    """A gateway in this process, whose objects can be counted."""
    made = config(broker.settings)
    made.app = create_app(broker=broker)  # type: ignore[assignment]
    made.log_config = None
    server = uvicorn.Server(made)
    serving = asyncio.create_task(server._serve())
    await until(lambda: server.started)
    yield broker.settings.port
    server.should_exit = True
    await serving


def left() -> list[object]:
    kinds = (StreamProtocol, StreamResponse, Viewer, RequestResponseCycle)
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_viewers_that_are_gone_are_freed_without_the_collector(port: int, broker: Broker, version: str):
    async with writing(broker) as live, writing(broker) as ended:
        await say(live, 3)
        await say(ended, 3, end=True)
        gc.collect()
        gc.disable()
        try:
            for run in (live, ended):
                for query in ("", "?modes=tools", "?format=chat"):
                    target = f"/v1/runs/{run.run_id}/stream{query}"
                    streams = [await Response.open(port, target, version=version) for _ in range(3)]
                    streams[0].leave()
                    streams[1].writer.close()
                    streams[2].writer.write_eof()
            for target in ("/healthz", f"/v1/runs/{live.run_id}", "/v1/runs/nope/stream", "/nowhere"):
                async with await Response.open(port, target, version=version) as response:
                    await response.body()
            await until(lambda: left() == [])
        finally:
            gc.enable()
