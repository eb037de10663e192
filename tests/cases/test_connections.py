"""Connections that break, stay silent, or cut text into packets: cases 6, 9 and 22."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import aconnect_sse

from broker import api
from broker.api import Broker
from broker.items import MessageDelta
from broker.publisher import Publisher
from broker.settings import Settings
from broker.sse import Decoder
from tests.cases.stage import stage
from tests.cases.wire import ended, opened, target
from tests.gateways import Frame, GatewayProcess, Response, say, writing
from tests.servers import Proxy, RedisServer

HB = Frame(":", "hb")


# Case 6: cut G's Redis connection 3 s around T; join 1 ms after creation, before item 1.


async def test_case_06_the_fence_arrives_from_the_log_though_redis_was_away_3_s_around_it(
    redis7: RedisServer, settings: Settings, namespace: str, tmp_path: Path
):
    own = settings.model_copy(update={"namespace": namespace})
    async with Proxy(redis7.port) as proxy, api.open(settings=own) as broker, writing(broker) as p:
        gateway = GatewayProcess(Settings(**own.model_dump(exclude_unset=True) | {"redis_url": proxy.url}), tmp_path)
        await asyncio.to_thread(gateway.start)
        try:
            await say(p, 5)
            streams = [await opened(gateway, p.run_id, 5, query) for query in ("", "modes=final", "modes=tools")]
            await gateway.reads("runcast_viewers", 3)
            proxy.refuse = True
            proxy.cut()
            await asyncio.sleep(1.5)
            await say(p, 5, end=True)
            await asyncio.sleep(1.5)
            proxy.refuse = False
            back = time.monotonic()
            for stream in streams:
                await stream.body()
                assert time.monotonic() - back < 15
                assert {f.event for f in stream.controls} <= {"end", "cursor"}
                assert stream.frames[-1] == Frame("end", {"run_id": p.run_id, "status": "completed", "last_seq": 11})
                stream.leave()
        finally:
            gateway.kill()
        assert [stream.seqs for stream in streams] == [[6, 7, 8, 9, 10, 11], [11], [11]]
        assert "Traceback" not in gateway.log


async def test_case_06_a_join_right_after_creation_waits_and_then_streams(
    redis7: RedisServer, namespace: str, tmp_path: Path
):
    async with stage(redis7.url, namespace, tmp_path, gateways=2, block=1.0, heartbeat=0.3) as s:
        run_id = await s.run(script="tokens=5")
        watching = [s.watch(run_id), s.watch(run_id, 1)]
        early = await Response.open(s.gateways[1].port, target(run_id))
        await early.until(lambda frames: frames.count(HB) >= 2)  # nobody works yet, and nobody is sent away
        s.worker()
        await early.body()
        for each in watching:
            viewer = await each.end()
            assert viewer.ids == early.seqs == list(range(1, len(early.seqs) + 1))
            assert viewer.connections == 1
            assert len(viewer.texts) == 5


# Case 9: 200 idle viewers, one writer; a silence; 100 viewers leave at random.


async def latency(p: Publisher, count: int = 150) -> float:
    """Milliseconds from publish to the store's confirmation: the lower quartile, which a busy machine disturbs less."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await say(p, 1)
        took.append((time.perf_counter() - began) * 1000)
    return statistics.quantiles(took, n=4)[0]


def connections(redis: RedisServer) -> int:
    clients = redis.command("CLIENT", "LIST")
    assert isinstance(clients, bytes)
    return clients.count(b"\n")


def commands(redis: RedisServer) -> int:
    stats = dict(line.split(b":", 1) for line in redis.info("stats").split() if b":" in line)
    return int(stats[b"total_commands_processed"])


@pytest.mark.parametrize("silence", [3.0, pytest.param(60.0, marks=[pytest.mark.long, pytest.mark.timeout(200)])])
async def test_case_09_idle_viewers_cost_the_writer_and_redis_nothing_and_outlast_any_silence(
    redis_server: RedisServer, namespace: str, tmp_path: Path, silence: float
):
    quick = {"block": 0.5, "heartbeat": 0.25} if silence < 10 else {}
    settings = Settings(redis_url=redis_server.url, namespace=namespace, partitions=4, **quick)  # type: ignore[arg-type]
    gateway = GatewayProcess(settings, tmp_path)
    await asyncio.to_thread(gateway.start)
    rng = random.Random(9)
    try:
        async with (
            api.open(settings=settings) as broker,
            writing(broker) as idle,
            writing(broker) as busy,
            beating(broker, idle, busy),
        ):
            alone = await latency(busy)
            viewers = [await opened(gateway, idle.run_id, None, rng.choice(["", "modes=messages"])) for _ in range(200)]
            await gateway.reads("runcast_viewers", 200)
            before = commands(redis_server)
            began = time.monotonic()
            for viewer in (viewers[0], viewers[-1]):  # two of them are read, the others' sockets fill
                await viewer.until(lambda _: time.monotonic() - began > silence, silence + 20)
            asked_for = commands(redis_server) - before
            assert asked_for < 100 * (time.monotonic() - began), "viewers that wait ask Redis for nothing"
            # The gateway's lanes and its pool, this test's, and the command's own.
            assert connections(redis_server) <= 2 * (settings.lanes + 4) + 1
            for _ in range(10):  # in one of several spells, since others use this machine as well
                if (among := await latency(busy)) < 2 * alone + 0.5:
                    break
            assert among < 2 * alone + 0.5, (alone, among)
            asking = [asyncio.create_task(asked(gateway, busy.run_id if n % 2 else idle.run_id)) for n in range(100)]
            rng.shuffle(viewers)
            for n, viewer in enumerate(viewers[:100]):
                viewer.leave()
                if n % 2:
                    asking[n].cancel()
                await asyncio.sleep(rng.random() * 0.002)
            answers = await asyncio.gather(*asking, return_exceptions=True)
            assert sum(answer is True for answer in answers) >= 40
            assert {type(answer) for answer in answers} <= {bool, asyncio.CancelledError}
            await gateway.reads("runcast_viewers", 100)
            await say(idle, 2, end=True)
            for viewer in viewers[100:]:
                await viewer.body()
                assert viewer.seqs == [1, 2, 3]
                assert [f.event for f in viewer.controls] == ["end"]
                viewer.leave()
            assert connections(redis_server) <= 2 * (settings.lanes + 4) + 1
    finally:
        gateway.kill()
    assert "Traceback" not in gateway.log


@asynccontextmanager
async def beating(broker: Broker, *publishers: Publisher) -> AsyncIterator[None]:
    """What their worker does while it has nothing to say."""

    async def beat() -> None:
        while True:
            for p in publishers:
                await broker.runs.beat(p.run_id, p.owner, p.epoch)
            await asyncio.sleep(3)

    task = asyncio.create_task(beat())
    yield
    task.cancel()


async def asked(gateway: GatewayProcess, run_id: str) -> bool:
    """Whether the answer is of the run that was asked for."""
    async with await Response.open(gateway.port, f"/v1/runs/{run_id}") as answer:
        return json.loads(await answer.body())["run_id"] == run_id  # type: ignore[no-any-return]


# Case 22: U+2028, U+2029, U+0085, lone CR, NUL, emoji across packets.

NASTY = [
    "a\u2028b",
    "a\u2029b",
    "a\u0085b",
    "a\rb",
    "\r",
    "a\r\nb",
    "\0",
    "a\0b",
    "🎉👩‍👩‍👧é",
    "\ufeff",
    "\x0b\x0c\x1c\x1e\x7f",
    "\ud800",
]
CONTENT = [
    text.encode("utf-8", "replace").decode().replace("?", "\ufffd") if "\ud800" in text else text for text in NASTY
]


class Shredder(Proxy):
    """Hands replies on in pieces of one to three bytes, each in a packet of its own."""

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: bool) -> None:
        if not replies:
            await super()._copy(reader, writer, replies)
            return
        rng = random.Random(22)
        while chunk := await reader.read(65536):
            while chunk:
                size = rng.randint(1, 3)
                writer.write(chunk[:size])
                await writer.drain()
                await asyncio.sleep(0)
                chunk = chunk[size:]
        writer.transport.abort()


@asynccontextmanager
async def shredded(gateway: GatewayProcess) -> AsyncIterator[str]:
    async with Shredder(gateway.port) as proxy:
        yield f"http://127.0.0.1:{proxy.port}"


async def by_foreign_worker(broker: Broker) -> str:
    """A run whose items were stored by a worker in another language, its JSON with the characters as they are."""
    from broker.requests import RunInput, RunRequest
    from broker.scripts import SCRIPTS

    record, _ = await broker.runs.create(RunRequest(input=RunInput(message="x")), enqueue=False)
    claim = await broker.runs.claim(record.run_id, 1, "elsewhere")
    keys, run = broker.keys, claim.run_id
    p = keys.partition(run)
    five = [keys.run(run), keys.items(run), keys.control(run), keys.live(p), keys.bus(p)]
    args: list[Any] = [run, "elsewhere", claim.epoch, 1]
    for text in CONTENT:
        raw = json.dumps({"ts": 1.5, "text": text}, ensure_ascii=False, separators=(",", ":")).encode()
        args += ["message.delta", raw]
    args += ["final", '{"ts":1.5,"message":null,"rounds":0}']
    assert (await broker.store.call("EVAL", SCRIPTS["append"].source, 5, *five, *args))[0] == b"OK"
    return run


@pytest.mark.parametrize("worker", ["ours", "foreign"])
async def test_case_22_every_client_decodes_the_same_text(gateway: GatewayProcess, broker: Broker, worker: str):
    if worker == "foreign":
        run_id = await by_foreign_worker(broker)
    else:
        async with writing(broker) as p:
            await say(p, *(MessageDelta(text=text) for text in NASTY), end=True)
            run_id = p.run_id
    stream = await ended(gateway, run_id)
    # Whatever a client takes for the end of a line, each frame is three of them.
    body = stream.wire.partition(b"retry: 300\n\n")[2]
    assert all(len(frame.decode().splitlines()) == 3 for frame in body.split(b"\n\n")[:-2])
    found = {
        "raw frames": [f.data["text"] for f in stream.frames if f.event == "message.delta"],
        "our decoder": [json.loads(e.data)["text"] for e in Decoder().feed(stream.wire) if e.event == "message.delta"],
        "broker.stream": [e.fields["text"] async for e in broker.stream(run_id) if e.type == "message.delta"],
    }
    async with shredded(gateway) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
        async with aconnect_sse(http, "GET", target(run_id)) as source:
            found["httpx-sse"] = [
                json.loads(e.data)["text"] async for e in source.aiter_sse() if e.event == "message.delta"
            ]
        lines: list[str] = []
        async with http.stream("GET", target(run_id)) as response:
            async for line in response.aiter_lines():  # as many clients do, by str.splitlines
                lines.append(line)
        datas = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        found["lines"] = [data["text"] for data in datas if "text" in data]
        page = (await http.get(f"/v1/runs/{run_id}/items")).json()
        found["items"] = [item["text"] for item in page["items"] if item["type"] == "message.delta"]
    assert found == dict.fromkeys(found, CONTENT)


async def test_case_22_a_browser_decodes_the_same_text(gateway: GatewayProcess, broker: Broker):
    from playwright.async_api import async_playwright

    from tests.e2e.test_eventsource import COLLECT, FLAGS, _chromium

    executable = _chromium()
    run_id = await by_foreign_worker(broker)
    async with async_playwright() as playwright, shredded(gateway) as url:
        browser = await playwright.chromium.launch(executable_path=executable, args=FLAGS)
        page = await browser.new_page()
        await page.goto(f"{url}/healthz")
        await page.evaluate(COLLECT, target(run_id))
        await page.wait_for_function("window.source.readyState == 2")
        got = await page.evaluate("window.got")
        await browser.close()
    assert [e["data"]["text"] for e in got if e["type"] == "message.delta"] == CONTENT
    assert [e["type"] for e in got[-2:]] == ["final", "end"]
