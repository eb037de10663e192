"""The cost cap at the gateway: 402 and nothing made, for everything that makes runs, over any number of gateways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from decimal import Decimal
from typing import Any
from uuid import uuid4

import httpx
import pytest

from broker import api
from broker.admission import make_run
from broker.api import Broker
from broker.errors import RunExists, StoreUnavailable
from broker.items import Final, encode
from broker.money import shown
from broker.scripts import Script
from broker.settings import Settings
from gateway.app import create_app
from tests.broker.books import nano
from tests.broker.registry import request
from tests.gateway.conftest import lifespan_of
from tests.gateways import until


@pytest.fixture
def memory_settings(memory_settings: Settings) -> Settings:
    caps = {"cost_cap": Decimal(1), "cost_cap_principal": Decimal("0.5"), "cost_reservation": Decimal("0.5")}
    return memory_settings.model_copy(update={**caps, "principal_header": "X-Remote-User"})


def body(message: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"runner": "scripted", "input": {"message": message}, **fields}


async def post(client: httpx.AsyncClient, who: str = "", *, key: str = "", **fields: Any) -> httpx.Response:
    headers = {**({"X-Remote-User": who} if who else {}), **({"Idempotency-Key": key} if key else {})}
    return await client.post("/v1/runs", json=body(**fields), headers=headers)


async def reserved(broker: Broker) -> str:
    return shown((await broker.ledger.budget()).total.reserved)


async def test_at_the_cap_the_answer_is_402_and_nothing_is_made(client: httpx.AsyncClient, broker: Broker) -> None:
    assert [(await post(client, who)).status_code for who in ("ann", "bob")] == [201, 201]
    refused = await post(client, "eve")
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["status"]) == (402, "cost_cap", 402)
    assert "$1 a day for all together" in problem["detail"]
    assert 0 < int(refused.headers["Retry-After"]) <= 86_400
    assert refused.headers["Content-Type"] == "application/problem+json"
    runs, _ = await broker.runs.list()
    assert {r.principal for r in runs} == {"ann", "bob"}
    assert await broker.store.call("XLEN", broker.keys.queue("default")) == 2


async def test_a_principal_reaches_its_own_cap_first(client: httpx.AsyncClient) -> None:
    assert [(await post(client, "ann")).status_code for _ in range(2)] == [201, 402]
    assert "$0.5 a day for one principal" in (await post(client, "ann")).json()["detail"]


@pytest.mark.parametrize("values", [["ann", "bob"], ["ann\x7f"], ["x" * 201]])
async def test_a_principal_that_is_not_clear_is_refused(client: httpx.AsyncClient, values: list[str]) -> None:
    headers = [("X-Remote-User", value) for value in values]
    refused = await client.post("/v1/runs", json=body(), headers=headers)
    assert (refused.status_code, refused.json()["field"]) == (400, "X-Remote-User")


async def test_without_the_setting_the_header_means_nothing(broker: Broker) -> None:
    plain = create_app(broker.settings.model_copy(update={"principal_header": None}), broker)
    async with (
        lifespan_of(plain),
        httpx.AsyncClient(transport=httpx.ASGITransport(plain), base_url="http://g") as client,
    ):
        made = await post(client, "ann")
    assert (await broker.runs.get(made.json()["run_id"])).principal == ""


async def test_a_repeated_request_is_let_in_and_reserved_for_once(client: httpx.AsyncClient, broker: Broker) -> None:
    first, *others = await asyncio.gather(*(post(client, "ann", key="k") for _ in range(6)))
    assert {r.json()["run_id"] for r in (first, *others)} == {first.json()["run_id"]}
    assert await reserved(broker) == "0.5"
    await post(client, "bob")
    assert (await post(client, "ann", key="other")).status_code == 402
    again = await post(client, "ann", key="k")
    assert (again.status_code, again.json()["run_id"]) == (200, first.json()["run_id"])
    assert await reserved(broker) == "1"


@pytest.mark.parametrize("wrong", [{"message": "  "}, {"session_id": "no/id"}])
async def test_for_what_cannot_be_made_nothing_stays_reserved(
    client: httpx.AsyncClient, broker: Broker, wrong: dict[str, Any]
) -> None:
    assert (await post(client, **wrong)).status_code in (400, 422)
    assert await reserved(broker) == "0"


async def test_what_is_reserved_for_an_id_that_is_taken_is_held_for_the_run_that_has_it(broker: Broker) -> None:
    await broker.runs.create(request(), run_id="taken")
    with pytest.raises(RunExists):
        await make_run(broker, request(), principal="", run_id="taken")
    assert await reserved(broker) == "0.5"
    await broker.runs.cancel("taken")
    assert await reserved(broker) == "0"


@pytest.mark.parametrize("how", [StoreUnavailable("the answer was lost"), asyncio.CancelledError()])
async def test_where_nobody_knows_whether_it_was_made_the_reservation_stays(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, how: BaseException
) -> None:
    real = broker.store.script

    async def lost(script: Script, *rest: Any) -> Any:
        reply = await real(script, *rest)
        if script.name == "create":
            raise how
        return reply

    monkeypatch.setattr(broker.store, "script", lost)
    with pytest.raises(type(how)):
        await make_run(broker, request(), principal="")
    assert await reserved(broker) == "0.5"


async def test_a_chat_that_is_refused_leaves_its_session_free(client: httpx.AsyncClient, broker: Broker) -> None:
    session = await broker.sessions.create()
    for who in ("ann", "bob"):
        await post(client, who)
    start = {"session_id": session.session_id, "message": "hi"}
    refused = await client.post("/api/chat/start", json=start)
    assert (refused.status_code, refused.json()["code"]) == (402, "cost_cap")
    assert refused.json()["error"] == refused.json()["detail"]
    for run in (await broker.runs.list())[0]:
        await broker.runs.cancel(run.run_id)
    assert (await client.post("/api/chat/start", json=start)).status_code == 200


async def test_a_gateway_settles_what_a_worker_that_died_left(client: httpx.AsyncClient, broker: Broker) -> None:
    """The worker wrote the fence and was gone before it booked."""
    run_id = (await post(client, "ann")).json()["run_id"]
    await broker.runs.claim(run_id, 1, "me")
    end = encode(Final(message=None, rounds=1, cost={"total": "0.3", "currency": "USD"}), ts=1.0)
    await broker.log.append(run_id, "me", 1, 1, [end])

    async def booked() -> bool:
        return (await broker.ledger.budget()).total.spent == nano("0.3")

    await until(booked)
    assert await reserved(broker) == "0"


# Several gateways.


@pytest.fixture
async def pods(store: Any, settings: Settings) -> AsyncIterator[list[tuple[Broker, httpx.AsyncClient]]]:
    """Gateways with brokers of their own over one store of each kind."""
    limits = {"cost_cap": Decimal("0.9"), "cost_reservation": Decimal("0.1"), "partitions": 4}
    limits |= {"namespace": f"t{uuid4().hex[:12]}", "block": 0.2}
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(3):
            broker = await stack.enter_async_context(api.open(settings=settings.model_copy(update=limits)))
            gateway = create_app(broker=broker)
            await stack.enter_async_context(lifespan_of(gateway))
            transport = httpx.ASGITransport(gateway, raise_app_exceptions=False)
            client = httpx.AsyncClient(transport=transport, base_url="http://gateway")
            made.append((broker, await stack.enter_async_context(client)))
        yield made


async def test_requests_over_several_gateways_at_once_pass_no_cap(pods: list[tuple[Broker, httpx.AsyncClient]]) -> None:
    answers = await asyncio.gather(*(post(client) for _ in range(10) for _, client in pods))
    made = [a.json()["run_id"] for a in answers if a.status_code == 201]
    assert len(made) == 9
    assert {a.status_code for a in answers} == {201, 402}
    broker = pods[0][0]
    paid = [broker.runs.claim(run_id, 1, "me") for run_id in made]
    for number, record in enumerate(await asyncio.gather(*paid)):
        cost = {"total": f"0.0{number}", "currency": "USD"}
        end = encode(Final(message=None, rounds=1, cost=cost), ts=1.0)
        await broker.log.append(record.run_id, "me", 1, 1, [end])

    async def booked() -> bool:
        return (await broker.ledger.budget()).total.runs == 9

    await until(booked)
    total = (await broker.ledger.budget()).total
    assert (shown(total.spent), total.reserved, total.refused) == ("0.36", 0, 21)
    entries = [e.fields async for e in broker.ledger.audit.read()]
    assert sorted(e["run_id"] for e in entries if e["kind"] == "run") == sorted(made)
    assert (await post(pods[1][1])).status_code == 201


@pytest.mark.parametrize("path", ["/chat", "/v1/chat", "/chat/stream", "/v1/chat/stream"])
async def test_a_chat_request_is_refused_before_its_first_byte(client: httpx.AsyncClient, path: str) -> None:
    for who in ("ann", "bob"):
        await post(client, who)
    refused = await client.post(path, json={"message": "hi"})
    assert (refused.status_code, refused.json()["code"]) == (402, "cost_cap")
    assert int(refused.headers["Retry-After"]) > 0
