"""What the WebUI's clients live through, each of the three: nothing is shown twice, nothing hangs, and nobody comes
back again and again once the turn is over."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from broker import api
from broker.api import Broker
from broker.items import Cancelled, Event, Final, MessageDelta, Summary
from broker.publisher import Publisher
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.e2e.test_eventsource import browser  # noqa: F401  # a fixture
from tests.gateways import GatewayProcess, say, until
from tests.servers import Proxy
from tests.webui.pages import Android, Client, NativeSource, WebuiPage
from tests.webui.wire import trim

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLIENTS = ["native", "page", "android"]
RESTS = {NativeSource: 4.0, WebuiPage: 1.0, Android: 1.0}
"""Seconds in which nobody may come back: more than what a client waits that was not told otherwise."""


class Wire(Proxy):
    """Between client and gateway: which streams were asked for. ``hurried``: clients are told to come back soon."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.asked: list[str] = []
        self.hurried = False

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: bool) -> None:
        try:
            while chunk := await reader.read(65536):
                if replies and self.hurried:
                    chunk = chunk.replace(b"retry: 3600000\n", b"retry: 0000200\n")
                if not replies:
                    self.asked += re.findall(r"GET (/api/chat/stream\?\S*) ", chunk.decode("latin-1"))
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()


@pytest.fixture(scope="module", params=["redis7"])
def settings(request: pytest.FixtureRequest) -> Settings:
    """Browsers see no difference between the servers."""
    from tests.webui.conftest import settings_of

    return settings_of(request, request.param)


@pytest_asyncio.fixture(loop_scope="module")
async def broker(gateway: GatewayProcess) -> AsyncIterator[Broker]:
    async with api.open(settings=gateway.settings) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def wire(gateway: GatewayProcess) -> AsyncIterator[Wire]:
    async with Wire(gateway.port) as proxy:
        yield proxy


@pytest_asyncio.fixture(loop_scope="module", params=CLIENTS)
async def client(request: pytest.FixtureRequest, wire: Wire, browser: Browser) -> AsyncIterator[Client]:  # noqa: F811
    if request.param == "android":
        app = Android(wire.port)
        yield app
        app.leave()
        return
    page = await browser.new_page()
    await page.goto(f"http://127.0.0.1:{wire.port}/healthz")
    yield NativeSource(page) if request.param == "native" else WebuiPage(page)
    await page.close()


class Played:
    """A turn of a session that the test plays the worker of."""

    def __init__(self, publisher: Publisher, session_id: str) -> None:
        self.p, self.session_id = publisher, session_id
        self.said = ""

    async def say(self, count: int) -> None:
        for _ in range(count):
            text = f"w{self.p.last}é😀 "
            self.said += text
            await say(self.p, text)

    async def end(self) -> None:
        message = {"role": "assistant", "content": [{"type": "text", "text": self.said}]}
        await self.p.publish(Final(message=message, rounds=1, hermes_session_id="the newest"))
        await self.p.flush()


@pytest_asyncio.fixture(loop_scope="module")
async def turn(broker: Broker) -> AsyncIterator[Played]:
    session = await broker.sessions.create()
    request = RunRequest(runner="nobody", input=RunInput(message="question"), session_id=session.session_id)
    record, _ = await broker.runs.create(request, enqueue=False)
    claim = await broker.runs.claim(record.run_id, record.attempt, f"owner of {record.run_id}")
    async with broker.publisher(claim) as publisher:
        beats = asyncio.create_task(_beat(broker, publisher))
        yield Played(publisher, session.session_id)
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)


async def _beat(broker: Broker, p: Publisher) -> None:
    while True:
        await broker.runs.beat(p.run_id, f"owner of {p.run_id}", p.epoch)
        await asyncio.sleep(0.3)


async def rests(client: Client, wire: Wire) -> None:
    """Nothing is asked any more."""
    asked = len(wire.asked)
    await asyncio.sleep(RESTS[type(client)])
    assert len(wire.asked) == asked, wire.asked


async def ends_well(client: Client, turn: Played, wire: Wire) -> None:
    await client.over()
    assert await client.text() == turn.said
    assert (await client.events())[-3:] == ["done", "metering", "stream_end"]
    assert (await client.last()) == {"session_id": turn.session_id}
    await rests(client, wire)


async def test_a_turn_without_an_incident(client: Client, turn: Played, wire: Wire):
    await client.open(turn.p.run_id, turn.session_id)
    await turn.say(10)
    await client.has("w9")
    await turn.say(10)
    await turn.end()
    await ends_well(client, turn, wire)
    assert len(wire.asked) == 1


async def test_connections_that_are_lost_in_mid_run(client: Client, turn: Played, wire: Wire):
    await client.open(turn.p.run_id, turn.session_id)
    for n in range(4):
        await turn.say(5)
        await client.has(f"w{turn.p.last - 1}é")
        asked = len(wire.asked)
        wire.cut()
        await turn.say(n)
        await until(lambda asked=asked: len(wire.asked) > asked)
    await turn.say(3)
    await turn.end()
    await ends_well(client, turn, wire)


async def test_a_return_at_the_fence(client: Client, turn: Played, wire: Wire):
    """Whoever comes back with all of it is told so, each time: no idle stream, no second text."""
    wire.hurried = True
    await client.open(turn.p.run_id, turn.session_id)
    await turn.say(5)
    await turn.end()
    await client.over()
    if isinstance(client, NativeSource):
        await until(lambda: len(wire.asked) >= 4)
    else:
        first = f"&replay=1&after_seq={turn.p.last}&after_event_id={turn.p.run_id}:{turn.p.last}"
        await client.open(turn.p.run_id, turn.session_id, first)
        await client.over()
        assert await client.text() == ""
    assert (await client.events())[-3:] == ["done", "metering", "stream_end"]
    if isinstance(client, NativeSource):
        assert await client.text() == turn.said


@pytest.mark.parametrize("cursor", ["{run}:999", "other:3", "{run}:x"], ids=["ahead", "foreign", "garbage"])
async def test_a_cursor_that_is_no_good(client: Client, turn: Played, wire: Wire, cursor: str):
    await turn.say(5)
    await client.open(turn.p.run_id, turn.session_id, f"&after_event_id={cursor.replace('{run}', turn.p.run_id)}")
    await client.has("w4é")
    await turn.say(5)
    await turn.end()
    await ends_well(client, turn, wire)


async def test_a_turn_whose_beginning_is_not_kept(client: Client, turn: Played, wire: Wire, broker: Broker):
    await turn.say(6)
    await trim(broker, turn.p.run_id, 4)
    await client.open(turn.p.run_id, turn.session_id)
    await client.over()
    assert await client.events() == ["apperror"]
    assert (await client.last())["recovery_control"] is True
    assert await client.recovered() in (None, [], ["question"])
    await turn.end()
    await rests(client, wire)


async def test_a_return_to_a_turn_of_which_too_much_is_gone(client: Client, turn: Played, wire: Wire, broker: Broker):
    await client.open(turn.p.run_id, turn.session_id)
    await turn.say(3)
    await client.has("w2é")
    shown = turn.said
    wire.refuse = True
    wire.cut()
    await turn.say(6)
    await trim(broker, turn.p.run_id, 8)
    await turn.end()
    wire.refuse = False
    await client.over()
    assert (await client.last())["recovery_control"] is True
    assert await client.text() in (shown, "")
    assert await client.recovered() in (None, ["question", turn.said])
    await rests(client, wire)


async def test_a_worker_that_is_lost(client: Client, wire: Wire, broker: Broker):
    session = await broker.sessions.create()
    request = RunRequest(runner="nobody", input=RunInput(message="question"), session_id=session.session_id)
    record, _ = await broker.runs.create(request, enqueue=False)
    claim = await broker.runs.claim(record.run_id, record.attempt, "owner")
    async with broker.publisher(claim) as publisher:
        await client.open(record.run_id, session.session_id)
        await say(publisher, "some ", "text ")
        await client.has("text ")
        # As a sweep does it that has heard of nobody for a lease.
        assert await broker.runs.takeover(await broker.runs.get(record.run_id)) == "failed"
        await client.over()
        told = await client.last()
        assert (told["type"], told["code"], "recovery_control" in told) == ("interrupted", "worker_lost", False)
        assert await client.text() == "some text "
        await rests(client, wire)


async def test_a_turn_that_is_stopped(client: Client, turn: Played, wire: Wire):
    await client.open(turn.p.run_id, turn.session_id)
    await turn.say(4)
    await client.has("w3é")
    await turn.p.publish(Cancelled())
    await turn.p.flush()
    await client.over()
    assert (await client.events())[-1] == "cancel"
    assert (await client.last())["session_id"] == turn.session_id
    assert await client.text() == turn.said
    await rests(client, wire)


async def test_a_session_id_that_hermes_rotates(client: Client, turn: Played, wire: Wire, broker: Broker):
    await client.open(turn.p.run_id, turn.session_id)
    await turn.say(3)
    await turn.p.publish(Summary(text="shorter", replaces=3))
    rotated: dict[str, Any] = {"hermes_session_id": "the newest", "rotated_from": "the first"}
    await turn.p.publish(Event(name="hermes.session", payload=rotated))
    await turn.say(3)
    await turn.end()
    await ends_well(client, turn, wire)
    assert "compressed" in await client.events()

    async def recorded() -> bool:
        session = await broker.sessions.get(turn.session_id)
        return session.hermes_session_id == "the newest"

    await until(recorded)


async def test_an_outage_between(client: Client, turn: Played, wire: Wire):
    await client.open(turn.p.run_id, turn.session_id)
    await turn.say(3)
    await client.has("w2é")
    wire.refuse = True
    wire.cut()
    await turn.say(3)
    await asyncio.sleep(0.5)  # it tries in vain meanwhile
    wire.refuse = False
    await turn.say(3)
    await turn.end()
    await ends_well(client, turn, wire)


@pytest.mark.long
async def test_nobody_comes_back_in_the_minute_after_the_end(client: Client, turn: Played, wire: Wire):
    await client.open(turn.p.run_id, turn.session_id)
    await turn.say(3)
    await turn.end()
    await client.over()
    asked = len(wire.asked)
    await asyncio.sleep(60)
    assert len(wire.asked) - asked <= 1


async def test_frames_come_as_they_are_made(client: Client, turn: Played):
    await client.open(turn.p.run_id, turn.session_id)
    for n in range(5):
        await turn.p.publish(MessageDelta(text=f"alone{n} "))
        await turn.p.flush()
        await client.has(f"alone{n} ")
    await turn.end()
    await client.over()
