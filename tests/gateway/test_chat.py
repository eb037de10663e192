"""``/chat`` and ``/v1/chat``, waited for and streamed, over a store in memory, behind a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
from pydantic import SecretStr

from broker.api import Broker
from broker.errors import StoreUnavailable
from broker.items import Cancelled, Failed, Final, Item, ToolStarted, encode
from broker.metrics import DEMOTED
from broker.records import RunRecord
from broker.settings import Settings
from gateway.app import Gateway, create_app
from gateway.chat.replies import STYLE_KEY
from gateway.formats.chat import DONE
from gateway.webui.settings import WebuiSettings
from tests.gateway.chats import PLAIN, STREAMED, Events, events_of, made
from tests.gateway.conftest import Serve, lifespan_of
from tests.gateway.test_runs import assert_problem
from tests.gateways import until
from tests.servers import eventually
from workers.scripted import ScriptedRunner
from workers.worker import Worker

PATHS = (*PLAIN, *STREAMED)
BLOCK = '```json\n{"confidence": "40%", "risk_level": "Medium", "session_id": "no"}\n```'
HERMES = "20250101_000000_abcdef"


@pytest.fixture
async def chats(broker: Broker, serve: Serve) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway behind a server; its chats are made by nobody, unless the test plays the worker."""
    async with serve(create_app(broker=broker)) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield client


@asynccontextmanager
async def working(broker: Broker) -> AsyncIterator[None]:
    worker = Worker(broker, runners={"scripted": ScriptedRunner()}, sweep=False)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.drain()
        await asyncio.wait_for(task, 20)


@pytest.fixture
async def scripted(broker: Broker, serve: Serve) -> AsyncIterator[httpx.AsyncClient]:
    """The same with a worker, whose runner is scripted."""
    gateway = create_app(broker=broker, webui=WebuiSettings(chat_runner="scripted"))
    async with working(broker), serve(gateway) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield client


def ask(script: str = "tokens=6 tool=1", **fields: Any) -> dict[str, Any]:
    return {"message": "hello", "metadata": {"script": script}, **fields}


def final(*texts: str, **fields: Any) -> Final:
    content = [{"type": "text", "text": text} for text in texts]
    return Final(message={"role": "assistant", "content": content}, rounds=1, **fields)


async def asked(client: httpx.AsyncClient, broker: Broker, path: str, *items: Item, count: int = 1) -> httpx.Response:
    """The whole response to a chat whose run ends with these items."""
    asking = asyncio.create_task(client.post(path, json={"message": "hello"}))
    run = await made(broker, count)
    await run.append(*items)
    return await asking


def answer_in(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    if not response.headers["content-type"].startswith("text/event-stream"):
        plain: dict[str, Any] = response.json()
        return plain
    end = events_of(response.text).end
    assert end.event == "done"
    streamed: dict[str, Any] = end.data
    return streamed


# The answer.


async def test_streamed_and_waited_for_it_is_the_same_answer(chats: httpx.AsyncClient, broker: Broker) -> None:
    ended = final("Hello ", f"there\n{BLOCK}", hermes_session_id=HERMES)
    expected = {"reply": "Hello there", "confidence": 0.4, "risk_level": "medium", "session_id": HERMES}
    for count, path in enumerate(PATHS, 1):
        response = await asked(chats, broker, path, ended, count=count)
        answer = answer_in(response)
        flag = "flag_for_review" if path.startswith("/v1") else "flagForReview"
        assert answer == {**expected, flag: True}
        result = await chats.get(f"/v1/runs/{response.headers['x-run-id']}/result")
        assert result.json()["answer"] == answer
        resumed = await chats.get(f"/v1/runs/{response.headers['x-run-id']}/stream?format=chat")
        assert events_of(resumed.text).end.data == answer
        assert list(answer) == ["reply", "confidence", "risk_level", flag, "session_id"]


async def test_the_tokens_are_all_rounds_and_the_reply_is_the_last(scripted: httpx.AsyncClient) -> None:
    response = await scripted.post("/chat/stream", json=ask("tokens=6 tool=2 reasoning=2"))
    events = events_of(response.text)
    assert events.tokens == "w1 w2 \n\nw3 w4 \n\nw5 w6 "
    assert events.end.data["reply"] == "w5 w6"
    plain = await scripted.post("/chat", json=ask("tokens=6 tool=2 reasoning=2"))
    assert plain.json() == events.end.data
    assert plain.headers["content-type"] == "application/json"
    assert plain.headers["cache-control"] == "no-store"


async def test_frames_come_as_they_are_made(chats: httpx.AsyncClient, broker: Broker) -> None:
    async with chats.stream("POST", "/v1/chat/stream", json={"message": "hello"}) as response:
        headers = response.headers
        assert (response.status_code, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache, no-transform", "no")
        run = await made(broker)
        assert headers["x-run-id"] == run.id
        pieces = response.aiter_raw()
        for word in ("one ", "two "):
            await run.say(word)
            wire = b""
            while b"\n\n" not in wire:
                wire += await anext(pieces)
            assert json.loads(wire.split(b"data: ")[1]) == {"token": word}
        await run.append(final("one two"))
        assert b"".join([piece async for piece in pieces]).endswith(DONE)


async def test_a_silence_is_broken_by_comments_alone(chats: httpx.AsyncClient, broker: Broker) -> None:
    async with chats.stream("POST", "/chat/stream", json={"message": "hello"}) as response:
        pieces = response.aiter_raw()
        assert await anext(pieces) == b": hb\n"
        run = await made(broker)
        await run.append(ToolStarted(call_id="c", name="terminal"))
        assert await anext(pieces) == b": hb\n"
        await run.append(final("x"))
        rest = b"".join([piece async for piece in pieces])
    assert events_of(rest).end.event == "done"


async def test_other_servers_than_ours_stream_as_well(broker: Broker, gateway: Gateway) -> None:
    transport = httpx.ASGITransport(gateway, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        for count, path in enumerate(PATHS, 1):
            assert answer_in(await asked(client, broker, path, final("x"), count=count))["reply"] == "x"


async def test_the_run_that_is_made(chats: httpx.AsyncClient, broker: Broker) -> None:
    fields = {"session_id": "s1", "model": "m", "provider": "p", "toolsets": "web", "metadata": {"a": 1}}
    await broker.sessions.create("s1")
    asking = asyncio.create_task(chats.post("/v1/chat", json={"message": "hello", **fields}))
    run = await made(broker)
    record = run.record
    assert (record.runner, record.on_worker_lost, record.session_id) == ("hermes", "fail", "s1")
    assert record.metadata == {"a": "1", STYLE_KEY: "v1"}
    assert record.request["input"] == {"message": "hello", "model": "m", "provider": "p", "toolsets": ["web"]}
    await run.append(final("x", hermes_session_id=HERMES))
    assert (await asking).json()["session_id"] == "s1"


async def test_it_is_no_secret_to_other_screens(chats: httpx.AsyncClient, broker: Broker) -> None:
    asking = asyncio.create_task(chats.post("/chat", json={"message": "hello"}))
    run = await made(broker)
    await run.say("live ")
    async with chats.stream("GET", f"/v1/runs/{run.id}/stream?format=chat") as watched:
        pieces = watched.aiter_text()
        assert '"token":"live "' in await anext(pieces)
        await run.append(final("live"))
        assert '"reply":"live"' in "".join([piece async for piece in pieces])
    assert (await asking).json()["reply"] == "live"


async def test_a_session_of_hermes_own_is_taken_over(chats: httpx.AsyncClient, broker: Broker) -> None:
    for count, path in enumerate(PATHS, 1):
        asking = asyncio.create_task(chats.post(path, json={"message": "hello", "session_id": HERMES}))
        run = await made(broker, count)
        assert run.record.session_id == HERMES
        await run.append(final("x", hermes_session_id=HERMES if count == 1 else f"20250101_000000_{count:06}"))
        assert answer_in(await asking)["session_id"] == HERMES
    assert len(await broker.sessions.runs_of(HERMES)) == len(PATHS)


async def test_a_caller_that_does_not_read_slows_nobody_and_misses_nothing(
    chats: httpx.AsyncClient, broker: Broker
) -> None:
    async with chats.stream("POST", "/chat/stream", json={"message": "hello"}) as response:
        run = await made(broker)
        said = [f"{n} ".ljust(8_000, "x") for n in range(1_500)]
        await eventually(lambda: broker.hub.viewers == 1)
        demoted = DEMOTED._value.get()
        for at in range(0, len(said), 50):
            await run.say(*said[at : at + 50])
            await asyncio.sleep(0)
        await run.append(final("x"))
        await eventually(lambda: DEMOTED._value.get() > demoted)
        wire = b"".join([piece async for piece in response.aiter_raw()])
    events = events_of(wire)
    assert events.tokens == "".join(said)
    assert events.end.event == "done"


# Failures.


@pytest.mark.parametrize(
    ("fence", "status", "code", "sentence"),
    [
        (Failed(code="hermes_timeout", message="HERMES_TIMEOUT"), 504, "chat_timeout", "Hermes execution timed out"),
        (
            Failed(code="hermes_silent", message="HERMES_SILENCE"),
            504,
            "chat_timeout",
            "Hermes execution timed out: it gave no output for too long",
        ),
        (Failed(code="provider_auth", message="HTTP 401: no"), 502, "chat_failed", "HTTP 401: no"),
        (Failed(code="empty_reply", message="no text", retryable=True), 502, "chat_failed", "no text"),
        (Cancelled(), 409, "chat_cancelled", "The run was cancelled"),
    ],
)
async def test_a_run_without_an_answer(
    chats: httpx.AsyncClient, broker: Broker, fence: Failed | Cancelled, status: int, code: str, sentence: str
) -> None:
    for count, path in enumerate(PATHS, 1):
        response = await asked(chats, broker, path, fence, count=count)
        run_id = response.headers["x-run-id"]
        if path in PLAIN:
            body = assert_problem(response, status, code)
            assert (body["detail"], body["error"], body["reason"]) == (sentence, sentence, fence.code)
        else:
            end = events_of(response.text).end
            assert (response.status_code, end.event, end.data) == (200, "error", {"error": sentence})
            assert end.id.startswith(f"{run_id}:")
        result = (await chats.get(f"/v1/runs/{run_id}/result")).json()
        assert ("answer" in result, result["outcome"]["code"]) == (False, fence.code)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"message": "  "}, 422, "invalid_request", "message"),
        ({"message": 5}, 422, "invalid_request", "message"),
        ({"message": "x", "colour": "red"}, 422, "invalid_request", "colour"),
        ({"message": "x" * 10_001}, 413, "item_too_big", "message"),
        ({"message": "x", "session_id": "a/b"}, 400, "invalid_id", "session_id"),
        ({"message": "x", "session_id": "nobody"}, 404, "session_not_found", None),
        (
            {"message": "x", "artifacts": [{"name": "../x", "url": "https://x.org"}]},
            422,
            "invalid_request",
            "artifacts[0].name",
        ),
        ("no object", 422, "invalid_request", None),
    ],
)
async def test_what_is_refused_is_refused_before_anything_is_sent(
    client: httpx.AsyncClient, broker: Broker, path: str, body: Any, status: int, code: str, field: str | None
) -> None:
    response = await client.post(path, json=body)
    problem = assert_problem(response, status, code, field)
    assert problem["error"] == problem["detail"]
    assert "x-run-id" not in response.headers
    assert await broker.runs.list() == ([], None)


@pytest.mark.parametrize("path", PATHS)
async def test_bodies_are_json_and_bounded(client: httpx.AsyncClient, path: str) -> None:
    assert_problem(await client.post(path, content=b'{"message":"x"}'), 415, "unsupported_media_type")
    headers = {"Content-Type": "application/json"}
    assert_problem(await client.post(path, content=b"{", headers=headers), 400, "bad_request")
    response = await client.post(path, content=b" " * 20_001, headers=headers)
    assert_problem(response, 413, "body_too_large")
    assert response.headers["connection"] == "close"

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 5_000

    assert_problem(await client.post(path, content=endless(), headers=headers), 413, "body_too_large")


@pytest.mark.parametrize("path", PATHS)
async def test_other_methods_are_none(client: httpx.AsyncClient, path: str) -> None:
    assert_problem(await client.get(path), 405, "method_not_allowed")
    assert_problem(await client.put(path, json={"message": "x"}), 405, "method_not_allowed")


async def test_a_password_is_asked_for_in_front_of_chats(broker: Broker) -> None:
    gateway = create_app(broker=broker, webui=WebuiSettings(password=SecretStr("secret")))
    async with lifespan_of(gateway):
        transport = httpx.ASGITransport(gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            for path in PATHS:
                assert_problem(await client.post(path, json={"message": "x"}), 401, "login_required")


@pytest.mark.parametrize("path", [*PATHS])
async def test_while_the_store_is_away(path: str, memory_settings: Settings) -> None:
    nowhere = memory_settings.model_copy(update={"redis_url": "redis://127.0.0.1:1", "request_deadline": 0.3})
    gateway = create_app(nowhere)
    async with lifespan_of(gateway):
        transport = httpx.ASGITransport(gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            response = await client.post(path, json={"message": "x"})
            assert_problem(response, 503, "store_unavailable")
            assert response.headers["retry-after"]
            assert_problem(await client.get("/v1/runs/r/stream?format=chat"), 503, "store_unavailable")


# Leaving, and coming back.


@pytest.mark.parametrize("path", PATHS)
async def test_a_caller_that_leaves_does_not_stop_the_run(chats: httpx.AsyncClient, broker: Broker, path: str) -> None:
    async def ask_and_leave() -> None:
        async with chats.stream("POST", path, json={"message": "hello"}) as response:
            async for _ in response.aiter_raw():
                pass

    asking = asyncio.create_task(ask_and_leave())
    run = await made(broker)
    await run.say("some ")
    await eventually(lambda: broker.hub.viewers == 1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await eventually(lambda: broker.hub.viewers == 0)
    record = await broker.runs.get(run.id)
    assert (record.status, record.cancel_requested) == ("running", None)
    await run.append(final("some answer"))
    result = (await chats.get(f"/v1/runs/{run.id}/result")).json()
    assert (result["status"], result["answer"]["reply"]) == ("completed", "some answer")


async def test_a_lost_stream_goes_on_behind_any_of_its_ids(scripted: httpx.AsyncClient) -> None:
    response = await scripted.post("/v1/chat/stream", json=ask())
    whole = events_of(response.text)
    where = f"/v1/runs/{response.headers['x-run-id']}/stream?format=chat"
    *before_the_end, _, _ = whole
    for place, (_, _, last) in enumerate(before_the_end, 1):
        rest = await scripted.get(where, headers={"Last-Event-ID": last})
        assert events_of(rest.text) == whole[place:]
        assert (await scripted.get(f"{where}&cursor={last}")).text == rest.text
    assert (await scripted.get(where)).text == response.text
    done = await scripted.get(where, headers={"Last-Event-ID": whole.end.id})
    assert (done.status_code, done.content) == (204, b"")


async def test_a_position_that_is_none_is_one_error(scripted: httpx.AsyncClient) -> None:
    run_id = (await scripted.post("/chat", json=ask())).headers["x-run-id"]
    for cursor in ("nonsense", f"{run_id}:999", "run_other:1"):
        response = await scripted.get(f"/v1/runs/{run_id}/stream?format=chat", headers={"Last-Event-ID": cursor})
        end = events_of(response.text).end
        assert (end.event, end.id, len(events_of(response.text))) == ("error", "", 2)
    unknown = await scripted.get("/v1/runs/run_nobody/stream?format=chat")
    assert_problem(unknown, 404, "run_not_found")


async def test_any_run_can_be_seen_as_a_chat(chats: httpx.AsyncClient, broker: Broker) -> None:
    body = {"input": {"message": "x"}, "session_id": "s1"}
    created = (await chats.post("/v1/runs", json=body)).json()
    run = await made(broker)
    await run.append(final("x"))
    response = await chats.get(f"/v1/runs/{created['run_id']}/stream?format=chat")
    assert events_of(response.text).end.data["flagForReview"] is False
    assert events_of(response.text).end.data["session_id"] == "s1"
    assert "answer" not in (await chats.get(f"/v1/runs/{created['run_id']}/result")).json()


@pytest.mark.parametrize("query", ["", "&modes=final"])
async def test_a_run_whose_items_are_gone_is_one_error(chats: httpx.AsyncClient, broker: Broker, query: str) -> None:
    response = await asked(chats, broker, "/chat", final("x"))
    run_id = response.headers["x-run-id"]
    await broker.store.call(b"DEL", broker.keys.items(run_id))
    late = await chats.get(f"/v1/runs/{run_id}/stream?format=chat{query}")
    assert f"/v1/runs/{run_id}/result" in events_of(late.text).end.data["error"]
    assert (await chats.get(f"/v1/runs/{run_id}/result")).json()["answer"] == response.json()


# Ends that are not the run's.


async def _seen(response: httpx.Response) -> Events:
    return events_of(b"".join([piece async for piece in response.aiter_raw()]))


@pytest.mark.parametrize("reason", ["gone", "failed"])
async def test_a_run_that_vanishes_is_one_error(chats: httpx.AsyncClient, broker: Broker, reason: str) -> None:
    async with chats.stream("POST", "/chat/stream", json={"message": "hello"}) as response:
        run = await made(broker)
        await run.say("some ")
        await eventually(lambda: broker.hub.viewers == 1)
        broker.hub.feeds[run.id].abandon(reason)
        events = await _seen(response)
    assert (events.end.event, list(events.end.data)) == ("error", ["error"])


async def test_a_gateway_that_shuts_down_says_so_and_where_to_go_on(broker: Broker, serve: Serve) -> None:
    gateway = create_app(broker=broker)
    async with serve(gateway) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        waiting = asyncio.create_task(client.post("/v1/chat", json={"message": "hello"}))
        first = await made(broker)
        async with client.stream("POST", "/chat/stream", json={"message": "hello"}) as response:
            run = await made(broker, 2)
            await run.say("some ")
            pieces = response.aiter_raw()
            wire = await anext(pieces)
            gateway.connection.draining.set()
            broker.hub.drain()
            events = events_of(wire + b"".join([piece async for piece in pieces]))
        assert events.tokens == "some "
        assert (events.end.event, run.id in events.end.data["error"]) == ("error", True)
        refused = await waiting
        assert_problem(refused, 503, "store_unavailable")
        assert (refused.headers["x-run-id"], first.id in refused.json()["error"]) == (first.id, True)
    assert {(await broker.runs.get(id_)).status for id_ in (first.id, run.id)} == {"running"}


async def test_waiting_has_no_limit_but_the_runs(memory_settings: Settings, serve: Serve) -> None:
    """Longer than any limit of a request that there is here."""
    short = memory_settings.model_copy(
        update={"result_wait_max": 0.05, "request_deadline": 1.0, "redis_url": f"memory:{uuid4().hex}"}
    )
    gateway = create_app(short)
    async with serve(gateway) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        broker = gateway.connection.broker
        asking = asyncio.create_task(client.post("/chat", json={"message": "hello"}))
        run = await made(broker)
        await until(lambda: broker.hub.viewers == 1)
        done, _ = await asyncio.wait({asking}, timeout=1.3)
        assert not done
        await run.append(final("x"))
        assert (await asking).json()["reply"] == "x"


async def test_waiting_outlasts_an_outage(
    chats: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.routes.runtime._AWAY_PAUSE", 0.01)
    looks = 0
    look = broker.runs.get

    async def away_at_first(run_id: str) -> RunRecord:
        nonlocal looks
        looks += 1
        if looks <= 2:
            raise StoreUnavailable("away")
        return await look(run_id)

    asking = asyncio.create_task(chats.post("/chat", json={"message": "hello"}))
    run = await made(broker)
    await run.say("x")
    monkeypatch.setattr(broker.runs, "get", away_at_first)
    await broker.log.append(run.id, run.record.owner, run.record.epoch, 2, [encode(final("x"), ts=1.0)])
    assert (await asking).json()["reply"] == "x"
    assert looks == 3


async def test_nobody_is_let_in_while_it_shuts_down(
    client: httpx.AsyncClient, gateway: Gateway, broker: Broker
) -> None:
    gateway.drain()
    for path in PATHS:
        assert_problem(await client.post(path, json={"message": "x"}), 503, "store_unavailable")
    assert await broker.runs.list() == ([], None)
