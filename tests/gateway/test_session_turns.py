"""Runs of a busy session over HTTP: who waits, who is refused, and what they are told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from broker.api import Broker
from broker.items import Encoded
from broker.settings import Settings
from tests.gateways import until


@pytest.fixture
def busy(request: pytest.FixtureRequest) -> Any:
    """``RUNCAST_SESSION_BUSY``; not set unless a test says so."""
    return getattr(request, "param", None)


@pytest.fixture
def memory_settings(tmp_path: Path, busy: Any) -> Settings:
    names = {"namespace": f"t{uuid4().hex[:12]}", "data_dir": tmp_path / "data"}
    return Settings(redis_url=f"memory:{uuid4().hex}", partitions=4, block=0.2, session_busy=busy, **names)


async def make(client: httpx.AsyncClient, status: int = 201, **fields: Any) -> Any:
    body = {"runner": "nobody", "input": {"message": "hello"}, "session_id": "s", **fields}
    reply = await client.post("/v1/runs", json=body)
    assert reply.status_code == status, reply.text
    return reply.json()


async def look(client: httpx.AsyncClient, run_id: str) -> Any:
    return (await client.get(f"/v1/runs/{run_id}")).json()


async def test_unless_it_is_set_runs_of_a_session_do_not_care(client: httpx.AsyncClient) -> None:
    runs = [await make(client) for _ in range(2)]
    assert [(await look(client, run["run_id"])).get("waits_for_session") for run in runs] == [None, None]


@pytest.mark.parametrize("busy", ["wait"], indirect=True)
async def test_they_wait(client: httpx.AsyncClient, broker: Broker) -> None:
    first, second = await make(client), await make(client)
    assert (second["status"], (await look(client, second["run_id"]))["waits_for_session"]) == ("queued", True)
    listed = (await client.get("/v1/runs")).json()["runs"]
    assert [run.get("waits_for_session") for run in listed] == [True, None]
    assert (await client.post(f"/v1/runs/{first['run_id']}/cancel")).status_code == 202
    known = await look(client, second["run_id"])
    assert (known["status"], known.get("waits_for_session")) == ("queued", None)
    assert (await broker.runs.claim(second["run_id"], 1, "me")).status == "running"


@pytest.mark.parametrize("busy", ["refuse"], indirect=True)
async def test_they_are_refused(client: httpx.AsyncClient) -> None:
    first = await make(client)
    problem = await make(client, 409)
    assert (problem["code"], problem["active_run_id"]) == ("session_busy", first["run_id"])
    assert first["run_id"] in problem["detail"]
    assert await make(client, session_id=None)
    assert await make(client, session_id="t")
    await client.post(f"/v1/runs/{first['run_id']}/cancel")
    assert await make(client)


@pytest.mark.parametrize("busy", [None, "wait", "refuse"], indirect=True)
async def test_a_turn_of_a_front_end_is_refused_whatever_the_setting(client: httpx.AsyncClient, busy: Any) -> None:
    first = await make(client)
    reply = await client.post("/api/chat/start", json={"session_id": "s", "message": "m", "runner": "nobody"})
    assert (reply.status_code, reply.json()["active_stream_id"]) == (409, first["run_id"])


@pytest.mark.parametrize("busy", [None, "wait", "refuse"], indirect=True)
async def test_a_chat_waits_unless_it_is_to_be_refused(client: httpx.AsyncClient, broker: Broker, busy: Any) -> None:
    first = await make(client)
    body = {"message": "hello", "session_id": "s", "metadata": {}}
    if busy == "refuse":
        reply = await client.post("/chat", json=body)
        assert (reply.status_code, reply.json()["active_run_id"]) == (409, first["run_id"])
        return
    asking = asyncio.create_task(client.post("/chat", json=body))
    await until(lambda: waiting(broker))
    assert not asking.done()
    for run_id in (await waiting(broker), first["run_id"]):
        await broker.runs.cancel(run_id)
    assert (await asking).status_code == 409


async def waiting(broker: Broker) -> str:
    """The run that waits for its turn, or ``""``."""
    return next((run.run_id for run in (await broker.runs.list(session_id="s"))[0] if run.waits), "")


@pytest.mark.parametrize("busy", ["refuse"], indirect=True)
async def test_what_came_before_its_message_is_in_no_list(client: httpx.AsyncClient, broker: Broker) -> None:
    run = await make(client)
    await broker.runs.claim(run["run_id"], 1, "me")
    d = b'{"ts":1.5,"rounds":2,"steps":[{"type":"tool","round":1,"call_id":"c","name":"n","result":"r"}]}'
    await broker.log.append(run["run_id"], "me", 1, 1, [Encoded("final", d)])
    [listed] = (await client.get("/v1/runs")).json()["runs"]
    assert "steps" not in listed["outcome"]
    assert (await look(client, run["run_id"]))["outcome"]["steps"][0]["call_id"] == "c"
