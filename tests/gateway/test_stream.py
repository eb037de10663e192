"""The stream of a run on the wire: what is answered to which request, and what the frames are. A real gateway over a
real Redis; docs/protocol.md, “HTTP” and “SSE, native format”, is where the right answers come from."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.items import Cost, Event, Failed, MessageDelta, Raw, ReasoningDelta, ToolStarted, encode
from broker.publisher import Publisher
from broker.settings import Settings
from tests.gateways import Frame, GatewayProcess, Response, say, writing
from tests.servers import RedisServer


@pytest.fixture(scope="module")
def settings(redis7: RedisServer) -> Settings:
    return Settings(
        redis_url=redis7.url,
        namespace=f"t{uuid4().hex[:12]}",
        partitions=4,
        retry_ms=700,
        heartbeat=0.4,
        cursor_seconds=0.6,
        cursor_items=20,
    )


@pytest.fixture(scope="module")
def gateway(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    process = GatewayProcess(settings, tmp_path_factory.mktemp("gateway")).start()
    yield process
    process.kill()
    assert "Traceback" not in process.log


@pytest.fixture
async def broker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened


@pytest.fixture
async def short_broker(settings: Settings) -> AsyncIterator[Broker]:
    """Runs made through it keep two items."""
    async with api.open(settings=settings.model_copy(update={"run_max_items": 2})) as opened:
        yield opened


def path(run_id: str, query: str = "") -> str:
    return f"/v1/runs/{run_id}/stream{query}"


def cursor(run_id: str, seq: int) -> tuple[str, str]:
    return ("Last-Event-ID", f"{run_id}:{seq}")


async def whole(gateway: GatewayProcess, target: str, *headers: tuple[str, str]) -> Response:
    """A stream to its end."""
    response = await Response.open(gateway.port, target, headers=headers)
    await response.body()
    response.leave()
    return response


@asynccontextmanager
async def ended(broker: Broker, *items: Any) -> AsyncIterator[Publisher]:
    async with writing(broker) as p:
        await say(p, *items, end=True)
        yield p


# Heads.


async def test_headers_come_at_once_though_there_is_no_item(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p, await Response.open(gateway.port, path(p.run_id)) as stream:
        assert stream.status == 200
        assert stream.headers | {"date": ""} == {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache, no-transform",
            "x-accel-buffering": "no",
            "x-run-id": p.run_id,
            "transfer-encoding": "chunked",
            "date": "",
        }
        await stream.until(len)
        assert stream.wire.startswith(b": runcast\nretry: 700\n\n")


async def test_nothing_is_compressed(gateway: GatewayProcess, broker: Broker):
    async with ended(broker, 3) as p:
        stream = await whole(gateway, path(p.run_id), ("Accept-Encoding", "gzip, br, zstd"))
    assert "content-encoding" not in stream.headers
    assert stream.seqs == [1, 2, 3, 4]


async def test_the_bytes_of_a_stream(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        await say(p, MessageDelta(text=" hello", ts=1764445312.345), end=True)
        stream = await whole(gateway, path(p.run_id))
    start, item, *rest = stream.wire.split(b"\n\n")
    assert start == b": runcast\nretry: 700"
    assert item.decode() == (
        f"id: {p.run_id}:1\nevent: message.delta\n"
        f'data: {{"run_id":"{p.run_id}","seq":1,"ts":1764445312.345,"component_id":"agent","round":1,"index":0,'
        f'"text":" hello"}}'
    )
    end = json.dumps({"run_id": p.run_id, "status": "completed", "last_seq": 2}, separators=(",", ":"))
    assert rest[-2:] == [b"event: end\ndata: " + end.encode(), b""]


async def test_text_that_breaks_naive_line_splitters_stays_one_data_line(gateway: GatewayProcess, broker: Broker):
    text = "a\u2028b\u2029c\u0085d\re\0f\n\n😀"
    async with ended(broker, text) as p:
        stream = await whole(gateway, path(p.run_id))
    assert stream.frames[2].data["text"] == text
    assert not [line for line in stream.wire.decode().splitlines() if line[:1] not in ("i", "e", "d", "r", ":", "")]


async def test_head_is_the_head_of_get(gateway: GatewayProcess, broker: Broker):
    async with ended(broker, 3) as p, await Response.open(gateway.port, path(p.run_id), method="HEAD") as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert stream.headers["x-run-id"] == p.run_id
        await stream.ask(path(p.run_id), method="HEAD", headers=[cursor(p.run_id, 4)])
        assert stream.status == 204
        await stream.ask(path("run_unknown"), method="HEAD")
        assert stream.status == 404
        await stream.ask(path(p.run_id))  # nothing of those bodies is in the way of the next answer
        await stream.body()
        assert stream.seqs == [1, 2, 3, 4]


# Cursors. (case 3)

MALFORMED = ["abc", "1e9", "$", "9" * 20, "7" * 10_000, "RUN:1:2", "RUN:-1", "RUN:+1", "RUN:1.0", "RUN:", ":", "RUN:٣"]


@pytest.mark.parametrize("value", ["-1", "0", "RUN:0", "RUN:000", " -1 "])
async def test_the_start_has_several_names(gateway: GatewayProcess, broker: Broker, value: str):
    async with ended(broker, 2) as p:
        for _ in range(3):
            stream = await whole(gateway, path(p.run_id), ("Last-Event-ID", value.replace("RUN", p.run_id)))
            assert (stream.seqs, [f.event for f in stream.controls]) == ([1, 2, 3], ["end"])


@pytest.mark.parametrize(
    ("value", "reason"),
    [*((v, "malformed") for v in MALFORMED), ("other:1", "foreign"), ("RUN:4", "ahead"), ("RUN:" + "9" * 19, "ahead")],
    ids=lambda v: v[:12],
)
async def test_what_is_no_cursor_resets(gateway: GatewayProcess, broker: Broker, value: str, reason: str):
    async with ended(broker, 2) as p:
        given = value.replace("RUN", p.run_id).encode().decode("latin-1")
        stream = await whole(gateway, path(p.run_id), ("Last-Event-ID", given))
    assert stream.controls[0] == Frame("reset", {"run_id": p.run_id, "reason": reason})
    assert stream.seqs == [1, 2, 3]


async def test_a_blank_header_is_none(gateway: GatewayProcess, broker: Broker):
    async with ended(broker, 2) as p:
        blank = await whole(gateway, path(p.run_id), ("Last-Event-ID", ""))
        spaces = await whole(gateway, path(p.run_id, f"?cursor={p.run_id}:1"), ("Last-Event-ID", "  "))
        both = await whole(gateway, path(p.run_id, "?cursor="), ("Last-Event-ID", ""))
    assert (blank.seqs, spaces.seqs, both.seqs) == ([1, 2, 3], [2, 3], [1, 2, 3])


async def test_two_headers_are_no_cursor(gateway: GatewayProcess, broker: Broker):
    async with ended(broker, 2) as p:
        stream = await whole(gateway, path(p.run_id), cursor(p.run_id, 1), cursor(p.run_id, 2))
        query = await whole(gateway, path(p.run_id, f"?cursor={p.run_id}:1&cursor={p.run_id}:2"))
    for response in (stream, query):
        assert response.controls[0].data["reason"] == "malformed"
        assert response.seqs == [1, 2, 3]


async def test_the_header_comes_before_the_query(gateway: GatewayProcess, broker: Broker):
    async with ended(broker, 3) as p:
        target = path(p.run_id, f"?cursor={p.run_id}%3A1")
        assert (await whole(gateway, target)).seqs == [2, 3, 4]
        assert (await whole(gateway, target, cursor(p.run_id, 3))).seqs == [4]
        assert (await whole(gateway, target + "&from=now", cursor(p.run_id, 2))).seqs == [3, 4]


async def test_every_cursor_gets_exactly_what_follows_it(gateway: GatewayProcess, broker: Broker):
    async with ended(broker, 12) as p, await Response.open(gateway.port, path(p.run_id)) as stream:
        await stream.body()
        for k in range(13):
            await stream.ask(path(p.run_id), headers=[cursor(p.run_id, k)])
            await stream.body()
            assert stream.seqs == list(range(k + 1, 14))
        await stream.ask(path(p.run_id), headers=[cursor(p.run_id, 13)])
        assert stream.status == 204


async def test_from_now_announces_where_it_stands(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        await say(p, 3)
        async with await Response.open(gateway.port, path(p.run_id, "?from=now")) as stream:
            frames = await stream.upto(3)
            assert frames[-1] == Frame("cursor", {"run_id": p.run_id, "seq": 3}, f"{p.run_id}:3")
            await say(p, 1, end=True)
            await stream.body()
            assert stream.seqs == [4, 5]
        late = await whole(gateway, path(p.run_id, "?from=now"))
        assert (late.seqs, [f.event for f in late.controls]) == ([5], ["cursor", "end"])
    async with writing(broker) as p, await Response.open(gateway.port, path(p.run_id, "?from=now")) as stream:
        frames = await stream.upto(0)
        assert frames[-1].data == {"run_id": p.run_id, "seq": 0}


# Requests that are wrong.


async def refused(gateway: GatewayProcess, target: str, *headers: tuple[str, str]) -> tuple[int, dict[str, Any]]:
    response = await whole(gateway, target, *headers)
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = json.loads(response.wire)
    assert problem["status"] == response.status
    return response.status, problem


@pytest.mark.parametrize(
    ("query", "field", "named"),
    [
        ("modes=everything", "modes", "messages, tools, usage, cost, events, final"),
        ("modes=messages,nope", "modes", "nope"),
        ("modes=messages&modes=nope", "modes", "nope"),
        ("modes=" + "x" * 5_000, "modes", "messages"),
        ("format=xml", "format", "native"),
        ("from=yesterday", "from", "now"),
        ("compact=maybe", "compact", "1 or 0"),
        ("compact=0&compact=1", "compact", "once"),
        ("on_disconnect=explode", "on_disconnect", "cancel"),
        ("on_disconnect=cancel", "cancel_token", "token"),
        ("&".join(f"a{n}=1" for n in range(200)), "query", "100"),
    ],
    ids=lambda v: v[:24],
)
async def test_a_wrong_query_names_the_field_and_what_is_allowed(
    gateway: GatewayProcess, broker: Broker, query: str, field: str, named: str
):
    async with ended(broker) as p:
        status, problem = await refused(gateway, path(p.run_id, f"?{query}"))
    assert (status, problem["field"]) == (400, field)
    assert named in problem["detail"]


async def test_an_unknown_run_is_404_whatever_the_cursor(gateway: GatewayProcess):
    began = time.monotonic()
    for headers in ((), (cursor("run_unknown", 3),), (("Last-Event-ID", "abc"),)):
        status, problem = await refused(gateway, path("run_unknown"), *headers)
        assert (status, problem["code"]) == (404, "run_not_found")
    assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("run_id", ["a%20b", "%C3%A9", "x" * 129, "a:1", "a%00b", "a*b", "%ED%A0%80", "run%0D%0Aid"])
async def test_an_impossible_id_is_400(gateway: GatewayProcess, run_id: str):
    status, problem = await refused(gateway, path(run_id))
    assert (status, problem["code"], problem["field"]) == (400, "invalid_id", "run_id")


@pytest.mark.parametrize("run_id", ["a/b", "a%2Fb", "", "%2F"])
async def test_a_slash_leads_to_no_run(gateway: GatewayProcess, run_id: str):
    assert (await refused(gateway, path(run_id)))[0] == 404


async def test_a_percent_encoded_id_is_the_same_run(gateway: GatewayProcess, broker: Broker):
    async with ended(broker, 1) as p:
        assert (await whole(gateway, path(p.run_id.replace("_", "%5F", 1)))).seqs == [1, 2]


async def test_other_methods_are_refused(gateway: GatewayProcess, broker: Broker):
    async with ended(broker) as p, await Response.open(gateway.port, path(p.run_id), method="POST") as response:
        assert response.status == 405
        assert json.loads(await response.body())["code"] == "method_not_allowed"


async def test_a_run_that_cannot_be_read_is_no_5xx_to_a_stream(
    settings: Settings, broker: Broker, tmp_path_factory: pytest.TempPathFactory
):
    """A 5xx would end an EventSource for good. On a gateway of its own, whose log may have the error."""
    process = GatewayProcess(settings, tmp_path_factory.mktemp("gateway")).start()
    try:
        await broker.store.call("SET", broker.keys.run("run_broken"), "no hash")
        stream = await whole(process, path("run_broken"))
        assert (stream.status, [f.event for f in stream.frames]) == (200, [":", "retry"])
        assert "run_broken" in process.log
    finally:
        process.kill()


# Modes.


async def test_modes_choose_and_may_change_at_a_reconnect(gateway: GatewayProcess, broker: Broker):
    tool = ToolStarted(call_id="c", name="terminal")
    async with ended(broker, "a", tool, Cost(amount="1", total="1"), ReasoningDelta(text="b")) as p:

        async def seqs(query: str, *headers: tuple[str, str]) -> list[int]:
            return (await whole(gateway, path(p.run_id, query), *headers)).seqs

        assert await seqs("?modes=") == [1, 2, 3, 4, 5]
        assert await seqs("?modes=events") == [1, 2, 3, 4, 5]
        assert await seqs("?modes=messages") == [1, 4, 5]
        assert await seqs("?modes=Tools,%20cost") == [2, 3, 5]
        assert await seqs("?modes=tools&modes=cost") == [2, 3, 5]
        assert await seqs("?modes=usage") == [5]
        assert await seqs("?modes=final") == [5]
        assert await seqs("?modes=tools", cursor(p.run_id, 2)) == [5]
        assert await seqs("?modes=messages", cursor(p.run_id, 2)) == [4, 5]


async def test_a_type_that_this_version_does_not_know_passes_under_events(gateway: GatewayProcess, broker: Broker):
    odd = Raw("weather.report", {"sky": "blue"})
    async with ended(broker, odd, Event(name="note", payload={"a": 1})) as p:
        everything = await whole(gateway, path(p.run_id))
        messages = await whole(gateway, path(p.run_id, "?modes=messages"))
    assert [f.event for f in everything.frames if f.id] == ["weather.report", "event", "final"]
    assert everything.frames[2].data["sky"] == "blue"
    assert messages.seqs == [3]


# Control frames. (cases 14, 16)


async def test_only_cursor_has_an_id_among_the_control_frames(gateway: GatewayProcess, short_broker: Broker):
    async with ended(short_broker, 5) as p:
        stream = await whole(gateway, path(p.run_id, "?modes=final,messages&cursor=abc"))
    assert [(f.event, f.id) for f in stream.controls] == [("reset", None), ("gap", None), ("end", None)]
    assert [f.id for f in stream.frames if f.id] == [f"{p.run_id}:5", f"{p.run_id}:6"]


async def test_a_fence_of_any_kind_is_an_item_and_end_names_it(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        await say(p, 1, Failed(code="oops", message="it broke"))
        stream = await whole(gateway, path(p.run_id))
    failed, end = stream.frames[-2:]
    assert (failed.event, failed.id, failed.data["code"]) == ("failed", f"{p.run_id}:2", "oops")
    assert end == Frame("end", {"run_id": p.run_id, "status": "failed", "last_seq": 2})


async def test_silence_is_broken_by_heartbeats_of_one_line(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        began = time.monotonic()
        stream = await Response.open(gateway.port, path(p.run_id))
        await stream.until(lambda frames: frames.count(Frame(":", "hb")) >= 2)
        assert 0.7 < time.monotonic() - began < 8
        await say(p, 1)
        await stream.upto(1)
        stream.leave()
        hb = b": hb\n"
        assert stream.wire.partition(b"retry: 700\n\n")[2].startswith(hb + hb)
        assert stream.wire.count(b"\n\n") == 2  # no heartbeat brings a blank line, which would dispatch an event


async def test_a_filtered_viewer_hears_where_it_stands_by_count(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        async with await Response.open(gateway.port, path(p.run_id, "?modes=tools")) as live:
            await live.until(len)
            await say(p, 20)
            frames = await live.upto(20)
            assert frames[-1] == Frame("cursor", {"run_id": p.run_id, "seq": 20}, f"{p.run_id}:20")
        late = await Response.open(gateway.port, path(p.run_id, "?modes=tools"))
        async with late:
            await late.upto(20)


async def test_a_filtered_viewer_hears_where_it_stands_in_time(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p, await Response.open(gateway.port, path(p.run_id, "?modes=tools")) as stream:
        await stream.until(len)
        began = time.monotonic()
        await say(p, 3)
        await stream.upto(3)
        assert 0.3 < time.monotonic() - began < 4.5
        await stream.until(lambda frames: frames[-1] == Frame(":", "hb"))
        assert [f.event for f in stream.controls] == ["cursor"]  # nothing was hidden since: no second one


async def test_a_shown_item_moves_the_cursor_by_itself(gateway: GatewayProcess, broker: Broker):
    tool = ToolStarted(call_id="c", name="terminal")
    async with writing(broker) as p, await Response.open(gateway.port, path(p.run_id, "?modes=tools")) as stream:
        await stream.until(len)
        hidden = [MessageDelta(text="x ")] * 15
        # All at once: what is hidden for longer is told in time.
        items = [encode(item, ts=1.0) for item in (*hidden, tool, *hidden, tool)]
        await broker.log.append(p.run_id, p.owner, p.epoch, 1, items)
        await stream.upto(32)
        assert [f.event for f in stream.controls] == []


# Retention. (cases 2, 5, 21)


@pytest.mark.parametrize(("at", "gap"), [(None, 0), (0, 0), (1, 1), (2, 2), (3, None), (4, None)])
async def test_what_retention_removed_is_one_gap(
    gateway: GatewayProcess, short_broker: Broker, at: int | None, gap: int | None
):
    async with writing(short_broker) as p:
        await say(p, 5)  # 4 and 5 are kept
        headers = [] if at is None else [cursor(p.run_id, at)]
        async with await Response.open(gateway.port, path(p.run_id), headers=headers) as stream:
            frames = await stream.upto(5)
    told = {"run_id": p.run_id, "requested": gap, "earliest": 4, "latest": 5}
    assert [f for f in frames if f.event == "gap"] == ([] if gap is None else [Frame("gap", told)])
    assert stream.seqs == ([5] if at == 4 else [4, 5])
    assert next(f.event for f in frames if f.event not in (":", "retry")) == ("message.delta" if gap is None else "gap")


async def test_the_outcome_of_a_trimmed_run_is_no_gap(gateway: GatewayProcess, short_broker: Broker):
    async with ended(short_broker, 9) as p:
        stream = await whole(gateway, path(p.run_id, "?modes=final"))
    assert (stream.seqs, [f.event for f in stream.controls]) == ([10], ["end"])


async def test_an_expired_run_answers_gap_and_end_and_then_nothing(gateway: GatewayProcess, broker: Broker):
    async with ended(broker, 4) as p:
        await broker.store.call("DEL", broker.keys.items(p.run_id))
        began = time.monotonic()
        for headers, requested in (((), 0), ((cursor(p.run_id, 2),), 2)):
            stream = await whole(gateway, path(p.run_id), *headers)
            assert stream.controls == [
                Frame("gap", {"run_id": p.run_id, "requested": requested, "earliest": 6, "latest": 5}),
                Frame("cursor", {"run_id": p.run_id, "seq": 5}, f"{p.run_id}:5"),
                Frame("end", {"run_id": p.run_id, "status": "completed", "last_seq": 5}),
            ]
            assert stream.seqs == []
        assert (await Response.open(gateway.port, path(p.run_id), headers=[cursor(p.run_id, 5)])).status == 204
        assert time.monotonic() - began < 10.0
        await broker.store.call("DEL", broker.keys.run(p.run_id))
        assert (await refused(gateway, path(p.run_id)))[0] == 404


# The rest.


async def test_compact_joins_deltas_while_catching_up_and_never_live_ones(gateway: GatewayProcess, broker: Broker):
    tool = ToolStarted(call_id="c", name="terminal")
    async with writing(broker) as p:
        await say(p, "a", "b", "c", tool, "d", "e")
        async with await Response.open(gateway.port, path(p.run_id, "?compact=1")) as stream:
            await stream.upto(6)
            await say(p, "f", "g", end=True)
            await stream.body()
        assert stream.seqs == [3, 4, 6, 7, 8, 9]
        texts = [f.data["text"] for f in stream.frames if f.event == "message.delta"]
        assert texts == ["abc", "de", "f", "g"]
        again = await whole(gateway, path(p.run_id, "?compact=1"), cursor(p.run_id, 2))
        assert (again.seqs, again.frames[2].data["text"]) == ([3, 4, 8, 9], "c")


async def test_a_join_right_after_creation_waits_and_then_streams(gateway: GatewayProcess, broker: Broker):
    run_id = f"run_{uuid4().hex}"
    async with writing(broker, run_id) as p:
        stream = asyncio.create_task(whole(gateway, path(run_id)))
        await gateway.reads("runcast_viewers", 1)
        await say(p, 2, end=True)
        assert (await stream).seqs == [1, 2, 3]


async def test_many_viewers_of_one_run_see_the_same(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        queries = ["", "?modes=messages", f"?cursor={p.run_id}:0", "?compact=0", "?modes=events,final"] * 6
        streams = [asyncio.create_task(whole(gateway, path(p.run_id, query))) for query in queries]
        await gateway.reads("runcast_viewers", len(queries))
        await say(p, 50)
        await say(p, 50, end=True)
        assert {tuple((await stream).seqs) for stream in streams} == {tuple(range(1, 102))}
    await gateway.reads("runcast_viewers", 0)
    await gateway.reads("runcast_feeds", 0)
    # The bus, which tells sessions of their runs, is followed all the time.
    await gateway.reads("runcast_followed_keys", broker.keys.partitions)
