"""A browser's own EventSource against a gateway that loses connections, restarts, and loses its Redis.

What counts: it never gives up while the run goes on, it never shows an item twice or leaves one out, and it stops
asking once it has the fence. The page collects; the test compares with what was published."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from broker import api
from broker.api import Broker
from broker.items import MessageDelta, ToolStarted
from broker.publisher import Publisher
from broker.settings import Settings
from tests.conftest import missing
from tests.gateways import GatewayProcess, say, until, writing
from tests.servers import Proxy, RedisServer, redis_binary

pytestmark = pytest.mark.asyncio(loop_scope="module")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
COLLECT = """(url) => {
    window.got = []; window.opens = 0; window.errors = [];
    const source = window.source = new EventSource(url);
    source.onopen = () => window.opens++;
    source.onerror = () => window.errors.push(source.readyState);
    source.onmessage = (e) => window.got.push({type: "message", id: e.lastEventId, data: e.data});
    for (const type of ["message.delta", "tool.started", "final", "reset", "gap", "cursor", "end"])
        source.addEventListener(type, (e) => window.got.push({type, id: e.lastEventId, data: JSON.parse(e.data)}));
}"""
CLOSED = 2


class Wire(Proxy):
    """Between browser and gateway: what was asked for, and with which ``Last-Event-ID``."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.asked: list[tuple[str, str]] = []

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: bool) -> None:
        if replies:
            await super()._copy(reader, writer, replies)
            return
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self._note(head.decode("latin-1"))
                writer.write(head)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()

    def _note(self, head: str) -> None:
        target = head.split(" ", 2)[1]
        if target.startswith("/v1/runs/"):
            found = re.search(r"^last-event-id: *(.*?)\r$", head, re.IGNORECASE | re.MULTILINE)
            self.asked.append((target, found[1] if found else ""))


def _chromium() -> str:
    found = os.environ.get("RUNCAST_TEST_CHROMIUM") or shutil.which("chromium")
    if found is None or not Path(found).exists():
        missing("there is no Chromium here (Debian: apt install chromium), or RUNCAST_TEST_CHROMIUM is wrong")
    assert found
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    executable = _chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server of this module, to be stopped; with an append-only file."""
    if redis_binary() is None:
        missing("there is no redis-server on this machine (Debian: apt install redis-server)")
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def gateway(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    settings = Settings(
        redis_url=redis.url,
        namespace=f"t{uuid4().hex[:12]}",
        partitions=4,
        heartbeat=0.3,
        block=0.5,
        request_deadline=1.0,
        retry_ms=150,
        cursor_items=10,
        drain=2.0,
    )
    process = GatewayProcess(settings, tmp_path_factory.mktemp("gateway")).start()
    yield process
    process.kill()
    assert "Traceback" not in process.log


@pytest_asyncio.fixture(loop_scope="module")
async def broker(gateway: GatewayProcess) -> AsyncIterator[Broker]:
    async with api.open(settings=gateway.settings.model_copy(update={"request_deadline": 10.0})) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def wire(gateway: GatewayProcess) -> AsyncIterator[Wire]:
    async with Wire(gateway.port) as proxy:
        yield proxy


class Viewer:
    """One page with one EventSource."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def open(self, url: str) -> None:
        await self.page.evaluate(COLLECT, url)

    async def got(self, *types: str) -> list[dict[str, Any]]:
        return [e for e in await self.page.evaluate("window.got") if not types or e["type"] in types]

    async def seqs(self) -> list[int]:
        return [e["data"]["seq"] for e in await self.got("message.delta", "tool.started", "final")]

    async def text(self) -> str:
        return "".join(e["data"]["text"] for e in await self.got("message.delta"))

    async def until(self, script: str, timeout: float = 30.0) -> None:
        await self.page.wait_for_function(script, timeout=timeout * 1000, polling=20)

    async def has(self, seq: int) -> None:
        """Wait until the item of that seq was dispatched."""
        await self.until(f"window.got.some(e => e.id.endsWith(':{seq}') && e.type !== 'cursor')")

    async def opened(self, times: int) -> None:
        await self.until(f"window.opens >= {times}")

    async def closed(self) -> None:
        """Wait until it stopped for good, as it does at a 204 only."""
        await self.until(f"window.source.readyState === {CLOSED}")


@pytest_asyncio.fixture(loop_scope="module")
async def viewer(browser: Browser, wire: Wire) -> AsyncIterator[Viewer]:
    page = await browser.new_page()
    await page.goto(f"http://127.0.0.1:{wire.port}/healthz")
    yield Viewer(page)
    await page.close()


def path(p: Publisher, query: str = "") -> str:
    return f"/v1/runs/{p.run_id}/stream{query}"


async def published(p: Publisher, count: int) -> str:
    texts = [f"{p.last + n} é😀\u2028 " for n in range(count)]
    for text in texts:
        await p.publish(MessageDelta(text=text))
    await p.flush()
    return "".join(texts)


async def rests(viewer: Viewer, wire: Wire, p: Publisher) -> None:
    """The fence is there, a 204 has been answered to it, and nothing more is asked."""
    await viewer.closed()
    asked = len(wire.asked)
    assert wire.asked[-1][1] == f"{p.run_id}:{p.last}"
    await asyncio.sleep(1.0)  # several times the retry: nothing may happen in it
    assert len(wire.asked) == asked
    assert [e["type"] for e in await viewer.got()].count("end") == 1


async def test_a_whole_run_and_then_no_further_request(viewer: Viewer, wire: Wire, broker: Broker):
    async with writing(broker) as p:
        text = await published(p, 20)
        await viewer.open(path(p))
        await viewer.has(20)
        text += await published(p, 20)
        await say(p, end=True)
        await rests(viewer, wire, p)
    assert len(wire.asked) == 2
    assert await viewer.seqs() == list(range(1, 42))
    assert await viewer.text() == text
    assert await viewer.got("message", "reset", "gap") == []  # no heartbeat made an empty event


async def test_connections_that_are_cut_in_mid_run(viewer: Viewer, wire: Wire, broker: Broker):
    async with writing(broker) as p:
        await viewer.open(path(p))
        text = ""
        for turn in range(5):
            await viewer.opened(turn + 1)
            text += await published(p, 10)
            if turn % 2:
                await viewer.has(p.last)
            wire.cut()
            text += await published(p, 3)
        await say(p, end=True)
        await rests(viewer, wire, p)
    assert await viewer.seqs() == list(range(1, p.last + 1))
    assert await viewer.text() == text


async def test_a_cursor_in_its_url_counts_once(viewer: Viewer, wire: Wire, broker: Broker):
    async with writing(broker) as p:
        await published(p, 10)
        await viewer.open(path(p, f"?cursor={p.run_id}:5"))
        await viewer.has(10)
        wire.cut()  # it comes back to the same URL, cursor and all, with a header that says better
        await viewer.opened(2)
        await published(p, 5)
        await viewer.has(15)
        await say(p, end=True)
        await rests(viewer, wire, p)
    assert await viewer.seqs() == list(range(6, 17))
    assert {target for target, _ in wire.asked} == {path(p, f"?cursor={p.run_id}:5")}
    assert [last_id for _, last_id in wire.asked] == ["", f"{p.run_id}:10", f"{p.run_id}:16"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["drained", "killed"])
async def test_a_gateway_that_restarts_on_its_port(
    viewer: Viewer, wire: Wire, broker: Broker, gateway: GatewayProcess, how: signal.Signals
):
    async with writing(broker) as p:
        text = await published(p, 10)
        await viewer.open(path(p))
        await viewer.has(10)
        gateway.signal(how)
        await gateway.ended()
        text += await published(p, 10)
        await viewer.until("window.errors.length >= 2")  # it has tried in vain, and goes on trying
        await asyncio.to_thread(gateway.start)
        await viewer.has(20)
        text += await published(p, 10)
        await say(p, end=True)
        await rests(viewer, wire, p)
    assert await viewer.seqs() == list(range(1, 32))
    assert await viewer.text() == text


async def test_an_outage_of_redis(viewer: Viewer, wire: Wire, broker: Broker, redis: RedisServer):
    async with writing(broker) as p:
        text = await published(p, 10)
        await viewer.open(path(p))
        await viewer.has(10)
        redis.stop()
        texts = [f"while away {n} " for n in range(10)]
        for one in texts:
            await p.publish(MessageDelta(text=one))
        wire.cut()  # so that it has to come back while Redis is away: to 200, a retry and the end, again and again
        asked = len(wire.asked)
        await until(lambda: len(wire.asked) >= asked + 4)
        await viewer.opened(3)
        redis.start()
        await p.flush()
        await viewer.has(20)
        redis.restart()  # and once more with the stream open
        text += "".join(texts) + await published(p, 10)
        await say(p, end=True)
        await rests(viewer, wire, p)
    assert await viewer.seqs() == list(range(1, 32))
    assert await viewer.text() == text
    assert await viewer.got("reset", "gap") == []


async def test_a_filtered_viewer_is_where_the_cursor_frames_say(viewer: Viewer, wire: Wire, broker: Broker):
    async with writing(broker) as p:
        await viewer.open(path(p, "?modes=tools"))
        await viewer.opened(1)
        await published(p, 10)
        await viewer.until("window.got.some(e => e.type === 'cursor')")
        wire.cut()
        await viewer.opened(2)
        assert wire.asked[-1][1] == f"{p.run_id}:10"
        await say(p, ToolStarted(call_id="c", name="terminal"), end=True)
        await rests(viewer, wire, p)
    assert await viewer.seqs() == [11, 12]


async def test_an_expired_run_ends_it_too(viewer: Viewer, wire: Wire, broker: Broker):
    async with writing(broker) as p:
        await published(p, 10)
        await say(p, end=True)
        await broker.store.call("DEL", broker.keys.items(p.run_id))
        await viewer.open(path(p))
        await rests(viewer, wire, p)
    assert [e["type"] for e in await viewer.got()] == ["gap", "cursor", "end"]
    assert len(wire.asked) == 2
