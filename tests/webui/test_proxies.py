"""Through what stands between a gateway and its clients: nginx as it comes and tuned, and a proxy that reads until the
connection closes unless the body is framed in chunks."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from broker.api import Broker
from broker.items import MessageDelta
from tests.e2e.test_nginx import _nginx, _wait_for
from tests.gateways import GatewayProcess, Response, say, writing
from tests.servers import die_with_parent, free_port
from tests.webui.wire import blocks_of, numbers, target, until_wire

CONFIGURATION = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    gzip on;
    server {{
        listen 127.0.0.1:{plain};
        location / {{ proxy_pass http://127.0.0.1:{gateway}; }}
    }}
    server {{
        listen 127.0.0.1:{tuned};
        location / {{
            proxy_pass http://127.0.0.1:{gateway};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""
GZIP = ("Accept-Encoding", "gzip, deflate, br")


@pytest.fixture(scope="module")
def nginx(gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Ports of an nginx: ``plain``, HTTP/1.0 towards the gateway, buffering; and ``tuned``."""
    binary, directory = _nginx(), tmp_path_factory.mktemp("nginx")
    ports = {"plain": free_port(), "tuned": free_port()}
    (directory / "nginx.conf").write_text(CONFIGURATION.format(gateway=gateway.port, **ports))
    command = [binary, "-p", str(directory), "-c", "nginx.conf", "-e", "stderr"]
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=die_with_parent)
    try:
        _wait_for(ports["plain"], process, Path(directory / "output"))
        yield ports
    finally:
        process.kill()
        process.wait()


class UntilClose:
    """A proxy that passes on a body as it comes where it is framed, and otherwise waits for the whole of it."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self.port = 0

    async def __aenter__(self) -> UntilClose:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            request = await reader.readuntil(b"\r\n\r\n")
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
            up_writer.write(request)
            head = await up_reader.readuntil(b"\r\n\r\n")
            chunked = b"transfer-encoding: chunked" in head.lower()
            body = b"" if chunked else await up_reader.read()
            writer.write(head + body)
            while chunked:
                size = await up_reader.readuntil(b"\r\n")
                writer.write(size + await up_reader.readexactly(int(size, 16) + 2))
                if size.strip() == b"0":
                    break
            up_writer.close()
        writer.close()


@pytest.fixture
async def until_close(gateway: GatewayProcess) -> AsyncIterator[UntilClose]:
    async with UntilClose(gateway.port) as proxy:
        yield proxy


@pytest.fixture(params=["nginx", "nginx gzip", "tuned nginx", "tuned nginx gzip", "until close"])
def way(
    request: pytest.FixtureRequest, nginx: dict[str, int], until_close: UntilClose
) -> tuple[int, list[tuple[str, str]]]:
    """A port that leads to the gateway, and the headers to send."""
    headers = [GZIP] if request.param.endswith("gzip") else []
    if request.param == "until close":
        return until_close.port, headers
    return nginx["tuned" if request.param.startswith("tuned") else "plain"], headers


async def test_frames_come_as_they_are_made(way: tuple[int, list[tuple[str, str]]], broker: Broker):
    port, headers = way
    async with writing(broker) as p:
        began = time.monotonic()
        async with await Response.open(port, target(p.run_id), headers=headers) as stream:
            assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            assert "content-encoding" not in stream.headers
            assert time.monotonic() - began < 10.0  # no item exists yet
            for seq in range(1, 5):
                began = time.monotonic()
                await say(p, f"t{seq} ")
                await until_wire(stream, f"id: {p.run_id}:{seq}\n".encode())
                assert time.monotonic() - began < 10.0
            await until_wire(stream, b": heartbeat\n\n")
            await say(p, end=True)
            blocks = [b for b in blocks_of(await stream.body()) if b.comment is None]
            assert numbers(blocks, p.run_id) == [1, 2, 3, 4, 5]


async def test_the_bytes_are_those_of_the_gateway(
    way: tuple[int, list[tuple[str, str]]], gateway: GatewayProcess, broker: Broker
):
    port, headers = way
    async with writing(broker) as p:
        for n in range(200):
            await p.publish(MessageDelta(text=f"{n} é 😀 \u2028 " * (n % 7)))
        await say(p, end=True)
        async with await Response.open(gateway.port, target(p.run_id)) as direct:
            expected = await direct.body()
        async with await Response.open(port, target(p.run_id), headers=headers) as stream:
            assert await stream.body() == expected
        async with await Response.open(
            port, target(p.run_id), headers=[*headers, ("Last-Event-ID", f"{p.run_id}:201")]
        ) as s:
            assert numbers(blocks_of(await s.body()), p.run_id) == [201]
