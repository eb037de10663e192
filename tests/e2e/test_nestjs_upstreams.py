"""The NestJS proxy between callers and upstreams of every kind: what reaches an upstream, and what becomes of answers
that are late, cut off, endless or early."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.nestjs import NestProxy
from tests.e2e.upstreams import Asked, Peer, serving
from tests.gateways import Response
from tests.servers import Certificates, free_port, silent_host

pytestmark = pytest.mark.timeout(240)  # the first test on a machine waits for npm

Start = Callable[..., NestProxy]
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Run-Id: r1\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture(scope="module")
def ports(nest: Start) -> tuple[int, NestProxy]:
    """A port for upstreams, and the proxy that passes on to it."""
    port = free_port()
    return port, nest(port, drop_headers="X-Principal, x-other")


async def ask(proxy: NestProxy, target: str = "/v1/runs", body: bytes = b"", **how: Any) -> Response:
    method = str(how.pop("method", "POST" if body else "GET"))
    headers = [*how.pop("headers", ())]
    if body and not any(name == "Transfer-Encoding" for name, _ in headers):
        headers.append(("Content-Length", str(len(body))))
    return await Response.open(proxy.port, target, method=method, headers=headers, behind=body, **how)


# What reaches the upstream.


async def asked_of(ports: tuple[int, NestProxy], *args: object, continues: bool = True, **how: object) -> Asked:
    """What the upstream sees of a request."""
    told: list[Asked] = []

    async def each(peer: Peer) -> None:
        peer.continues = continues
        told.append(await peer.asked())
        await peer.say(OK)

    async with serving(each, port=ports[0]), await ask(ports[1], *args, **how) as answer:  # type: ignore[arg-type]
        assert await answer.body() == b"ok"
    return told[0]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_arrive_as_they_were_sent(ports: tuple[int, NestProxy], method: str, chunked: bool) -> None:
    body = bytes(range(256)) * 3_000
    headers = [("Content-Type", "application/json"), ("Content-Encoding", "gzip")]
    wire = body
    if chunked:
        headers.append(("Transfer-Encoding", "chunked"))
        wire = chunk(body[:1000]) + chunk(body[1000:]) + b"0\r\n\r\n"
    asked = await asked_of(ports, "/chat/stream", wire, method=method, headers=headers)
    assert asked.body == body
    assert asked.line == f"{method} /chat/stream HTTP/1.1"
    assert asked.all("content-encoding") == ["gzip"]
    assert asked.all("content-length") == ([] if chunked else [str(len(body))])
    assert asked.all("transfer-encoding") == (["chunked"] if chunked else [])


@pytest.mark.parametrize(("method", "length"), [("POST", ["0"]), ("DELETE", ["0"]), ("GET", []), ("OPTIONS", [])])
async def test_no_body_stays_none(ports: tuple[int, NestProxy], method: str, length: list[str]) -> None:
    asked = await asked_of(ports, "/v1/tasks/t1/steps/2/approve", method=method)
    assert (asked.body, asked.all("content-length"), asked.all("transfer-encoding")) == (b"", length, [])


async def test_heads_arrive_but_for_what_is_of_one_connection_or_dropped(ports: tuple[int, NestProxy]) -> None:
    sent = [("Last-Event-ID", "r1:7"), ("X-Odd", "é"), ("X-Twice", "a"), ("x-twice", "b"), ("Accept-Encoding", "br")]
    of_one = [("Connection", "keep-alive, X-Hop"), ("X-Hop", "1"), ("Keep-Alive", "5"), ("TE", "trailers")]
    of_one += [
        ("x-PRINCIPAL", "somebody else"),
        ("Proxy-Authorization", "Basic eA=="),
        ("Upgrade", "h2c"),
        ("Expect", "100-continue"),
    ]
    asked = await asked_of(ports, "/v1/a%2Fb//c;d?x=%C3%A9&y=+&x=", headers=[*sent[:3], *of_one[:-1], *sent[3:]])
    assert asked.line == "GET /v1/a%2Fb//c;d?x=%C3%A9&y=+&x= HTTP/1.1"
    assert asked.headers == [
        ("Host", "gateway"),
        *sent,
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-Proto", "http"),
        ("Connection", "close"),
    ]


async def test_who_asked_is_appended_to_what_proxies_said(ports: tuple[int, NestProxy]) -> None:
    given = [("X-Forwarded-For", "10.0.0.1, 10.0.0.2"), ("X-Forwarded-For", "10.0.0.3"), ("X-Forwarded-Proto", "https")]
    asked = await asked_of(ports, headers=given)
    assert asked.all("x-forwarded-for") == ["10.0.0.1, 10.0.0.2, 10.0.0.3, 127.0.0.1"]
    assert asked.all("x-forwarded-proto") == ["https"]


async def test_an_expected_continue_is_said_by_the_proxy(ports: tuple[int, NestProxy]) -> None:
    told: list[Asked] = []

    async def each(peer: Peer) -> None:
        told.append(await peer.asked())
        await peer.say(OK)

    async with serving(each, port=ports[0]):
        headers = [("Expect", "100-continue"), ("Content-Length", "4")]
        async with await ask(ports[1], method="POST", headers=headers) as answer:
            assert answer.status == 100
            answer.writer.write(b"body")
            await answer.head()
            assert await answer.body() == b"ok"
    assert (told[0].body, told[0].all("expect")) == (b"body", [])


# What comes back.


async def test_an_answer_keeps_its_status_its_words_and_its_head(ports: tuple[int, NestProxy]) -> None:
    async def each(peer: Peer) -> None:
        await peer.asked()
        head = b"HTTP/1.1 402 Cap Reached\r\nX-Run-Id: r1\r\nx-two: a\r\nX-Two: b\r\nConnection: X-Hop\r\nX-Hop: 1\r\n"
        await peer.say(head + b"Keep-Alive: timeout=5\r\nContent-Length: 3\r\n\r\nno!")

    async with serving(each, port=ports[0]):
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[1].port)
        writer.write(b"GET /v1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        wire = await reader.read()
        writer.close()
    expected = b"HTTP/1.1 402 Cap Reached\r\nX-Run-Id: r1\r\nx-two: a\r\nX-Two: b\r\nContent-Length: 3\r\n"
    assert wire == expected + b"Connection: close\r\n\r\nno!"


async def test_bytes_pass_unread_wherever_they_are_cut(ports: tuple[int, NestProxy]) -> None:
    frames = 'event: token\ndata: {"token":"é 😀"}\n\ndata: [DONE]\n\n'.encode() + b"\xff\x00 no UTF-8"
    go_on = asyncio.Semaphore(0)

    async def each(peer: Peer) -> None:
        await peer.asked()
        await peer.say(EVENTS)
        for byte in frames:
            await go_on.acquire()
            await peer.say(chunk(bytes([byte])))
        await peer.say(b"0\r\n\r\n")

    async with serving(each, port=ports[0]), await ask(ports[1], "/chat/stream", b"{}") as stream:
        assert (stream.status, stream.headers["x-run-id"]) == (200, "r1")  # no byte of the body exists yet
        for n in range(len(frames)):
            go_on.release()
            assert await stream.part() == frames[n : n + 1]  # the next one does not exist yet
        await stream.body()
        assert stream.complete


async def test_what_breaks_off_there_breaks_off_here(ports: tuple[int, NestProxy]) -> None:
    async def each(peer: Peer) -> None:
        asked = await peer.asked()
        half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf" if "sized" in asked.line else EVENTS + chunk(b"half")
        await peer.say(half)

    async with serving(each, port=ports[0]):
        for target in ("/v1/sized", "/v1/runs/r1/stream"):
            async with await ask(ports[1], target) as answer:
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    await answer.body()
                assert not answer.complete, "half an answer must not pass for a whole one"
                assert "sized" in target or answer.wire == b"half"


@pytest.mark.parametrize("wire", [b"", b"HTTP/1.1 2", b"no HTTP at all\r\n\r\n"])
async def test_an_upstream_without_an_answer_is_a_problem(ports: tuple[int, NestProxy], wire: bytes) -> None:
    async def each(peer: Peer) -> None:
        await peer.asked()
        await peer.say(wire)

    async with serving(each, port=ports[0]), await ask(ports[1], "/chat/stream", b"{}") as answer:
        problem = json.loads(await answer.body())
        assert (answer.status, problem["code"]) == (502, "upstream_failed")
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize("size", [4_000, 4_000_000])
async def test_an_answer_that_comes_before_the_whole_request(ports: tuple[int, NestProxy], size: int) -> None:
    """And the connection is good for another request afterwards, once the rest of the body has been let go."""
    arrived = b""

    async def each(peer: Peer) -> None:
        nonlocal arrived
        asked = await peer.head()
        await peer.say(OK.replace(b"200 OK", b"413 Too Large") if "POST" in asked.line else OK)
        arrived += await peer.left()

    async with serving(each, port=ports[0]), await ask(ports[1], body=b"x" * size) as answer:
        assert (answer.status, await answer.body()) == (413, b"ok")
        await answer.ask("/v1/runs")
        assert (answer.status, await answer.body()) == (200, b"ok")
    assert not arrived or size == 4_000, "a large body waits until it is wanted"


async def test_a_large_body_goes_out_though_the_upstream_says_nothing(ports: tuple[int, NestProxy]) -> None:
    asked = await asked_of(ports, body=b"x" * 100_000, continues=False)
    assert (len(asked.body), asked.all("expect")) == (100_000, ["100-continue"])


# Callers that leave, and slow ones.


@pytest.mark.parametrize("when", ["before the answer", "in the stream", "in the request"])
async def test_the_upstream_request_ends_when_its_caller_leaves(ports: tuple[int, NestProxy], when: str) -> None:
    there, gone = asyncio.Event(), asyncio.Event()

    async def each(peer: Peer) -> None:
        await peer.head()
        if when == "in the stream":
            await peer.say(EVENTS + chunk(b"data: 1\n\n"))
        there.set()
        await peer.left()
        gone.set()

    async with serving(each, port=ports[0]):
        _, writer = await asyncio.open_connection("127.0.0.1", ports[1].port)
        writer.write(b"POST /chat/stream HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
        writer.write(b"" if when == "in the request" else b"}")
        await asyncio.wait_for(there.wait(), 30)
        writer.transport.abort()
        await asyncio.wait_for(gone.wait(), 30)


async def test_a_slow_reader_holds_the_upstream_back(ports: tuple[int, NestProxy]) -> None:
    """What lies between them is what kernels and the proxy's streams hold, not the answer."""
    block, blocks = bytes(range(256)) * 256, 1_600
    sent = 0

    async def each(peer: Peer) -> None:
        nonlocal sent
        await peer.asked()
        await peer.say(EVENTS)
        for _ in range(blocks):
            await peer.say(chunk(block))
            sent += 1
        await peer.say(b"0\r\n\r\n")

    async with serving(each, port=ports[0], high_water=0):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", ports[1].port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
        stream = Response(reader, writer)
        await stream.ask("/v1/runs/r1/stream")
        await _stands_still(lambda: sent)
        assert sent < blocks / 2, "a reader who takes nothing is no reason to take everything"
        assert await stream.body(30) == block * blocks
        stream.leave()


async def _stands_still(number: Callable[[], int]) -> None:
    """Once it was the same for half a second."""
    before = -1
    async with asyncio.timeout(20):
        while number() != before:
            before = number()
            await asyncio.sleep(0.5)


# Limits, and other upstreams.


async def test_a_late_answer_is_a_problem_and_a_silent_stream_is_none(nest: Start) -> None:
    async def each(peer: Peer) -> None:
        asked = await peer.asked()
        if "/stream" in asked.line:
            await peer.say(EVENTS)
            await asyncio.sleep(1.0)  # twice the limit
            return await peer.say(chunk(b"late") + b"0\r\n\r\n")
        await peer.left()

    port = free_port()
    proxy = nest(port, answer_timeout=0.5)
    async with serving(each, port=port):
        async with await ask(proxy, "/chat", b"{}") as answer:
            assert (answer.status, json.loads(await answer.body())["code"]) == (504, "upstream_timeout")
        for _ in range(10):
            async with await ask(proxy, "/chat/stream", b"{}") as stream:
                if stream.status == 504:
                    continue  # this process was held up, so its head was late
                assert await stream.body() == b"late"
                break
        assert stream.status == 200


async def test_an_upstream_over_tls_with_a_path_before_ours(nest: Start, tmp_path: Path) -> None:
    certificates = Certificates.create(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    lines: list[str] = []

    async def each(peer: Peer) -> None:
        lines.append((await peer.asked()).line)
        await peer.say(OK)

    port = free_port()
    proxy = nest(f"https://localhost:{port}/agent/", NODE_EXTRA_CA_CERTS=certificates.ca)
    async with serving(each, port=port, context=context), await ask(proxy, "/chat?x=1", b"{}") as answer:
        assert (answer.status, await answer.body()) == (200, b"ok")
    assert lines == ["POST /agent/chat?x=1 HTTP/1.1"]


async def test_a_connection_that_is_not_made_in_time_is_a_problem(nest: Start) -> None:
    async with silent_host() as url:  # which never answers the handshake
        proxy = nest(url.replace("redis", "https").removesuffix("/0"), connect_timeout=0.5)
        async with await ask(proxy) as answer:
            problem = json.loads(await answer.body())
    assert (answer.status, problem["code"]) == (504, "upstream_timeout")
    assert problem["detail"] == "no connection within 0.5 s"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "many"),
        ("PORT", "70000"),
        ("DRAIN", "-1"),
        ("UPSTREAM", "gateway:8700"),
        ("UPSTREAM", "http://h/?q"),
        ("UPSTREAM", "redis://h"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(nest_program: Path, name: str, value: str) -> None:
    environment = {**os.environ, f"PROXY_{name}": value}
    done = subprocess.run(["node", nest_program], env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.startswith(f"PROXY_{name}={value} is not allowed: it is ")
