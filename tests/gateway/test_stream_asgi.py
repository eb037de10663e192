"""The stream without our transport: an application driven by hand, and uvicorn's own h11 protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from broker import api
from broker.api import Broker
from broker.items import MessageDelta
from broker.settings import Settings
from gateway.app import Gateway, create_app
from tests.gateways import Response, frames_of, say, until, writing
from tests.servers import RedisServer

HIGH_WATER = 32 << 10


@pytest.fixture
async def broker(
    request: pytest.FixtureRequest, redis7: RedisServer, namespace: str, tmp_path: Path
) -> AsyncIterator[Broker]:
    """``request.param``: how long a viewer may take nothing."""
    settings = Settings(
        redis_url=redis7.url,
        namespace=namespace,
        partitions=4,
        data_dir=tmp_path,
        heartbeat=0.2,
        high_water=HIGH_WATER,
        stall_limit=getattr(request, "param", 60.0),
    )
    async with api.open(settings=settings) as opened:
        yield opened


@pytest.fixture
async def gateway(broker: Broker) -> Gateway:
    return create_app(broker=broker)


class Call:
    """One request to an ASGI application, driven by hand. ``take`` grants so many further sends."""

    def __init__(self, gateway: Gateway, run_id: str, *, method: str = "GET", version: str = "1.1") -> None:
        self.sent: list[dict[str, Any]] = []
        self.sending = 0
        self.gone = asyncio.Event()
        self._grants = asyncio.Semaphore(0)
        self._asked = False
        scope = {
            "type": "http",
            "http_version": version,
            "method": method,
            "path": f"/v1/runs/{run_id}/stream",
            "query_string": b"",
            "headers": [],
        }
        self.task = asyncio.create_task(gateway(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sending += 1
        try:
            await self._grants.acquire()
        finally:
            self.sending -= 1
        if self.gone.is_set():
            raise OSError("the peer is gone")
        self.sent.append(message)

    def take(self, count: int = 1_000_000) -> None:
        for _ in range(min(count, 10_000)):
            self._grants.release()

    @property
    def body(self) -> bytes:
        return b"".join(m["body"] for m in self.sent[1:])

    @property
    def seqs(self) -> list[int]:
        return [f.data["seq"] for f in frames_of(self.body) if f.id]


async def test_the_messages_of_a_whole_stream(gateway: Gateway, broker: Broker):
    async with writing(broker) as p:
        call = Call(gateway, p.run_id)
        call.take()
        await until(lambda: broker.hub.viewers == 1)
        await until(lambda: len(call.sent) > 1)
        await say(p, 2)
        await until(lambda: call.seqs == [1, 2])
        await until(lambda: b"\n\n: hb\n" in call.body)
        await say(p, end=True)
        await asyncio.wait_for(call.task, 30)
    assert call.sent[0]["status"] == 200
    names = [name for name, _ in call.sent[0]["headers"]]
    assert names == [b"content-type", b"cache-control", b"x-accel-buffering", b"x-run-id"]
    assert [m["more_body"] for m in call.sent[1:]] == [True] * (len(call.sent) - 2) + [False]
    assert (call.seqs, frames_of(call.body)[-1].event) == ([1, 2, 3], "end")
    assert broker.hub.viewers == 0


async def test_a_server_that_does_not_take_more_makes_the_viewer_read_at_its_own_pace(gateway: Gateway, broker: Broker):
    async with writing(broker) as p:
        call = Call(gateway, p.run_id)
        call.take(2)
        await until(lambda: len(call.sent) == 2)
        (viewer,) = broker.hub.feeds[p.run_id].viewers
        await until(lambda: viewer.live)
        for n in range(40):
            await say(p, MessageDelta(text=f"{n} ".ljust(10_000, "x")))
        await until(lambda: viewer.paused)
        assert not viewer.live
        last = viewer.seq
        await say(p, 5)
        assert viewer.seq == last  # it is written nothing while it is full
        assert last * 10_000 < 2 * HIGH_WATER + 70_000
        call.take()
        await until(lambda: len(call.seqs) == 45)
        await say(p, end=True)
        await asyncio.wait_for(call.task, 30)
    assert call.seqs == list(range(1, 47))


async def test_a_window_full_of_items_is_not_written_at_once(gateway: Gateway, broker: Broker):
    async with writing(broker) as p:
        first = Call(gateway, p.run_id)
        first.take()
        await until(lambda: broker.hub.viewers == 1)
        for n in range(60):
            await p.publish(MessageDelta(text=f"{n} ".ljust(10_000, "x")))
        await p.flush()
        await until(lambda: first.sent[1:] and len(first.seqs) == 60)
        late = Call(gateway, p.run_id)
        late.take(1)
        await until(lambda: broker.hub.viewers == 2)
        _, viewer = broker.hub.feeds[p.run_id].viewers
        await until(lambda: viewer.paused)
        assert viewer.seq < 30  # one part is on its way, one waits; the window holds all sixty items
        late.take()
        await say(p, end=True)
        await asyncio.wait_for(asyncio.gather(first.task, late.task), 30)
    assert late.seqs == list(range(1, 62))


async def test_a_disconnect_detaches_the_viewer_even_in_a_send_that_hangs(gateway: Gateway, broker: Broker):
    async with writing(broker) as p:
        idle, stuck = Call(gateway, p.run_id), Call(gateway, p.run_id)
        idle.take()
        stuck.take(1)
        await until(lambda: broker.hub.viewers == 2)
        await until(lambda: stuck.sending == 1)
        idle.gone.set()
        await asyncio.wait_for(idle.task, 30)
        assert broker.hub.viewers == 1
        stuck.gone.set()
        await until(lambda: broker.hub.viewers == 0)
        stuck.take()
        await asyncio.wait_for(stuck.task, 30)  # OSError out of ``send`` is a peer that is gone, no error


@pytest.mark.parametrize("broker", [0.6], indirect=True)
async def test_a_peer_that_takes_nothing_for_too_long_is_cut(gateway: Gateway, broker: Broker):
    async with writing(broker) as p:
        call = Call(gateway, p.run_id)
        call.take(2)
        await until(lambda: len(call.sent) == 2)
        for n in range(20):
            await say(p, MessageDelta(text=f"{n} ".ljust(10_000, "x")))
        await asyncio.wait_for(call.task, 30)  # its send never returned
    assert broker.hub.viewers == 0


async def test_cancelling_the_request_detaches_the_viewer(gateway: Gateway, broker: Broker):
    async with writing(broker) as p:
        call = Call(gateway, p.run_id)
        call.take()
        await until(lambda: broker.hub.viewers == 1)
        call.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call.task
        assert broker.hub.viewers == 0


async def test_drain_ends_streams_here_too(gateway: Gateway, broker: Broker):
    async with writing(broker) as p:
        await say(p, 3)
        call = Call(gateway, p.run_id)
        call.take()
        await until(lambda: call.sent[1:] and call.seqs == [1, 2, 3])
        gateway.drain()
        await asyncio.wait_for(call.task, 30)
        assert frames_of(call.body)[-1].event == "retry"
        late = Call(gateway, p.run_id)
        late.take()
        await asyncio.wait_for(late.task, 30)
        assert [f.event for f in frames_of(late.body)] == [":", "retry", "retry"]


async def test_httpx_over_asgi(gateway: Gateway, broker: Broker):
    async with writing(broker) as p:
        await say(p, 3, end=True)
        transport = httpx.ASGITransport(gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            url = f"/v1/runs/{p.run_id}/stream"
            whole = await client.get(url)
            assert [f.data["seq"] for f in frames_of(whole.content) if f.id] == [1, 2, 3, 4]
            assert (await client.get(url, headers={"Last-Event-ID": f"{p.run_id}:4"})).status_code == 204
            assert (await client.head(url)).content == b""
            assert (await client.get(url, params={"modes": "nope"})).json()["code"] == "unknown_mode"


@asynccontextmanager
async def plain_server(gateway: Gateway) -> AsyncIterator[int]:
    """uvicorn as it comes, with its h11 protocol."""
    server = uvicorn.Server(uvicorn.Config(gateway, port=0, http="h11", lifespan="off", log_level="warning"))
    serving = asyncio.create_task(server._serve())
    await until(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    gateway.drain()
    server.should_exit = True
    await asyncio.wait_for(serving, 30)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_uvicorns_own_h11_protocol(gateway: Gateway, broker: Broker, version: str):
    async with plain_server(gateway) as port, writing(broker) as p:
        target = f"/v1/runs/{p.run_id}/stream"
        stream = await Response.open(port, target, version=version)
        assert stream.chunked == (version == "1.1")
        await say(p, 2)
        await stream.upto(2)
        stream.leave()
        await until(lambda: broker.hub.viewers == 0)
        pipelined = await Response.open(port, target, version=version)
        await say(p, 1, end=True)
        await pipelined.body()
        assert pipelined.seqs == [1, 2, 3, 4]
        pipelined.leave()
