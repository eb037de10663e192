"""The gateway behind a real uvicorn: streams, the bus, waits, and an end in good order."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from broker.api import Broker
from broker.sse import Decoder, Event
from gateway.app import create_app
from tests.gateway.conftest import Play, Serve
from tests.servers import eventually


@pytest.fixture
async def http(broker: Broker, serve: Serve) -> AsyncIterator[httpx.AsyncClient]:
    async with serve(create_app(broker=broker)) as address, httpx.AsyncClient(base_url=address, timeout=90) as opened:
        yield opened


class Listening:
    """A response that is read as it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.raw = b""
        self.events: list[Event] = []
        self.ended = False
        self._decoder = Decoder()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for chunk in self.response.aiter_raw():
            self.raw += chunk
            self.events += self._decoder.feed(chunk)
        self.ended = True

    @property
    def names(self) -> list[str]:
        return [event.event for event in self.events]


@asynccontextmanager
async def listening(http: httpx.AsyncClient, path: str, **headers: str) -> AsyncIterator[Listening]:
    async with http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        listener = Listening(response)
        try:
            yield listener
        finally:
            listener.task.cancel()
            await asyncio.gather(listener.task, return_exceptions=True)


async def test_a_run_is_started_streamed_and_resumed(http: httpx.AsyncClient, broker: Broker) -> None:
    made = (await http.post("/v1/runs", json={"runner": "scripted", "input": {"message": "hi"}})).json()
    record = await broker.runs.claim(made["run_id"], 1, "me")
    async with listening(http, made["stream_url"]) as viewer:
        from broker.items import Final, MessageDelta, encode

        items = [encode(MessageDelta(text=text), ts=1.0) for text in "abc"]
        await broker.log.append(record.run_id, "me", record.epoch, 1, items)
        await eventually(lambda: len(viewer.events) == 3)
        await broker.log.append(record.run_id, "me", record.epoch, 4, [encode(Final(), ts=2.0)])
        await eventually(lambda: viewer.ended)
    assert viewer.names == ["message.delta"] * 3 + ["final", "end"]
    assert viewer.response.headers["x-run-id"] == record.run_id
    assert viewer.response.headers["content-type"] == "text/event-stream; charset=utf-8"
    async with listening(http, made["stream_url"], **{"Last-Event-ID": f"{record.run_id}:2"}) as again:
        await eventually(lambda: again.ended)
    assert [event.id for event in again.events[:2]] == [f"{record.run_id}:3", f"{record.run_id}:4"]
    done = await http.get(made["stream_url"], headers={"Last-Event-ID": f"{record.run_id}:4"})
    assert (done.status_code, done.content) == (204, b"")


async def test_large_bodies_are_refused_and_the_connection_closed(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/runs", content=b" " * 30_000, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.headers["connection"]) == (413, "close")
    assert (await http.get("/healthz")).status_code == 200


# The bus.


async def test_events_of_runs(http: httpx.AsyncClient, broker: Broker, play: Play) -> None:
    await play("before anybody listens")
    async with listening(http, "/v1/events") as bus:
        await eventually(lambda: b"retry: 2000" in bus.raw)
        await eventually(lambda: broker.tail.connections > 0)
        run = await play("now", session_id="s")
        await run.end()
        await eventually(lambda: "run.completed" in bus.names)
    assert bus.response.headers["x-accel-buffering"] == "no"
    assert bus.response.headers["cache-control"] == "no-cache, no-transform"
    assert bus.names[:1] == ["run.created"]
    assert all(json.loads(event.data)["run_id"] == run.id for event in bus.events)
    body = json.loads(bus.events[-1].data)
    assert (body["kind"], body["session_id"], body["status"]) == ("run.completed", "s", "completed")
    assert isinstance(body["ts"], float)
    assert not any(event.id for event in bus.events)


async def test_events_by_kind_and_session(http: httpx.AsyncClient, broker: Broker, play: Play) -> None:
    async with (
        listening(http, "/v1/events?kinds=run.completed,worker.*") as ends,
        listening(http, "/v1/events?kinds=run.*&session_id=mine") as mine,
    ):
        await eventually(lambda: broker.tail.connections > 0 and b": hb" in ends.raw and b": hb" in mine.raw)
        other, own = await play(session_id="other"), await play(session_id="mine")
        await other.end()
        await own.end()
        await broker.bus.announce("worker.started", "w1", {"concurrency": 4})
        await eventually(lambda: len(ends.events) == 3 and "run.completed" in mine.names)
    assert sorted(ends.names) == ["run.completed", "run.completed", "worker.started"]
    assert {json.loads(event.data)["run_id"] for event in mine.events} == {own.id}


async def test_silence_is_broken_by_heartbeats(http: httpx.AsyncClient) -> None:
    async with listening(http, "/v1/events") as bus:
        await eventually(lambda: bus.raw.count(b": hb\n") >= 3)
    assert bus.events == []


@pytest.mark.parametrize("kinds", ["nothing.*", "run", "run.*;x", "RUN.*", "run..", "*.*"])
async def test_unknown_kinds_are_refused(http: httpx.AsyncClient, kinds: str) -> None:
    response = await http.get("/v1/events", params={"kinds": kinds})
    body = response.json()
    assert (response.status_code, body["code"], body["field"]) == (400, "bad_request", "kinds")
    assert "run.*" in body["detail"]


async def test_head_of_the_bus_has_the_headers_and_ends(http: httpx.AsyncClient) -> None:
    response = await http.head("/v1/events")
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_the_lanes_follow_the_bus_only_while_somebody_listens(
    http: httpx.AsyncClient, broker: Broker, play: Play
) -> None:
    def following() -> int:
        """Subscriptions of the bus, of which each partition has one that tells the sessions, all the time."""
        return sum(len(several) for lane in broker.tail._lanes.values() for several in lane.streams.values())

    partitions = broker.keys.partitions
    await eventually(lambda: following() == partitions)
    async with listening(http, "/v1/events"), listening(http, "/v1/events"):
        await eventually(lambda: following() == 2 * partitions)
    await eventually(lambda: following() == partitions)


async def test_a_client_that_leaves_is_not_waited_for(http: httpx.AsyncClient, broker: Broker, play: Play) -> None:
    run = await play()
    waiting = asyncio.create_task(http.get(f"/v1/runs/{run.id}/result?wait=60"))
    await eventually(lambda: broker.hub.viewers == 1)
    waiting.cancel()
    await eventually(lambda: broker.hub.viewers == 0)


# The end.


async def test_shutdown_ends_streams_listeners_and_waits_at_once(broker: Broker, serve: Serve, play: Play) -> None:
    run = await play()
    server = serve(create_app(broker=broker))
    address = await server.__aenter__()
    async with (
        httpx.AsyncClient(base_url=address, timeout=90) as http,
        listening(http, f"/v1/runs/{run.id}/stream") as viewer,
        listening(http, "/v1/events") as bus,
    ):
        waiting = asyncio.create_task(http.get(f"/v1/runs/{run.id}/result?wait=60"))
        await eventually(lambda: broker.hub.viewers == 2 and b": hb" in bus.raw)
        began = time.monotonic()
        await server.__aexit__(None, None, None)
        assert time.monotonic() - began < 20
        await eventually(lambda: viewer.ended and bus.ended)
        response = await waiting
    assert response.status_code == 202
    for raw in (viewer.raw, bus.raw):
        assert raw.rpartition(b"retry: ")[2].strip().isdigit()
        assert raw.endswith(b"\n\n")
