"""The queue: every entry reaches one worker, and outlives a worker that dies with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.errors import ClaimRefused
from broker.queue import Queue, Taken
from broker.redis import Link, Store
from tests.broker.registry import Registry


@pytest.fixture
def registry(store: Store) -> Registry:
    return Registry(store)


@pytest.fixture
async def link(store: Store) -> AsyncIterator[Link]:
    opened = await store.link(Queue(store).key)
    yield opened
    await opened.aclose()


async def take(queue: Queue, link: Link, consumer: str = "c1") -> Taken | None:
    """The first look may make the group: look twice."""
    return await queue.take(link, consumer, block_ms=20) or await queue.take(link, consumer, block_ms=20)


async def test_entries_come_in_order_and_are_deleted_when_done(registry: Registry, link: Link) -> None:
    for n in range(3):
        await registry.queue.put(f"run{n}", n + 1)
    for n in range(3):
        taken = await take(registry.queue, link)
        assert taken is not None
        assert taken[1:] == (f"run{n}", n + 1)
        await registry.queue.done(taken[0])
        await registry.queue.done(taken[0])
    assert await registry.queue.size() == 0
    assert await take(registry.queue, link) is None


async def test_an_entry_goes_to_one_of_several_workers(registry: Registry, store: Store) -> None:
    for n in range(20):
        await registry.queue.put(f"run{n}", 1)
    seen: list[str] = []

    async def work(name: str) -> None:
        queue = Queue(store)
        link = await store.link(queue.key)
        taken = await take(queue, link, name)
        while taken is not None:
            seen.append(taken.run_id)
            await queue.done(taken.entry_id)
            taken = await take(queue, link, name)
        await link.aclose()

    await asyncio.gather(*(work(f"c{n}") for n in range(4)))
    assert sorted(seen) == sorted(f"run{n}" for n in range(20))


async def test_a_blocked_take_wakes_for_a_new_entry(registry: Registry, link: Link) -> None:
    assert await take(registry.queue, link) is None
    blocked = asyncio.create_task(registry.queue.take(link, "c1", block_ms=40_000))
    await registry.queue.put("run", 1)
    taken = await asyncio.wait_for(blocked, 30)
    assert taken is not None
    assert taken.run_id == "run"


async def test_what_a_dead_worker_left_is_taken_by_another(registry: Registry, link: Link) -> None:
    await registry.queue.put("run", 1)
    lost = await take(registry.queue, link, "dead")
    assert lost is not None
    assert await take(registry.queue, link, "alive") is None
    assert await registry.queue.reclaim("alive", 3600.0) is None, "it may be on its way to claim it"
    assert await registry.queue.reclaim("alive", 0.0) == lost
    await registry.queue.done(lost[0])
    assert await registry.queue.reclaim("other", 0.0) is None


async def test_a_worker_looks_for_what_was_left_after_the_time_that_is_set(store: Store, link: Link) -> None:
    clock = [100.0]
    queue = Queue(store, clock=lambda: clock[0])
    assert await take(queue, link, "dead") is None
    await queue.put("run", 1)
    lost = await take(queue, link, "dead")
    reclaimed: list[tuple[str, float]] = []
    reclaim = queue.reclaim

    async def spy(consumer: str, idle: float) -> object:
        reclaimed.append((consumer, idle))
        return await reclaim(consumer, 0.0)

    queue.reclaim = spy  # type: ignore[method-assign, assignment]
    assert await take(queue, link, "alive") is None
    assert reclaimed == []
    clock[0] += store.settings.requeue_after
    assert await queue.take(link, "alive", block_ms=20) == lost
    assert reclaimed == [("alive", store.settings.requeue_after)]


async def test_an_entry_that_nobody_can_read_is_removed(registry: Registry, link: Link) -> None:
    await registry.store.call("XADD", registry.queue.key, "*", "hello", "world")
    await registry.store.call("XADD", registry.queue.key, "*", "run", "r", "attempt", "x")
    await registry.queue.put("run", 1)
    taken = None
    for _ in range(5):
        taken = taken or await take(registry.queue, link)
    assert taken is not None
    assert taken[1] == "run"
    assert await registry.queue.size() == 1


async def test_the_group_is_made_again_where_the_stream_was_deleted(registry: Registry, link: Link) -> None:
    await registry.queue.put("run1", 1)
    assert await take(registry.queue, link) is not None
    await registry.store.call("DEL", registry.queue.key)
    await registry.queue.put("run2", 1)
    taken = await take(registry.queue, link)
    assert taken is not None
    assert taken[1] == "run2"


async def test_a_created_run_is_queued_claimed_and_done(registry: Registry, link: Link) -> None:
    run = await registry.queued()
    taken = await take(registry.queue, link)
    assert taken is not None
    assert taken[1:] == (run.run_id, 1)
    assert (await registry.runs.get(run.run_id)).queue_entry == taken[0]
    claimed = await registry.runs.claim(taken[1], taken[2], "me")
    assert (claimed.status, claimed.owner, claimed.queue_entry) == ("running", "me", "")
    await registry.queue.done(taken[0])
    with pytest.raises(ClaimRefused, match="claimed"):
        await registry.runs.claim(taken[1], taken[2], "other")


async def test_lacking(registry: Registry) -> None:
    kept = await registry.queue.put("run", 1)
    gone = await registry.queue.put("run", 1)
    await registry.queue.done(gone)
    name = registry.store.settings.queue
    asked = [(name, ""), (name, kept), (name, gone), (name, kept), ("other", kept)]
    assert await registry.queue.lacking(asked) == [True, False, True, False, True]
    assert await registry.queue.lacking([]) == []
    assert await registry.queue.lacking([(name, "")]) == [True]


async def test_consumers_that_are_gone_are_removed_unless_they_hold_an_entry(registry: Registry, link: Link) -> None:
    assert await registry.queue.prune_consumers(0.0) == 0
    await registry.queue.put("run", 1)
    assert await take(registry.queue, link, "holder") is not None
    await registry.queue.put("run2", 1)
    taken = await take(registry.queue, link, "idle")
    assert taken is not None
    await registry.queue.done(taken[0])
    assert await registry.queue.prune_consumers() == 0
    assert await registry.queue.prune_consumers(0.0) == 1
    assert await registry.queue.reclaim("other", 0.0) is not None


async def test_a_worker_that_leaves_gives_back_what_it_had_not_claimed(registry: Registry, link: Link) -> None:
    assert await registry.queue.leave("nobody") == 0
    await registry.queue.put("run", 1)
    assert await take(registry.queue, link, "leaving") is not None
    assert await registry.queue.leave("leaving") == 1
    assert await registry.queue.leave("leaving") == 0
    taken = await take(registry.queue, link, "other")
    assert taken is not None
    assert taken[1:] == ("run", 1)
    assert await registry.queue.size() == 1
