"""Listeners of the bus: bounded, filtered, cut when they do not keep up; and what their frames look like."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client import REGISTRY

from broker.api import Broker
from broker.settings import Settings
from broker.sse import Decoder
from gateway.bus import QUEUE_BYTES, QUEUE_EVENTS, BusFeed, Kinds, Listener, parse_kinds, render_event
from gateway.connection import Connection
from gateway.routes.events import EventStream
from tests.servers import eventually


def dropped(reason: str) -> float:
    return REGISTRY.get_sample_value("runcast_event_listeners_dropped_total", {"reason": reason}) or 0.0


@pytest.mark.parametrize(
    ("kinds", "yes", "no"),
    [
        ([], ["run.created", "worker.lost"], []),
        (["*"], ["run.created", "worker.lost"], []),
        (["run.*"], ["run.created", "run.a.b"], ["worker.lost", "runner.x"]),
        (["run.created,worker.*"], ["run.created", "worker.lost"], ["run.failed", "run.created.x"]),
        (["run.created", "run.failed"], ["run.created", "run.failed"], ["run.completed"]),
        ([" , "], ["run.created"], []),
    ],
)
def test_kinds(kinds: list[str], yes: list[str], no: list[str]) -> None:
    wanted = parse_kinds(kinds)
    assert all(kind in wanted for kind in yes)
    assert not any(kind in wanted for kind in no)


@pytest.mark.parametrize(("frame", "fits"), [(b"x", QUEUE_EVENTS), (b"x" * 4000, QUEUE_BYTES // 4000)])
def test_a_listener_that_does_not_keep_up_is_given_up(frame: bytes, fits: int) -> None:
    before = dropped("too_slow")
    listener = Listener(Kinds([]), None)
    for _ in range(fits):
        listener.offer(frame)
    assert listener.dropped is None
    listener.offer(frame)
    listener.offer(frame)
    assert (listener.dropped, listener.take()) == ("too_slow", b"")
    assert dropped("too_slow") == before + 1


def test_a_frame_has_what_the_entry_has() -> None:
    entry = {b"kind": b"run.failed", b"run_id": b"r", b"session_id": b"", b"ts": b"1.500000", b"d": b'{"attempt":2}'}
    frame = render_event("run.failed", entry)
    assert frame == b'event: run.failed\ndata: {"kind":"run.failed","run_id":"r","ts":1.5,"attempt":2}\n\n'


@pytest.mark.parametrize("d", [b"", b"{", b"[1]", b"\xff", b'"x"', b'{"kind":"other","run_id":"x"}'])
def test_strange_entries_make_whole_frames(d: bytes) -> None:
    entry = {b"kind": b"run\n.x", b"run_id": b"r\xff", b"ts": b"soon", b"d": d}
    (event,) = Decoder().feed(render_event("run\n.x", entry))
    body = json.loads(event.data)
    assert (event.event, body["kind"], body["run_id"], body["ts"]) == ("run.x", "run\n.x", "r\ufffd", None)


class Peer:
    """An ASGI server whose client takes nothing after the opening until told to."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.reading = asyncio.Event()
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if len(self.sent) > 2:
            await self.reading.wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def start(broker: Broker, peer: Peer, **changes: Any) -> tuple[asyncio.Task[None], Listener, BusFeed, Connection]:
    settings: Settings = broker.settings.model_copy(update=changes)
    connection, feed, listener = Connection(settings, broker), BusFeed(), Listener(Kinds([]), None)
    response = EventStream(connection, feed, listener)
    scope = {"type": "http", "method": "GET"}
    task = asyncio.create_task(response(scope, peer.receive, peer.send))
    await eventually(lambda: listener in feed._listeners)
    return task, listener, feed, connection


async def test_a_slow_listener_is_ended_with_the_reason(broker: Broker) -> None:
    peer = Peer()
    task, listener, feed, _ = await start(broker, peer)
    for _ in range(QUEUE_EVENTS + 2):
        listener.offer(b": x\n")
    peer.reading.set()
    await asyncio.wait_for(task, 30)
    assert peer.body.endswith(b'event: end\ndata: {"reason":"too_slow"}\n\n')
    assert peer.sent[-1]["more_body"] is False
    assert not feed._listeners


async def test_a_listener_that_takes_nothing_is_cut(broker: Broker) -> None:
    before = dropped("stalled")
    peer = Peer()
    task, listener, feed, _ = await start(broker, peer, stall_limit=0.2)
    listener.offer(b": x\n")
    await asyncio.wait_for(task, 30)
    assert dropped("stalled") == before + 1
    assert not feed._listeners


async def test_leaving_and_draining_end_it(broker: Broker) -> None:
    leaving, draining = Peer(), Peer()
    leaving.reading.set()
    draining.reading.set()
    first, _, feed, _ = await start(broker, leaving)
    leaving.gone.set()
    await asyncio.wait_for(first, 30)
    assert not feed._subscriptions
    second, _, _, connection = await start(broker, draining)
    connection.drain()
    await asyncio.wait_for(second, 30)
    assert b"retry: " in draining.sent[-1]["body"]
