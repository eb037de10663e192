"""Gateways behind nginx that restart, die and hang while a crowd watches one run through them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import async_playwright

from broker import api
from broker.items import Final, MessageDelta
from broker.publisher import Publisher
from tests.e2e.crowd import Crowd, start_run
from tests.e2e.fleet import Fleet, Nginx, Visitor
from tests.e2e.processes import http_json
from tests.e2e.test_eventsource import CLOSED, FLAGS
from tests.e2e.test_eventsource import Viewer as BrowserViewer
from tests.e2e.test_eventsource import _chromium as chromium
from tests.gateways import Response, frames_of
from tests.servers import RedisServer, eventually, free_port

SMALL = {"viewers": 60, "rate": 200, "seconds": 3.0}
LARGE = {"viewers": 200, "rate": 500, "seconds": 20.0}
QUICK = {"heartbeat": 0.4, "retry_ms": 300, "drain": 3.0}
SILENT = 2
"""Seconds of silence after which nginx gives a gateway up; 15 as shipped, with heartbeats of 5."""


def behind_nginx(url: str, namespace: str, directory: Path, count: int = 3, **more: Any) -> Fleet:
    changed = {
        "proxy_read_timeout 15s": f"proxy_read_timeout {SILENT}s",
        "proxy_read_timeout 5s": "proxy_read_timeout 1s",
    }
    return Fleet(url, {"namespace": namespace, **QUICK, **more}, directory, count=count, nginx=changed)


def check(crowd: Crowd, fleet: Fleet) -> list[Visitor]:
    """All that was published reached everybody, once and in order, and nobody was told what ends an EventSource."""
    assert crowd.check() == 0
    assert not crowd.rewound
    found = [viewer for viewer in crowd.viewers if isinstance(viewer, Visitor)]
    assert len(found) == crowd.count
    assert {status for viewer in found for status in viewer.statuses} <= {200, 204}
    assert "Traceback" not in fleet.output
    return found


async def test_one_hangs_and_wakes_and_the_other_is_drained(
    redis7: RedisServer, namespace: str, tmp_path: Path
) -> None:
    async with behind_nginx(redis7.url, namespace, tmp_path, count=2) as fleet:
        crowd = fleet.crowd(**SMALL)

        async def disturb(publisher: Publisher) -> None:
            fleet.signal(0, signal.SIGSTOP)
            await eventually(lambda: sum(v.torn for v in crowd.viewers if isinstance(v, Visitor)) >= 5, 20)
            fleet.signal(0, signal.SIGCONT)
            await fleet.drain(1)

        await crowd.play(disturb)
        found = check(crowd, fleet)
    assert sum(viewer.sent_away for viewer in found) >= 5, "each with a hint of its own, between two frames"
    assert len({hint for viewer in found for hint in viewer.hints}) > 5, "not all at once"


async def test_nobody_is_there(tmp_path: Path) -> None:
    """EventSource gives up at a 5xx: it is told to come back. Everybody else is told the truth."""
    nginx = Nginx(tmp_path, [free_port(), free_port()])
    await asyncio.to_thread(nginx.start)
    try:
        accepts = [("Accept", "text/event-stream")]
        hints = set()
        for _ in range(20):
            async with await Response.open(nginx.port, "/v1/runs/r/stream", headers=accepts) as stream:
                assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
                [frame] = frames_of(await stream.body())
            assert frame.event == "retry"
            hints.add(frame.data)
        assert len(hints) > 1
        for method, headers in (("GET", {}), ("POST", {"Accept": "text/event-stream"})):
            status, problem = await http_json(nginx.port, method, "/v1/runs", {}, headers)
            assert (status, problem["code"]) == (502, "upstream_failed")
    finally:
        nginx.stop()


# All of it is long from here on.


@pytest.fixture(params=["redis7", "redis7-cluster", "redis7-sentinel"])
def beneath(request: pytest.FixtureRequest) -> str:
    """The URL of what the gateways stand on."""
    return str(request.getfixturevalue(request.param.replace("-", "_")).url)


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_a_rolling_restart(beneath: str, namespace: str, tmp_path: Path) -> None:
    async with behind_nginx(beneath, namespace, tmp_path) as fleet:

        async def disturb(publisher: Publisher) -> None:
            for number in range(3):
                await fleet.drain(number)
                await fleet.start(number)

        crowd = fleet.crowd(**LARGE)
        await crowd.play(disturb)
        found = check(crowd, fleet)
    assert sum(viewer.torn for viewer in found) == 0, "a drained gateway breaks nothing off"
    assert sum(viewer.in_vain for viewer in found) == 0, "and there is always another one"
    assert sum(viewer.sent_away for viewer in found) >= 100


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs for good"])
async def test_one_of_three(beneath: str, namespace: str, tmp_path: Path, how: signal.Signals) -> None:
    async with behind_nginx(beneath, namespace, tmp_path) as fleet:
        crowd = fleet.crowd(**LARGE)
        requests = Requests(fleet)

        async def disturb(publisher: Publisher) -> None:
            fleet.signal(1, how)
            asking = [asyncio.create_task(requests.ask(publisher.run_id)) for _ in range(4)]
            await asyncio.gather(*asking)

        await crowd.play(disturb)
        found = check(crowd, fleet)
    assert sum(viewer.torn for viewer in found) >= 20
    assert requests.reads == [200] * len(requests.reads)
    # One that was there when it died or froze is not sent again: its sender is told so.
    assert {201} <= set(requests.writes) <= {201, 502 if how is signal.SIGKILL else 504}
    assert requests.slowest < 2 * SILENT + 5, "as long as nginx waits for two of them, and some for this machine"


class Requests:
    """What others ask through nginx meanwhile."""

    def __init__(self, fleet: Fleet) -> None:
        self._port = fleet.nginx.port
        self.reads: list[int] = []
        self.writes: list[int] = []
        self.slowest = 0.0

    async def ask(self, run_id: str, times: int = 20) -> None:
        body = {"runner": "nobody", "input": {"message": "x"}}
        for _ in range(times):
            self.reads.append(await self._one("GET", f"/v1/runs/{run_id}"))
            self.writes.append(await self._one("POST", "/v1/runs", body))
            await asyncio.sleep(0.1)

    async def _one(self, method: str, path: str, body: Any = None) -> int:
        began = time.monotonic()
        status, _ = await http_json(self._port, method, path, body, timeout=60)
        self.slowest = max(self.slowest, time.monotonic() - began)
        return status


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_all_of_them_are_away_for_a_while(redis7: RedisServer, namespace: str, tmp_path: Path) -> None:
    async with behind_nginx(redis7.url, namespace, tmp_path, count=2) as fleet:

        async def disturb(publisher: Publisher) -> None:
            for number in range(2):
                await fleet.drain(number)
            await asyncio.sleep(2)
            for number in range(2):
                await fleet.start(number)

        crowd = fleet.crowd(**LARGE)
        await crowd.play(disturb)
        found = check(crowd, fleet)
    assert sum(viewer.in_vain for viewer in found) >= 20


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_eventsources_of_a_browser(redis7: RedisServer, namespace: str, tmp_path: Path) -> None:
    """Restarted in turn, both away at once, one that hangs: no EventSource gives up, over HTTP/1.1 and HTTP/2."""
    async with (
        behind_nginx(redis7.url, namespace, tmp_path, count=2) as fleet,
        api.open(redis7.url, fleet.settings) as broker,
        await start_run(broker) as publisher,
        pages([f"http://127.0.0.1:{fleet.nginx.port}", f"https://127.0.0.1:{fleet.nginx.tls_port}"]) as viewers,
    ):
        speaking = asyncio.create_task(_speak(publisher))
        for viewer in viewers:
            await viewer.open(f"/v1/runs/{publisher.run_id}/stream")
            await viewer.opened(1)
        for number in (0, 1):
            await fleet.drain(number)
            await fleet.start(number)
        await asyncio.gather(fleet.drain(0), fleet.drain(1))
        await asyncio.sleep(4)  # as long as the longest of nginx' hints, and more
        for number in (0, 1):
            await fleet.start(number)
        for viewer in viewers:
            await viewer.has(publisher.last)
        fleet.signal(0, signal.SIGSTOP)
        await asyncio.sleep(2 * SILENT)
        for viewer in viewers:
            await viewer.has(publisher.last)
        speaking.cancel()
        last = await publisher.seal(Final())
        for viewer in viewers:
            await viewer.closed()  # by the 204, not before
            assert await viewer.seqs() == list(range(1, last + 1))
            assert await viewer.got("message", "reset", "gap") == []
            assert (await viewer.page.evaluate("window.errors")).count(CLOSED) == 1


async def _speak(publisher: Publisher) -> None:
    while True:
        await publisher.publish(MessageDelta(text=f"{publisher.last} "))
        await asyncio.sleep(0.02)


@asynccontextmanager
async def pages(origins: list[str]) -> AsyncIterator[list[BrowserViewer]]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        context = await browser.new_context(ignore_https_errors=True)
        found = [BrowserViewer(await context.new_page()) for _ in origins]
        for viewer, origin in zip(found, origins, strict=True):
            await viewer.page.goto(f"{origin}/healthz")
        yield found
        await browser.close()
