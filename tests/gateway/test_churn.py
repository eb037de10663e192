"""4,000 viewers that come and go at random, in every way there is: afterwards the gateway is what it was before.

``CHURN_SECONDS`` says how long (60; an honest one is 600), ``CHURN_VIEWERS`` how many, ``CHURN_SEED`` repeats the
choices. Some are checked for what they got; the rest is there to come and go.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker import api
from broker.api import Broker
from broker.items import Final, MessageDelta
from broker.publisher import Publisher
from broker.settings import Settings
from tests.cases.wire import seqs_of
from tests.gateways import GatewayProcess, writing
from tests.servers import RedisServer

SECONDS = float(os.environ.get("CHURN_SECONDS", "60"))
VIEWERS = int(os.environ.get("CHURN_VIEWERS", "4000"))
SEED = int(os.environ.get("CHURN_SEED", str(random.randrange(1 << 32))))
STAY = 20.0
"""Seconds that a viewer stays, on the average."""
RUNS = 20
QUERIES = ["", "modes=messages", "modes=final", "compact=1", "modes=tools"]
MIB = 1 << 20

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.timeout(SECONDS * 2 + 600)]


class Guest(asyncio.Protocol):
    """One connection. ``checked``: it keeps what it is sent."""

    def __init__(self, checked: bool) -> None:
        self.gone = asyncio.Event()
        self.size = 0
        self.wire = bytearray()
        self._checked = checked

    def data_received(self, data: bytes) -> None:
        self.size += len(data)
        if self._checked:
            self.wire += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()


@dataclass
class Inn:
    """What everybody shares."""

    port: int
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))
    over: asyncio.Event = field(default_factory=asyncio.Event)
    runs: list[Publisher] = field(default_factory=list)
    visits: int = 0
    checked: int = 0
    ways: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Footprint:
    """What a gateway takes while nobody is there."""

    rss: int
    descriptors: int
    tasks: int
    redis: int


async def footprint(gateway: GatewayProcess, redis: RedisServer) -> Footprint:
    """Once nobody is left: what is torn down takes a moment, so the smallest of some looks."""
    for name in ("runcast_viewers", "runcast_feeds", "runcast_viewers_waiting_bytes"):
        await gateway.reads(name, 0, 60)
    looks = []
    for _ in range(20):
        looks.append(await asyncio.to_thread(_look, gateway, redis))
        await asyncio.sleep(0.5)
    return Footprint(*[min(values) for values in zip(*looks, strict=True)])


def _look(gateway: GatewayProcess, redis: RedisServer) -> tuple[int, int, int, int]:
    clients = redis.command("CLIENT", "LIST")
    assert isinstance(clients, bytes)
    return (
        int(gateway.number("process_resident_memory_bytes")),
        len(os.listdir(f"/proc/{gateway.pid}/fd")),
        int(gateway.number("runcast_event_loop_tasks")),
        clients.count(b"\n"),
    )


# The runs.


async def talk(inn: Inn, broker: Broker, slot: int) -> None:
    """One run after the other. Some are bulky, so that whoever does not read is full soon."""
    rng = inn.rng
    while not inn.over.is_set():
        async with writing(broker) as p:
            inn.runs[slot : slot + 1] = [p]
            until = time.monotonic() + rng.uniform(5, 40)
            while time.monotonic() < until and not inn.over.is_set():
                size = rng.randrange(20_000) if slot < 2 else 100
                await p.publish(MessageDelta(text="x" * size))
                await asyncio.sleep(rng.uniform(0.2, 1.5))
            await p.seal(Final())


# The viewers.


async def lodge(inn: Inn) -> None:
    """One visit after the other."""
    await asyncio.sleep(inn.rng.uniform(0, STAY))
    while not inn.over.is_set():
        try:
            await visit(inn)
        except OSError as error:
            inn.wrong.append(f"could not connect: {error}")
            return
        await asyncio.sleep(inn.rng.uniform(0, 1))  # no storm of those whose stream was over at once


async def visit(inn: Inn) -> None:
    rng, p = inn.rng, inn.runs[inn.rng.randrange(RUNS)]
    after, query = rng.choice([0, p.last, rng.randint(0, p.last)]), rng.choice(QUERIES)
    inn.visits += 1
    checked = query == "" and inn.visits % 20 == 0
    loop = asyncio.get_running_loop()
    transport, guest = await loop.create_connection(lambda: Guest(checked), "127.0.0.1", inn.port)
    target = f"/v1/runs/{p.run_id}/stream?{query}"
    transport.write(f"GET {target} HTTP/1.1\r\nHost: g\r\nLast-Event-ID: {p.run_id}:{after}\r\n\r\n".encode())
    way = rng.choices(["abort", "close", "half", "deaf", "at once"], [40, 40, 10, 8, 2])[0]
    inn.ways[way] = inn.ways.get(way, 0) + 1
    if way == "deaf" and not checked:
        transport.pause_reading()
    await leave(inn, transport, guest, way)
    if checked:
        check(inn, guest, after)


async def leave(inn: Inn, transport: asyncio.Transport, guest: Guest, way: str) -> None:
    stay = 0.0 if way == "at once" else inn.rng.expovariate(1 / STAY)
    staying = [asyncio.ensure_future(event.wait()) for event in (inn.over, guest.gone)]
    await asyncio.wait(staying, timeout=stay, return_when=asyncio.FIRST_COMPLETED)
    for task in staying:
        task.cancel()
    if way == "half" and not guest.gone.is_set() and transport.can_write_eof():
        transport.write_eof()
        await asyncio.sleep(0)
    (transport.close if way in ("close", "half") else transport.abort)()


def check(inn: Inn, guest: Guest, after: int) -> None:
    """What it got of the run is what follows its cursor, without a hole."""
    inn.checked += 1
    seqs = seqs_of(bytes(guest.wire))
    if seqs != list(range(after + 1, after + 1 + len(seqs))):
        inn.wrong.append(f"behind {after}: {seqs[:5]}…{seqs[-5:]}")


async def crowd(gateway: GatewayProcess, broker: Broker, seconds: float) -> Inn:
    """The whole of it once, until nobody is there any more."""
    inn = Inn(gateway.port)
    async with AsyncExitStack() as stack:
        inn.runs = [await stack.enter_async_context(writing(broker)) for _ in range(RUNS)]
        talking = [asyncio.create_task(talk(inn, broker, slot)) for slot in range(RUNS)]
        guests = [asyncio.create_task(lodge(inn)) for _ in range(VIEWERS)]
        most = 0.0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            most = max(most, await asyncio.to_thread(gateway.number, "runcast_viewers"))
            await asyncio.sleep(1.0)
        inn.over.set()
        await asyncio.gather(*guests, *talking)
        for p in inn.runs:
            await p.aclose()
    assert most > VIEWERS * 0.6, f"they were really there: {most}, {inn.wrong[:3]}, {inn.ways}"
    return inn


async def test_what_thousands_of_viewers_leave_behind_is_nothing(tmp_path: Path, namespace: str):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = VIEWERS * 2 + 500
    if hard < wanted:
        pytest.skip(f"needs {wanted} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    redis = RedisServer(tmp_path / "redis").start()
    settings = Settings(
        redis_url=redis.url, namespace=namespace, partitions=4, stall_limit=8.0, run_ttl=30, viewers_memory=32 * MIB
    )
    gateway = GatewayProcess(settings, tmp_path)
    await asyncio.to_thread(gateway.start)
    try:
        # This process plays thousands: Redis is not away when it is late to read its answers.
        patient = settings.model_copy(update={"request_deadline": 20.0})
        async with api.open(settings=patient) as broker:
            await crowd(gateway, broker, max(STAY * 2, SECONDS / 10))  # what is made once is made
            before = await footprint(gateway, redis)
            inn = await crowd(gateway, broker, SECONDS)
            after = await footprint(gateway, redis)
        cuts = {
            reason: gateway.number(f'runcast_viewers_cut_total{{reason="{reason}"}}')
            for reason in ("stalled", "memory")
        }
        print(f"\nCHURN_SEED={SEED} {SECONDS:g} s, {inn.visits} visits, {inn.checked} checked, {inn.ways}, cut: {cuts}")
        print(f"before: {before}\nafter:  {after}")
        assert inn.wrong == []
        assert inn.checked > inn.visits / 200
        assert after.rss <= before.rss * 1.1 + 8 * MIB
        assert after.descriptors <= before.descriptors + 2
        assert after.tasks <= before.tasks + 2
        assert after.redis <= before.redis + 2
        assert cuts["stalled"] > 0
    finally:
        gateway.kill()
        redis.kill()
    assert "Traceback" not in gateway.log
    assert "ERROR" not in gateway.log
