"""``HERMES_WEBUI_SSE_CHUNKED``: behind a proxy that reads until the end, no body is ever delimited by the close."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.api import Broker
from gateway.app import create_app
from gateway.asgi import app as lazy
from gateway.webui.settings import WebuiSettings
from tests.gateway.conftest import Play, Serve
from tests.gateway.hermes_home import HermesHome
from tests.gateways import Response, until

SESSIONS = "/api/sessions/gateway/stream"


async def serving(broker: Broker, serve: Serve, tmp_path: Path, chunked: bool) -> AsyncIterator[int]:
    home = HermesHome(tmp_path / "hermes")
    home.session("s1", at=1.0)
    webui = WebuiSettings(sse_chunked=chunked, show_cli_sessions=True, hermes_home=home.path, watch_interval=1.0)
    async with serve(create_app(broker=broker, webui=webui)) as address:
        port = int(address.rpartition(":")[2])

        async def looked() -> bool:
            async with await Response.open(port, f"{SESSIONS}?probe=1") as probe:
                return probe.status != 503

        await until(looked)  # the gateway serves before its watcher has had its first look
        yield port
    home.close()


@pytest.fixture
async def forced(broker: Broker, serve: Serve, tmp_path: Path) -> AsyncIterator[int]:
    async for port in serving(broker, serve, tmp_path, True):
        yield port


@pytest.fixture
async def usual(broker: Broker, serve: Serve, tmp_path: Path) -> AsyncIterator[int]:
    async for port in serving(broker, serve, tmp_path, False):
        yield port


async def test_a_run_for_http_1_0_is_chunked_to_its_last_chunk(forced: int, play: Play) -> None:
    run = await play()
    await run.say("one", "two")
    stream = await Response.open(forced, f"/v1/runs/{run.id}/stream", version="1.0")
    assert (stream.version, stream.chunked, stream.headers["connection"]) == ("HTTP/1.1", True, "close")
    await stream.upto(2)
    await run.end()
    await stream.body()
    assert stream.seqs == [1, 2, 3]
    assert stream.complete  # the chunk of length zero came
    assert await stream.reader.read() == b""  # and nothing behind it


async def test_the_same_bytes_with_and_without(forced: int, broker: Broker, serve: Serve, play: Play) -> None:
    run = await play()
    await run.say("one", "zwei “漢字”")
    await run.end()
    target = f"/v1/runs/{run.id}/stream"
    async with serve(create_app(broker=broker)) as address:
        plain = await Response.open(int(address.rpartition(":")[2]), target, version="1.0")
        assert not plain.chunked
        chunked = await Response.open(forced, target, version="1.0")
        assert await plain.body() == await chunked.body()


@pytest.mark.parametrize("target", [SESSIONS, "/v1/events"])
async def test_so_are_the_streams_that_fastapi_serves(forced: int, target: str) -> None:
    stream = await Response.open(forced, target, version="1.0")
    assert (stream.status, stream.chunked) == (200, True)
    assert await stream.part()
    stream.leave()


@pytest.mark.parametrize("target", [SESSIONS, "/v1/events"])
async def test_http_1_1_is_chunked_anyway_and_1_0_is_not(usual: int, target: str) -> None:
    for version, chunked in (("1.1", True), ("1.0", False)):
        stream = await Response.open(usual, target, version=version)
        assert (stream.status, stream.chunked) == (200, chunked)
        assert await stream.part()
        stream.leave()


async def test_what_has_a_length_keeps_it(forced: int) -> None:
    answer = await Response.open(forced, "/healthz", version="1.0")
    assert not answer.chunked
    assert await answer.body() == b'{"status":"ok"}'


async def test_uvicorns_own_target_hands_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "_gateway", None)
    monkeypatch.setenv("HERMES_WEBUI_SSE_CHUNKED", "on")
    assert lazy.always_chunked
    monkeypatch.setattr(lazy, "_gateway", None)
    monkeypatch.setenv("HERMES_WEBUI_SSE_CHUNKED", "0")
    assert not lazy.always_chunked
