"""HTTP/2 over TLS towards the browser, by ``deploy/nginx.conf``: many streams on one connection, each as live as it is
over a connection of its own. The gateways behind it speak HTTP/1.1."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from broker import api
from broker.api import Broker
from broker.items import MessageDelta
from broker.publisher import Publisher
from broker.settings import Settings
from tests.e2e.test_eventsource import FLAGS, _chromium
from tests.gateways import Frame, GatewayProcess, frames_of, say, until, writing
from tests.servers import RedisServer
from tests.shipped_nginx import ShippedNginx

pytestmark = pytest.mark.asyncio(loop_scope="module")

OVER_HTTP_1 = 6
"""Connections that a browser opens to one host."""
STREAMS, STAY = 3 * OVER_HTTP_1, 2 * OVER_HTTP_1


@pytest.fixture(scope="module")
def settings(redis7: RedisServer) -> Settings:
    namespace = f"t{uuid4().hex[:12]}"
    return Settings(redis_url=redis7.url, namespace=namespace, partitions=4, heartbeat=0.3, retry_ms=100, drain=1.0)


@pytest.fixture(scope="module")
def gateways(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GatewayProcess]]:
    directory = tmp_path_factory.mktemp("gateways")
    processes = [GatewayProcess(settings, directory).start() for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def nginx(gateways: list[GatewayProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShippedNginx]:
    process = ShippedNginx(tmp_path_factory.mktemp("nginx"), [gateway.port for gateway in gateways])
    try:
        yield process.start()
    finally:
        process.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def broker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened


def target(publisher: Publisher, query: str = "") -> str:
    return f"/v1/runs/{publisher.run_id}/stream{query}"


def viewers(gateways: list[GatewayProcess]) -> float:
    return sum(gateway.number("runcast_viewers") for gateway in gateways)


# A client of its own


class Viewer:
    """One stream of a connection. ``wire``: its body so far."""

    def __init__(self, response: httpx.Response) -> None:
        self.response, self.wire = response, b""
        self._parts = response.aiter_raw()

    @property
    def connection(self) -> tuple[str, int]:
        """This side's address: one for each connection."""
        network: Any = self.response.extensions["network_stream"]
        address: tuple[str, int] = network.get_extra_info("client_addr")
        return address

    @property
    def frames(self) -> list[Frame]:
        return frames_of(self.wire, cut=True)

    @property
    def seqs(self) -> list[int]:
        return [frame.data["seq"] for frame in self.frames if frame.id is not None and frame.event != "cursor"]

    async def upto(self, seq: int) -> None:
        """Read on until that item has come."""
        async with asyncio.timeout(30):
            while seq not in self.seqs:
                self.wire += await anext(self._parts)

    async def heartbeat(self) -> None:
        async with asyncio.timeout(30):
            while not any(frame.event == ":" for frame in self.frames):
                self.wire += await anext(self._parts)

    async def rest(self) -> None:
        async with asyncio.timeout(30):
            async for part in self._parts:
                self.wire += part


class Client:
    """One connection: a second one is not allowed."""

    def __init__(self, nginx: ShippedNginx, *, http2: bool = True) -> None:
        self._http = httpx.AsyncClient(
            base_url=f"https://localhost:{nginx.tls_port}",
            verify=ssl.create_default_context(cafile=str(nginx.authority)),
            http2=http2,
            limits=httpx.Limits(max_connections=1),
            timeout=httpx.Timeout(30.0, pool=30.0 if http2 else 0.3),
            trust_env=False,
        )
        self._open = contextlib.AsyncExitStack()

    async def stream(self, path: str, **headers: str) -> Viewer:
        named = {"Accept": "text/event-stream", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return Viewer(await self._open.enter_async_context(self._http.stream("GET", path, headers=named)))

    async def get(self, path: str) -> httpx.Response:
        return await self._http.get(path)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()
        await self._http.aclose()


async def test_many_streams_on_one_connection_are_live(nginx: ShippedNginx, broker: Broker) -> None:
    async with Client(nginx) as client, writing(broker) as one, writing(broker) as two:
        seen = [await client.stream(target(p)) for p in (one, two) for _ in range(STREAMS // 2)]
        assert {v.response.http_version for v in seen} == {"HTTP/2"}
        assert {v.response.headers["content-type"] for v in seen} == {"text/event-stream; charset=utf-8"}
        assert not any("content-encoding" in v.response.headers for v in seen)  # httpx asks for gzip
        assert len({v.connection for v in seen}) == 1
        for seq in range(1, 5):
            for p in (one, two):
                await say(p, 1)
            for viewer in seen:  # each has it before the next one exists
                await viewer.upto(seq)
        for viewer in seen:
            await viewer.heartbeat()
        answer = await client.get(f"/v1/runs/{one.run_id}")  # and there is room for a request beside them
        assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
        for p in (one, two):
            await say(p, end=True)
        for viewer in seen:
            await viewer.rest()
            assert viewer.seqs == [1, 2, 3, 4, 5]
            assert viewer.frames[-1].event == "end"


async def test_without_http2_the_connection_is_full_with_one_stream(nginx: ShippedNginx, broker: Broker) -> None:
    """What the test above would see if it were not on."""
    async with writing(broker) as p, Client(nginx, http2=False) as client:
        await client.stream(target(p))
        with pytest.raises(httpx.PoolTimeout):
            await client.stream(target(p))


async def test_a_resume_and_an_end_go_through(nginx: ShippedNginx, broker: Broker) -> None:
    async with writing(broker) as p, Client(nginx) as client:
        await say(p, "é 😀 \u2028 ", "x" * 200_000, 2, end=True)
        resumed = await client.stream(target(p), Last_Event_ID=f"{p.run_id}:1")
        await resumed.rest()
        assert resumed.seqs == [2, 3, 4, 5]
        assert [f.data["text"] for f in resumed.frames if f.event == "message.delta"] == ["x" * 200_000, "x ", "x "]
        ended = await client.stream(target(p), Last_Event_ID=f"{p.run_id}:5")
        assert ended.response.status_code == 204


# A browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    executable = _chromium()
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield opened
        await opened.close()


WATCH = """(urls) => {
    window.got = urls.map(() => []);
    window.sources = urls.map((url, i) => {
        const source = new EventSource(url);
        for (const type of ["message.delta", "final"])
            source.addEventListener(type, (e) => window.got[i].push(JSON.parse(e.data).seq));
        return source;
    });
}"""
OPEN = "window.sources.filter((s) => s.readyState === EventSource.OPEN).length"
CLOSED = "window.sources.filter((s) => s.readyState === EventSource.CLOSED).length"
PROTOCOLS = """[...new Set(performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation"))
    .map((e) => e.nextHopProtocol))]"""


@contextlib.asynccontextmanager
async def page_at(browser: Browser, url: str) -> AsyncIterator[Page]:
    context = await browser.new_context(ignore_https_errors=True)
    try:
        page = await context.new_page()
        await page.goto(url)
        yield page
    finally:
        await context.close()


async def _all_have(page: Page, seqs: list[int]) -> None:
    script = f"window.got.every((seqs) => JSON.stringify(seqs) === '{seqs}'.replaceAll(' ', ''))"
    await page.wait_for_function(script, timeout=40_000, polling=20)


async def test_a_browser_watches_more_than_six_and_moves_with_all(
    nginx: ShippedNginx, gateways: list[GatewayProcess], broker: Broker, browser: Browser
) -> None:
    async with writing(broker) as p, page_at(browser, f"https://localhost:{nginx.tls_port}/healthz") as page:
        await page.evaluate(WATCH, [target(p, f"?viewer={n}") for n in range(STREAMS)])
        await page.wait_for_function(f"{OPEN} === {STREAMS}", polling=20)
        await say(p, MessageDelta(text="live"))
        await _all_have(page, [1])
        assert await page.evaluate("fetch('/v1/runs?limit=1').then((a) => a.status)") == 200
        await until(lambda: viewers(gateways) == STREAMS)
        await page.evaluate(f"window.sources.splice({STAY}).forEach((s) => s.close()); window.got.splice({STAY})")
        await until(lambda: viewers(gateways) == STAY)  # who leaves one stream leaves that one only
        gateways[0].signal(signal.SIGTERM)
        await gateways[0].ended()
        await say(p, 2)
        await _all_have(page, [1, 2, 3])  # those that were there have moved, and missed nothing
        await say(p, end=True)
        await _all_have(page, [1, 2, 3, 4])
        await page.wait_for_function(f"{CLOSED} === {STAY}", polling=20)  # at the 204
        assert await page.evaluate(PROTOCOLS) == ["h2"]


@pytest.mark.long
async def test_over_http_1_it_watches_six(nginx: ShippedNginx, broker: Broker, browser: Browser) -> None:
    """What the test above would see if HTTP/2 were not on."""
    async with writing(broker) as p, page_at(browser, f"http://localhost:{nginx.port}/healthz") as page:
        await page.evaluate(WATCH, [target(p, f"?viewer={n}") for n in range(STREAMS)])
        await page.wait_for_function(f"{OPEN} === {OVER_HTTP_1}", polling=20)
        await say(p, 1)
        await page.wait_for_function(f"window.got.filter((s) => s.length).length === {OVER_HTTP_1}", polling=20)
        assert await page.evaluate(OPEN) == OVER_HTTP_1
