"""Ids that another service gave a relayed run's items: kept with the log, on every kind of store."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.errors import Fenced, InvalidItem, Sealed
from broker.items import Encoded, Event, Final, MessageDelta, Raw, decode, encode
from broker.limits import fit
from broker.redis import Store
from broker.scripts import SCRIPTS
from tests.broker.registry import Registry, delta

LIMITS = "1048576 4 67108864 86400000 604800000 1000"


@pytest.fixture
def registry(store: Store) -> Registry:
    return Registry(store)


def item(source_id: Any, text: str = "x") -> Encoded:
    return Encoded("message.delta", json.dumps({"ts": 1.5, "source_id": source_id, "text": text}).encode())


async def _append(registry: Registry, run_id: str, first: int, *items: Encoded) -> int:
    return await registry.log.append(run_id, "me", 1, first, items)


async def _ttl(registry: Registry, run_id: str) -> int:
    return int(await registry.store.call("PTTL", registry.keys.ids(run_id)))


async def test_an_id_leads_to_its_seq(registry: Registry) -> None:
    run_id = (await registry.running()).run_id
    await _append(registry, run_id, 1, delta(), item("event:1"), item(None), item("two words"), item("~"))
    seq_of = registry.log.seq_of
    assert await seq_of(run_id, "event:1") == 2
    assert await seq_of(run_id, "two words") == 4
    assert await seq_of(run_id, "~") == 5
    for unknown in ("event:2", "", "null", "\ud800", f"{run_id}:1"):
        assert await seq_of(run_id, unknown) is None
    assert await registry.log.source_ids(run_id) == ["event:1", "two words", "~"]


async def test_a_repeated_append_changes_nothing(registry: Registry) -> None:
    run_id = (await registry.running()).run_id
    for _ in range(2):
        assert await _append(registry, run_id, 1, item("a"), item("b")) == 2
    assert await _append(registry, run_id, 1, item("a"), item("b"), item("c")) == 3
    assert [await registry.log.seq_of(run_id, id_) for id_ in "abc"] == [1, 2, 3]


async def test_of_several_items_with_an_id_it_is_the_newest(registry: Registry) -> None:
    run_id = (await registry.running()).run_id
    await _append(registry, run_id, 1, item("a"), item("a"), item("b"))
    await _append(registry, run_id, 4, item("b"))
    assert [await registry.log.seq_of(run_id, id_) for id_ in "ab"] == [2, 4]


@pytest.mark.parametrize("bad", ["", " a", "a ", "a\nb", "a\x00b", "ä", "x" * 257, 5, True, ["a"], {"a": 1}])
async def test_what_cannot_be_a_frames_id_is_refused_whole(registry: Registry, bad: Any) -> None:
    run_id = (await registry.running()).run_id
    with pytest.raises(InvalidItem, match="source_id"):
        await _append(registry, run_id, 1, item("fine"), item(bad))
    assert await registry.log.source_ids(run_id) == []
    assert await registry.stored(run_id) == []


async def test_the_longest_id(registry: Registry) -> None:
    run_id = (await registry.running()).run_id
    await _append(registry, run_id, 1, item("x" * 256))
    assert await registry.log.seq_of(run_id, "x" * 256) == 1


async def test_ids_go_with_their_items(registry: Registry) -> None:
    """But the one of the last item that went stays: who stands there misses nothing."""
    await registry.script("create", "r", "r", '{"input":{"message":"m"}}', "", "", "fail", LIMITS, "q")
    await registry.script("claim", "r", "r", 1, "me")
    for seq in range(1, 11):
        await _append(registry, "r", seq, item(f"e{seq}"))
    assert (await registry.log.state("r")).first == 7
    assert await registry.log.source_ids("r") == ["e6", "e7", "e8", "e9", "e10"]


async def test_ids_expire_with_their_items(registry: Registry) -> None:
    run_id = (await registry.running()).run_id
    await _append(registry, run_id, 1, item("a"))
    assert await _ttl(registry, run_id) == -1
    await _append(registry, run_id, 2, Encoded("final", b'{"ts":2.0,"source_id":"end"}'))
    items = int(await registry.store.call("PTTL", registry.keys.items(run_id)))
    assert 0 < await _ttl(registry, run_id) <= items + 1_000
    assert await registry.log.seq_of(run_id, "end") == 2


async def test_they_expire_however_the_run_ends(registry: Registry) -> None:
    lost = await registry.running()
    await _append(registry, lost.run_id, 1, item("a"))
    assert await registry.runs.takeover(await registry.runs.get(lost.run_id)) == "failed"
    assert await _ttl(registry, lost.run_id) > 0

    again = await registry.running(on_worker_lost="retry")
    await _append(registry, again.run_id, 1, item("a"))
    assert await registry.runs.takeover(await registry.runs.get(again.run_id)) == "queued"
    assert await _ttl(registry, again.run_id) == -1
    await registry.runs.cancel(again.run_id)
    assert await _ttl(registry, again.run_id) > 0


async def test_ids_of_an_earlier_run_under_that_id_are_forgotten(registry: Registry) -> None:
    run_id = (await registry.running()).run_id
    await registry.store.call("ZADD", registry.keys.ids(run_id), "9", "old")
    await _append(registry, run_id, 1, delta())
    assert await registry.log.seq_of(run_id, "old") is None


async def test_a_worker_that_names_no_ids_key_still_appends(registry: Registry) -> None:
    run_id = (await registry.running()).run_id
    p = registry.keys.partition(run_id)
    keys = [registry.keys.run(run_id), registry.keys.items(run_id), registry.keys.control(run_id)]
    keys += [registry.keys.live(p), registry.keys.bus(p)]
    source = SCRIPTS["append"].source
    reply = await registry.store.call("EVAL", source, len(keys), *keys, run_id, "me", 1, 1, *item("a"))
    assert reply == [b"OK", 1]
    assert await registry.log.seq_of(run_id, "a") is None


# Where the owner stands.


async def test_the_source_is_kept_by_the_owner_alone(registry: Registry) -> None:
    record = await registry.running()
    assert record.source is None
    assert not (await registry.log.state(record.run_id)).relayed
    await registry.runs.keep_source(record.run_id, "me", 1, '{"cursor":"ö"}')
    assert (await registry.runs.get(record.run_id)).source == '{"cursor":"ö"}'
    assert (await registry.log.state(record.run_id)).relayed
    for owner, epoch in (("other", 1), ("me", 2), ("", 1)):
        with pytest.raises(Fenced):
            await registry.runs.keep_source(record.run_id, owner, epoch, "stolen")
    await _append(registry, record.run_id, 1, Encoded("final", b'{"ts":2.0}'))
    with pytest.raises(Sealed):
        await registry.runs.keep_source(record.run_id, "me", 1, "late")
    assert (await registry.runs.get(record.run_id)).source == '{"cursor":"ö"}'


async def test_keeping_it_is_a_beat(registry: Registry) -> None:
    record = await registry.running()
    await registry.runs.keep_source(record.run_id, "me", 1, "s")
    assert (await registry.runs.get(record.run_id)).beat != record.beat


async def test_a_relayed_run_goes_on_with_another_worker(registry: Registry) -> None:
    """Though it asked for ``fail``, and to carry a cancel too; but not for ever."""
    record = await registry.running()
    await registry.runs.keep_source(record.run_id, "me", 1, "s")
    assert await registry.runs.takeover(await registry.runs.get(record.run_id)) == "queued"
    second = await registry.runs.claim(record.run_id, 2, "two")
    assert second.source == "s"
    await registry.runs.cancel(record.run_id)
    assert await registry.runs.takeover(await registry.runs.get(record.run_id)) == "queued"
    third = await registry.runs.claim(record.run_id, 3, "three")
    assert third.cancel_requested
    assert await registry.runs.takeover(await registry.runs.get(record.run_id)) == "cancelled"


# The item.


def test_an_item_carries_it() -> None:
    for made in (
        MessageDelta(ts=1.0, text="a", source_id="e1"),
        Event(ts=1.0, name="x", payload={"a": 1, "source_id": "not this"}, source_id="e1"),
        Final(ts=1.0, source_id="e1"),
        MessageDelta(ts=1.0, text="a", source_id=None),
    ):
        read = decode(*encode(made))
        assert not isinstance(read, Raw)
        assert read.source_id == made.source_id
    assert b"source_id" not in encode(MessageDelta(ts=1.0, text="a")).data


def test_of_a_split_item_the_last_part_has_it() -> None:
    parts = fit(MessageDelta(text="y" * 4_000, source_id="e1"), 1_024, 1.0).encoded
    assert len(parts) > 3
    assert [json.loads(part.data).get("source_id") for part in parts] == [None] * (len(parts) - 1) + ["e1"]
