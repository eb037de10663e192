"""A minute of everything at once: two gateways, runs of all kinds, 150 viewers of all kinds, and whatever can break.

``SOAK_SECONDS`` says how long, ``SOAK_SEED`` repeats the choices (not the timing). Every viewer is checked while it
watches: what its modes show comes in order, each item once, none missing but those that a ``gap`` names; texts add up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker import api
from broker.api import Broker
from broker.errors import StoreUnavailable
from broker.items import Event, Final, Item, MessageDelta, Mode, ToolCompleted, ToolStarted, modes_of, parse_modes
from broker.publisher import Publisher
from broker.settings import Settings
from tests.gateways import Frame, GatewayProcess, Response, frames_of, writing
from tests.servers import RedisServer

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
SEED = int(os.environ.get("SOAK_SEED", str(random.randrange(1 << 32))))
VIEWERS = 150
MODES = ["", "messages", "tools", "messages,tools", "events", "final", "usage,cost", "tools,final"]
PACES = [(0.002, 60), (0.01, 200), (0.02, 6_000), (0.2, 400), (0.05, 40_000)]
"""Seconds between items, and how long their texts are at most."""


@dataclass
class Script:
    """What a run's publisher was given: item n is number n of these."""

    run_id: str
    types: list[str] = field(default_factory=lambda: [""])
    texts: list[str] = field(default_factory=lambda: [""])
    masks: list[Mode] = field(default_factory=lambda: [Mode(0)])
    seen: int = 0
    """The highest seq that any viewer has seen: what was published may wait for the store."""

    def note(self, item: Item, type_: str) -> None:
        self.types.append(type_)
        self.texts.append(item.text if isinstance(item, MessageDelta) else "")
        self.masks.append(modes_of(type_.encode()))

    def shown(self, after: int, upto: int, modes: Mode) -> list[int]:
        return [n for n in range(after + 1, upto + 1) if self.masks[n] & modes or Mode.EVENTS & modes]


@dataclass
class Soak:
    """What everybody shares."""

    rng: random.Random
    ports: list[int]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    scripts: list[Script] = field(default_factory=list)
    watched: int = 0
    connections: int = 0
    gaps: int = 0
    reused: int = 0


# Publishers.


def _item(rng: random.Random, size: int, number: int) -> tuple[Item, str]:
    dice = rng.random()
    if dice < 0.8:
        return MessageDelta(text=f"{number} " + "x" * rng.randrange(size)), "message.delta"
    if dice < 0.88:
        return ToolStarted(call_id=f"c{number}", name="t", args={}), "tool.started"
    if dice < 0.96:
        return ToolCompleted(call_id=f"c{number}", name="t", result="r" * rng.randrange(size)), "tool.completed"
    return Event(name="n", payload={"number": number}), "event"


async def _begin(broker: Broker, stack: contextlib.AsyncExitStack) -> Publisher:
    """A run's publisher. Beginning a run is a request, and fails while the store is away."""
    while True:
        try:
            return await stack.enter_async_context(writing(broker))
        except StoreUnavailable:
            await asyncio.sleep(0.1)


async def _publish_runs(soak: Soak, broker: Broker, pace: float, size: int) -> None:
    while not soak.over.is_set():
        async with contextlib.AsyncExitStack() as stack:
            publisher = await _begin(broker, stack)
            script = Script(publisher.run_id)
            soak.scripts.append(script)
            until = time.monotonic() + soak.rng.uniform(2, 14)
            while time.monotonic() < until and not soak.over.is_set():
                for _ in range(soak.rng.choice([1, 1, 1, 20])):
                    item, type_ = _item(soak.rng, size, len(script.types))
                    script.note(item, type_)
                    await publisher.publish(item)
                await asyncio.sleep(pace)
            final = Final()
            script.note(final, "final")
            last = await publisher.seal(final)
            assert last == len(script.types) - 1


# Viewers.


class Watch:
    """One viewer of one run until its end, over as many connections as that takes."""

    def __init__(self, soak: Soak, script: Script) -> None:
        rng = soak.rng
        self.soak, self.script = soak, script
        self.modes_text = rng.choice(MODES)
        self.modes = parse_modes([self.modes_text] if self.modes_text else [])
        self.compact = rng.random() < 0.4
        self.now = rng.random() < 0.2
        self.malformed = not self.now and rng.random() < 0.05
        self.slow = rng.random() < 0.2
        self.restless = rng.random() < 0.4
        self.at: int | None = None if self.now else 0
        """Everything up to here has come; ``None``: it does not know yet where it begins."""
        self.last_id = "" if self.now or rng.random() < 0.7 else self._somewhere()
        self.fence = self.done = False
        self.reset_due = False
        self.trace: list[str] = []

    def _somewhere(self) -> str:
        """A cursor that an earlier visit may have left."""
        return f"{self.script.run_id}:{self.soak.rng.randrange(self.script.seen + 1)}"

    def __repr__(self) -> str:
        return f"{self.script.run_id} modes={self.modes_text} {vars(self) | {'soak': 0, 'script': 0}}"

    async def run(self, connection: Response | None) -> Response | None:
        """Watch; a connection that is still good comes in and goes out."""
        while not self.done:
            self.soak.connections += 1
            try:
                connection = await self._once(connection)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                connection = None
            if not self.done:
                await asyncio.sleep(self.soak.rng.uniform(0.02, 0.3))
        self.soak.watched += 1
        return connection

    async def _once(self, connection: Response | None) -> Response | None:
        self._stand()
        query = [f"modes={self.modes_text}", f"compact={int(self.compact)}", *(["from=now"] if self.now else [])]
        target = f"/v1/runs/{self.script.run_id}/stream?{'&'.join(query)}"
        cursor = self.last_id or ("nonsense" if self.malformed else "")
        self.reset_due = cursor == "nonsense"
        headers = [("Last-Event-ID", cursor)] if cursor else []
        if connection is None:
            connection = await _connect(self.soak.rng.choice(self.soak.ports), self.slow)
        else:
            self.soak.reused += 1
        good = False
        try:
            await connection.ask(target, headers=headers)
            self.trace.append(f"{connection.status} after {cursor!r}")
            assert connection.status in (200, 204), connection.status
            if connection.status == 204:
                assert self.at == len(self.script.types) - 1, f"204 at {self.at}: {self}"
                self.done = True
            else:
                await self._read(connection)
            good = connection.complete and connection.headers.get("connection") != "close"
        finally:
            if not good:
                connection.leave()
        return connection if good else None

    def _stand(self) -> None:
        if self.last_id:
            self.at = int(self.last_id.rpartition(":")[2])
        else:
            self.at = None if self.now else 0

    async def _read(self, connection: Response) -> None:
        rng, over = self.soak.rng, self.soak.over
        until = time.monotonic() + (rng.expovariate(0.5) if self.restless and not over.is_set() else 1e9)
        while not connection.complete:
            async with asyncio.timeout(15):  # heartbeats come each second
                part = await connection.part()
            for frame in frames_of(part):
                self.take(frame)
            if time.monotonic() > until and not over.is_set():
                raise ConnectionAbortedError("this viewer's network is bad")
            if self.slow and not over.is_set():
                await asyncio.sleep(rng.uniform(0, 0.3))

    def take(self, frame: Frame) -> None:
        assert not self.done, f"{frame} after the end: {self}"
        if frame.event in (":", "retry"):
            return
        assert frame.data["run_id"] == self.script.run_id
        match frame.event:
            case "reset":
                assert self.reset_due, f"{frame}: {self}"
                self.reset_due, self.at = False, 0
            case "gap":
                self._gap(frame.data["requested"], frame.data["earliest"])
            case "cursor":
                self._hidden(frame.data["seq"])
            case "end":
                assert self.fence, f"end without a fence: {self}"
                assert frame.data["last_seq"] == self.at == len(self.script.types) - 1
                self.done = True
            case _:
                self._shown(frame)
        self.last_id = frame.id or self.last_id
        self.script.seen = max(self.script.seen, self.at or 0)

    def _gap(self, requested: int, earliest: int) -> None:
        self.soak.gaps += 1
        assert self.at is not None
        assert self.at <= requested < earliest - 1, f"gap {requested}..{earliest} at {self.at}: {self}"
        assert not self.script.shown(self.at, requested, self.modes), f"gap {requested} at {self.at}: {self}"
        self.at = earliest - 1

    def _hidden(self, seq: int) -> None:
        if self.at is not None:
            assert seq >= self.at, f"cursor {seq} at {self.at}: {self}"
            assert not self.script.shown(self.at, seq, self.modes), f"cursor {seq} at {self.at}: {self}"
        self.at = seq

    def _shown(self, frame: Frame) -> None:
        seq, script = frame.data["seq"], self.script
        assert frame.id == f"{script.run_id}:{seq}"
        assert self.at is not None
        assert seq > self.at, f"{seq} came again, or out of order, at {self.at}: {self}"
        assert script.types[seq] == frame.event
        new = script.shown(self.at, seq, self.modes)
        assert new, f"{seq} is not for this viewer: {self}"
        assert new[-1] == seq
        if self.modes == Mode.FINAL or not self.compact:
            assert len(new) == 1, f"{seq} came at {self.at}, {new[:-1]} did not: {self}"
        assert all(script.types[n] == frame.event for n in new), f"compacted across {new}: {self}"
        if frame.event == "message.delta":
            assert frame.data["text"] == "".join(script.texts[n] for n in new), f"the text of {new}: {self}"
        else:
            assert len(new) == 1, f"{seq} came at {self.at}, {new[:-1]} did not: {self}"
        self.at, self.fence = seq, frame.event == "final"


async def _connect(port: int, slow: bool) -> Response:
    sock = socket.socket()
    try:
        if slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        sock.setblocking(False)
        async with asyncio.timeout(5):
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << (12 if slow else 16))
    except BaseException:
        sock.close()
        raise
    return Response(reader, writer)


async def _view(soak: Soak, current: dict[int, Watch], number: int) -> None:
    connection: Response | None = None
    try:
        while not soak.over.is_set():
            watch = current[number] = Watch(soak, soak.rng.choice(soak.scripts[-8:]))
            connection = await watch.run(connection if soak.rng.random() < 0.5 else _left(connection))
        del current[number]
    finally:
        _left(connection)


def _left(connection: Response | None) -> None:
    if connection is not None:
        connection.leave()


# What breaks.


async def _break(soak: Soak, redis: RedisServer, gateways: list[GatewayProcess]) -> None:
    async def pause_redis() -> None:
        redis.pause()
        await asyncio.sleep(soak.rng.uniform(0.3, 3.0))
        redis.resume()

    async def restart_redis() -> None:
        await asyncio.to_thread(redis.restart, kill=soak.rng.random() < 0.5)

    async def drain() -> None:
        gateways[0].signal(15)
        assert await gateways[0].ended() == 0
        await asyncio.to_thread(gateways[0].start)

    async def kill() -> None:
        gateways[1].kill()
        await asyncio.to_thread(gateways[1].start)

    rounds: list[Callable[[], Awaitable[None]]] = []
    while not soak.over.is_set():
        if not rounds:
            rounds = soak.rng.sample([pause_redis, restart_redis, drain, kill, pause_redis], k=5)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(soak.over.wait(), soak.rng.uniform(1.0, 4.0))
            break
        await rounds.pop()()


# The end.


def _resident(gateway: GatewayProcess) -> float:
    """MiB."""
    return int(Path(f"/proc/{gateway.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


async def _nothing_is_left(gateway: GatewayProcess) -> None:
    for name in ("runcast_viewers", "runcast_feeds"):
        await gateway.reads(name, 0.0)
    # The bus, which tells sessions of their runs, is followed all the time.
    await gateway.reads("runcast_followed_keys", gateway.settings.partitions)
    assert _resident(gateway) < 200
    assert len(os.listdir(f"/proc/{gateway.pid}/fd")) < 40
    # A slow reader may still have bytes to take when the time for a drain is over: uvicorn calls that an error.
    wrong = [line for line in gateway.log.splitlines() if "Traceback" in line or "ERROR" in line]
    assert all("graceful shutdown exceeded" in line for line in wrong), gateway.log


async def _logs_are_whole(soak: Soak, broker: Broker) -> None:
    for script in soak.scripts:
        state = await broker.log.state(script.run_id)
        assert (state.status, state.last) == ("completed", len(script.types) - 1)
        at = state.first - 1
        while entries := await broker.log.read(script.run_id, at, limit=1000):
            assert [e.type.decode() for e in entries] == script.types[at + 1 : at + 1 + len(entries)]
            at = entries[-1].seq
        assert at == state.last


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 150)
async def test_everything_at_once_and_nobody_loses_anything(
    redis_server: RedisServer, namespace: str, tmp_path: Path
) -> None:
    print(f"SOAK_SEED={SEED} SOAK_SECONDS={SECONDS:g}")
    settings = Settings(
        redis_url=redis_server.url,
        namespace=namespace,
        block=1.0,
        request_deadline=1.0,
        heartbeat=1.0,
        cursor_seconds=1.0,
        cursor_items=50,
        high_water=16 << 10,
        run_max_items=2_500,
        retry_ms=200,
        drain=2.0,
        sweep=1.0,
    )
    gateways = [GatewayProcess(settings, tmp_path) for _ in range(2)]
    soak = Soak(random.Random(SEED), [g.port for g in gateways])
    current: dict[int, Watch] = {}
    try:
        for gateway in gateways:
            gateway.start()
        async with api.open(settings=settings) as broker:
            await _soak(soak, broker, redis_server, gateways, current)
            for gateway in gateways:
                await _nothing_is_left(gateway)
            print(f"{[round(_resident(g)) for g in gateways]} MiB")
            clients = len(bytes(redis_server.command("CLIENT", "LIST")).splitlines())  # type: ignore[arg-type]
            assert clients <= 3 * (3 + settings.lanes) + 1
            await _logs_are_whole(soak, broker)
    finally:
        for gateway in gateways:
            gateway.kill()
    print(f"{soak.watched} streams watched to the end over {soak.connections} requests, {soak.reused} on a used")
    print(f"connection; {soak.gaps} gaps; {len(soak.scripts)} runs of {sum(len(s.types) for s in soak.scripts)} items")
    assert soak.watched > VIEWERS


async def _soak(
    soak: Soak, broker: Broker, redis: RedisServer, gateways: list[GatewayProcess], current: dict[int, Watch]
) -> None:
    async with asyncio.TaskGroup() as group:
        for pace, size in PACES:
            group.create_task(_publish_runs(soak, broker, pace, size))
        while len(soak.scripts) < len(PACES):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for number in range(VIEWERS):
            group.create_task(_view(soak, current, number))
        breaking = group.create_task(_break(soak, redis, gateways))
        await asyncio.sleep(SECONDS)
        soak.over.set()
        await breaking
        end = time.monotonic() + 60
        while current:
            assert time.monotonic() < end, f"{len(current)} viewers hang: {list(current.values())[:3]}"
            await asyncio.sleep(0.1)
