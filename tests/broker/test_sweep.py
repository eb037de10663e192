"""The sweep: what it ends, what it spares, what it mends. Time is an argument; nothing sleeps."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client import REGISTRY

from broker.errors import StoreUnavailable
from broker.redis import Store
from broker.requests import RunInput, RunRequest
from broker.runs import Runs
from broker.settings import Settings
from broker.sweep import Observation, Sweeper
from tests.broker.registry import FENCE, Registry, delta
from tests.broker.test_runs import backdate, dies_before_the_queue

LEASE = 15.0


@pytest.fixture
def registry(store: Store) -> Registry:
    return Registry(store)


async def sweep(sweeper: Sweeper, *times: float) -> dict[str, int]:
    """Sweeps at those times; the sum of what they did (``live``: of the last)."""
    total: dict[str, int] = {}
    for now in times:
        counts = (await sweeper.sweep_once(now))._asdict()
        total = {name: (0 if name == "live" else total.get(name, 0)) + value for name, value in counts.items()}
    return total


async def test_a_run_whose_beat_stands_still_for_a_lease_is_ended(registry: Registry) -> None:
    run = await registry.running()
    await registry.log.append(run.run_id, "me", 1, 1, [delta("so far")])
    sweeper = Sweeper(registry.runs)
    assert await sweep(sweeper, 0, 5, 10, 14.9) == {
        "live": 1, "failed": 0, "cancelled": 0, "requeued": 0, "mended": 0, "forgotten": 0
    }  # fmt: skip
    assert (await sweep(sweeper, 15))["failed"] == 1
    record = await registry.runs.get(run.run_id)
    assert (record.status, record.last, record.epoch) == ("failed", 2, 2)
    assert record.outcome is not None
    assert record.outcome["item"]["code"] == "worker_lost"
    assert record.outcome["item"]["partial"]["content"][0]["text"] == "so far"
    assert (await sweep(sweeper, 20, 25, 40))["live"] == 0


async def test_a_run_that_beats_or_appends_is_spared(registry: Registry) -> None:
    beating, publishing = await registry.running(), await registry.running()
    sweeper = Sweeper(registry.runs)
    for n in range(20):
        assert (await sweep(sweeper, n * 5.0))["failed"] == 0
        if n % 2:
            await registry.runs.beat(beating.run_id, "me", 1)
            await registry.log.append(publishing.run_id, "me", 1, n // 2 + 1, [delta()])


async def test_of_several_sweepers_one_ends_the_run(registry: Registry) -> None:
    run = await registry.running()
    sweepers = [Sweeper(registry.runs) for _ in range(6)]
    await asyncio.gather(*(sweep(sweeper, 0, 5, 10) for sweeper in sweepers))
    done = await asyncio.gather(*(sweep(sweeper, 15) for sweeper in sweepers))
    assert sum(counts["failed"] for counts in done) == 1
    assert [e.type for e in await registry.log.read(run.run_id, 0, limit=10)] == [b"failed"]


async def test_a_lost_run_that_was_to_be_cancelled_ends_as_cancelled(registry: Registry) -> None:
    run = await registry.running(on_worker_lost="retry")
    await registry.runs.cancel(run.run_id)
    assert (await sweep(Sweeper(registry.runs), 0, 5, 10, 15))["cancelled"] == 1
    assert (await registry.runs.get(run.run_id)).status == "cancelled"


async def test_a_lost_run_gets_its_next_attempt_while_it_has_one(registry: Registry) -> None:
    run = await registry.running(on_worker_lost="retry")
    await registry.log.append(run.run_id, "me", 1, 1, [delta()])
    sweeper = Sweeper(registry.runs)
    epoch, last, start = 1, 1, 0.0
    await registry.store.call("DEL", registry.queue.key)
    for attempt in (2, 3):
        assert (await sweep(sweeper, *(start + t for t in (0, 5, 10, 15))))["requeued"] == 1
        start += 20
        assert await registry.queue.size() == attempt - 1
        record = await registry.runs.claim(run.run_id, attempt, f"w{attempt}")
        epoch += 1
        assert (record.epoch, record.rewound_to, record.last, record.owner) == (epoch, last, last, f"w{attempt}")
        last = await registry.log.append(run.run_id, record.owner, record.epoch, last + 1, [delta()])
    assert (await sweep(sweeper, *(start + t for t in (0, 5, 10, 15))))["failed"] == 1
    assert (await registry.runs.get(run.run_id)).attempt == registry.store.settings.max_attempts == 3


async def test_an_outage_of_the_store_starts_all_counts_again(registry: Registry) -> None:
    await registry.running()
    sweeper = Sweeper(registry.runs)
    await sweep(sweeper, 0, 5, 10)
    registry.store._interrupted()
    assert (await sweep(sweeper, 15, 20, 25, 29.9))["failed"] == 0
    assert (await sweep(sweeper, 30))["failed"] == 1


async def test_a_sweep_that_could_not_read_counts_for_nothing(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await registry.running()
    sweeper = Sweeper(registry.runs)
    await sweep(sweeper, 0, 5)

    async def away(*_: Any, **__: Any) -> Any:
        registry.store._interrupted()
        raise StoreUnavailable("LOADING")

    with monkeypatch.context() as patch:
        patch.setattr(registry.store, "pipeline", away)
        with pytest.raises(StoreUnavailable):
            await sweeper.sweep_once(10)
    assert (await sweep(sweeper, 15, 20, 25))["failed"] == 0
    assert (await sweep(sweeper, 30))["failed"] == 1


async def test_a_sweeper_that_was_held_up_starts_again(registry: Registry) -> None:
    await registry.running()
    sweeper = Sweeper(registry.runs)
    assert (await sweep(sweeper, 0, 5, 100, 105, 110, 114.9))["failed"] == 0
    assert (await sweep(sweeper, 115))["failed"] == 1


async def test_an_owner_heard_of_in_the_last_moment_keeps_its_run(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await registry.running()
    sweeper = Sweeper(registry.runs)
    await sweep(sweeper, 0, 5, 10)
    find = Runs.find

    async def beats_meanwhile(runs: Runs, run_id: str) -> Any:
        record = await find(runs, run_id)
        await runs.beat(run_id, "me", 1)
        return record

    with monkeypatch.context() as patch:
        patch.setattr(Runs, "find", beats_meanwhile)
        assert (await sweep(sweeper, 15))["failed"] == 0
    assert (await registry.runs.get(run.run_id)).status == "running"


async def test_a_run_that_no_queue_holds_is_queued_once(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(registry.queue, "put", dies_before_the_queue)
        run = await registry.queued()
    sweepers = [Sweeper(registry.runs) for _ in range(4)]
    assert (await sweep(sweepers[0], 0))["mended"] == 0, "its maker may be about to queue it"
    await backdate(registry, run.run_id)
    done = await asyncio.gather(*(sweep(sweeper, 5) for sweeper in sweepers))
    assert sum(counts["mended"] for counts in done) == 1
    assert await registry.queue.size() == 1
    for now in (10, 15, 20):
        await backdate(registry, run.run_id)
        assert (await sweep(sweepers[0], now))["mended"] == 0, "workers are merely busy"
    assert await registry.queue.size() == 1


async def test_a_lost_queue_is_made_again(registry: Registry) -> None:
    runs = [await registry.queued() for _ in range(5)]
    await registry.store.call("DEL", registry.queue.key)
    for run in runs:
        await backdate(registry, run.run_id)
    assert (await sweep(Sweeper(registry.runs), 0))["mended"] == 5
    assert await registry.queue.size() == 5


async def test_a_run_is_queued_again_where_it_was_made_for(registry: Registry, store_url: str) -> None:
    settings = registry.store.settings.model_copy(update={"queue": "special"})
    other = await Store.connect(store_url, settings)
    try:
        run = await Registry(other).queued()
        await backdate(registry, run.run_id)
        assert (await sweep(Sweeper(registry.runs), 0))["mended"] == 0
        await other.call("DEL", registry.keys.queue("special"))
        assert (await sweep(Sweeper(registry.runs), 5))["mended"] == 1
        assert await registry.queue.size() == 0
        assert await Registry(other).queue.size() == 1
    finally:
        await other.aclose()


async def test_a_crash_between_takeover_and_queue_is_mended(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await registry.running(on_worker_lost="retry")
    await registry.store.call("DEL", registry.queue.key)
    with monkeypatch.context() as patch:
        patch.setattr(registry.queue, "put", dies_before_the_queue)
        with pytest.raises(StoreUnavailable):
            await registry.runs.takeover(await registry.runs.get(run.run_id))
    await backdate(registry, run.run_id)
    assert (await sweep(Sweeper(registry.runs), 0))["mended"] == 1
    (entry,) = await registry.store.call("XRANGE", registry.queue.key, "-", "+")
    assert entry[1] == [b"run", run.run_id.encode(), b"attempt", b"2"]


async def test_what_has_no_record_is_forgotten(registry: Registry) -> None:
    run = await registry.running()
    await registry.store.call("DEL", registry.keys.run(run.run_id))
    assert (await sweep(Sweeper(registry.runs), 0))["forgotten"] == 1
    assert not await registry.is_live(run.run_id)
    assert await registry.store.call("ZCARD", registry.keys.runs(registry.keys.partition(run.run_id))) == 0


async def test_the_index_is_trimmed_to_the_life_of_the_records(store_url: str, namespace: str) -> None:
    settings = Settings(redis_url=store_url, namespace=namespace, partitions=2, record_ttl=1000)
    store = await Store.connect(store_url, settings)
    try:
        registry = Registry(store)
        expired, ended, still_open = await registry.ended(), await registry.ended(), await registry.running()
        young = await registry.ended()
        for run in (expired, ended, still_open):
            index = registry.keys.runs(registry.keys.partition(run.run_id))
            await store.call("ZADD", index, "XX", run.created - 2000, run.run_id)
        for run in (expired, young):
            await store.call("DEL", registry.keys.run(run.run_id))
        assert await Sweeper(registry.runs).prune() == 1
        left = [await store.call("ZRANGE", registry.keys.runs(p), 0, -1) for p in range(2)]
        assert {i.decode() for part in left for i in part} == {ended.run_id, still_open.run_id, young.run_id}
    finally:
        await store.aclose()


async def test_it_goes_on_after_an_error_and_stops_when_cancelled(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeper = Sweeper(registry.runs)
    calls: list[int] = []
    third = asyncio.Event()

    async def sweep_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise StoreUnavailable("away")
        if len(calls) == 2:
            raise RuntimeError("unforeseen")
        third.set()

    monkeypatch.setattr(sweeper, "sweep_once", sweep_once)
    monkeypatch.setattr(sweeper, "_pause", lambda: 0.0)
    task = asyncio.create_task(sweeper.run_forever())
    await asyncio.wait_for(third.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_old_worker_is_fenced_when_it_wakes(registry: Registry) -> None:
    from broker.errors import Fenced

    run = await registry.running()
    await registry.log.append(run.run_id, "me", 1, 1, [delta()])
    await sweep(Sweeper(registry.runs), 0, 5, 10, 15)
    with pytest.raises(Fenced):
        await registry.log.append(run.run_id, "me", 1, 2, [FENCE])
    with pytest.raises(Fenced):
        await registry.runs.beat(run.run_id, "me", 1)
    entries = await registry.log.read(run.run_id, 0, limit=10)
    assert [json.loads(e.data).get("code") for e in entries] == [None, "worker_lost"]


# the observation itself, pure


def test_observation_counts_from_the_end_of_the_first_read_to_the_start_of_the_last() -> None:
    seen = Observation()
    beat = {"r": ("me", "1")}
    assert seen.update(beat, 0.0, 2.0, LEASE) == []
    assert seen.next_due(LEASE) == 17.0
    assert seen.update(beat, 16.9, 17.5, LEASE) == []
    assert seen.update(beat, 17.0, 17.5, LEASE) == ["r"]


def test_observation_starts_again_for_another_owner_or_beat_and_after_a_break() -> None:
    seen = Observation()
    assert seen.next_due(LEASE) is None
    seen.update({"r": ("me", "1")}, 0.0, 0.0, LEASE)
    assert seen.update({"r": ("me", "2")}, 15.0, 15.0, LEASE) == []
    assert seen.update({"r": ("you", "2")}, 30.0, 30.0, LEASE) == []
    assert seen.update({}, 44.0, 44.0, LEASE) == []
    assert seen.update({"r": ("you", "2")}, 45.0, 45.0, LEASE) == []
    seen.restart()
    assert seen.update({"r": ("you", "2")}, 60.0, 60.0, LEASE) == []
    assert seen.update({"r": ("you", "2")}, 75.0, 75.0, LEASE) == ["r"]


async def test_the_next_sweep_comes_when_a_lease_is_over(store: Store) -> None:
    registry = Registry(store)
    clock = [0.0]
    sweeper = Sweeper(registry.runs, clock=lambda: clock[0])
    assert sweeper._pause() == store.settings.sweep
    await registry.running()
    await sweeper.sweep_once()
    assert sweeper._pause() == store.settings.sweep
    clock[0] = 12.0
    assert sweeper._pause() == pytest.approx(3.0)
    clock[0] = 14.99
    assert 0 < sweeper._pause() < 0.1
    clock[0] = 16.0
    assert sweeper._pause() == store.settings.sweep


async def test_live_runs_are_told_by_what_they_wait_for(registry: Registry, store: Store) -> None:
    """One that waits for its turn in a session is not one that no worker takes."""
    await registry.running()
    for waits in (False, True):
        record, _ = await registry.runs.create(RunRequest(runner="none", input=RunInput(message="x")))
        if waits:
            await store.call("HSET", store.keys.run(record.run_id), "waits", "1")
    await Sweeper(registry.runs).sweep_once()
    told = {s: REGISTRY.get_sample_value("runcast_live_runs", {"status": s}) for s in ("queued", "waiting", "running")}
    assert told == {"queued": 1, "waiting": 1, "running": 1}
