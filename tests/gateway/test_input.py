"""``POST /v1/runs/{run_id}/input``: any gateway takes an answer, one answer counts, and an outage loses none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from broker import api
from broker.api import Broker
from broker.items import Failed
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from gateway.app import Gateway, create_app
from tests.gateway.conftest import Play, lifespan_of
from tests.servers import RedisServer
from workers.scripted import ScriptedRunner
from workers.worker import Worker

JSON = {"Content-Type": "application/json"}


async def post(client: httpx.AsyncClient, run_id: str, answer: Any, request_id: Any = "q1") -> httpx.Response:
    return await client.post(f"/v1/runs/{run_id}/input", json={"request_id": request_id, "answer": answer})


async def test_an_answer_is_taken_and_is_no_longer_pending(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    await run.ask()
    record = (await client.get(f"/v1/runs/{run.id}")).json()
    (pending,) = record["pending_input"]
    assert {name: pending[name] for name in ("request_id", "kind", "choices", "free", "timeout_s")} == {
        "request_id": "q1",
        "kind": "approval",
        "choices": ["once", "session", "always", "deny"],
        "free": False,
        "timeout_s": 300.0,
    }
    assert pending["payload"] == {"command": "rm -rf build", "description": "deletes the folder “build”"}
    assert pending["asked_at"] < pending["expires_at"]
    assert pending["asked_at"].endswith("Z")
    assert "pending_input" not in (await client.get("/v1/runs")).json()["runs"][0]
    answered = await post(client, run.id, True)
    assert answered.status_code == 200
    assert answered.json() == {"run_id": run.id, "request_id": "q1", "answer": "once", "status": "running"}
    assert answered.headers["cache-control"] == "no-store"
    assert (await client.get(f"/v1/runs/{run.id}")).json()["pending_input"] == []


async def test_the_second_answer_is_told_what_the_first_was(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    await run.ask()
    assert (await post(client, run.id, "deny")).status_code == 200
    second = await post(client, run.id, "once")
    assert second.status_code == 409
    problem = second.json()
    assert (problem["code"], problem["answer"], problem["how"]) == ("already_answered", "deny", "answered")
    assert "'deny'" in problem["detail"]


async def test_after_the_time_limit(client: httpx.AsyncClient, play: Play, broker: Broker) -> None:
    run = await play()
    await run.ask()
    await broker.runs.asks.settle(run.id, "q1", "deny", how="expired")
    late = await post(client, run.id, "once")
    assert (late.status_code, late.json()["code"], late.json()["how"]) == (409, "already_answered", "expired")
    assert "in time" in late.json()["detail"]


async def test_after_the_end(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    await run.ask()
    await run.append(Failed(code="x", message="y"))
    late = await post(client, run.id, "once")
    assert (late.status_code, late.json()["code"]) == (409, "run_ended")
    assert (await client.get(f"/v1/runs/{run.id}")).json()["pending_input"] == []


async def test_what_was_never_asked(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    unknown = await post(client, run.id, "once")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_request")
    unknown = await post(client, "run_none", "once")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "run_not_found")


@pytest.mark.parametrize(
    ("body", "status", "code", "field", "says"),
    [
        (b'{"request_id":"q1","answer":"maybe"}', 422, "invalid_request", "answer", "once, session, always, deny"),
        (b'{"request_id":"q1","answer":""}', 422, "invalid_request", "answer", "empty"),
        (b'{"request_id":"q1","answer":3}', 422, "invalid_request", "answer", "bool"),
        (b'{"request_id":"q1","answer":null}', 422, "invalid_request", "answer", "bool"),
        (b'{"request_id":"q1"}', 422, "invalid_request", "answer", "required"),
        (b'{"answer":"once"}', 422, "invalid_request", "request_id", "required"),
        (b'{"request_id":"q1","answer":"once","how":"expired"}', 422, "invalid_request", "how", "allowed"),
        (b'{"request_id":"a b","answer":"once"}', 400, "invalid_id", "request_id", "allowed"),
        (b'{"request_id":', 400, "bad_request", None, "JSON"),
        (b"", 400, "bad_request", None, "JSON"),
        (b'{"request_id":"q1","answer":"%b"}' % (b"x" * 17_000), 413, "item_too_big", "answer", "allowed"),
        (b'{"request_id":"q1","answer":"%b"}' % (b"x" * 20_000), 413, "body_too_large", None, "20000"),
    ],
)
async def test_bad_bodies(
    client: httpx.AsyncClient, play: Play, body: bytes, status: int, code: str, field: str | None, says: str
) -> None:
    run = await play()
    await run.ask()
    refused = await client.post(f"/v1/runs/{run.id}/input", content=body, headers=JSON)
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem.get("field")) == (status, code, field)
    assert says in problem["detail"]
    assert len((await client.get(f"/v1/runs/{run.id}")).json()["pending_input"]) == 1


async def test_what_is_not_declared_as_json(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    await run.ask()
    refused = await client.post(f"/v1/runs/{run.id}/input", content=b'{"request_id":"q1","answer":"once"}')
    assert refused.status_code == 415
    assert (await client.get(f"/v1/runs/{run.id}/input")).status_code == 405


async def test_it_is_described(gateway: Gateway) -> None:
    document = gateway.api.openapi()
    route = document["paths"]["/v1/runs/{run_id}/input"]["post"]
    assert set(route["responses"]) == {"200", "400", "404", "409", "413", "415", "422", "503"}
    assert route["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/InputAnswer"}
    schemas = document["components"]["schemas"]
    assert set(schemas["InputAnswer"]["properties"]) == {"request_id", "answer"}
    assert {"answer", "how"} <= set(schemas["Problem"]["properties"])
    assert "pending_input" in schemas["Run"]["properties"]
    assert "PendingInput" in schemas


# Two gateways and a worker, each with a broker of its own.


@asynccontextmanager
async def _gateways(settings: Settings, count: int = 2) -> AsyncIterator[list[httpx.AsyncClient]]:
    clients: list[httpx.AsyncClient] = []
    made = [create_app(settings) for _ in range(count)]
    async with lifespan_of(made[0]), lifespan_of(made[1]):
        for gateway in made:
            transport = httpx.ASGITransport(gateway, raise_app_exceptions=False)
            clients.append(httpx.AsyncClient(transport=transport, base_url="http://gateway"))
        yield clients
        for client in clients:
            await client.aclose()


@asynccontextmanager
async def _worker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as broker:
        worker = Worker(broker, runners={"scripted": ScriptedRunner()})
        task = asyncio.create_task(worker.run())
        try:
            yield broker
        finally:
            worker.drain()
            worker.drain()
            await asyncio.wait_for(task, 20)


def _settings(server: RedisServer, tmp_path: Path, **more: Any) -> Settings:
    return Settings(
        redis_url=server.url,
        namespace=f"t{uuid4().hex[:12]}",
        data_dir=tmp_path,
        partitions=4,
        block=0.5,
        beat=0.2,
        **more,
    )


async def _start(broker: Broker, script: str) -> str:
    request = RunRequest(runner="scripted", input=RunInput(message="x"), metadata={"script": script})
    return (await broker.runs.create(request))[0].run_id


async def _pending(client: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            answer = await client.get(f"/v1/runs/{run_id}")
            if answer.status_code == 200 and (asks := answer.json()["pending_input"]):
                found: dict[str, Any] = asks[0]
                return found
            await asyncio.sleep(0.02)


async def _outcome(client: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(40):
        while True:  # a 503: the deadline of these gateways is short
            answer = await client.get(f"/v1/runs/{run_id}/result", params={"wait": 15})
            if answer.status_code != 503:
                break
    assert answer.status_code == 200, answer.text
    outcome: dict[str, Any] = answer.json()["outcome"]
    return outcome


async def _text(broker: Broker, run_id: str) -> str:
    return "".join(
        [e.fields["text"] async for e in broker.stream(run_id, modes="messages") if e.type == "message.delta"]
    )


async def test_asked_on_one_gateway_and_answered_through_the_other(redis7: RedisServer, tmp_path: Path) -> None:
    settings = _settings(redis7, tmp_path)
    async with _gateways(settings) as (one, two), _worker(settings) as broker:
        run_id = await _start(broker, "tokens=2 ask=1 question=2")
        approval = await _pending(one, run_id)
        assert (await post(two, run_id, "always", approval["request_id"])).status_code == 200
        assert (await post(one, run_id, "deny", approval["request_id"])).status_code == 409
        async with asyncio.timeout(30):
            while (question := await _pending(two, run_id))["kind"] != "question":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await post(one, run_id, "mauve", question["request_id"])).status_code == 200
        assert (await _outcome(two, run_id))["type"] == "final"
        assert await _text(broker, run_id) == "w1 [approval: always] w2 [answer: mauve] "


async def test_of_racing_answers_one_is_taken(redis7: RedisServer, tmp_path: Path) -> None:
    settings = _settings(redis7, tmp_path)
    async with _gateways(settings) as clients, _worker(settings) as broker:
        run_id = await _start(broker, "tokens=1 ask=1")
        ask = await _pending(clients[0], run_id)
        words = ["once", "session", "always", "deny"] * 5
        sent = [post(clients[n % 2], run_id, word, ask["request_id"]) for n, word in enumerate(words)]
        answers = await asyncio.gather(*sent)
        (won,) = [a.json()["answer"] for a in answers if a.status_code == 200]
        refused = [a.json() for a in answers if a.status_code == 409]
        assert len(refused) == len(words) - 1
        assert {(r["code"], r["answer"]) for r in refused} == {("already_answered", won)}
        await _outcome(clients[1], run_id)
        assert await _text(broker, run_id) == f"w1 [approval: {won}] "


async def test_redis_is_away_while_somebody_answers(redis_server: RedisServer, tmp_path: Path) -> None:
    """The answer that was sent into the outage may have been taken or not: the same answer again tells which."""
    settings = _settings(redis_server, tmp_path, lease=30.0)
    hasty = settings.model_copy(update={"request_deadline": 1.0})
    async with _gateways(hasty) as (one, two), _worker(settings) as broker:
        run_id = await _start(broker, "tokens=1 ask=1")
        ask = await _pending(one, run_id)
        redis_server.pause()
        away = await post(one, run_id, "session", ask["request_id"])
        assert (away.status_code, away.json()["code"]) == (503, "store_unavailable")
        assert int(away.headers["retry-after"]) > 0
        redis_server.resume()
        async with asyncio.timeout(30):
            while (again := await post(two, run_id, "session", ask["request_id"])).status_code == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert again.status_code == 200 or again.json()["answer"] == "session", again.text
        await _outcome(two, run_id)
        assert await _text(broker, run_id) == "w1 [approval: session] "


async def test_the_bus_tells_of_both(client: httpx.AsyncClient, play: Play, broker: Broker) -> None:
    run = await play()
    await run.ask()
    await post(client, run.id, "once")
    entries = await broker.store.call("XRANGE", broker.keys.bus(broker.keys.partition(run.id)), "-", "+")
    news = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in entries]
    asked, answered = (event for event in news if event[b"kind"].startswith(b"run.input_"))
    assert (asked[b"kind"], answered[b"kind"]) == (b"run.input_requested", b"run.input_answered")
    assert b'"request_id":"q1","kind":"approval"' in asked[b"d"]
    assert b'"how":"answered"' in answered[b"d"]
