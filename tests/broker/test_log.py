"""RunLog: what it stores, reads and refuses; and appends against a model, with every kind of retry."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import Fenced, InvalidId, InvalidItem, ItemTooBig, LogGap, RunNotFound, Sealed
from broker.items import Encoded, MessageDelta, Usage, encode
from broker.redis import Store
from broker.settings import Settings
from tests.broker.registry import FENCE, Registry, delta


@pytest.fixture
def registry(store: Store) -> Registry:
    return Registry(store)


async def test_what_is_appended_is_read_back(registry: Registry) -> None:
    run = await registry.running()
    items = [encode(MessageDelta(ts=1.25, text=f"é{n}")) for n in range(1, 8)]
    assert await registry.log.append(run.run_id, "me", 1, 1, items[:3]) == 3
    assert await registry.log.append(run.run_id, "me", 1, 4, items[3:]) == 7
    entries = await registry.log.read(run.run_id, 0, limit=100)
    assert [(e.seq, e.type, e.data) for e in entries] == [
        (n, item.type.encode(), item.data) for n, item in enumerate(items, 1)
    ]


async def test_ranges(registry: Registry) -> None:
    run = await registry.running()
    await registry.log.append(run.run_id, "me", 1, 1, [delta(str(n)) for n in range(1, 11)])

    async def read(after: int, **bounds: Any) -> list[int]:
        return [e.seq for e in await registry.log.read(run.run_id, after, **bounds)]

    async def back(before: int | None, limit: int) -> list[int]:
        return [e.seq for e in await registry.log.read_back(run.run_id, before, limit=limit)]

    assert await read(0, limit=3) == [1, 2, 3]
    assert await read(-5, limit=2) == [1, 2]
    assert await read(7, limit=100) == [8, 9, 10]
    assert await read(7, limit=100, until=9) == [8, 9]
    assert await read(7, limit=100, until=7) == []
    assert await read(10, limit=100) == []
    assert await read(10**18, limit=100) == []
    assert await read(0, limit=0) == []
    assert await back(None, 3) == [10, 9, 8]
    assert await back(8, 100) == [7, 6, 5, 4, 3, 2, 1]
    assert await back(1, 10) == []
    assert await back(0, 10) == []
    assert await back(100, 2) == [10, 9]


async def test_bounds_follow_retention_and_expiry(store: Store, store_url: str, namespace: str) -> None:
    small = await Store.connect(store_url, Settings(redis_url=store_url, namespace=namespace, run_max_items=3))
    try:
        registry = Registry(small)
        run = await registry.running()
        assert (await registry.log.bounds(run.run_id))[1] == 1
        await registry.log.append(run.run_id, "me", 1, 1, [delta()] * 5)
        record, first = await registry.log.bounds(run.run_id)
        assert (record.last, record.first, first) == (5, 3, 3)
        await registry.log.append(run.run_id, "me", 1, 6, [FENCE])
        await small.call("DEL", registry.keys.items(run.run_id))
        record, first = await registry.log.bounds(run.run_id)
        assert (record.last, record.status, first) == (6, "completed", 7)
    finally:
        await small.aclose()


async def test_refusals_are_typed(registry: Registry) -> None:
    log = registry.log
    with pytest.raises(RunNotFound):
        await log.append("nobody", "me", 1, 1, [delta()])
    with pytest.raises(RunNotFound):
        await log.bounds("nobody")
    for bad in ("", "a/b", "x" * 129, "é", "a b", "a\n"):
        with pytest.raises(InvalidId, match="allowed"):
            await log.append(bad, "me", 1, 1, [delta()])
        with pytest.raises(InvalidId):
            await log.read(bad, 0, limit=1)
        with pytest.raises(InvalidId):
            await log.bounds(bad)
    run = (await registry.running()).run_id
    with pytest.raises(Fenced):
        await log.append(run, "you", 1, 1, [delta()])
    with pytest.raises(LogGap) as gap:
        await log.append(run, "me", 1, 3, [delta()])
    assert gap.value.last == 0
    with pytest.raises(ItemTooBig, match="allowed"):
        await log.append(run, "me", 1, 1, [delta("x" * registry.store.settings.item_max_bytes)])
    with pytest.raises(InvalidItem, match="item 2"):
        await log.append(run, "me", 1, 1, [delta(), Encoded("end", delta().data)])
    assert await log.append(run, "me", 1, 1, [delta(), FENCE]) == 2
    assert await log.append(run, "me", 1, 2, [FENCE]) == 2
    with pytest.raises(Sealed):
        await log.append(run, "me", 1, 3, [delta()])


async def test_usage_and_cost_so_far_stand_in_the_record(registry: Registry) -> None:
    run = (await registry.running()).run_id
    cost = Encoded(
        "cost", b'{"ts":1.0,"component_id":"agent","amount":"0.1","total":"0.3","currency":"EUR","estimated":true}'
    )
    await registry.log.append(run, "me", 1, 1, [encode(Usage(ts=1.0, input_tokens=3, total={"input_tokens": 8})), cost])
    record = await registry.runs.get(run)
    assert record.usage == {"input_tokens": 8}
    assert record.cost == {"total": "0.3", "currency": "EUR", "estimated": True}
    await registry.log.append(run, "me", 1, 3, [encode(Usage(ts=1.0, input_tokens=3))])
    usage = (await registry.runs.get(run)).usage
    assert usage is not None
    assert usage["input_tokens"] == 3
    assert usage["output_tokens"] is None


class Model:
    """What the append script promises, as ten lines of Python."""

    def __init__(self) -> None:
        self.items: list[Encoded] = []
        self.sealed = False

    def append(self, first: int, items: list[Encoded]) -> int | type[Exception]:
        last = len(self.items)
        if first + len(items) - 1 <= last:
            return last
        if self.sealed:
            return Sealed
        if first > last + 1:
            return LogGap
        new = items[last + 1 - first :]
        if any(item.type == "final" for item in new[:-1]):
            return InvalidItem
        self.items += new
        self.sealed = new[-1].type == "final"
        return len(self.items)


steps = st.lists(
    st.tuples(
        st.integers(-6, 3),  # where the batch begins, from the log's end on
        st.integers(0, 8),  # its length
        st.sampled_from([0, 0, 0, 0, 1, 2]),  # 1: a fence at its end, 2: a fence within
        st.booleans(),  # the reply is lost: sent once more
    ),
    max_size=25,
)


@pytest.mark.parametrize("url", ["memory:append-model"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
async def test_any_schedule_of_appends_equals_the_model(url: str, steps: list[tuple[int, int, int, bool]]) -> None:
    store = await Store.connect(url, Settings(redis_url=url, namespace="model"))
    try:
        await _follow_the_model(Registry(store), steps)
    finally:
        await store.aclose()


@pytest.mark.parametrize("seed", range(4))
async def test_random_schedules_equal_the_model_on_each_store(registry: Registry, seed: int) -> None:
    dice = random.Random(seed)
    schedule = [
        (dice.randint(-6, 3), dice.randint(0, 8), dice.choice([0] * 12 + [2] * 2), dice.random() < 0.3)
        for _ in range(60)
    ]
    await _follow_the_model(registry, [*schedule, (1, 3, 1, True), *schedule[:10]])


async def _follow_the_model(registry: Registry, steps: list[tuple[int, int, int, bool]]) -> None:
    run = (await registry.running()).run_id
    model = Model()
    for number, (offset, length, fence, again) in enumerate(steps):
        first = max(1, len(model.items) + 1 + offset)
        items = [delta(f"{number}.{n}") for n in range(length)]
        if fence and items:
            items[-1 if fence == 1 else 0] = FENCE
        for _ in range(1 + again):
            expected = model.append(first, items)
            try:
                answer: int | type[Exception] = await registry.log.append(run, "me", 1, first, items)
            except (Sealed, LogGap, InvalidItem) as error:
                answer = type(error)
            assert answer == expected
    stored = await registry.log.read(run, 0, limit=1_000)
    assert [(e.seq, e.type.decode(), e.data) for e in stored] == [(n, *item) for n, item in enumerate(model.items, 1)]
    record = await registry.runs.get(run)
    assert (record.last, record.ended_) == (len(model.items), model.sealed)
    assert record.bytes == sum(len(item.type) + len(item.data) for item in model.items)
