"""Through nginx as it comes: HTTP/1.0 towards the gateway, buffering on, gzip asked for. (case 17)"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from broker import api
from broker.api import Broker
from broker.items import MessageDelta
from broker.settings import Settings
from tests.conftest import missing
from tests.gateways import GatewayProcess, Response, say, writing
from tests.servers import die_with_parent, free_port

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
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://127.0.0.1:{gateway}; }}
    }}
}}
"""
"""Nothing is set for streams: what an operator gets who only writes ``proxy_pass``."""


def _nginx() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        missing("there is no nginx on this machine (Debian: apt install nginx-light)")
    assert found
    return found


@pytest.fixture(scope="module")
def nginx(gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of an nginx in front of the gateway."""
    binary, directory, port = _nginx(), tmp_path_factory.mktemp("nginx"), free_port()
    (directory / "nginx.conf").write_text(CONFIGURATION.format(port=port, gateway=gateway.port))
    command = [binary, "-p", str(directory), "-c", "nginx.conf", "-e", "stderr"]
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=die_with_parent, env=os.environ)
    try:
        _wait_for(port, process, directory / "output")
        yield port
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    end = time.monotonic() + 40
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.02)


@pytest.fixture
async def broker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened


GZIP = ("Accept-Encoding", "gzip, deflate, br")


async def test_events_arrive_as_they_are_made(nginx: int, broker: Broker):
    async with writing(broker) as p:
        began = time.monotonic()
        stream = await Response.open(nginx, f"/v1/runs/{p.run_id}/stream", headers=[GZIP])
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert "content-encoding" not in stream.headers
        assert time.monotonic() - began < 10.0  # no item exists yet
        for seq in range(1, 6):
            began = time.monotonic()
            await say(p, 1)
            await stream.upto(seq)
            assert time.monotonic() - began < 10.0
        began = time.monotonic()
        await stream.until(lambda frames: frames[-1].event == ":")  # a heartbeat goes through as well
        assert time.monotonic() - began < 10.0
        await say(p, end=True)
        await stream.body()
        assert stream.seqs == [1, 2, 3, 4, 5, 6]
        stream.leave()


async def test_the_bytes_are_unchanged(nginx: int, gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        for n in range(300):
            await p.publish(MessageDelta(text=f"{n} é 😀 \u2028 " * (n % 7)))
        await say(p, end=True)
        target = f"/v1/runs/{p.run_id}/stream"
        wires = []
        for port, headers in ((gateway.port, []), (nginx, []), (nginx, [GZIP])):
            async with await Response.open(port, target, headers=headers) as stream:
                wires.append((await stream.body()).replace(b": hb\n", b""))
                assert stream.seqs == list(range(1, 302))
    assert wires[0] == wires[1] == wires[2]


async def test_a_resume_goes_through(nginx: int, broker: Broker):
    async with writing(broker) as p:
        await say(p, 5, end=True)
        target = f"/v1/runs/{p.run_id}/stream"
        async with await Response.open(nginx, target, headers=[("Last-Event-ID", f"{p.run_id}:4")]) as stream:
            await stream.body()
            assert stream.seqs == [5, 6]
        async with await Response.open(nginx, target, headers=[("Last-Event-ID", f"{p.run_id}:6")]) as stream:
            assert stream.status == 204
        async with await Response.open(nginx, target, method="HEAD") as stream:
            assert stream.status == 200


async def test_many_megabytes_go_through_a_slow_reader_unbuffered(nginx: int, gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        for n in range(200):
            await p.publish(MessageDelta(text=f"{n} ".ljust(50_000, "x")))
        await say(p, end=True)
        stream = await Response.open(nginx, f"/v1/runs/{p.run_id}/stream", limit=4096)
        async with asyncio.timeout(50):
            while not stream.complete:
                await stream.part()
                await asyncio.sleep(0.001)  # the pace of a slow peer
        assert stream.seqs == list(range(1, 202))
        stream.leave()


async def test_a_viewer_that_leaves_nginx_leaves_the_gateway(nginx: int, gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        streams = [await Response.open(nginx, f"/v1/runs/{p.run_id}/stream") for _ in range(5)]
        await gateway.reads("runcast_viewers", 5)
        for stream in streams:
            stream.leave()
        await gateway.reads("runcast_viewers", 0)
