"""Chats through what stands between callers and a gateway: nginx as it comes (HTTP/1.0 towards the gateway, buffering
on), nginx as deploy/nginx.conf has it, the NestJS proxy, and nginx in front of that. Frames arrive as they are made."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.items import Final, MessageDelta
from broker.publisher import Publisher
from broker.settings import Settings
from tests.e2e.nestjs import NestProxy
from tests.e2e.processes import http_json
from tests.e2e.test_nginx import CONFIGURATION, _nginx, _wait_for
from tests.gateways import GatewayProcess, Response, say
from tests.servers import die_with_parent, free_port
from tests.shipped_nginx import configured
from tests.webui.wire import until_wire

pytestmark = pytest.mark.timeout(240)  # the first test on a machine waits for npm

GZIP = ("Accept-Encoding", "gzip, deflate, br")
DONE = b"data: [DONE]\n\n"


@contextlib.contextmanager
def _nginx_with(configuration: Callable[[Path, int], Path], directory: Path) -> Iterator[int]:
    """An nginx with the configuration that is written there, for that port."""
    binary, port = _nginx(), free_port()
    command = [binary, "-p", str(directory), "-c", str(configuration(directory, port)), "-e", "stderr"]
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, "-g", "daemon off;"], stdout=output, stderr=output, preexec_fn=die_with_parent, env=os.environ
        )
    try:
        _wait_for(port, process, directory / "output")
        yield port
    finally:
        process.terminate()
        process.wait()


def _plain(upstream: int) -> Callable[[Path, int], Path]:
    def write(directory: Path, port: int) -> Path:
        text = CONFIGURATION.format(port=port, gateway=upstream).replace("daemon off;", "")
        (directory / "nginx.conf").write_text(text)
        return directory / "nginx.conf"

    return write


WAYS = ["nginx", "shipped nginx", "nestjs", "nginx, nestjs"]


@pytest.fixture(scope="module", params=WAYS)
def way(
    request: pytest.FixtureRequest, gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """A port that leads to the gateway."""
    directory = tmp_path_factory.mktemp("way")
    upstream = gateway.port
    if "nestjs" in request.param:
        nest: Callable[..., NestProxy] = request.getfixturevalue("nest")
        upstream = nest(gateway.port).port
    if request.param == "nestjs":
        yield upstream
        return
    of_upstream = _plain(upstream)
    if request.param == "shipped nginx":
        of_upstream = lambda where, port: configured(where, port, [upstream, upstream])  # noqa: E731
    with _nginx_with(of_upstream, directory) as port:
        yield port


@pytest.fixture
async def broker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened


async def ask(port: int, path: str, message: str = "hello", **how: Any) -> Response:
    body = json.dumps({"message": message}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), GZIP]
    return await Response.open(port, path, method="POST", headers=headers, behind=body, **how)


@contextlib.asynccontextmanager
async def answering(broker: Broker, run_id: str) -> AsyncIterator[Publisher]:
    """The test plays the worker that takes the run of a chat."""
    record = await broker.runs.get(run_id)
    claim = await broker.runs.claim(run_id, record.attempt, f"owner of {run_id}")
    async with broker.publisher(claim) as publisher:
        yield publisher


def tokens(wire: bytes) -> list[str]:
    data = [line.removeprefix("data: ") for line in wire.decode().split("\n") if line.startswith('data: {"token"')]
    return [json.loads(line)["token"] for line in data]


@pytest.mark.parametrize("path", ["/chat/stream", "/v1/chat/stream"])
async def test_tokens_arrive_as_they_are_made(way: int, broker: Broker, path: str) -> None:
    async with await ask(way, path) as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert "content-encoding" not in stream.headers
        run_id = stream.headers["x-run-id"]
        async with answering(broker, run_id) as p:
            for seq in range(1, 6):
                await say(p, f"t{seq} é😀 ")
                await until_wire(stream, f"id: {run_id}:{seq}\n".encode())  # the next token does not exist yet
            await until_wire(stream, b": hb\n")  # what nothing is sent for is not silent
            assert b"event: done" not in stream.wire
            await say(p, end=True)
        wire = await stream.body()
        assert tokens(wire) == [f"t{seq} é😀 " for seq in range(1, 6)]
        assert wire.endswith(DONE)
        assert wire.count(b"event: done") == wire.count(DONE) == 1


async def test_a_chat_that_was_lost_goes_on_byte_for_byte(way: int, gateway: GatewayProcess, broker: Broker) -> None:
    async with await ask(way, "/chat/stream") as stream:
        run_id = stream.headers["x-run-id"]
        async with answering(broker, run_id) as p:
            await say(p, "first ")
            await until_wire(stream, f"id: {run_id}:1\n".encode())
            await gateway.reads("runcast_viewers", 1)
            stream.leave()
            await gateway.reads("runcast_viewers", 0)
            for n in range(200):
                await p.publish(MessageDelta(text=f"{n} é 😀 \u2028 " * (n % 7)))
            await say(p, end=True)  # the run never noticed
    wires = []
    for port in (gateway.port, way):
        headers = [GZIP, ("Last-Event-ID", f"{run_id}:1")]
        async with await Response.open(port, f"/v1/runs/{run_id}/stream?format=chat", headers=headers) as again:
            wires.append((await again.body()).replace(b": hb\n", b""))
    assert wires[0] == wires[1]
    assert len(tokens(wires[0])) >= 170
    assert wires[0].endswith(DONE)


async def test_an_answer_in_one_piece_is_waited_for(way: int, broker: Broker) -> None:
    message = uuid4().hex
    asking = asyncio.create_task(http_json(way, "POST", "/chat", {"message": message}, timeout=30))
    async with answering(broker, await _made(broker, message)) as p:
        await say(p, Final(message={"role": "assistant", "content": [{"type": "text", "text": "all of it"}]}))
    status, answered = await asking
    assert (status, answered["reply"]) == (200, "all of it")


async def _made(broker: Broker, message: str) -> str:
    """The run that was made for it."""
    async with asyncio.timeout(30):
        while True:
            for record in (await broker.runs.list(limit=50))[0]:
                if record.request["input"]["message"] == message:
                    return record.run_id
            await asyncio.sleep(0.02)


async def test_a_refusal_is_a_status_with_its_problem(way: int, gateway: GatewayProcess) -> None:
    answers = []
    for port in (gateway.port, way):
        async with await ask(port, "/chat/stream", "") as answer:
            answers.append((answer.status, answer.headers["content-type"], await answer.body()))
    assert answers[0] == answers[1]
    assert answers[0][:2] == (422, "application/problem+json")
