"""Redis away: requests get 503 in time, streams get no 5xx, and everything works again once it is back."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest

from broker import api
from broker.errors import InvalidRequest, StoreUnavailable
from broker.settings import Settings
from gateway.app import Gateway, create_app
from tests.gateway.conftest import Serve, lifespan_of
from tests.gateway.test_runs import BODY, assert_problem
from tests.servers import RedisServer, eventually, silent_host

REQUESTS = [
    ("POST", "/v1/runs"),
    ("GET", "/v1/runs"),
    ("GET", "/v1/runs/run_a"),
    ("GET", "/v1/runs/run_a/items"),
    ("GET", "/v1/runs/run_a/result?wait=50"),
    ("POST", "/v1/runs/run_a/cancel"),
    ("GET", "/readyz"),
]


def settings_for(url: str) -> Settings:
    return Settings(redis_url=url, namespace=f"t{uuid4().hex[:12]}", request_deadline=1.0, block=0.5, heartbeat=0.2)


async def ask(http: httpx.AsyncClient, method: str, path: str) -> httpx.Response:
    return await http.request(method, path, json=BODY if (method, path) == ("POST", "/v1/runs") else None)


async def assert_away(http: httpx.AsyncClient) -> None:
    for method, path in REQUESTS:
        began = time.monotonic()
        response = await ask(http, method, path)
        assert time.monotonic() - began < 15, (method, path)
        assert_problem(response, 503, "store_unavailable")
        assert response.headers["retry-after"] == "2"
    for path in ("/v1/runs/run_a/stream", "/v1/events"):
        response = await http.get(path)
        assert response.status_code == 200
        assert re.fullmatch(rb": runcast\n(retry: [0-9]+\n\n){1,2}", response.content)
    assert (await http.get("/healthz")).status_code == 200
    assert (await http.get("/v1/capabilities")).status_code == 200
    assert (await http.get("/")).status_code == 200


@pytest.fixture
async def away(redis_server: RedisServer, serve: Serve) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway that started while its Redis was down."""
    redis_server.stop()
    async with (
        serve(create_app(settings_for(redis_server.url))) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as http,
    ):
        yield http


async def until_ready(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(40):
        while (await http.get("/readyz")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_gateway_starts_without_redis_and_connects_later(
    away: httpx.AsyncClient, redis_server: RedisServer
) -> None:
    await assert_away(away)
    redis_server.start()
    await until_ready(away)
    assert (await away.post("/v1/runs", json=BODY)).status_code == 201


@pytest.mark.parametrize("how", ["stop", "pause"])
async def test_redis_leaves_and_comes_back(redis_server: RedisServer, serve: Serve, how: str) -> None:
    async with (
        serve(create_app(settings_for(redis_server.url))) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as http,
    ):
        await until_ready(http)
        made = (await http.post("/v1/runs", json=BODY)).json()
        if how == "stop":
            redis_server.stop()
        else:
            redis_server.pause()
        await assert_away(http)
        if how == "stop":
            redis_server.start()
        else:
            redis_server.resume()
        await until_ready(http)
        assert (await http.get(f"/v1/runs/{made['run_id']}")).json()["status"] == "queued"


async def test_a_result_is_waited_for_through_an_outage(redis_server: RedisServer, serve: Serve) -> None:
    async with (
        serve(create_app(settings_for(redis_server.url))) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as http,
    ):
        await until_ready(http)
        made = (await http.post("/v1/runs", json=BODY)).json()
        waiting = asyncio.create_task(http.get(f"/v1/runs/{made['run_id']}/result?wait=20"))
        await eventually(lambda: not waiting.done())
        redis_server.restart()
        await until_ready(http)
        assert (await http.post(f"/v1/runs/{made['run_id']}/cancel")).status_code == 202
        response = await waiting
        assert (response.status_code, response.json()["status"]) == (200, "cancelled")


async def test_a_host_that_never_answers_delays_the_start_little(serve: Serve) -> None:
    async with silent_host() as url:
        began = time.monotonic()
        async with (
            serve(create_app(settings_for(url))) as address,
            httpx.AsyncClient(base_url=address, timeout=60) as http,
        ):
            assert time.monotonic() - began < 15
            await assert_away(http)


async def test_another_layout_is_said_and_not_served(redis_server: RedisServer) -> None:
    settings = settings_for(redis_server.url).model_copy(update={"request_deadline": 30.0})
    async with lifespan_of(create_app(settings)):
        pass
    other = create_app(settings.model_copy(update={"partitions": 3}))
    async with lifespan_of(other):
        with pytest.raises(StoreUnavailable, match="partition"):
            _ = other.connection.broker


async def test_settings_that_name_no_store_keep_it_from_starting() -> None:
    gateway: Gateway = create_app(settings_for("ftp://somewhere"))
    with pytest.raises(InvalidRequest):
        async with lifespan_of(gateway):
            pass


async def test_an_opening_that_fails_unforeseen_is_tried_again(
    memory_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries = api.open, 0

    def failing(*args: object, **settings: Settings) -> object:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("no space left")
        return real(**settings)  # type: ignore[arg-type]

    monkeypatch.setattr(api, "open", failing)
    gateway = create_app(memory_settings)
    async with lifespan_of(gateway):
        with pytest.raises(StoreUnavailable, match="OSError"):
            _ = gateway.connection.broker
        await eventually(lambda: gateway.connection._broker is not None)
