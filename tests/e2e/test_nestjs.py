"""The NestJS proxy in front of a gateway: what comes through it is what the gateway sent, when it sent it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from broker import api
from broker.api import Broker
from broker.items import MessageDelta
from broker.settings import Settings
from tests.e2e.nestjs import SOURCE, NestProxy, installed
from tests.gateways import GatewayProcess, Response, say, until, writing

pytestmark = pytest.mark.timeout(240)  # the first test on a machine waits for npm

Start = Callable[..., NestProxy]


@pytest.fixture(scope="module")
def proxy(nest: Start, gateway: GatewayProcess) -> NestProxy:
    return nest(gateway.port)


@pytest.fixture
async def broker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened


def stream_of(run_id: str, query: str = "") -> str:
    return f"/v1/runs/{run_id}/stream?{query}"


def head_of(response: Response) -> tuple[int, list[tuple[str, str]]]:
    """But for the time, the request's id, and what belongs to one connection."""
    others = {"date", "x-request-id", "connection", "keep-alive", "transfer-encoding"}
    return response.status, [(name, value) for name, value in response.headers.items() if name not in others]


def test_what_npm_installs_is_named_exactly_and_without_addresses() -> None:
    package = json.loads((SOURCE / "package.json").read_text())
    versions = [*package["dependencies"].values(), *package["devDependencies"].values()]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions), versions
    assert not (installed() / "package-lock.json").exists()
    assert not (SOURCE / "package-lock.json").exists()
    for path in SOURCE.iterdir():
        assert path.suffix == ".md" or not path.is_file() or "//" not in path.read_text(), path


def test_every_setting_is_in_the_readme_with_its_default() -> None:
    told = (SOURCE / "src" / "settings.ts").read_text()
    real = set(re.findall(r"environment, '(PROXY_[A-Z_]+)', '?([^',]+)'?", told))
    real |= {("PROXY_HOST", "127.0.0.1"), ("PROXY_DROP_HEADERS", "")}
    rows = re.findall(r"^\| (`PROXY_.*?) \| (.*?) ?\|", (SOURCE / "README.md").read_text(), re.MULTILINE)
    documented = {
        pair for names, values in rows for pair in zip(re.findall(r"`(.*?)`", names), values.split(", "), strict=True)
    }
    assert documented == real
    assert set(re.findall(r"PROXY_[A-Z_]+", told)) == {name for name, _ in real}


async def test_frames_come_as_they_are_made(proxy: NestProxy, broker: Broker) -> None:
    async with writing(broker) as p, await Response.open(proxy.port, stream_of(p.run_id)) as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        for seq in range(1, 8):
            await say(p, 1)
            await stream.upto(seq)  # the next item does not exist yet
        await stream.until(lambda frames: frames[-1].event == ":")  # a heartbeat goes through as well
        await say(p, end=True)
        await stream.body()
        assert stream.seqs == list(range(1, 9))


_FORMATS = ["", "format=webui", "format=chat", "modes=messages", "compact=1"]


@pytest.mark.parametrize("query", _FORMATS)
async def test_head_and_bytes_are_the_gateways(
    proxy: NestProxy, gateway: GatewayProcess, broker: Broker, query: str
) -> None:
    async with writing(broker) as p:
        for n in range(300):
            await p.publish(MessageDelta(text=f"{n} é 😀 \u2028 " * (n % 7)))
        await say(p, "x" * 300_000, end=True)
        for headers in ([], [("Last-Event-ID", f"{p.run_id}:250")]):
            direct, passed = [
                await Response.open(port, stream_of(p.run_id, query), headers=headers)
                for port in (gateway.port, proxy.port)
            ]
            assert passed.status == direct.status == 200
            assert await passed.body() == await direct.body() != b""
            assert head_of(passed) == head_of(direct)
            assert passed.headers["x-run-id"] == p.run_id
            assert passed.headers["x-accel-buffering"] == "no"


async def test_other_answers_are_the_gateways(proxy: NestProxy, gateway: GatewayProcess, broker: Broker) -> None:
    async with writing(broker) as p:
        await say(p, 5, end=True)
        asks = [
            ("HEAD", stream_of(p.run_id), []),
            ("GET", stream_of(p.run_id), [("Last-Event-ID", f"{p.run_id}:6")]),  # 204
            ("GET", stream_of("nobody"), []),
            ("GET", stream_of(p.run_id, "modes=nonsense"), []),
            ("POST", stream_of(p.run_id), [("Content-Length", "0")]),  # 405
            ("GET", f"/v1/runs/{p.run_id}", []),
            ("GET", f"/v1/runs/{p.run_id}/items?limit=3", []),
            ("HEAD", f"/v1/runs/{p.run_id}", []),
            ("POST", f"/v1/runs/{p.run_id}/cancel", [("Content-Length", "0")]),  # 409
            ("GET", "/v1/tasks/none", []),
            ("POST", "/v1/runs", [("Content-Length", "0"), ("Content-Type", "text/plain")]),  # 415
        ]
        statuses = []
        for method, target, headers in asks:
            direct, passed = [
                await Response.open(port, target, method=method, headers=headers) for port in (gateway.port, proxy.port)
            ]
            assert (passed.status, await passed.body()) == (direct.status, await direct.body()), (method, target)
            assert head_of(passed) == head_of(direct), (method, target)
            statuses.append(passed.status)
        assert statuses == [200, 204, 404, 400, 405, 200, 200, 200, 409, 404, 415]


async def test_a_run_is_made_and_answered_through_it(proxy: NestProxy, broker: Broker) -> None:
    body = json.dumps({"input": {"message": "é 😀 \u2028"}}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Idempotency-Key", "k1")]
    answers = []
    for _ in range(2):
        async with await Response.open(proxy.port, "/v1/runs", method="POST", headers=headers, behind=body) as made:
            answers.append((made.status, json.loads(await made.body())["run_id"]))
    assert [status for status, _ in answers] == [201, 200]
    assert answers[0][1] == answers[1][1]
    assert (await broker.runs.get(answers[0][1])).request["input"]["message"] == "é 😀 \u2028"


async def test_who_leaves_the_proxy_leaves_the_gateway(
    proxy: NestProxy, gateway: GatewayProcess, broker: Broker
) -> None:
    async with writing(broker) as p:
        streams = [await Response.open(proxy.port, stream_of(p.run_id)) for _ in range(5)]
        await gateway.reads("runcast_viewers", 5)
        for stream in streams:
            stream.leave()
        await gateway.reads("runcast_viewers", 0)


async def test_a_hundred_streams_at_once(proxy: NestProxy, broker: Broker) -> None:
    async with writing(broker) as one, writing(broker) as other:
        opened = [Response.open(proxy.port, stream_of((one, other)[n % 2].run_id)) for n in range(100)]
        streams = await asyncio.gather(*opened)
        for p in (one, other):
            await say(p, 50, end=True)
        await asyncio.gather(*(stream.body(30) for stream in streams))
        for stream in streams:
            assert stream.seqs == list(range(1, 52))
            stream.leave()


async def test_requests_share_a_connection(proxy: NestProxy, broker: Broker) -> None:
    async with writing(broker) as p:
        await say(p, 3, end=True)
        async with await Response.open(proxy.port, stream_of(p.run_id)) as stream:
            for n in range(3):
                await stream.body()
                assert stream.seqs == list(range(1 + n, 5))
                await stream.ask(stream_of(p.run_id), headers=[("Last-Event-ID", f"{p.run_id}:{n + 1}")])


async def test_a_caller_of_http_1_0_gets_a_body_that_ends_with_the_connection(proxy: NestProxy, broker: Broker) -> None:
    async with writing(broker) as p:
        await say(p, 3, end=True)
        async with await Response.open(proxy.port, stream_of(p.run_id), version="1.0") as stream:
            await stream.body()
            assert not stream.chunked
            assert stream.seqs == [1, 2, 3, 4]


@pytest.mark.parametrize("target", ["/metrics", "/api/sessions", "/", "/chat/other", "/v1", "/v1/%E0%A4%A/stream"])
async def test_what_is_not_passed_on(proxy: NestProxy, gateway: GatewayProcess, target: str) -> None:
    async with await Response.open(proxy.port, target) as answer:
        problem = json.loads(await answer.body())
    expected = (400, "bad_request") if "%" in target else (404, "not_found")
    assert (answer.status, problem["status"], problem["code"]) == (expected[0], *expected)
    assert answer.headers["content-type"] == "application/problem+json"
    assert "/v1/" in problem["detail"]


@pytest.mark.parametrize("path", ["/v1/../metrics", "/v1/runs/%2e%2E/x", "/v1/./runs", "http://other/v1/runs"])
async def test_a_path_that_leads_elsewhere_is_refused(proxy: NestProxy, path: str) -> None:
    async with await Response.open(proxy.port, path) as answer:
        assert (answer.status, json.loads(await answer.body())["code"]) == (400, "bad_request")


async def test_health_is_the_proxys_and_readiness_the_gateways(proxy: NestProxy) -> None:
    for target, told in (("/healthz", {"status": "ok"}), ("/readyz", None)):
        async with await Response.open(proxy.port, target) as answer:
            assert answer.status == 200
            body = json.loads(await answer.body())
            assert told is None or body == told


# The gateway goes away.


async def test_a_gateway_that_drains_ends_the_stream_and_viewers_come_back(
    nest: Start, settings: Settings, broker: Broker, tmp_path: Path
) -> None:
    mortal = GatewayProcess(settings, tmp_path).start()
    proxy = nest(mortal.port)
    async with writing(broker) as p, await Response.open(proxy.port, stream_of(p.run_id)) as stream:
        await say(p, 2)
        await stream.upto(2)
        mortal.signal(signal.SIGTERM)
        await stream.body()
        assert stream.frames[-1].event == "retry"
        assert stream.seqs == [1, 2]
        await mortal.ended()
        async with await Response.open(proxy.port, stream_of(p.run_id)) as answer:
            assert (answer.status, json.loads(await answer.body())["code"]) == (502, "upstream_failed")
        # An EventSource comes back after this, and would not after a 502.
        headers = [("Accept", "text/event-stream"), ("Last-Event-ID", f"{p.run_id}:2")]
        async with await Response.open(proxy.port, stream_of(p.run_id), headers=headers) as again:
            await again.body()
            assert (again.status, [f.event for f in again.frames]) == (200, ["retry"])
        mortal.start()
        try:
            await say(p, end=True)
            async with await Response.open(proxy.port, stream_of(p.run_id), headers=headers) as again:
                await again.body()
                assert again.seqs == [3]
        finally:
            mortal.kill()


# The proxy goes away.


async def test_a_proxy_that_is_stopped_lets_streams_end_and_cuts_the_others(
    nest: Start, gateway: GatewayProcess, broker: Broker
) -> None:
    proxy = nest(gateway.port, drain=5)
    async with writing(broker) as ending, writing(broker) as going_on:
        streams = [await Response.open(proxy.port, stream_of(p.run_id)) for p in (ending, going_on)]
        proxy.popen.send_signal(signal.SIGTERM)
        await until(lambda: _refused(proxy.port))
        await say(ending, 2, end=True)
        await streams[0].body()
        assert streams[0].seqs == [1, 2, 3]
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await streams[1].body()
        assert not streams[1].complete
        await until(lambda: proxy.popen.poll() is not None)
        assert proxy.popen.returncode == 0
        await gateway.reads("runcast_viewers", 0)


async def _refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False
