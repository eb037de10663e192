"""``/api/chat/stream`` over real HTTP: heads, silences, ends, and what happens to a viewer while he watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.api import Broker
from broker.items import Cancelled, Failed, Final, MessageDelta
from broker.requests import RunInput, RunRequest
from broker.session_messages import read_messages
from broker.settings import Settings
from tests.gateways import GatewayProcess, Response, say, writing
from tests.webui.wire import blocks_of, chat, closed, ids_of, numbers, target, trim, until_wire


async def test_the_head_comes_at_once_though_nothing_follows(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        began = time.monotonic()
        async with await chat(gateway, p.run_id) as stream:
            assert time.monotonic() - began < 10.0  # it waits for no item: there is none
            assert stream.status == 200
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert "no-cache" in stream.headers["cache-control"]
            assert stream.headers["x-accel-buffering"] == "no"
            assert stream.chunked
            await say(p, "one", end=True)
            assert [b.event for b in blocks_of(await stream.body())] == ["token", "done", "metering", "stream_end"]


@pytest.mark.parametrize("query", [{}, {"after_seq": "3"}, {"replay": "1"}])
async def test_head_is_headers_and_nothing_else(gateway: GatewayProcess, broker: Broker, query: dict[str, str]):
    async with writing(broker) as p:
        await say(p, 3)
        async with await chat(gateway, p.run_id, query, method="HEAD") as stream:
            assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            await stream.ask(target("unknown"))  # the connection is good for another request
            assert stream.status == 404


@pytest.mark.parametrize("run_id", ["unknown", "", "a/b", "x" * 200, "\x00"])
async def test_an_unknown_stream(gateway: GatewayProcess, run_id: str):
    for method in ("GET", "HEAD"):
        async with await chat(gateway, run_id, method=method) as stream:
            assert stream.status == 404
            if method == "GET":
                assert await stream.body() == b'{"error":"stream not found"}'


async def test_other_methods_and_too_many_fields(gateway: GatewayProcess):
    async with await Response.open(
        gateway.port, "/api/chat/stream", method="POST", headers=[("Content-Length", "0")]
    ) as r:
        assert r.status == 405
        assert b'"error"' in await r.body()
    async with await Response.open(gateway.port, "/api/chat/stream?" + "a=1&" * 200) as r:
        assert r.status == 400
        assert b'"error"' in await r.body()


async def test_a_silence_is_broken_by_whole_comments(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p, await chat(gateway, p.run_id) as stream:
        await until_wire(stream, b": heartbeat\n\n: heartbeat\n\n")
        await say(p, "one")
        await until_wire(stream, b'"one"}\n\n: heartbeat\n\n')
        comments = {b.comment for b in blocks_of(stream.wire) if b.comment is not None}
        assert comments == {"heartbeat"}


async def test_http_1_0_gets_a_body_that_ends_with_the_connection(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        await say(p, 3, end=True)
        async with await chat(gateway, p.run_id, version="1.0") as stream:
            assert not stream.chunked
            assert numbers(blocks_of(await stream.body()), p.run_id) == [1, 2, 3, 4]


async def test_a_connection_is_good_for_the_next_request_after_the_end(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        await say(p, 3, end=True)
        async with await chat(gateway, p.run_id) as stream:
            first = await stream.body()
            await stream.ask(target(p.run_id))
            assert await stream.body() == first


async def test_every_viewer_gets_the_same_bytes_live_or_late(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        streams = [await chat(gateway, p.run_id) for _ in range(3)]
        for n in range(30):
            await say(p, f"é😀\u2028 {n} ")
        await say(p, end=True)
        wires = [_quiet(await stream.body()) for stream in streams]
        late = await chat(gateway, p.run_id)
        assert {*wires, _quiet(await late.body())} == {wires[0]}
        for stream in (*streams, late):
            stream.leave()


async def test_the_cursor_at_the_fence_gets_the_fence_and_the_end_each_time(gateway: GatewayProcess, broker: Broker):
    """The model system hung on heartbeats for ever."""
    async with writing(broker) as p:
        await say(p, 3, end=True)
        for _ in range(3):
            blocks = await closed(gateway, p.run_id, header=f"{p.run_id}:4")
            assert [b.event for b in blocks] == ["done", "metering", "stream_end"]
            assert ids_of(blocks) == [f"{p.run_id}:4"]


@pytest.mark.parametrize(
    ("fence", "event"),
    [(Failed(code="worker_lost", message="gone"), "apperror"), (Cancelled(), "cancel")],
)
async def test_a_cancel_and_a_lost_worker_own_their_ids(
    gateway: GatewayProcess, broker: Broker, fence: Failed | Cancelled, event: str
):
    """In the model system a reconnect lost the one, and doubled everything before the other."""
    async with writing(broker) as p:
        await say(p, 3)
        await p.publish(fence)
        await p.flush()
        blocks = await closed(gateway, p.run_id)
        assert (blocks[-1].event, blocks[-1].id, blocks[-1].retry) == (event, f"{p.run_id}:4", 3_600_000)
        for cursor in (3, 4):
            again = await closed(gateway, p.run_id, header=f"{p.run_id}:{cursor}")
            assert [(b.event, b.id) for b in again] == [(event, f"{p.run_id}:4")]


async def test_a_run_whose_items_expired_is_one_recovery_signal(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        await say(p, 3, end=True)
        await broker.store.call("DEL", broker.keys.items(p.run_id))
        for header in (None, f"{p.run_id}:2", f"{p.run_id}:4"):
            [block] = await closed(gateway, p.run_id, header=header)
            assert (block.event, block.id, block.data["recovery_control"]) == ("apperror", None, True)


async def test_retention_that_overtakes_a_live_viewer_is_one_recovery_signal(gateway: GatewayProcess, broker: Broker):
    """A hole in what he sees, or a frame behind the signal, would be text that is wrong without a sign of it."""
    async with writing(broker) as p:
        await say(p, 2)
        streams = [await chat(gateway, p.run_id) for _ in range(3)]
        for stream in streams:
            await until_wire(stream, f"id: {p.run_id}:2\n".encode())
        # In one step for whoever follows the log: items that came, and went before they were read.
        await _append_and_trim(broker, p.run_id, first=9, last=12)
        for stream in streams:
            blocks = [b for b in blocks_of(await stream.body()) if b.comment is None]
            assert numbers(blocks[:-1], p.run_id) == [1, 2]
            assert (blocks[-1].event, blocks[-1].id) == ("apperror", None)
            assert blocks[-1].data["recovery_control"] is True
            stream.leave()


async def _append_and_trim(broker: Broker, run_id: str, *, first: int, last: int) -> None:
    items, record = broker.keys.items(run_id), broker.keys.run(run_id)
    adds = [
        ("XADD", items, f"{n}-0", "t", "message.delta", "d", f'{{"ts":1.0,"text":"t{n} "}}') for n in range(3, last + 1)
    ]
    trims = [("XTRIM", items, "MINID", f"{first}-0"), ("HSET", record, "first", first, "last", last)]
    await broker.store.pipeline([*adds, *trims], atomic=True)


async def test_a_log_that_lost_its_end_is_one_recovery_signal(gateway: GatewayProcess, broker: Broker):
    """What this client has shown is gone: from the start once more it would have the text twice."""
    async with writing(broker) as p:
        await say(p, 5)
        stream = await chat(gateway, p.run_id)
        await until_wire(stream, f"id: {p.run_id}:5\n".encode())
        await broker.store.call("XDEL", broker.keys.items(p.run_id), "4-0", "5-0")
        await broker.store.call("HSET", broker.keys.run(p.run_id), "last", 3, "epoch", 2, "rewound_to", 3)
        broker_clients = await broker.store.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert broker_clients
        blocks = [b for b in blocks_of(await stream.body()) if b.comment is None]
        assert numbers(blocks[:-1], p.run_id) == [1, 2, 3, 4, 5]
        assert (blocks[-1].event, blocks[-1].data["recovery_control"]) == ("apperror", True)
        stream.leave()


async def test_a_slow_viewer_misses_nothing(gateway: GatewayProcess, broker: Broker):
    """The model system dropped the oldest frames of his queue."""
    async with writing(broker) as p:
        stream = await Response.open(gateway.port, target(p.run_id), limit=4096)
        for n in range(400):
            await p.publish(MessageDelta(text=f"{n} ".ljust(10_000, "x")))
        await say(p, end=True)
        async with asyncio.timeout(30):
            while not stream.complete:
                await stream.part()
                await asyncio.sleep(0.0005)
        blocks = [b for b in blocks_of(stream.wire) if b.comment is None]
        assert numbers(blocks, p.run_id) == list(range(1, 402))
        stream.leave()


async def test_before_the_first_item_and_before_anybody_claims_the_run(gateway: GatewayProcess, broker: Broker):
    record, _ = await broker.runs.create(RunRequest(runner="nobody", input=RunInput(message="q")))
    async with await chat(gateway, record.run_id) as stream:
        await until_wire(stream, b": heartbeat\n\n")
        await broker.runs.cancel(record.run_id)
        [block] = [b for b in blocks_of(await stream.body()) if b.comment is None]
        assert (block.event, block.id) == ("cancel", f"{record.run_id}:1")


async def test_a_turn_of_a_session_ends_with_its_messages_and_its_name(gateway: GatewayProcess, broker: Broker):
    session = await broker.sessions.create()
    for text in ("first", "second"):
        await _turn(broker, session.session_id, text)
    run_id = await _turn(broker, session.session_id, "third")
    blocks = await closed(gateway, run_id)
    done, end = blocks[-3], blocks[-1]
    assert end.data == {"session_id": session.session_id}
    shown = done.data["session"]
    said = ["first", "echo first", "second", "echo second", "third", "echo third"]
    assert [m["content"] for m in shown["messages"]] == said
    assert (shown["session_id"], shown["message_count"]) == (session.session_id, 6)
    # Front ends know a message again by its time and its text.
    assert shown["messages"] == (await read_messages(broker.sessions, session.session_id)).messages


async def test_an_earlier_turn_ends_with_what_was_said_until_then(gateway: GatewayProcess, broker: Broker):
    session = await broker.sessions.create()
    first = await _turn(broker, session.session_id, "first")
    await _turn(broker, session.session_id, "second")
    done = (await closed(gateway, first))[-3]
    assert [m["content"] for m in done.data["session"]["messages"]] == ["first", "echo first"]


async def _turn(broker: Broker, session_id: str, text: str) -> str:
    """A whole run of the session, which answers what it was asked."""
    request = RunRequest(runner="scripted", input=RunInput(message=text), session_id=session_id)
    record, _ = await broker.runs.create(request, enqueue=False)
    claim = await broker.runs.claim(record.run_id, record.attempt, f"owner of {record.run_id}")
    async with broker.publisher(claim) as p:
        answer = {"role": "assistant", "content": [{"type": "text", "text": f"echo {text}"}]}
        await p.publish(MessageDelta(text=f"echo {text}"))
        await p.publish(Final(message=answer, rounds=1))
        await p.flush()
    return record.run_id


async def test_a_gateway_that_is_shut_down_ends_the_stream_between_frames(
    gateway_to_stop: GatewayProcess, broker: Broker
):
    gateway = gateway_to_stop
    async with writing(broker) as p:
        await say(p, 3)
        stream = await chat(gateway, p.run_id)
        await until_wire(stream, f"id: {p.run_id}:3\n".encode())
        gateway.signal(15)
        blocks = [b for b in blocks_of(await stream.body()) if b.comment is None]
        assert numbers(blocks, p.run_id) == [1, 2, 3]
        assert (blocks[-1].event, blocks[-1].id) == ("", None)
        assert blocks[-1].retry is not None
        assert blocks[-1].retry < 60_000
        stream.leave()
        await gateway.ended()


@pytest.fixture
def gateway_to_stop(settings: Settings, tmp_path: Path) -> Iterator[GatewayProcess]:
    process = GatewayProcess(settings, tmp_path).start()
    yield process
    process.kill()


def _quiet(wire: bytes) -> bytes:
    return wire.replace(b": heartbeat\n\n", b"")


async def test_the_native_route_has_the_format_too(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        await say(p, 5, end=True)
        path = f"/v1/runs/{p.run_id}/stream?format=webui"
        async with await Response.open(gateway.port, path) as stream:
            blocks = blocks_of(await stream.body())
            assert numbers(blocks, p.run_id) == [1, 2, 3, 4, 5, 6]
            assert [b.event for b in blocks[-3:]] == ["done", "metering", "stream_end"]
        await trim(broker, p.run_id, 4)
        for header in (None, "other:1", f"{p.run_id}:1"):
            headers = [] if header is None else [("Last-Event-ID", header)]
            async with await Response.open(gateway.port, path, headers=headers) as stream:
                [block] = blocks_of(await stream.body())
                assert (block.event, block.id, block.data["recovery_control"]) == ("apperror", None, True)
        async with await Response.open(gateway.port, path, headers=[("Last-Event-ID", f"{p.run_id}:4")]) as stream:
            assert numbers(blocks_of(await stream.body()), p.run_id) == [5, 6]
