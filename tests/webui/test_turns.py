"""A turn begins, is stopped, and waits for people: over real HTTP, with a real worker behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.api import Broker
from tests.e2e.processes import Worker
from tests.gateways import GatewayProcess, say, until, writing
from tests.webui.front import Front
from tests.webui.wire import blocks_of, chat, closed, text_of, until_wire


async def test_a_turn_from_its_start_to_its_end(gateway: GatewayProcess, front: Front, worker: Worker, session_id: str):
    status, answer = await front.start(session_id, "hi", metadata={"script": "tokens=5 tool=1"}, approvals="yolo")
    assert (status, answer["session_id"], answer["title"]) == (200, session_id, "hi")
    blocks = await closed(gateway, answer["stream_id"])
    assert text_of(blocks) == "w1 w2 \n\nw3 w4 w5 "
    events = [b.event for b in blocks if b.event]
    assert events[-3:] == ["done", "metering", "stream_end"]
    tool, complete = (next(b.data for b in blocks if b.event == name) for name in ("tool", "tool_complete"))
    assert (tool["tid"], tool["args"]) == (complete["tid"], {"round": 1})
    assert complete["args"] == {"round": 1}  # a page that came in between shows what the tool was called with
    assert [b.data["text"] for b in blocks if b.event == "interim_assistant"] == ["w1 w2 "]
    known = await front.status(answer["stream_id"])
    assert (known["active"], known["journal"]["terminal_state"]) == (False, "completed")
    _, loaded = await front.get(f"/api/session?session_id={session_id}")
    done = next(b.data for b in blocks if b.event == "done")
    messages = loaded["session"]["messages"]
    assert messages == done["session"]["messages"], "whoever loads the session sees what the end of the turn told"
    assert [(m["role"], m["content"]) for m in messages] == [
        ("user", "hi"),
        ("assistant", "w1 w2 "),
        ("tool", "tick 1"),
        ("assistant", "\n\nw3 w4 w5 "),
    ]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == tool["tid"]
    assert loaded["session"]["input_tokens"] == done["usage"]["input_tokens"]


async def test_a_session_has_one_turn_at_a_time(front: Front, broker: Broker, worker: Worker, session_id: str):
    stream_id = await front.begun(session_id, "hang=1")
    status, answer = await front.start(session_id)
    assert (status, answer["active_stream_id"]) == (409, stream_id)
    assert answer["error"] == "session already has an active stream"
    assert (await front.post(f"/api/chat/cancel?stream_id={stream_id}"))[0] == 200
    await until(lambda: _ended(broker, stream_id))
    assert await front.begun(session_id, "tokens=1") != stream_id


@pytest.mark.parametrize("way", ["query", "body", "get"])
async def test_a_turn_is_stopped(gateway: GatewayProcess, front: Front, worker: Worker, session_id: str, way: str):
    stream_id = await front.begun(session_id, "hang=2")
    async with await chat(gateway, stream_id) as stream:
        await until_wire(stream, b'"w2 "')
        for _ in range(2):  # repeated, it is harmless
            answer = await _cancel(front, way, stream_id)
            assert answer == (200, {"ok": True, "cancelled": True, "stream_id": stream_id})
        blocks = blocks_of(await stream.body())
    assert (blocks[-1].event, text_of(blocks)) == ("cancel", "w1 w2 ")
    assert (await front.status(stream_id))["journal"]["terminal_state"] == "interrupted-by-user"


async def _cancel(front: Front, way: str, stream_id: str) -> tuple[int, Any]:
    match way:
        case "query":
            return await front.post(f"/api/chat/cancel?stream_id={stream_id}")
        case "body":
            return await front.post("/api/chat/cancel", {"stream_id": stream_id})
        case _:
            return await front.get(f"/api/chat/cancel?stream_id={stream_id}")


async def test_there_may_be_nothing_to_stop(front: Front, broker: Broker):
    async with writing(broker) as p:
        await say(p, end=True)
        for stream_id in (p.run_id, "unknown"):
            status, answer = await front.post(f"/api/chat/cancel?stream_id={stream_id}")
            assert (status, answer["cancelled"]) == (200, False)
    assert (await front.post("/api/chat/cancel"))[0] == 400
    assert (await front.get("/api/chat/cancel?stream_id=x", Sec_Fetch_Site="cross-site"))[0] == 403


async def test_an_approval_is_asked_and_answered(
    gateway: GatewayProcess, front: Front, worker: Worker, session_id: str
):
    stream_id = await front.begun(session_id, "tokens=2 ask=1")
    async with await chat(gateway, stream_id) as stream:
        await until_wire(stream, b"event: approval\n")
        asked = next(b.data for b in blocks_of(stream.wire, cut=True) if b.event == "approval")
        assert (asked["session_id"], asked["pending_count"], asked["command"]) == (session_id, 1, "rm -rf build")
        _, pending = await front.get(f"/api/approval/pending?session_id={session_id}")
        assert (pending["pending_count"], pending["pending"]["approval_id"]) == (1, asked["approval_id"])
        whose = {"session_id": session_id, "approval_id": asked["approval_id"]}
        stale = await front.post("/api/approval/respond", {**whose, "approval_id": "another", "choice": "once"})
        assert (stale[0], stale[1]["ok"]) == (409, False)  # meant for another: this one stays open
        assert (await front.post("/api/approval/respond", {**whose, "choice": "maybe"}))[0] == 400
        answer = await front.post("/api/approval/respond", {**whose, "choice": "session"})
        assert answer == (200, {"ok": True, "choice": "session"})
        blocks = blocks_of(await stream.body())
    assert text_of(blocks) == "w1 [approval: session] w2 "
    late = await front.post("/api/approval/respond", {**whose, "choice": "deny"})
    assert (late[0], late[1]["ok"], late[1]["stale_cleared"]) == (200, True, True)
    assert (await front.get(f"/api/approval/pending?session_id={session_id}"))[1] == {
        "pending": None,
        "pending_count": 0,
    }


async def test_of_two_answers_the_first_counts_and_both_are_told(
    gateway: GatewayProcess, front: Front, worker: Worker, session_id: str
):
    stream_id = await front.begun(session_id, "tokens=3 ask=1 hang=2")
    async with await chat(gateway, stream_id) as stream:
        await until_wire(stream, b"event: approval\n")
        asked = next(b.data for b in blocks_of(stream.wire, cut=True) if b.event == "approval")
        whose = {"session_id": session_id, "approval_id": asked["approval_id"]}
        bodies = [{**whose, "choice": choice} for choice in ("deny", "once", "deny")]
        answers = await asyncio.gather(*(front.post("/api/approval/respond", body) for body in bodies))
        [counts] = {answer["choice"] for status, answer in answers if status == 200}
        await until_wire(stream, f"[approval: {counts}]".encode())
        assert sum("stale_cleared" not in answer for _, answer in answers) == 1
        await front.post(f"/api/chat/cancel?stream_id={stream_id}")
        await stream.body()


@pytest.mark.parametrize("field", ["response", "answer", "choice"])
async def test_a_question_is_put_and_answered(
    gateway: GatewayProcess, front: Front, worker: Worker, session_id: str, field: str
):
    stream_id = await front.begun(session_id, "tokens=2 question=1")
    async with await chat(gateway, stream_id) as stream:
        await until_wire(stream, b"event: clarify\n")
        asked = next(b.data for b in blocks_of(stream.wire, cut=True) if b.event == "clarify")
        assert (asked["question"], asked["choices_offered"]) == ("Which colour?", ["red", "green", "blue"])
        whose = {"session_id": session_id, "clarify_id": asked["clarify_id"]}
        assert (await front.post("/api/clarify/respond", {**whose, field: " "}))[0] == 400
        answer = await front.post("/api/clarify/respond", {**whose, field: "ocre é"})
        assert answer == (200, {"ok": True, "response": "ocre é"})
        blocks = blocks_of(await stream.body())
    assert text_of(blocks) == "w1 [answer: ocre é] w2 "
    status, late = await front.post("/api/clarify/respond", {**whose, "response": "red"})
    assert (status, late["ok"], late["stale"]) == (409, False, True)


async def test_without_an_id_it_is_the_oldest_that_is_answered(front: Front, worker: Worker, session_id: str):
    await front.begun(session_id, "tokens=2 question=1")

    async def asked() -> bool:
        _, pending = await front.get(f"/api/clarify/pending?session_id={session_id}")
        return bool(pending["pending_count"])

    await until(asked)
    assert (await front.post("/api/clarify/respond", {"session_id": session_id, "response": "red"}))[0] == 200
    assert (await front.post("/api/clarify/respond", {"session_id": session_id, "response": "red"}))[0] == 409


async def test_nobody_waits_in_an_unknown_session(front: Front):
    assert (await front.post("/api/approval/respond", {"session_id": "none", "choice": "once"}))[1]["stale_cleared"]
    assert (await front.post("/api/clarify/respond", {"session_id": "none", "response": "x"}))[0] == 409
    assert (await front.post("/api/approval/respond", {"choice": "once"}))[0] == 400
    assert (await front.get("/api/approval/pending"))[0] == 400


async def _ended(broker: Broker, run_id: str) -> bool:
    return (await broker.runs.get(run_id)).is_ended
