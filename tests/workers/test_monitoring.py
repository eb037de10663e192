"""A worker's own port."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from broker import api
from broker.settings import Settings
from tests.servers import eventually
from workers.monitoring import monitored
from workers.scripted import ScriptedRunner
from workers.worker import Worker


@asynccontextmanager
async def port(ready: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with monitored(listener, lambda: ready), httpx.AsyncClient(base_url=address, trust_env=False) as client:
        yield client


async def test_what_it_answers() -> None:
    async with port() as client:
        metrics = await client.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=")
        assert "# TYPE runcast_worker_slots gauge" in metrics.text
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        head = await client.head("/metrics")
        assert (head.status_code, head.content) == (200, b"")
        assert (await client.post("/metrics", content=b"x")).status_code == 405
        assert (await client.get("/v1/runs")).status_code == 404


async def test_one_that_is_not_ready_lives() -> None:
    async with port("draining") as client:
        refused = await client.get("/readyz")
        assert (refused.status_code, refused.json()) == (503, {"status": "draining"})
        assert (await client.get("/healthz")).status_code == 200


async def test_its_end_ends_the_port_and_takes_no_signal_away() -> None:
    async with port() as client:
        address = client.base_url
    with pytest.raises(httpx.ConnectError):
        await httpx.AsyncClient(trust_env=False).get(f"{address}/healthz")


async def test_without_a_port_nothing_is_served() -> None:
    async with monitored(None, lambda: None):
        pass


async def test_a_connection_that_stays_open_holds_no_worker_up() -> None:
    async with port() as client:
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200" in head
    async with asyncio.timeout(10):
        while await reader.read(1000):
            pass
    writer.close()


async def test_a_worker_is_ready_while_it_takes_runs(tmp_path: Path) -> None:
    settings = Settings(redis_url=f"memory:{uuid4().hex}", data_dir=tmp_path, block=0.2, worker_drain=0.5)
    async with api.open(settings=settings) as broker:
        worker = Worker(broker, runners={"scripted": ScriptedRunner()}, sweep=False)
        assert worker.not_ready == "waiting for the store"
        working = asyncio.create_task(worker.run())
        await eventually(lambda: worker.not_ready is None)
        worker.drain()
        assert worker.not_ready == "draining"
        await working


def test_what_it_says_is_json() -> None:
    from workers.monitoring import MonitoringPort

    assert json.loads(MonitoringPort(lambda: 'a "quoted" reason')._answer("GET", "/readyz")[2])
