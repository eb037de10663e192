"""The run registry: creation that happens once, cancel, claim, epochs, listing."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from zlib import crc32

import pytest

from broker.errors import (
    BadRequest,
    ClaimRefused,
    Fenced,
    IdempotencyConflict,
    InvalidId,
    InvalidRequest,
    ItemTooBig,
    RunEnded,
    RunExists,
    RunNotFound,
    Sealed,
    StoreUnavailable,
)
from broker.ids import IdMaker
from broker.items import Cancelled, Encoded, decode
from broker.redis import Store
from broker.requests import RunInput, RunRequest, parse_request
from tests.broker.registry import FENCE, Registry, delta, request


@pytest.fixture
def registry(store: Store) -> Registry:
    return Registry(store)


# create


async def test_a_record_has_what_was_asked_for(registry: Registry) -> None:
    asked = RunRequest(
        input=RunInput(message="héllo", model="m", toolsets=["web"]),
        runner="scripted",
        session_id="s.1",
        metadata={"a": "b"},
        on_worker_lost="retry",
        deadline_s=5,
    )
    record, created = await registry.runs.create(asked, principal="anna")
    assert created
    again = await registry.runs.get(record.run_id)
    assert again.queue_entry
    assert (again.status, again.runner, again.owner, again.attempt, again.epoch) == ("queued", "scripted", "", 1, 1)
    assert (again.session_id, again.principal, again.metadata) == ("s.1", "anna", {"a": "b"})
    assert (again.on_worker_lost, again.deadline_s) == ("retry", 5)
    assert again.request["input"] == {"message": "héllo", "model": "m", "toolsets": ["web"]}
    assert (again.last, again.bytes, again.first, again.rewound_to) == (0, 0, 1, 0)
    assert (again.started, again.ended, again.outcome, again.usage, again.cost) == (None,) * 5
    assert again.cancel_requested is None
    assert again.created > 1e9
    assert not again.ended_
    assert await registry.queue.size() == 1


async def test_an_id_is_not_reused(registry: Registry) -> None:
    run = await registry.queued()
    with pytest.raises(RunExists, match="reused"):
        await registry.runs.create(request(), run_id=run.run_id)
    ended = await registry.ended()
    with pytest.raises(RunExists):
        await registry.runs.create(request(), run_id=ended.run_id)


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "ä", "x" * 129, "a\n", "a:1"])
async def test_ids_that_are_none(registry: Registry, bad: str) -> None:
    with pytest.raises(InvalidId, match="allowed") as refused:
        await registry.runs.create(request(), run_id=bad)
    assert refused.value.field == "run_id"
    with pytest.raises(InvalidId) as refused:
        await registry.runs.create(request(session_id=bad))
    assert refused.value.field == "session_id"
    for call in (registry.runs.get, registry.runs.cancel, registry.runs.cancel_token):
        with pytest.raises(InvalidId):
            await call(bad)


async def test_requests_that_are_none(registry: Registry) -> None:
    limit = registry.store.settings.item_max_bytes
    for message in ("", " \n"):
        with pytest.raises(InvalidRequest, match="empty"):
            await registry.runs.create(request(message))
    with pytest.raises(ItemTooBig, match=str(limit)):
        await registry.runs.create(request("é" * (limit // 2 + 1)))
    with pytest.raises(ItemTooBig):
        await registry.runs.create(request(metadata={"a": "x" * 2 * limit}))
    assert (await registry.runs.list())[0] == []


async def test_one_key_makes_one_run(registry: Registry) -> None:
    create = registry.runs.create
    first, created = await create(request(), idempotency_key="k", principal="anna")
    assert created
    again, created = await create(request(), idempotency_key="k", principal="anna")
    assert (again.run_id, created) == (first.run_id, False)
    assert await registry.runs.cancel_token(again.run_id) == await registry.runs.cancel_token(first.run_id)
    with pytest.raises(IdempotencyConflict, match="another body"):
        await create(request("other"), idempotency_key="k", principal="anna")
    for key, principal in (("k", "bert"), ("k", ""), ("K", "anna"), ("nna", "ka")):
        other, created = await create(request(), idempotency_key=key, principal=principal)
        assert created
        assert other.run_id != first.run_id
    assert await registry.queue.size() == 5
    with pytest.raises(InvalidRequest, match="not both"):
        await create(request(), idempotency_key="k", run_id="r")


async def test_a_key_and_its_principal_are_not_confused(registry: Registry) -> None:
    _, one = await registry.runs.create(request(), idempotency_key="1:bk", principal="a")
    _, two = await registry.runs.create(request(), idempotency_key="k", principal="a:1:b")
    assert one
    assert two


async def test_racing_requests_of_one_key_make_one_run(registry: Registry) -> None:
    answers = await asyncio.gather(*(registry.runs.create(request(), idempotency_key="k") for _ in range(10)))
    assert len({record.run_id for record, _ in answers}) == 1
    assert [created for _, created in answers].count(True) == 1
    assert await registry.queue.size() == 1


async def test_a_key_whose_record_is_gone_is_free_again(registry: Registry) -> None:
    first, _ = await registry.runs.create(request(), idempotency_key="k")
    await registry.store.call("DEL", registry.keys.run(first.run_id))
    second, created = await registry.runs.create(request("other"), idempotency_key="k")
    assert created
    again, created = await registry.runs.create(request("other"), idempotency_key="k")
    assert (again.run_id, created) == (second.run_id, False)


async def dies_before_the_queue(*_: Any, **__: Any) -> str:
    raise StoreUnavailable("gone")


async def backdate(registry: Registry, run_id: str) -> None:
    """As if the run had waited for a minute."""
    key = registry.keys.run(run_id)
    beat = float(await registry.store.call("HGET", key, "beat"))
    await registry.store.call("HSET", key, "beat", f"{beat - 60:.6f}")


async def test_a_crash_before_the_queue_is_mended_by_the_repeated_request(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(registry.queue, "put", dies_before_the_queue)
        first, created = await registry.runs.create(request(), idempotency_key="k")
    assert created
    assert await registry.queue.size() == 0
    again, _ = await registry.runs.create(request(), idempotency_key="k")
    assert again.run_id == first.run_id
    assert await registry.queue.size() == 0, "whoever made it may be about to queue it"
    await backdate(registry, first.run_id)
    for _ in range(3):
        again, created = await registry.runs.create(request(), idempotency_key="k")
        assert (again.run_id, created) == (first.run_id, False)
    assert await registry.queue.size() == 1
    assert (await registry.runs.get(first.run_id)).queue_entry


async def test_a_repeated_request_does_not_queue_what_is_queued(registry: Registry) -> None:
    first, _ = await registry.runs.create(request(), idempotency_key="k")
    await backdate(registry, first.run_id)
    await registry.runs.create(request(), idempotency_key="k")
    assert await registry.queue.size() == 1


async def test_a_run_may_be_made_without_queueing_it(registry: Registry) -> None:
    record, _ = await registry.runs.create(request(), enqueue=False)
    assert await registry.queue.size() == 0
    assert (await registry.runs.claim(record.run_id, 1, "me")).owner == "me"


# claim, beat, epochs


async def test_one_of_many_claims_wins(registry: Registry) -> None:
    run = await registry.queued()
    claims = (registry.runs.claim(run.run_id, 1, f"w{n}") for n in range(10))
    answers = await asyncio.gather(*claims, return_exceptions=True)
    winners = [a for a in answers if not isinstance(a, BaseException)]
    assert len(winners) == 1
    assert sum(isinstance(a, ClaimRefused) for a in answers) == 9
    assert (await registry.runs.get(run.run_id)).owner == winners[0].owner
    assert winners[0].started is not None


async def test_beats(registry: Registry) -> None:
    run = await registry.running()
    await registry.log.append(run.run_id, "me", 1, 1, [delta()])
    assert await registry.runs.beat(run.run_id, "me", 1) == (1, 1, False)
    await registry.runs.cancel(run.run_id)
    assert await registry.runs.beat(run.run_id, "me", 1) == (1, 1, True)
    with pytest.raises(Fenced):
        await registry.runs.beat(run.run_id, "you", 1)
    with pytest.raises(RunNotFound):
        await registry.runs.beat("nobody", "me", 1)


async def test_a_new_epoch(registry: Registry) -> None:
    run = await registry.running()
    await registry.log.append(run.run_id, "me", 1, 1, [delta(), delta()])
    assert await registry.runs.new_epoch(run.run_id, "me", 1) == (2, 2)
    assert await registry.runs.new_epoch(run.run_id, "me", 1) == (2, 2)
    record = await registry.runs.get(run.run_id)
    assert (record.epoch, record.rewound_to) == (2, 2)
    with pytest.raises(Fenced):
        await registry.log.append(run.run_id, "me", 1, 3, [delta()])
    await registry.log.append(run.run_id, "me", 2, 3, [FENCE])
    with pytest.raises(Sealed):
        await registry.runs.new_epoch(run.run_id, "me", 2)


# cancel


async def test_a_queued_run_is_cancelled_at_once(registry: Registry) -> None:
    run = await registry.queued()
    record = await registry.runs.cancel(run.run_id)
    assert (record.status, record.last) == ("cancelled", 1)
    (entry,) = await registry.log.read(run.run_id, 0, limit=10)
    fence = decode(entry.type, entry.data)
    assert isinstance(fence, Cancelled)
    assert fence.code == "cancelled"
    assert fence.component_id == "agent"
    assert fence.ts == pytest.approx(record.ended)
    assert entry.data.startswith(b'{"ts":')
    assert record.outcome == {"type": "cancelled", "seq": 1, "item": json.loads(entry.data)}
    with pytest.raises(ClaimRefused, match="ended"):
        await registry.runs.claim(run.run_id, 1, "me")
    assert (await registry.runs.cancel(run.run_id)).status == "cancelled", "a repeat is harmless"


async def test_a_running_run_is_asked_to_stop_once(registry: Registry) -> None:
    run = await registry.running()
    for _ in range(3):
        record = await registry.runs.cancel(run.run_id)
        assert record.status == "running"
        assert record.cancel_requested is not None
    assert await registry.store.call("XLEN", registry.keys.control(run.run_id)) == 1
    assert (await registry.runs.claim(run.run_id, 1, "me")).cancel_requested is not None
    await registry.log.append(run.run_id, "me", 1, 1, [delta(), FENCE])
    with pytest.raises(RunEnded, match="completed"):
        await registry.runs.cancel(run.run_id)


async def test_cancel_is_refused_for_what_ended_or_never_was(registry: Registry) -> None:
    ended = await registry.ended()
    with pytest.raises(RunEnded):
        await registry.runs.cancel(ended.run_id)
    with pytest.raises(RunNotFound):
        await registry.runs.cancel("nobody")


async def test_a_run_that_waits_for_its_second_attempt_is_cancelled_with_its_partial_output(registry: Registry) -> None:
    run = await registry.running(on_worker_lost="retry")
    await registry.log.append(run.run_id, "me", 1, 1, [delta("one "), delta("two")])
    assert await registry.runs.takeover(await registry.runs.get(run.run_id)) == "queued"
    record = await registry.runs.cancel(run.run_id)
    assert record.outcome is not None
    assert record.outcome["seq"] == 3
    assert record.outcome["item"]["partial"]["content"] == [{"type": "text", "text": "one two"}]


async def test_cancel_tokens(registry: Registry) -> None:
    run = (await registry.queued()).run_id
    token = await registry.runs.cancel_token(run)
    assert token == await Registry(registry.store).runs.cancel_token(run)
    assert await registry.runs.check_cancel_token(run, token)
    for wrong in ("", token[:-1], token.upper(), "é", await registry.runs.cancel_token("other")):
        assert not await registry.runs.check_cancel_token(run, wrong)


# takeover


async def test_takeover_writes_the_partial_message(registry: Registry) -> None:
    run = await registry.running()
    await registry.log.append(run.run_id, "me", 1, 1, [delta("half "), delta("an answer")])
    record = await registry.runs.get(run.run_id)
    answers = await asyncio.gather(*(registry.runs.takeover(record) for _ in range(5)))
    assert sorted(answers, key=str) == [None, None, None, None, "failed"]
    entries = await registry.log.read(run.run_id, 0, limit=10)
    assert [e.type for e in entries] == [b"message.delta", b"message.delta", b"failed"]
    fence = json.loads(entries[-1].data)
    assert (fence["code"], fence["retryable"]) == ("worker_lost", True)
    assert fence["partial"]["content"] == [{"type": "text", "text": "half an answer"}]
    decode(entries[-1].type, entries[-1].data)


async def test_a_partial_message_that_no_item_can_hold_is_left_out_and_counted(registry: Registry) -> None:
    run = await registry.running()
    half = "x" * (registry.store.settings.item_max_bytes * 2 // 3)
    await registry.log.append(run.run_id, "me", 1, 1, [delta(half)])
    await registry.log.append(run.run_id, "me", 1, 2, [delta(half)])
    assert await registry.runs.takeover(await registry.runs.get(run.run_id)) == "failed"
    (entry,) = await registry.log.read_back(run.run_id, None, limit=1)
    fence = json.loads(entry.data)
    assert fence["partial"] is None
    assert fence["truncated_bytes"] > 2 * len(half)
    assert len(entry.data) < 1_000


# listing


async def test_pages_are_newest_first_and_whole(registry: Registry) -> None:
    made = [(await registry.queued()).run_id for _ in range(23)]
    seen: list[str] = []
    before = None
    sizes = []
    while True:
        page, before = await registry.runs.list(limit=5, before=before)
        sizes.append(len(page))
        seen += [record.run_id for record in page]
        if before is None:
            break
        await registry.queued()  # newer than the pages to come
    assert seen == made[::-1]
    assert sizes == [5, 5, 5, 5, 3]


async def test_a_list_that_ends_with_a_full_page_has_at_most_an_empty_page_more(registry: Registry) -> None:
    for _ in range(4):
        await registry.queued()
    page, before = await registry.runs.list(limit=4)
    assert len(page) == 4
    if before is not None:
        assert await registry.runs.list(limit=4, before=before) == ([], None)


async def test_filters(registry: Registry) -> None:
    queued = [(await registry.queued(session_id=f"s{n % 2}")).run_id for n in range(6)]
    ended = [(await registry.ended(session_id=f"s{n % 2}")).run_id for n in range(6)]

    async def ids(**filters: Any) -> list[str]:
        found: list[str] = []
        before = None
        while True:
            page, before = await registry.runs.list(limit=2, before=before, **filters)
            found += [record.run_id for record in page]
            if before is None:
                return found

    assert await ids(status="queued") == queued[::-1]
    assert await ids(status="completed") == ended[::-1]
    assert await ids(status="running") == []
    assert await ids(session_id="s1") == ended[1::2][::-1] + queued[1::2][::-1]
    assert await ids(session_id="s0", status="completed") == ended[0::2][::-1]


async def test_a_run_whose_record_is_gone_is_not_listed(registry: Registry) -> None:
    made = [(await registry.queued()).run_id for _ in range(4)]
    await registry.store.call("DEL", registry.keys.run(made[1]))
    page, _ = await registry.runs.list()
    assert [record.run_id for record in page] == [made[3], made[2], made[0]]


async def test_list_says_what_is_allowed(registry: Registry) -> None:
    with pytest.raises(BadRequest, match="queued, running, completed, failed, cancelled"):
        await registry.runs.list(status="done")
    for limit in (0, -1, 501):
        with pytest.raises(BadRequest, match="1 to 500") as refused:
            await registry.runs.list(limit=limit)
        assert refused.value.field == "limit"
    for token in ("", "x", "é", "bm9wZQ", "bmFuOng", "aW5mOng", "A" * 200):
        with pytest.raises(BadRequest, match="token"):
            await registry.runs.list(before=token)
    with pytest.raises(InvalidId):
        await registry.runs.list(session_id="a b")


# the bus


async def test_announcements(registry: Registry) -> None:
    await registry.bus.announce("worker.started", "w1", {"concurrency": 4})
    entries = await registry.store.call("XRANGE", registry.keys.bus(registry.keys.partition("w1")), "-", "+")
    event = dict(zip(entries[0][1][::2], entries[0][1][1::2], strict=True))
    assert event[b"kind"] == b"worker.started"
    assert json.loads(event[b"d"]) == {"name": "w1", "concurrency": 4}
    assert float(event[b"ts"]) > 1e9
    assert len(registry.bus.keys()) == registry.keys.partitions
    with pytest.raises(InvalidRequest):
        await registry.bus.announce("worker started", "w1", {})


# what needs no store


def test_ids_sort_by_time_even_where_the_clock_does_not() -> None:
    times = iter([1000.0, 1000.0, 1000.0005, 999.0, 1001.0, 1001.0] + [1001.0] * 500)
    make = IdMaker(lambda: next(times))
    ids = [make() for _ in range(500)]
    assert ids == sorted(set(ids))
    assert all(len(i) == 30 and i.startswith("run_") for i in ids)
    assert IdMaker(lambda: 2e9)() > IdMaker(lambda: 1.9e9)()


@pytest.mark.parametrize("partitions", [1, 2, 64, 4096])
def test_an_id_can_be_made_for_a_partition(partitions: int) -> None:
    make = IdMaker()
    for partition in {0, partitions // 2, partitions - 1}:
        assert crc32(make.in_partition(partition, partitions).encode()) % partitions == partition


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{}", None),
        (b"[]", None),
        (b"{", None),
        (b'"\xff"', None),
        (b'{"input":{}}', "input"),
        (b'{"input":{"message":5}}', "input.message"),
        (b'{"input":{"message":"m","color":1}}', "input"),
        (b'{"input":{"message":"m"},"surprise":1}', None),
        (b'{"input":{"message":"m","approvals":"maybe"}}', "input.approvals"),
        (b'{"input":{"message":"m","max_turns":0}}', "input.max_turns"),
        (b'{"input":{"message":"m"},"on_worker_lost":"cry"}', "on_worker_lost"),
        (b'{"input":{"message":"m"},"deadline_s":0}', "deadline_s"),
        (b'{"input":{"message":"m"},"runner":"a b"}', "runner"),
        (b'{"input":{"message":"m"},"metadata":{"a":1}}', "metadata[...]"),
    ],
)
def test_bodies_that_are_no_request(body: bytes, field: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_request(body)
    assert refused.value.field == field


def test_what_means_the_same_has_one_digest() -> None:
    one = parse_request(b'{"input":{"message":"m","approvals":"yolo"},"metadata":{"a":"1","b":"2"},"runner":"hermes"}')
    two = parse_request(b'{"metadata":{"b":"2","a":"1"},"input":{"message":"m"}}')
    assert one.digest() == two.digest()
    assert one.digest() != request("n").digest()


async def test_a_broken_record_does_not_hide_the_other_runs(registry: Registry) -> None:
    good, bad = await registry.queued(), await registry.queued()
    await registry.store.call("HDEL", registry.keys.run(bad.run_id), "request")
    records, _ = await registry.runs.list()
    assert [r.run_id for r in records] == [good.run_id]


@pytest.mark.parametrize("odd", [b'"\xff\xe2("', b"1e999"])
async def test_what_a_careless_worker_sent_leaves_its_run_readable_and_endable(registry: Registry, odd: bytes) -> None:
    if registry.store.url.startswith("memory:"):
        pytest.skip("the stand-in's JSON is Python's, which takes neither")
    run = await registry.running()
    data = b'{"ts":1.5,"total":{"input_tokens":%b}}' % odd
    sent = [Encoded("usage", data), Encoded("message.delta", b'{"ts":1.5,"text":%b}' % odd)]
    await registry.log.append(run.run_id, "me", 1, 1, sent)
    record = await registry.runs.get(run.run_id)
    assert record.usage is not None
    assert await registry.runs.takeover(record) == "failed"
    assert (await registry.runs.get(run.run_id)).status == "failed"
