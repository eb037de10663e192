"""The connection below a stream: versions, keep-alive, pipelining, half-closed and slow peers, peers that vanish.

Each is a way in which viewers were orphaned or answers mixed up elsewhere (docs/architecture.md, “The transport”)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.items import MessageDelta
from broker.settings import Settings
from tests.gateways import GatewayProcess, Response, say, writing
from tests.servers import RedisServer

HIGH_WATER = 64 << 10


@pytest.fixture(scope="module")
def settings(redis7: RedisServer) -> Settings:
    return Settings(
        redis_url=redis7.url,
        namespace=f"t{uuid4().hex[:12]}",
        partitions=4,
        heartbeat=0.3,
        high_water=HIGH_WATER,
        stall_limit=20.0,
    )


@pytest.fixture(scope="module")
def gateway(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    process = GatewayProcess(settings, tmp_path_factory.mktemp("gateway")).start()
    yield process
    process.kill()
    assert "Traceback" not in process.log
    assert "ERROR" not in process.log


@pytest.fixture
async def broker(settings: Settings, gateway: GatewayProcess) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened
    # Whatever a test did to its connections, nothing of them is left in the gateway.
    await gateway.reads("runcast_viewers", 0)
    await gateway.reads("runcast_feeds", 0)


def path(run_id: str, query: str = "") -> str:
    return f"/v1/runs/{run_id}/stream{query}"


# Versions and the end of the body.


async def test_1_1_is_chunked_and_the_connection_serves_the_next_request(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p, await Response.open(gateway.port, path(p.run_id)) as stream:
        assert (stream.version, stream.chunked, stream.headers.get("connection")) == ("HTTP/1.1", True, None)
        await say(p, 2, end=True)
        await stream.body()
        for _ in range(3):
            await stream.ask("/healthz")
            assert json.loads(await stream.body()) == {"status": "ok"}
            await stream.ask(path(p.run_id))
            await stream.body()
            assert stream.seqs == [1, 2, 3]


async def test_a_kept_connection_follows_one_live_run_after_another(gateway: GatewayProcess, broker: Broker):
    reader_writer: Response | None = None
    for _ in range(3):
        async with writing(broker) as p:
            if reader_writer is None:
                reader_writer = await Response.open(gateway.port, path(p.run_id))
            else:
                await reader_writer.ask(path(p.run_id))
            await say(p, 5)
            await reader_writer.upto(5)
            await say(p, 1, end=True)
            await reader_writer.body()
            assert reader_writer.seqs == [1, 2, 3, 4, 5, 6, 7]
    assert reader_writer
    reader_writer.leave()


async def test_1_0_is_delimited_by_the_close(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        for extra in ((), (("Connection", "keep-alive"),)):
            stream = await Response.open(gateway.port, path(p.run_id), version="1.0", headers=extra)
            assert "transfer-encoding" not in stream.headers
            assert "content-length" not in stream.headers
            assert stream.headers["connection"] == "close"
            await say(p, 2)
            await stream.upto(2)
            stream.leave()
        last = await Response.open(gateway.port, path(p.run_id), version="1.0")
        await say(p, end=True)
        await last.body()
        assert last.seqs == [1, 2, 3, 4, 5]
        assert last.frames[-1].event == "end"


@pytest.mark.parametrize("target", ["/healthz", "/v1/runs/unknown/stream", "/v1/runs/unknown", "/metrics", "/nowhere"])
async def test_1_0_answers_are_never_chunked(gateway: GatewayProcess, target: str):
    async with await Response.open(gateway.port, target, version="1.0") as response:
        assert "transfer-encoding" not in response.headers
        assert await response.body()


async def test_the_bus_is_not_chunked_for_1_0_either(gateway: GatewayProcess, broker: Broker):
    async with await Response.open(gateway.port, "/v1/events?kinds=run.*", version="1.0") as bus:
        assert "transfer-encoding" not in bus.headers
        await bus.until(len)
        await gateway.reads("runcast_event_listeners", 1)
        async with writing(broker) as p:
            frames = await bus.until(
                lambda frames: any(f.event == "run.running" or f.event == "run.created" for f in frames)
            )
            assert frames[-1].data["run_id"] == p.run_id


async def test_a_client_that_asks_to_close_gets_the_close(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        await say(p, 1, end=True)
        stream = await Response.open(gateway.port, path(p.run_id), headers=[("Connection", "close")])
        assert stream.headers["connection"] == "close"
        await stream.body()
        assert stream.seqs == [1, 2]
        assert await stream.closed() == b""


# Peers that leave.


async def test_a_peer_that_goes_is_detached(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        for way in ("abort", "close", "half"):
            stream = await Response.open(gateway.port, path(p.run_id))
            await gateway.reads("runcast_viewers", 1)
            match way:
                case "abort":
                    stream.leave()
                case "close":
                    stream.writer.close()
                case "half":
                    stream.writer.write_eof()  # nothing is left to be asked: taken as leaving, as other servers do
            await gateway.reads("runcast_viewers", 0)
            stream.leave()


NEXT = b"GET /healthz HTTP/1.1\r\nHost: gateway\r\n\r\n"


@pytest.mark.parametrize("count", [1, 50])
async def test_a_request_pipelined_before_the_stream_began(gateway: GatewayProcess, broker: Broker, count: int):
    async with writing(broker) as p:
        stream = await Response.open(gateway.port, path(p.run_id), behind=NEXT * count)
        assert stream.headers["connection"] == "close"
        await say(p, 2)
        await stream.upto(2)
        stream.leave()  # the viewer must not be orphaned by the request behind it
        await gateway.reads("runcast_viewers", 0)
        last = await Response.open(gateway.port, path(p.run_id), behind=NEXT * count)
        await say(p, end=True)
        await last.body()
        assert last.seqs == [1, 2, 3]
        assert await last.closed() == b""


@pytest.mark.parametrize(
    "behind", [NEXT, NEXT * 50, NEXT[:20], b"POST /v1/runs HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc"]
)
async def test_a_request_pipelined_during_the_stream(gateway: GatewayProcess, broker: Broker, behind: bytes):
    async with writing(broker) as p:
        stream = await Response.open(gateway.port, path(p.run_id))
        await say(p, 1)
        await stream.upto(1)
        stream.writer.write(behind)
        # The stream goes on as if nothing had been asked.
        await stream.until(lambda frames: frames and frames[-1].event == ":")
        stream.leave()
        await gateway.reads("runcast_viewers", 0)
        last = await Response.open(gateway.port, path(p.run_id))
        last.writer.write(behind)
        await say(p, 1, end=True)
        await last.body()
        assert last.seqs == [1, 2, 3]
        if behind.startswith(NEXT):
            assert await last.closed() == b""  # not answered, and no answer of it in what follows
        last.leave()


async def test_a_request_begun_during_the_stream_is_answered_behind_it(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p, await Response.open(gateway.port, path(p.run_id)) as stream:
        stream.writer.write(NEXT[:20])
        await say(p, 1, end=True)
        await stream.body()
        assert stream.seqs == [1, 2]
        stream.writer.write(NEXT[20:])
        await stream.head()
        assert json.loads(await stream.body()) == {"status": "ok"}


async def test_garbage_during_the_stream_ends_it_and_is_not_answered_into_it(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p, await Response.open(gateway.port, path(p.run_id)) as stream:
        await say(p, 1)
        await stream.upto(1)
        stream.writer.write(b"\x00\x01 this is no HTTP \r\n\r\n")
        await gateway.reads("runcast_viewers", 0)
        rest = await stream.closed()
        assert b"HTTP/1.1 400" not in rest
        assert rest.replace(b"5\r\n: hb\n\r\n", b"") in (b"", b"0\r\n\r\n")


async def test_a_body_with_the_request_does_not_deafen_the_gateway(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        headers = [("Content-Length", str(1 << 20))]
        stream = await Response.open(gateway.port, path(p.run_id), headers=headers, behind=b"x" * 1000)
        await gateway.reads("runcast_viewers", 1)
        stream.writer.write(b"x" * (512 << 10))
        await stream.writer.drain()
        await stream.until(lambda frames: frames and frames[-1].event == ":")
        stream.leave()
        await gateway.reads("runcast_viewers", 0)


async def test_expecting_to_continue_is_harmless(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        await say(p, 1, end=True)
        headers = [("Content-Length", "3"), ("Expect", "100-continue")]
        async with await Response.open(gateway.port, path(p.run_id), headers=headers, behind=b"abc") as stream:
            assert stream.status == 200
            await stream.body()
            assert stream.seqs == [1, 2]


async def test_leaving_at_once_leaves_nothing_behind(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        request = f"GET {path(p.run_id)} HTTP/1.1\r\nHost: gateway\r\n\r\n".encode()
        for n in range(60):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(request + NEXT * (n % 2))
            if n % 3:
                await writer.drain()
                writer.transport.abort()
            else:
                writer.write_eof()
        await gateway.reads("runcast_viewers", 0)
        async with await Response.open(gateway.port, path(p.run_id)) as stream:
            await say(p, 1, end=True)
            await stream.body()
            assert stream.seqs == [1, 2]


# Slow peers. (case 10)


async def slow_connection(port: int, run_id: str) -> socket.socket:
    """A peer with a small receive buffer that has asked for a stream and reads nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 10)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, f"GET {path(run_id)} HTTP/1.1\r\nHost: gateway\r\n\r\n".encode())
    return sock


@pytest.mark.parametrize("live", [True, False])
async def test_a_slow_reader_is_demoted_and_reads_on_exactly(gateway: GatewayProcess, broker: Broker, live: bool):
    async with writing(broker) as p:
        demoted = gateway.number("runcast_viewers_demoted_total")
        if live:
            sock = await slow_connection(gateway.port, p.run_id)
            await gateway.reads("runcast_viewers", 1)
        for n in range(60):
            await p.publish(MessageDelta(text=f"{n} ".ljust(100_000, "x")))
        await p.flush()
        if live:
            await gateway.reads("runcast_viewers_demoted_total", demoted + 1)
        else:
            sock = await slow_connection(gateway.port, p.run_id)
            await gateway.reads("runcast_viewers", 1)
        async with await Response.open(gateway.port, path(p.run_id)) as healthy:
            await healthy.upto(60)
            await say(p, 3, end=True)  # the publisher waits for nobody
            await healthy.body()
        slow = Response(*await asyncio.open_connection(sock=sock))
        await slow.head()
        await slow.body(30)
        assert slow.seqs == list(range(1, 65))
        assert slow.wire.replace(b": hb\n", b"") == healthy.wire.replace(b": hb\n", b"")
        slow.leave()


async def test_a_stream_behind_an_answer_that_was_not_read_starts_paused(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        for n in range(40):
            await p.publish(MessageDelta(text=f"{n} ".ljust(200_000, "x")))
        await p.flush()
        sock = await slow_connection(gateway.port, "unknown")
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
        peer = Response(reader, writer)
        await peer.head()
        await peer.body()
        items = f"/v1/runs/{p.run_id}/items?limit=1000"
        writer.write(f"GET {items} HTTP/1.1\r\nHost: gateway\r\n\r\n".encode())
        await asyncio.to_thread(until_requests, gateway, 1)
        reads = gateway.number("runcast_range_reads_total")
        writer.write(f"GET {path(p.run_id)} HTTP/1.1\r\nHost: gateway\r\n\r\n".encode())
        await gateway.reads("runcast_viewers", 1)
        assert gateway.number("runcast_range_reads_total") == reads
        await peer.head()
        await peer.body(30)
        await peer.head()
        await peer.upto(40, 30)
        assert peer.seqs == list(range(1, 41))
        peer.leave()


def until_requests(gateway: GatewayProcess, count: int) -> None:
    import time

    name = 'runcast_http_requests_total{method="GET",route="/v1/runs/{run_id}/items",status="200"}'
    end = time.monotonic() + 30
    while gateway.number(name) < count:
        assert time.monotonic() < end
        time.sleep(0.01)
