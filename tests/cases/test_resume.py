"""Cursors, retention and the end, as others met them: cases 1, 2, 3, 5, 16, 20, 21, 24, each with its exact input."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker import api
from broker.api import Broker
from broker.items import Cost, Event, Final, Item, MessageDelta, ReasoningDelta, ToolCallDelta, ToolStarted, Usage
from broker.settings import Settings
from tests.cases.wire import ended, opened, seqs_of, target
from tests.gateways import Frame, GatewayProcess, Response, say, until, writing

TOOL = ToolStarted(call_id="c", name="terminal")


@pytest.fixture
async def keeping_two(settings: Settings) -> AsyncIterator[Broker]:
    """Runs made through it keep two items."""
    async with api.open(settings=settings.model_copy(update={"run_max_items": 2})) as opened_:
        yield opened_


# Case 1: publish 1,000 items in a tight loop; for every k, resume after k.


async def test_case_01_for_every_k_of_1000_exactly_what_follows_while_it_runs_and_after(
    gateway: GatewayProcess, broker: Broker
):
    async with writing(broker) as p:
        await say(p, 1_000)
        live = {k: await opened(gateway, p.run_id, k) for k in range(0, 1_001, 10)}
        await gateway.reads("runcast_viewers", len(live))
        await say(p, 1, end=True)
        for k, stream in live.items():
            assert seqs_of(await stream.body(30)) == list(range(k + 1, 1_003)), k
            stream.leave()
        async with await Response.open(gateway.port, "/healthz") as kept:
            await kept.body()
            for k in range(1_002):
                await kept.ask(target(p.run_id), headers=[("Last-Event-ID", f"{p.run_id}:{k}")])
                assert seqs_of(await kept.body()) == list(range(k + 1, 1_003)), k


# Case 2: keep 2; publish 3; resume at 1. A live viewer that retention overtakes. The last removed item as cursor.


@pytest.mark.parametrize(
    ("published", "at", "gap"),
    [
        (3, 1, None),  # 1 is the last removed item: nothing is missing
        (3, None, (0, 2, 3)),
        (4, 1, (1, 3, 4)),
        (4, 2, None),
        (4, 0, (0, 3, 4)),
        (2, 1, None),
    ],
)
async def test_case_02_one_gap_without_id_before_any_item_and_none_at_the_boundary(
    gateway: GatewayProcess, keeping_two: Broker, published: int, at: int | None, gap: tuple[int, int, int] | None
):
    async with writing(keeping_two) as p:
        await say(p, published)
        async with await opened(gateway, p.run_id, at) as stream:
            frames = [f for f in await stream.upto(published) if f.event not in (":", "retry")]
    told = [] if gap is None else [dict(zip(("requested", "earliest", "latest"), gap, strict=True))]
    assert [f.data | {"run_id": ""} for f in frames if f.event == "gap"] == [g | {"run_id": ""} for g in told]
    if gap is not None:
        assert (frames[0].event, frames[0].id) == ("gap", None)
    first = max(published - 1, (at or 0) + 1)
    assert stream.seqs == list(range(first, published + 1))


@pytest.mark.parametrize(
    ("query", "gaps"),
    [("", 1), ("modes=messages", 1), ("compact=1", 1), ("modes=tools", 1), ("modes=final", 0)],
)
async def test_case_02_a_live_viewer_that_retention_overtakes_is_told_once(
    gateway: GatewayProcess, keeping_two: Broker, query: str, gaps: int
):
    """The gateway stands still while 20 items go by. One that wants the fence alone misses nothing by that."""
    async with writing(keeping_two) as p:
        await say(p, 3)
        async with await opened(gateway, p.run_id, 3, query) as stream, await opened(gateway, p.run_id, 3) as other:
            await say(p, 1)
            await other.upto(4)
            await gateway.reads("runcast_viewers", 2)
            gateway.signal(signal.SIGSTOP)
            try:
                for _ in range(20):
                    await say(p, 1)
            finally:
                gateway.signal(signal.SIGCONT)
            await other.upto(24)
            await say(p, end=True)
            for seen in (stream, other):
                await seen.body()
    # What the blocked read had been answered before: the first of the 20, or nothing.
    told = [f for f in other.controls if f.event == "gap"]
    requested = told[0].data["requested"]
    assert requested in (4, 5)
    assert told == [Frame("gap", {"run_id": p.run_id, "requested": requested, "earliest": 23, "latest": 24})]
    assert other.seqs == [*range(4, requested + 1), 23, 24, 25]
    assert [f for f in stream.controls if f.event == "gap"] == told * gaps
    shown = {"modes=tools": [25], "modes=final": [25]}.get(query, other.seqs)
    assert stream.seqs == shown


@pytest.mark.parametrize(("query", "gaps"), [("", 1), ("modes=final", 0)])
async def test_case_02_a_demoted_viewer_that_retention_overtakes_is_told_each_time(
    gateway: GatewayProcess, settings: Settings, query: str, gaps: int
):
    """It does not read for a while; what it then gets is whole but for what it was told. Usually that is one gap; on a
    busy machine retention may overtake it again."""
    async with (
        api.open(settings=settings.model_copy(update={"run_max_items": 20})) as broker,
        writing(broker) as p,
        await opened(gateway, p.run_id, None, query) as stream,
    ):
        await gateway.reads("runcast_viewers", 1)
        for n in range(200):
            await p.publish(MessageDelta(text=f"{n} ".ljust(100_000, "x")))
        await say(p, end=True)
        await stream.body(30)
    told = [f.data for f in stream.controls if f.event == "gap"]
    if not gaps:
        assert (told, stream.seqs) == ([], [201])
        return
    assert told
    begins = [1, *(gap["earliest"] for gap in told)]
    ends = [*(gap["requested"] for gap in told), 201]
    assert all(begin <= end for begin, end in zip(begins[1:], ends[1:], strict=True)), "none is told twice"
    assert stream.seqs == [seq for begin, end in zip(begins, ends, strict=True) for seq in range(begin, end + 1)]


# Case 3: what a Last-Event-ID may be.

ODD: list[tuple[str, str | None]] = [
    ("-1", None),
    ("", None),
    ("   ", None),
    ("0", None),
    ("RUN:0", None),
    ("abc", "malformed"),
    ("1e9", "malformed"),
    ("$", "malformed"),
    ("9" * 20, "malformed"),
    ("7" * 10_000, "malformed"),
    ("RUN:" + "7" * 10_000, "malformed"),
    ("RUN:1:2", "malformed"),
    ("RUN:" + "9" * 20, "malformed"),
    ("RUN:4", "ahead"),
    ("OTHER:1", "foreign"),
]


@pytest.mark.parametrize("runs", [True, False], ids=["running", "ended"])
@pytest.mark.parametrize(("value", "reason"), ODD, ids=lambda v: str(v)[:12])
async def test_case_03_every_last_event_id_has_its_answer(
    gateway: GatewayProcess, broker: Broker, value: str, reason: str | None, runs: bool
):
    """In the header and in the query, on a run that goes on and on one that has ended: from the start, at once."""
    async with writing(broker) as p:
        await say(p, 2 if not runs else 3, end=not runs)
        given = value.replace("RUN", p.run_id)
        began = time.monotonic()
        query = await Response.open(gateway.port, target(p.run_id, f"cursor={given}".replace("$", "%24")[:9_000]))
        for stream in (await opened(gateway, p.run_id, given), query):
            frames = [f for f in await stream.upto(3) if f.event not in (":", "retry")]
            assert stream.status == 200
            resets = [] if reason is None else [Frame("reset", {"run_id": p.run_id, "reason": reason})]
            assert frames[: len(resets)] == resets
            assert stream.seqs == [1, 2, 3]
            stream.leave()
        assert time.monotonic() - began < 15


async def test_case_03_minus_one_ten_times_is_the_start_ten_times(gateway: GatewayProcess, broker: Broker):
    async with writing(broker) as p:
        await say(p, 4)
        for _ in range(10):
            async with await opened(gateway, p.run_id, "-1") as stream:
                await stream.upto(4)
                assert (stream.seqs, stream.controls) == ([1, 2, 3, 4], [])


@pytest.mark.parametrize("runs", [True, False], ids=["running", "ended"])
async def test_case_03_two_headers_are_no_cursor(gateway: GatewayProcess, broker: Broker, runs: bool):
    async with writing(broker) as p:
        await say(p, 2 if not runs else 3, end=not runs)
        headers = [("Last-Event-ID", f"{p.run_id}:{seq}") for seq in (1, 2)]
        async with await Response.open(gateway.port, target(p.run_id), headers=headers) as stream:
            await stream.upto(3)
            assert stream.controls[0] == Frame("reset", {"run_id": p.run_id, "reason": "malformed"})
            assert stream.seqs == [1, 2, 3]


# Case 5: a finished run joined, then its items expired, then an unknown run.


async def test_case_05_a_finished_run_an_expired_one_and_an_unknown_one_answer_at_once(
    gateway: GatewayProcess, settings: Settings
):
    async with api.open(settings=settings.model_copy(update={"run_ttl": 600})) as broker, writing(broker) as p:
        run_id = p.run_id
        await say(p, 4, end=True)  # the fence T is 5
        for after, seqs in ((None, [1, 2, 3, 4, 5]), ("-1", [1, 2, 3, 4, 5]), (4, [5]), (2, [3, 4, 5])):
            stream = await quickly(ended(gateway, run_id, after))
            assert stream.seqs == seqs
            assert stream.controls == [Frame("end", {"run_id": run_id, "status": "completed", "last_seq": 5})]
        assert (await quickly(ended(gateway, run_id, 5))).status == 204
        assert (await quickly(ended(gateway, run_id, None, "modes=final"))).seqs == [5]
        assert 0 < await broker.store.call("PTTL", broker.keys.items(run_id)) <= 600_000
        await broker.store.call("PEXPIRE", broker.keys.items(run_id), 1)
        await until(lambda: gone(broker, run_id))
        for after, requested in ((None, 0), ("-1", 0), (2, 2), (4, 4)):
            stream = await quickly(ended(gateway, run_id, after))
            controls = [(f.event, f.data) for f in stream.controls if f.event != "cursor"]
            assert controls == [
                ("gap", {"run_id": run_id, "requested": requested, "earliest": 6, "latest": 5}),
                ("end", {"run_id": run_id, "status": "completed", "last_seq": 5}),
            ]
            assert stream.seqs == []
        assert (await quickly(ended(gateway, run_id, 5))).status == 204
    assert (await quickly(ended(gateway, "run_unknown", 3))).status == 404


async def gone(broker: Broker, run_id: str) -> bool:
    return await broker.store.call("EXISTS", broker.keys.items(run_id)) == 0


async def quickly(answer: Any) -> Response:
    async with asyncio.timeout(15):
        response: Response = await answer
    return response


# Case 16: a client that stores the id of whatever frame it sees.


async def test_case_16_control_frames_have_no_id_and_cursor_moves_it_rightly(
    gateway: GatewayProcess, keeping_two: Broker, broker: Broker
):
    async with writing(keeping_two) as p:
        await say(p, 5, end=True)
        stream = await ended(gateway, p.run_id, "abc")
        assert [(f.event, f.id) for f in stream.controls] == [("reset", None), ("gap", None), ("end", None)]
    async with writing(broker) as p:
        async with await opened(gateway, p.run_id, None, "modes=tools") as stream:
            await say(p, TOOL, 600)
            await stream.upto(601)
            await stream.until(lambda frames: frames[-1] == Frame(":", "hb"))
        ids = [(f.event, f.id) for f in stream.frames]
        assert {event for event, id_ in ids if id_ is None} == {":", "retry"}
        assert {event for event, id_ in ids if id_ is not None} == {"tool.started", "cursor"}
        await say(p, TOOL, "after", end=True)
        for event, id_ in ids:
            if id_ is not None:
                seq = int(id_.rpartition(":")[2])
                assert (await ended(gateway, p.run_id, id_)).seqs == list(range(seq + 1, 605)), event


# Case 20: the modes change at the reconnect.

KINDS: list[tuple[str, Item]] = [
    ("messages", MessageDelta(text="x ")),
    ("tools", TOOL),
    ("usage", Usage(input_tokens=1, output_tokens=1, total={})),
    ("cost", Cost(amount="1", total="1")),
    ("events", Event(name="note")),
]


async def test_case_20_the_modes_change_at_every_reconnect_and_the_cursor_stays_valid(
    gateway: GatewayProcess, broker: Broker
):
    rng = random.Random(20)
    kinds: list[str] = []
    async with writing(broker) as p:

        async def more(count: int) -> None:
            for _ in range(count):
                kind, item = rng.choice(KINDS)
                kinds.append(kind)
                await say(p, item)

        await more(30)
        last_id = 0
        for _ in range(25):
            modes = rng.sample([kind for kind, _ in KINDS], rng.randint(1, 3))
            async with await opened(gateway, p.run_id, last_id, "modes=" + ",".join(modes)) as stream:
                await more(6)
                upto = len(kinds)
                await stream.upto(upto)  # the item itself, or the cursor of what these modes hide
            wanted = [
                n for n, kind in enumerate(kinds, 1) if last_id < n <= upto and ("events" in modes or kind in modes)
            ]
            assert stream.seqs == wanted, modes
            assert not [f for f in stream.controls if f.event != "cursor"]
            last_id = rng.choice([int(f.id.rpartition(":")[2]) for f in stream.frames if f.id])
        await say(p, end=True)
        assert (await ended(gateway, p.run_id, last_id)).seqs == list(range(last_id + 1, p.last + 1))


# Case 21: modes=final, 10,000 other items, retention 1,000, reconnect.


@pytest.mark.parametrize("modes", ["final", "tools", "cost,usage"])
async def test_case_21_a_filtered_viewer_of_10000_other_items_gets_no_false_gap(
    gateway: GatewayProcess, settings: Settings, modes: str
):
    async with api.open(settings=settings.model_copy(update={"run_max_items": 1_000})) as broker, writing(broker) as p:
        async with await opened(gateway, p.run_id, None, f"modes={modes}") as stream:
            await gateway.reads("runcast_viewers", 1)
            for _ in range(20):
                await say(p, 500)
                await stream.upto(p.last)  # its cursor keeps up, so retention never overtakes it
        assert {f.event for f in stream.controls} == {"cursor"}
        last_id = stream.frames[-1].id
        assert last_id == f"{p.run_id}:10000"
        await say(p, 400)
        async with await opened(gateway, p.run_id, last_id, f"modes={modes}") as again:
            await say(p, 400)
            await again.upto(10_800)
            await say(p, Final())
            await again.body()
    assert again.seqs == [10_801]
    assert {f.event for f in again.controls} == {"cursor", "end"}


# Case 24: a compacted replay is cut inside every window of items that are one for it.

WINDOWS: list[Item] = [
    *(MessageDelta(text=text) for text in ("Hello", ", ", ", ", "é😀\u2028", "")),
    *(ReasoningDelta(text=text, index=1) for text in ("hm", "hm")),
    ToolCallDelta(call_id="c", name="terminal", arguments='{"a"', index=2),
    *(ToolCallDelta(call_id="c", arguments=part, index=2) for part in (": 1", "}")),
    TOOL,
    *(MessageDelta(text=text, round=2) for text in ("a", "a", "a")),
]


def contents(frames: list[Frame]) -> dict[tuple[str, int, int], str]:
    """All text of each block, in the order of its arrival."""
    told: dict[tuple[str, int, int], str] = {}
    for frame in frames:
        if frame.event.endswith(".delta"):
            block = (frame.event, frame.data.get("round", 1), frame.data.get("index", 0))
            told[block] = told.get(block, "") + frame.data.get("text", frame.data.get("arguments", ""))
    return told


def items_of(stream: Response) -> list[Frame]:
    assert not stream.controls or [f.event for f in stream.controls] == ["end"]
    return [f for f in stream.frames if f.id is not None]


def upto(frames: list[Frame], seq: int) -> list[Frame]:
    return [f for f in frames if int(str(f.id).rpartition(":")[2]) <= seq]


async def test_case_24_a_cut_in_every_window_of_a_compacted_replay_doubles_and_loses_nothing(
    gateway: GatewayProcess, broker: Broker
):
    async with writing(broker) as p:
        await say(p, *WINDOWS, end=True)
        run_id, last = p.run_id, p.last
    plain = items_of(await ended(gateway, run_id))
    compacted = await ended(gateway, run_id, None, "compact=1")
    assert compacted.seqs == [5, 7, 10, 11, 14, last]
    for seq in compacted.seqs:  # the id is the last member's: what came so far is what the plain items have up to it
        assert contents(upto(items_of(compacted), seq)) == contents(upto(plain, seq)), seq
    whole = contents(plain)
    for seq in range(last):
        for query in ("compact=1", ""):
            rest = items_of(await ended(gateway, run_id, seq, query))
            assert contents(upto(plain, seq) + rest) == whole, (seq, query)
            if seq in compacted.seqs:
                assert contents(upto(items_of(compacted), seq) + rest) == whole, (seq, query)
