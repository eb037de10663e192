"""Who is attached as an owner: on every store that we speak to."""

from __future__ import annotations

import asyncio

import pytest

from broker.errors import RunNotFound
from broker.owners import Owners
from broker.redis import Store
from tests.broker.registry import Registry


@pytest.fixture
def owners(store: Store) -> Owners:
    return Owners(store)


async def test_who_comes_stays_and_leaves(store: Store, owners: Owners) -> None:
    run_id = (await Registry(store).running()).run_id
    assert (await owners.roll(run_id)).there == {}
    await owners.come(run_id, "a")
    await owners.come(run_id, "b")
    before = await owners.roll(run_id)
    assert set(before.fresh()) == {"a", "b"}
    await owners.stay(run_id, "a")
    after = await owners.roll(run_id)
    assert after.there["a"] > before.there["a"]
    assert after.there["b"] == before.there["b"]
    for _ in range(2):
        await owners.leave(run_id, "b")
    roll = await owners.roll(run_id)
    assert (set(roll.there), roll.arrivals) == ({"a"}, 2)


async def test_who_is_not_heard_of_any_more_counts_for_nothing(store: Store, owners: Owners) -> None:
    run_id = (await Registry(store).running()).run_id
    owners.stale = 6.0
    await owners.come(run_id, "a")
    assert set((await owners.roll(run_id)).fresh()) == {"a"}
    owners.stale = 0.2
    await asyncio.sleep(0.3)
    roll = await owners.roll(run_id)
    assert (set(roll.there), roll.fresh()) == ({"a"}, {})
    assert 0 < await store.call("PTTL", store.keys.owners(run_id)) <= 60_000, "and it goes by itself"


async def test_a_run_that_is_not_there(owners: Owners) -> None:
    with pytest.raises(RunNotFound):
        await owners.come("none", "a")
    with pytest.raises(RunNotFound):
        await owners.roll("none")
