"""Sessions over HTTP as the WebUI's front ends ask for them: JSON, the session's channel, the list's events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from broker import api
from broker.api import Broker
from broker.items import Failed, Final
from broker.settings import Settings
from gateway.app import Gateway, create_app
from gateway.webui.channels import MAILBOX_MAX, ListMailbox, SessionMailbox
from tests.gateway.conftest import Play, Script, serving
from tests.gateways import Response, until
from tests.servers import RedisServer
from tests.webui.wire import Block, blocks_of


@pytest.fixture(params=["memory", "redis7"])
def memory_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Of each kind of store: every test below runs on both."""
    memory = request.param == "memory"
    return Settings(
        redis_url=f"memory:{uuid4().hex}" if memory else request.getfixturevalue("redis7").url,
        namespace=f"t{uuid4().hex[:12]}",
        data_dir=tmp_path / "data",
        partitions=4,
        block=0.3,
        heartbeat=0.2,
        retry_ms=300,
    )


@pytest.fixture
async def port(gateway: Gateway) -> AsyncIterator[int]:
    async with serving(gateway) as address:
        yield int(address.rpartition(":")[2])


@pytest.fixture
async def http(port: int) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        yield client


@pytest.fixture
def sid() -> str:
    return f"s-{uuid4().hex}"


async def turn(play: Play, sid: str, message: str = "hello", *, end: bool = True) -> Script:
    run: Script = await play(message, session_id=sid)
    await run.say("par", "tial")
    if end:
        await run.end(usage={"input_tokens": 3, "output_tokens": 1})
    return run


async def read(stream: Response, true: Callable[[list[Block]], object], timeout: float = 30.0) -> list[Block]:
    """Read on until the blocks that came satisfy ``true``. Each chunk must be whole blocks."""
    async with asyncio.timeout(timeout):
        while not true(blocks := blocks_of(stream.wire)):
            assert not stream.complete, f"it ended with {blocks}"
            await stream.part()
    return blocks


def events(blocks: list[Block], *names: str) -> list[Any]:
    return [(b.event, b.data) for b in blocks if b.event and (not names or b.event in names)]


async def get(http: httpx.AsyncClient, target: str, status: int = 200, **params: Any) -> Any:
    reply = await http.get(target, params=params)
    assert reply.status_code == status, reply.text
    assert reply.headers["cache-control"] == "no-store"
    return reply.json()


# JSON.


async def test_a_new_session(http: httpx.AsyncClient) -> None:
    asked = {"workspace": "/x", "worktree": False, "model": "m", "model_provider": None, "enabled_toolsets": [1]}
    made = (await http.post("/api/session/new", json=asked)).json()["session"]
    assert made["session_id"].startswith("ses_")
    expected = {"title": "Untitled", "model": "m", "message_count": 0, "messages": [], "active_stream_id": None}
    assert {name: made[name] for name in expected} == expected
    assert (made["pending_user_message"], made["is_streaming"], made["_messages_truncated"]) == (None, False, False)
    assert (await get(http, "/api/session", session_id=made["session_id"]))["session"] == made
    assert (await get(http, "/api/sessions"))["sessions"] == []
    titled = (await http.post("/api/session/new", json={"title": " Plans "})).json()["session"]
    assert [s["title"] for s in (await get(http, "/api/sessions"))["sessions"]] == ["Plans"]
    assert titled["session_id"] != made["session_id"]


async def test_what_a_new_session_refuses(http: httpx.AsyncClient) -> None:
    form = await http.post("/api/session/new", content=b"a=b", headers={"Content-Type": "text/plain"})
    assert (form.status_code, set(form.json())) == (415, {"error", "code"})
    for body in (b"[1]", b"{", b"\xff"):
        reply = await http.post("/api/session/new", content=body, headers={"Content-Type": "application/json"})
        assert (reply.status_code, set(reply.json())) == (400, {"error", "code"})
    empty = await http.post("/api/session/new", headers={"Content-Type": "application/json"})
    assert empty.status_code == 200


async def test_sessions_that_are_none(http: httpx.AsyncClient) -> None:
    assert await get(http, "/api/session", 404, session_id="nobody") == {"error": "Session not found"}
    assert await get(http, "/api/session", 400) == {"error": "session_id is required"}
    assert (await get(http, "/api/session", 400, session_id="a b"))["code"] == "invalid_id"
    assert await get(http, "/api/sessions/nobody/events", 404) == {"error": "Session not found"}
    assert await get(http, "/api/session/stream", 400) == {"error": "session_id is required"}
    assert (await get(http, "/api/session/stream", 400, session_id="a/b"))["code"] == "invalid_id"
    assert (await get(http, "/api/sessions", 400, before="?"))["code"] == "bad_request"


async def test_a_turn_pends_and_then_is_two_messages(http: httpx.AsyncClient, play: Play, sid: str) -> None:
    run = await turn(play, sid, "what is it?", end=False)
    pending = (await get(http, "/api/session", session_id=sid))["session"]
    assert (pending["active_stream_id"], pending["pending_user_message"]) == (run.id, "what is it?")
    assert (pending["message_count"], pending["messages"], pending["pending_started_at"]) == (0, [], run.record.created)
    listed = (await get(http, "/api/sessions"))["sessions"]
    assert [(s["session_id"], s["is_streaming"], s["message_count"]) for s in listed] == [(sid, True, 1)]
    await run.end(usage={"input_tokens": 3, "output_tokens": 1}, hermes_session_id="h-7")
    over = (await get(http, "/api/session", session_id=sid))["session"]
    assert (over["active_stream_id"], over["pending_user_message"], over["message_count"]) == (None, None, 2)
    assert [(m["role"], m["content"], m["run_id"]) for m in over["messages"]] == [
        ("user", "what is it?", run.id),
        ("assistant", "done", run.id),
    ]
    assert (over["input_tokens"], over["hermes_session_id"], over["title"]) == (3, "h-7", "what is it?")
    bare = (await get(http, "/api/session", session_id=sid, messages="0"))["session"]
    assert bare == {**over, "messages": []}


async def test_how_a_session_stands_in_few_words(http: httpx.AsyncClient, play: Play, sid: str) -> None:
    run = await turn(play, sid, end=False)
    known = await get(http, "/api/session/status", session_id=sid)
    assert (known["session_id"], known["agent_running"], known["active_stream_id"]) == (sid, True, run.id)
    assert known["message_count"] == 0
    await run.end(usage={"input_tokens": 3, "output_tokens": 1})
    known = await get(http, "/api/session/status", session_id=sid)
    assert (known["agent_running"], known["active_stream_id"], known["message_count"]) == (False, None, 2)
    assert (known["input_tokens"], known["output_tokens"], known["total_tokens"]) == (3, 1, 4)
    assert await get(http, "/api/session/status", 404, session_id="nobody") == {"error": "Session not found"}
    assert await get(http, "/api/session/status", 400) == {"error": "session_id is required"}


async def test_a_turn_that_failed_keeps_what_there_was(http: httpx.AsyncClient, play: Play, sid: str) -> None:
    run = await turn(play, sid, end=False)
    partial = {"role": "assistant", "content": [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "ha"}]}
    await run.append(Failed(code="provider_error", message="no answer", partial=partial))
    messages = (await get(http, "/api/session", session_id=sid))["session"]["messages"]
    assert [(m["content"], m.get("reasoning"), m.get("_partial"), m.get("error_type")) for m in messages] == [
        ("hello", None, None, None),
        ("ha", "hm", True, None),
        ("no answer", None, None, "provider_error"),
    ]
    assert messages[2]["_error"] is True


async def test_pages_of_messages(http: httpx.AsyncClient, play: Play, sid: str) -> None:
    for n in range(3):
        await turn(play, sid, f"q{n}")

    async def page(**params: Any) -> tuple[list[str], int, bool, int]:
        s = (await get(http, "/api/session", session_id=sid, **params))["session"]
        contents = [m["content"] for m in s["messages"]]
        return contents, s["_messages_offset"], s["_messages_truncated"], s["message_count"]

    whole = ["q0", "done", "q1", "done", "q2", "done"]
    assert await page() == (whole, 0, False, 6)
    assert await page(msg_limit="3") == (whole[3:], 3, True, 6)
    assert await page(msg_limit="2", msg_before="3") == (whole[1:3], 1, True, 6)
    assert await page(msg_limit="50", msg_before="1") == (whole[:1], 0, False, 6)
    assert await page(msg_limit="99999", msg_before="") == (whole, 0, False, 6)
    assert await page(msg_limit="x", msg_before="-1") == (whole, 0, False, 6)
    assert await page(msg_before="0") == ([], 0, False, 6)


async def test_the_list_is_newest_first_and_goes_on(http: httpx.AsyncClient, play: Play) -> None:
    sids = [f"s-{n}-{uuid4().hex}" for n in range(4)]
    for sid in sids:
        await turn(play, sid, end=False)
    first = await get(http, "/api/sessions", limit="3")
    assert [s["session_id"] for s in first["sessions"]] == sids[:0:-1]
    assert (first["cli_count"], first["server_time"] > 1_600_000_000) == (0, True)
    second = await get(http, "/api/sessions", limit="3", before=first["next"])
    assert ([s["session_id"] for s in second["sessions"]], second["next"]) == (sids[:1], None)


# The session's channel.


async def channel(port: int, sid: str, known: str = "", **how: Any) -> Response:
    return await Response.open(port, f"/api/session/stream?session_id={sid}&known_count={known}", **how)


async def begun(stream: Response) -> Block:
    """The event that the channel begins with, once it has come; the silence before it may have been broken."""
    blocks = await read(stream, lambda bs: events(bs))
    return next(block for block in blocks if block.event)


async def test_a_channel_outlives_turns(port: int, play: Play, sid: str) -> None:
    async with await channel(port, sid, "0") as stream:
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["x-accel-buffering"] == "no"
        first = await begun(stream)
        assert (first.event, first.data, first.id) == ("initial", {"session_id": sid}, None)
        await read(stream, lambda blocks: any(b.comment == "keepalive" for b in blocks))
        runs = [await turn(play, sid, f"q{n}") for n in range(2)]
        blocks = await read(stream, lambda bs: any(d.get("message_count") == 4 for _, d in events(bs)))
        assert all(b.id is None for b in blocks)
    started = events(blocks, "server_turn_started")
    assert started[-1][1]["stream_id"] == runs[1].id
    assert started[-1][1]["pending_started_at"] == runs[1].record.created
    updated = [d for _, d in events(blocks, "session-updated")]
    assert all(d["session_id"] == sid for d in updated)
    known = [0, *(d["message_count"] for d in updated)]
    assert [d["known_count"] for d in updated] == known[:-1]
    assert known == sorted(set(known)), "no count is told twice"


async def test_a_channel_tells_at_once_what_was_missed(port: int, play: Play, sid: str) -> None:
    await turn(play, sid)
    run = await turn(play, sid, "two", end=False)
    async with await channel(port, sid, "1") as stream:
        blocks = await read(stream, lambda bs: len(events(bs)) == 3)
    (_, started), (_, updated) = events(blocks)[1:]
    assert (started["stream_id"], started["recovered"]) == (run.id, True)
    assert (updated["message_count"], updated["known_count"]) == (2, 1)
    for known in ("2", "3", "", "x", "-1"):
        async with await channel(port, sid, known) as stream:
            blocks = await read(stream, lambda bs: sum(b.comment is not None for b in bs) >= 2)
        assert [name for name, _ in events(blocks)] == ["initial", "server_turn_started"], known


async def test_a_session_that_is_not_yet(port: int, play: Play, sid: str) -> None:
    async with await channel(port, sid) as stream:
        await begun(stream)
        run = await turn(play, sid, end=False)
        (_, started) = events(await read(stream, lambda bs: len(events(bs)) == 2))[1]
    assert (started["stream_id"], started.get("recovered")) == (run.id, None)


async def test_titles_and_tasks_reach_the_channel(port: int, play: Play, broker: Broker, sid: str) -> None:
    await turn(play, sid)
    async with await channel(port, sid) as stream:
        await begun(stream)
        await broker.sessions.rename(sid, "Better")
        for n in range(2):
            said = {"status": "completed", "summary": f"built {n}"}
            await broker.bus.announce("task.completed", f"job{n}", said, session_id=sid)
        blocks = await read(stream, lambda bs: len(events(bs, "title", "bg_task_complete")) == 3)
    assert events(blocks, "title") == [("title", {"session_id": sid, "title": "Better"})]
    tasks = [d for _, d in events(blocks, "bg_task_complete")]
    assert {(d["session_id"], d["status"], d["summary"]) for d in tasks} == {
        (sid, "completed", "built 0"),
        (sid, "completed", "built 1"),
    }
    assert len({d["event_id"] for d in tasks}) == 2


async def test_heads_have_no_body(http: httpx.AsyncClient, play: Play, sid: str) -> None:
    await turn(play, sid)
    for target in (f"/api/session/stream?session_id={sid}", "/api/sessions/events", f"/api/sessions/{sid}/events"):
        reply = await http.head(target)
        assert (reply.status_code, reply.content) == (200, b""), target
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_channels_are_followed_while_somebody_looks(gateway: Gateway, port: int, play: Play, sid: str) -> None:
    channels = gateway.api.state.channels
    streams = [await channel(port, sid) for _ in range(3)]
    for stream in streams:
        await begun(stream)
    assert channels.followed == 1
    for stream in streams[:2]:
        stream.leave()
    await until(lambda: len(next(iter(channels._channels.values())).mailboxes) == 1)
    await turn(play, sid, end=False)
    assert events(await read(streams[2], lambda bs: len(events(bs)) == 2))[1][0] == "server_turn_started"
    streams[2].leave()
    await until(lambda: channels.followed == 0)


# The list, live.


async def test_the_list_tells_of_changes(port: int, play: Play, sid: str) -> None:
    async with await Response.open(port, "/api/sessions/events") as stream:
        (first, *_) = await read(stream, len)
        assert first.comment == "keepalive", "headers only, until something happens"
        run = await turn(play, sid, end=False)
        (_, began) = events(await read(stream, lambda bs: len(events(bs)) == 1))[0]
        assert (began["session_id"], began["reason"]) == (sid, "run_started")
        await run.end()
        (_, ended) = events(await read(stream, lambda bs: len(events(bs)) == 2))[1]
        assert (ended["session_id"], ended["reason"]) == (sid, "run_ended")
        assert ended["version"] == began["version"] + 1


# Mailboxes: what waits for one viewer.


def change(version: int, session: str) -> dict[bytes, bytes]:
    return {b"session": session.encode(), b"reason": b"run_started", b"version": b"%d" % version}


def entry(name: str, run: str = "", **said: Any) -> dict[bytes, bytes]:
    return {b"name": name.encode(), b"run": run.encode(), b"d": json.dumps(said).encode()}


async def taken(mailbox: ListMailbox | SessionMailbox) -> list[Any]:
    return events(blocks_of(await asyncio.wait_for(mailbox.take(), 30)))


async def test_changes_of_the_list_become_one() -> None:
    mailbox = ListMailbox()
    for version in range(1, 200):
        mailbox.news(change(version, "a"))
    (((_, one)),) = await taken(mailbox)
    assert (one["version"], one["session_id"]) == (199, "a")
    for version, session in enumerate("aba", 200):
        mailbox.news(change(version, session))
    (((_, several)),) = await taken(mailbox)
    assert several["version"] == 202
    assert "session_id" not in several, "of several sessions: look at all"
    mailbox.news(change(203, "b"))
    (((_, again)),) = await taken(mailbox)
    assert again["session_id"] == "b"


async def test_news_of_a_session_are_coalesced_by_what_they_are_about() -> None:
    mailbox = SessionMailbox("s", 1)
    for n in range(1, 500):
        mailbox.news(entry("server_turn_started", f"r{n}", pending_started_at=n))
        mailbox.news(entry("session-updated", f"r{n}", message_count=2 * n))
        mailbox.news(entry("title", title=f"t{n}"))
    (_, turn_told), (_, updated), (_, title) = await taken(mailbox)
    assert (turn_told["stream_id"], title["title"]) == ("r499", "t499")
    assert (updated["message_count"], updated["known_count"]) == (998, 1)
    mailbox.news(entry("session-updated", message_count=1000))
    (((_, next_one)),) = await taken(mailbox)
    assert next_one["known_count"] == 998


async def test_who_does_not_keep_up_is_let_go() -> None:
    mailbox = SessionMailbox("s")
    for n in range(MAILBOX_MAX):
        mailbox.news(entry("bg_task_complete", event_id=f"e{n}"))
    assert not mailbox.dropped
    mailbox.news(entry("bg_task_complete", event_id="one more"))
    mailbox.news(entry("bg_task_complete", event_id="and another"))
    assert mailbox.dropped
    assert await asyncio.wait_for(mailbox.take(), 30) == b""


@pytest.mark.parametrize("d", [b"", b"{", b"[1]", b"\xff", b'{"message_count":"x"}'])
async def test_strange_entries_stop_no_channel(broker: Broker, port: int, sid: str, play: Play, d: bytes) -> None:
    await turn(play, sid)
    async with await channel(port, sid) as stream:
        await begun(stream)
        key = broker.keys.session_events(sid)
        await broker.store.call("XADD", key, "*", "name", "session-updated", "run", "r", "d", d)
        await broker.store.call("XADD", key, "*", "other", "field")
        await broker.sessions.rename(sid, "Still here")
        blocks = await read(stream, lambda bs: events(bs, "title"))
    assert events(blocks, "title")[0][1]["title"] == "Still here"


# Several gateways, restarts, outages.


async def test_sessions_are_every_gateways(redis7: RedisServer, tmp_path: Path, sid: str) -> None:
    settings = Settings(
        redis_url=redis7.url,
        namespace=f"t{uuid4().hex[:12]}",
        partitions=4,
        block=0.3,
        heartbeat=0.2,
        data_dir=tmp_path,
    )
    async with api.open(settings=settings) as worker:
        async with serving(create_app(settings)) as one, serving(create_app(settings)) as two:
            ports = [int(address.rpartition(":")[2]) for address in (one, two)]
            streams = [await channel(port, sid, "0") for port in ports]
            for stream in streams:
                await begun(stream)
            async with httpx.AsyncClient() as client:
                body = {"input": {"message": "hi"}, "session_id": sid, "runner": "scripted"}
                made = (await client.post(f"{one}/v1/runs", json=body)).json()["run_id"]
                claim = await worker.runs.claim(made, 1, "w")
                async with worker.publisher(claim) as publisher:
                    await publisher.publish(Final(message={"role": "assistant", "content": "yes"}))
                    await publisher.flush()
                for stream in streams:
                    told = events(await read(stream, lambda bs: events(bs, "session-updated")))
                    assert [name for name, _ in told] == ["initial", "server_turn_started", "session-updated"]
                    assert told[1][1]["stream_id"] == made
                    stream.leave()
        async with serving(create_app(settings)) as later, httpx.AsyncClient() as client:
            session = (await client.get(f"{later}/api/session", params={"session_id": sid})).json()["session"]
            assert [m["content"] for m in session["messages"]] == ["hi", "yes"]


async def test_while_the_store_is_away(redis_server: RedisServer, tmp_path: Path, sid: str) -> None:
    settings = Settings(
        redis_url=redis_server.url,
        namespace="t",
        partitions=4,
        request_deadline=0.5,
        block=0.3,
        retry_ms=300,
        data_dir=tmp_path,
    )
    async with serving(create_app(settings)) as address, httpx.AsyncClient(base_url=address) as client:
        port = int(address.rpartition(":")[2])

        async def served() -> bool:
            return (await client.get("/api/sessions")).status_code == 200

        await until(served)
        redis_server.stop()
        for target in ("/api/sessions", f"/api/session?session_id={sid}"):
            reply = await client.get(target)
            assert (reply.status_code, reply.json()["code"]) == (503, "store_unavailable")
            assert reply.headers["retry-after"]
        for target in (f"/api/session/stream?session_id={sid}", "/api/sessions/events", f"/api/sessions/{sid}/events"):
            async with await Response.open(port, target) as stream:
                assert stream.status == 200, "a 5xx would end an EventSource for good"
                (only,) = blocks_of(await stream.body())
                assert only.retry == 300
