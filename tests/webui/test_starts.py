"""Starting turns, and asking how a stream stands: over real HTTP, without a worker, which the tests play."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.api import Broker
from broker.items import Final
from tests.e2e.processes import http_json
from tests.gateways import say, writing
from tests.webui.front import Front


async def test_of_many_starts_at_once_one_wins(front: Front, broker: Broker, session_id: str):
    answers = await asyncio.gather(*(front.start(session_id, f"m{n}", runner="nobody") for n in range(8)))
    won = [answer["stream_id"] for status, answer in answers if status == 200]
    assert len(won) == 1
    assert {answer["active_stream_id"] for status, answer in answers if status == 409} == set(won)
    assert await broker.sessions.runs_of(session_id) == won
    await broker.runs.cancel(won[0])


async def test_a_turn_that_is_refused_leaves_the_session_free(front: Front, session_id: str):
    status, answer = await front.start(session_id, metadata={"x" * 10: "y" * 3_000_000})
    assert status == 413
    assert answer["error"]
    assert (await front.start(session_id, runner="nobody"))[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"message": "m"}, 400, "session_id"),
        ({"session_id": "", "message": "m"}, 400, "session_id"),
        ({"session_id": "no such", "message": "m"}, 400, "session_id"),
        ({"session_id": "unknown", "message": "m"}, 404, "session"),
        ({"session_id": "{session}"}, 400, "message"),
        ({"session_id": "{session}", "message": "  "}, 400, "message"),
        ({"session_id": "{session}", "message": 7}, 422, "message"),
        ({"session_id": "{session}", "message": "m", "runner": "a b"}, 422, "runner"),
        ({"session_id": "{session}", "message": "m", "approvals": "never"}, 422, "approvals"),
        ([], 422, "object"),
    ],
)
async def test_what_is_no_start(front: Front, session_id: str, body: Any, status: int, named: str):
    if isinstance(body, dict) and "session_id" in body:
        body = {**body, "session_id": body["session_id"].replace("{session}", session_id)}
    found, answer = await front.post("/api/chat/start", body)
    assert (found, named in answer["error"]) == (status, True), answer


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ([{"name": "a.txt", "content_base64": "YQ=="}, {"name": "b.txt", "url": "https://x.org/b"}], "artifacts"),
        ([{"name": "a.txt", "path": "/srv/a.txt", "size": 3}], "attachments"),
        ([{"name": "a.txt", "url": "https://x.org/a"}, "b.txt"], "attachments"),
    ],
)
async def test_attachments_are_files_where_they_can_be(
    front: Front, broker: Broker, session_id: str, given: list[Any], field: str
):
    status, answer = await front.start(session_id, runner="nobody", attachments=given)
    assert status == 200, answer
    asked = (await broker.runs.get(answer["stream_id"])).request["input"]
    assert asked[field] == given
    assert not asked.get({"artifacts": "attachments", "attachments": "artifacts"}[field])


async def test_attachments_that_are_no_files_are_refused(front: Front, session_id: str):
    status, answer = await front.start(session_id, attachments=[{"name": "../a", "url": "https://x.org/a"}])
    assert (status, answer["code"]) == (422, "invalid_request")
    assert (await front.start(session_id, runner="nobody"))[0] == 200


async def test_a_start_is_json(front: Front, session_id: str):
    """A form of another site could otherwise start turns."""
    status, answer = await http_json(front.port, "POST", "/api/chat/start", headers={"Content-Type": "text/plain"})
    assert (status, bool(answer["error"])) == (415, True)


async def test_fields_that_a_front_end_sends_besides_are_left_aside(front: Front, broker: Broker, session_id: str):
    more = {"workspace": "w", "profile": "default", "explicit_model_pick": True, "attachments": None}
    model = {"model": "m-1", "model_provider": "p"}
    status, answer = await front.start(session_id, runner="nobody", **model, **more)
    assert (status, answer["effective_model"], answer["effective_model_provider"]) == (200, "m-1", "p")
    record = await broker.runs.get(answer["stream_id"])
    asked = record.request["input"]
    assert (asked["model"], asked["provider"], asked["approvals"]) == ("m-1", "p", "ask")
    await broker.runs.cancel(record.run_id)


async def test_hermes_goes_on_where_it_was_in_that_session(front: Front, broker: Broker, session_id: str):
    first = await _finished(front, broker, session_id, "h-1")
    second = await _finished(front, broker, session_id, "h-2")  # Hermes rotated it
    third = (await front.start(session_id, runner="nobody"))[1]["stream_id"]
    assert await broker.sessions.resumes(session_id) == "h-2"  # what its worker will ask for when it begins
    metadata = [(await broker.runs.get(run_id)).metadata for run_id in (first, second, third)]
    assert metadata == [{}, {}, {}]


async def _finished(front: Front, broker: Broker, session_id: str, hermes_session_id: str) -> str:
    """A turn that the test plays the worker of."""
    status, answer = await front.start(session_id, runner="nobody")
    assert status == 200, answer
    claim = await broker.runs.claim(answer["stream_id"], 1, "owner")
    async with broker.publisher(claim) as p:
        await p.publish(Final(hermes_session_id=hermes_session_id))
        await p.flush()
    return str(answer["stream_id"])


async def test_the_status_of_a_stream(front: Front, broker: Broker, session_id: str):
    async with writing(broker) as p:
        assert await front.status(p.run_id) == {
            "active": True,
            "stream_id": p.run_id,
            "replay_available": False,
            "journal": {
                "session_id": "",
                "run_id": p.run_id,
                "last_seq": 0,
                "last_event_id": None,
                "terminal": False,
                "terminal_state": "running",
            },
        }
        await say(p, 3)
        running = await front.status(p.run_id)
        assert (running["active"], running["replay_available"]) == (True, True)
        assert (running["journal"]["last_seq"], running["journal"]["last_event_id"]) == (3, f"{p.run_id}:3")
        await say(p, end=True)
        ended = await front.status(p.run_id)
        assert (ended["active"], ended["journal"]["terminal"], ended["journal"]["last_seq"]) == (False, True, 4)
        await broker.store.call("DEL", broker.keys.items(p.run_id))
        expired = await front.status(p.run_id)
        assert (expired["active"], expired["replay_available"], expired["journal"]["last_seq"]) == (False, False, 4)


@pytest.mark.parametrize("stream_id", ["unknown", "", "a%2Fb"])
async def test_the_status_of_no_stream(front: Front, stream_id: str):
    answer = await front.status(stream_id)
    assert (answer["active"], answer["replay_available"], answer["journal"]) == (False, False, None)
