"""``/v1/runs`` over a store in memory: every route, every error."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from broker.api import Broker
from broker.items import Cancelled, Cost, Failed, Final, ToolStarted, Usage
from tests.gateway.conftest import Play
from tests.servers import eventually

BODY = {"runner": "scripted", "input": {"message": "hello"}}


def assert_problem(response: httpx.Response, status: int, code: str, field: str | None = None) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert (response.status_code, body["status"], body["code"], body.get("field")) == (status, status, code, field)
    assert body["title"]
    assert body["detail"]
    assert body["type"]
    return body


async def create(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/runs", json={**BODY, **fields})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


# Creating.


async def test_creating_answers_with_what_a_client_needs(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/runs", json=BODY)
    made = response.json()
    assert response.status_code == 201
    assert set(made) == {"run_id", "status", "cancel_token", "stream_url", "created_at"}
    assert made["status"] == "queued"
    assert made["stream_url"] == f"/v1/runs/{made['run_id']}/stream"
    assert response.headers["location"] == f"/v1/runs/{made['run_id']}"
    assert made["created_at"].endswith("Z")


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"model": "m" * 257}, "input.model"),
        ({"provider": "p" * 257}, "input.provider"),
        ({"toolsets": ["t" * 257]}, "input.toolsets"),
        ({"toolsets": ["t"] * 65}, "input.toolsets"),
    ],
)
async def test_names_have_a_length(client: httpx.AsyncClient, part: dict[str, Any], field: str) -> None:
    """They are copied into records, audit and logs."""
    refused = await client.post("/v1/runs", json={**BODY, "input": {"message": "x", **part}})
    assert "allowed" in assert_problem(refused, 422, "invalid_request", field)["detail"]
    just = {"model": "m" * 256, "provider": "p" * 256, "toolsets": ["t" * 256] * 64}
    assert (await client.post("/v1/runs", json={**BODY, "input": {"message": "x", **just}})).status_code == 201


async def test_the_same_key_and_body_is_the_same_run(client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/runs", json=BODY, headers={"Idempotency-Key": "k1"})
    again = await client.post("/v1/runs", json=BODY, headers={"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    other = await client.post("/v1/runs", json={**BODY, "metadata": {"a": "b"}}, headers={"Idempotency-Key": "k1"})
    assert_problem(other, 409, "idempotency_conflict")


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "\t"])
async def test_idempotency_keys_are_checked(client: httpx.AsyncClient, key: str) -> None:
    response = await client.post("/v1/runs", json=BODY, headers={"Idempotency-Key": key})
    assert_problem(response, 400, "bad_request", "Idempotency-Key")


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 422, "invalid_request", "input"),
        ({"input": {"message": "x"}, "colour": "red"}, 422, "invalid_request", "colour"),
        ({"input": {"message": "x", "temperature": 1}}, 422, "invalid_request", "input.temperature"),
        ({"input": {"message": "  "}}, 422, "invalid_request", "input.message"),
        ({"input": {"message": "x" * 10_001}}, 413, "item_too_big", "input.message"),
        ({"input": {"message": "x"}, "session_id": "a/b"}, 400, "invalid_id", "session_id"),
        ({"input": {"message": "x"}, "metadata": {"a": 1}}, 422, "invalid_request", "metadata[...]"),
    ],
)
async def test_bad_requests(client: httpx.AsyncClient, body: Any, status: int, code: str, field: str) -> None:
    assert_problem(await client.post("/v1/runs", json=body), status, code, field)


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_what_is_not_declared_as_json_is_refused(client: httpx.AsyncClient, media_type: str) -> None:
    headers = {"Content-Type": media_type} if media_type else {}
    response = await client.post("/v1/runs", content=b'{"input":{"message":"x"}}', headers=headers)
    assert_problem(response, 415, "unsupported_media_type")


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"])
async def test_json_by_any_of_its_names(client: httpx.AsyncClient, media_type: str) -> None:
    response = await client.post("/v1/runs", content=b'{"input":{"message":"x"}}', headers={"Content-Type": media_type})
    assert response.status_code == 201


async def test_a_declared_length_beyond_the_limit_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/runs", content=b" " * 20_001, headers={"Content-Type": "application/json"})
    assert_problem(response, 413, "body_too_large")
    assert response.headers["connection"] == "close"


async def test_a_body_without_length_is_cut_at_the_limit(client: httpx.AsyncClient) -> None:
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 5_000

    response = await client.post("/v1/runs", content=endless(), headers={"Content-Type": "application/json"})
    assert_problem(response, 413, "body_too_large")
    assert sent <= 6


# Looking.


async def test_a_run_as_it_stands(client: httpx.AsyncClient, play: Play) -> None:
    run = await play("what is\nthe time?", session_id="s1", metadata={"k": "v"})
    await run.say("a", "b")
    await run.append(Usage(input_tokens=5, output_tokens=None, total={"input_tokens": 5, "output_tokens": None}))
    await run.append(Cost(amount="0.1", total="0.3"))
    seen = (await client.get(f"/v1/runs/{run.id}")).json()
    created, started = seen.pop("created_at"), seen.pop("started_at")
    assert created <= started
    assert seen == {
        "run_id": run.id,
        "status": "running",
        "runner": "scripted",
        "title": "what is the time?",
        "session_id": "s1",
        "metadata": {"k": "v"},
        "first_seq": 1,
        "last_seq": 4,
        "attempt": 1,
        "cancel_requested": False,
        "ended_at": None,
        "usage": {"input_tokens": 5, "output_tokens": None},
        "cost": {"total": "0.3", "currency": "USD", "estimated": False},
        "outcome": None,
        "input": {"message": "what is\nthe time?"},
        "pending_input": [],
    }


async def test_a_list_has_the_beginning_of_what_a_run_said(client: httpx.AsyncClient, play: Play) -> None:
    run = await play("tell me")
    text, short = "é" * 2_000, "no more than is allowed"
    blocks = [{"type": "text", "text": text}, {"type": "text", "text": short}]
    said = Final(message={"role": "assistant", "content": blocks}, metadata={"transcript": text}, truncated_bytes=7)
    await run.append(said)
    [listed] = (await client.get("/v1/runs")).json()["runs"]
    outcome = listed["outcome"]
    assert [block["text"] for block in outcome["message"]["content"]] == [text[:500], short]
    assert outcome["metadata"] == {"transcript": text[:500]}
    assert outcome["truncated_bytes"] == 2 * 2 * 1_500 + 7
    whole = (await client.get(f"/v1/runs/{run.id}")).json()["outcome"]
    assert (whole["message"]["content"], whole["metadata"]) == (blocks, {"transcript": text})
    assert outcome.keys() == whole.keys()


async def test_an_ended_run_has_its_outcome(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    await run.append(Failed(code="boom", message="it broke", retryable=True))
    seen = (await client.get(f"/v1/runs/{run.id}")).json()
    assert seen["status"] == "failed"
    assert seen["ended_at"] is not None
    assert (seen["outcome"]["type"], seen["outcome"]["seq"], seen["outcome"]["code"]) == ("failed", 1, "boom")


@pytest.mark.parametrize("path", ["", "/items", "/result"])
async def test_unknown_runs(client: httpx.AsyncClient, path: str) -> None:
    assert_problem(await client.get(f"/v1/runs/run_none{path}"), 404, "run_not_found")


@pytest.mark.parametrize("path", ["", "/items", "/result"])
@pytest.mark.parametrize("run_id", ["a%20b", "x" * 129, "ü", "a:1"])
async def test_impossible_ids(client: httpx.AsyncClient, path: str, run_id: str) -> None:
    assert_problem(await client.get(f"/v1/runs/{run_id}{path}"), 400, "invalid_id", "run_id")


# Listing.


async def test_the_list_is_newest_first_and_paged(client: httpx.AsyncClient) -> None:
    made = [(await create(client))["run_id"] for _ in range(5)]
    seen: list[str] = []
    before = None
    while True:
        query = {"limit": 2, **({"before": before} if before else {})}
        page = (await client.get("/v1/runs", params=query)).json()
        seen += [run["run_id"] for run in page["runs"]]
        before = page["next"]
        if before is None:
            break
    assert seen == made[::-1]
    assert "first_seq" not in page["runs"][0]


async def test_the_list_is_filtered(client: httpx.AsyncClient, play: Play) -> None:
    running = await play(session_id="mine")
    await create(client, session_id="other")
    by_status = (await client.get("/v1/runs?status=running")).json()["runs"]
    by_session = (await client.get("/v1/runs?session_id=mine")).json()["runs"]
    assert [run["run_id"] for run in by_status] == [run["run_id"] for run in by_session] == [running.id]


@pytest.mark.parametrize(
    ("query", "status", "code", "field"),
    [
        ("limit=0", 422, "invalid_request", "limit"),
        ("limit=201", 422, "invalid_request", "limit"),
        ("limit=many", 422, "invalid_request", "limit"),
        ("status=done", 422, "invalid_request", "status"),
        ("session_id=a/b", 400, "invalid_id", "session_id"),
        ("before=nonsense!", 400, "bad_request", "before"),
    ],
)
async def test_bad_lists(client: httpx.AsyncClient, query: str, status: int, code: str, field: str) -> None:
    assert_problem(await client.get(f"/v1/runs?{query}"), status, code, field)


# Items.


async def test_items_are_pages_of_what_is_stored(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    await run.say("a", "b", "c")
    page = (await client.get(f"/v1/runs/{run.id}/items", params={"limit": 2})).json()
    assert [(i["seq"], i["type"], i["text"], i["run_id"]) for i in page["items"]] == [
        (1, "message.delta", "a", run.id),
        (2, "message.delta", "b", run.id),
    ]
    assert (page["next"], page["complete"], page["first_seq"], page["last_seq"]) == (2, False, 1, 3)
    rest = (await client.get(f"/v1/runs/{run.id}/items", params={"after": 2})).json()
    assert [i["seq"] for i in rest["items"]] == [3]
    assert (rest["next"], rest["complete"]) == (3, False)
    await run.end()
    rest = (await client.get(f"/v1/runs/{run.id}/items", params={"after": 3})).json()
    assert [i["type"] for i in rest["items"]] == ["final"]
    assert (rest["next"], rest["complete"]) == (None, True)


async def test_items_backwards_and_by_modes(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    await run.say("a", "b")
    await run.append(ToolStarted(call_id="c", name="terminal", args={"command": "ls"}))
    await run.end()
    desc = (await client.get(f"/v1/runs/{run.id}/items?order=desc")).json()
    assert [i["seq"] for i in desc["items"]] == [4, 3, 2, 1]
    assert desc["complete"]
    tools = (await client.get(f"/v1/runs/{run.id}/items?modes=tools&modes=usage")).json()
    assert [i["type"] for i in tools["items"]] == ["tool.started", "final"]
    between = (await client.get(f"/v1/runs/{run.id}/items?after=1&before=3")).json()
    assert [i["seq"] for i in between["items"]] == [2]
    assert between["complete"]


@pytest.mark.parametrize(
    ("query", "status", "code", "field"),
    [
        ("limit=0", 422, "invalid_request", "limit"),
        ("limit=1001", 422, "invalid_request", "limit"),
        ("after=-1", 422, "invalid_request", "after"),
        ("after=99999999999999999999", 422, "invalid_request", "after"),
        ("before=x", 422, "invalid_request", "before"),
        ("order=up", 422, "invalid_request", "order"),
        ("modes=smells", 400, "unknown_mode", "modes"),
    ],
)
async def test_bad_pages(client: httpx.AsyncClient, play: Play, query: str, status: int, code: str, field: str) -> None:
    run = await play()
    assert_problem(await client.get(f"/v1/runs/{run.id}/items?{query}"), status, code, field)


# Results.


async def test_a_result_that_is_there(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    await run.end()
    response = await client.get(f"/v1/runs/{run.id}/result")
    assert response.status_code == 200
    assert response.json()["status"] == "completed"
    assert response.json()["outcome"]["message"] == {"role": "assistant", "content": "done"}


async def test_a_result_that_is_not_there_yet(client: httpx.AsyncClient, play: Play) -> None:
    run = await play(claim=False)
    response = await client.get(f"/v1/runs/{run.id}/result")
    assert (response.status_code, response.json()) == (202, {"run_id": run.id, "status": "queued"})
    began = time.monotonic()
    response = await client.get(f"/v1/runs/{run.id}/result?wait=0.3")
    assert response.status_code == 202
    assert 0.25 <= time.monotonic() - began < 20


@pytest.mark.parametrize("before", [0, 3])
async def test_a_result_is_waited_for(client: httpx.AsyncClient, play: Play, broker: Broker, before: int) -> None:
    run = await play()
    if before:
        await run.say(*"abc")
    waiting = asyncio.create_task(client.get(f"/v1/runs/{run.id}/result?wait=60"))
    await eventually(lambda: broker.hub.viewers)
    await run.say("d")
    ended = time.monotonic()
    await run.append(Cancelled())
    response = await waiting
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    assert time.monotonic() - ended < 20
    assert broker.hub.viewers == 0


@pytest.mark.parametrize("wait", ["-1", "60.1", "nan", "inf", "soon"])
async def test_bad_waits(client: httpx.AsyncClient, play: Play, wait: str) -> None:
    run = await play()
    assert_problem(await client.get(f"/v1/runs/{run.id}/result?wait={wait}"), 422, "invalid_request", "wait")


# Cancelling.


async def test_cancelling_a_queued_run_ends_it(client: httpx.AsyncClient) -> None:
    made = await create(client)
    headers = {"X-Cancel-Token": made["cancel_token"]}
    for _ in range(2):
        response = await client.post(f"/v1/runs/{made['run_id']}/cancel", headers=headers)
        assert (response.status_code, response.json()["status"]) == (202, "cancelled")


async def test_cancelling_a_running_run_is_a_request(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    for _ in range(2):
        response = await client.post(f"/v1/runs/{run.id}/cancel")
        assert response.status_code == 202
        assert response.json() == {"run_id": run.id, "status": "running", "cancel_requested": True}
    assert (await client.get(f"/v1/runs/{run.id}")).json()["cancel_requested"] is True


async def test_cancelling_what_has_ended(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    await run.end()
    assert_problem(await client.post(f"/v1/runs/{run.id}/cancel"), 409, "run_ended")


async def test_a_wrong_token_is_refused(client: httpx.AsyncClient, play: Play) -> None:
    run, other = await play(), await create(client)
    for token in (b"wrong", b"\xfc", other["cancel_token"].encode()):
        response = await client.post(f"/v1/runs/{run.id}/cancel", headers={b"X-Cancel-Token": token})
        assert_problem(response, 403, "forbidden")
    assert (await client.get(f"/v1/runs/{run.id}")).json()["cancel_requested"] is False


async def test_cancelling_what_was_never_there(client: httpx.AsyncClient) -> None:
    assert_problem(await client.post("/v1/runs/none/cancel"), 404, "run_not_found")
    assert_problem(await client.post("/v1/runs/a%20b/cancel"), 400, "invalid_id", "run_id")
