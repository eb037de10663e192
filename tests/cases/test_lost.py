"""Workers that die, replies that are lost, cancels in an outage, ends without an outcome: cases 4, 8, 11, 14 and 18."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker import api
from broker.api import Broker
from broker.errors import ClaimRefused, OutageTooLong, RunEnded, StoreUnavailable
from broker.items import Event, Final, MessageDelta
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.cases.stage import Stage, stage
from tests.cases.wire import ended
from tests.gateways import GatewayProcess, until, writing
from tests.servers import Proxy, RedisServer, eventually

LEASE, SWEEP, SLOW_MACHINE = 2.0, 0.5, 10.0
REQUEST = RunRequest(runner="scripted", input=RunInput(message="x"))
FAKE_HERMES = Path(__file__).parents[1] / "workers" / "fake_hermes.py"


# Case 4: W claims R, publishes 2, SIGKILL. V1 before, V2 after the kill, V3 after the lease.


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_case_04_one_worker_lost_within_lease_and_sweep_for_all_viewers(
    redis7: RedisServer, namespace: str, tmp_path: Path, how: signal.Signals
):
    quick = {"lease": LEASE, "sweep": SWEEP, "beat": 0.4, "block": 1.0}
    async with stage(redis7.url, namespace, tmp_path, gateways=2, **quick) as s:
        doomed = s.worker()
        run_id = await s.run(script="tokens=2 hang=2")
        first = s.watch(run_id)
        await first.text(2)
        doomed.signal(how)
        began = time.monotonic()
        s.worker()
        s.worker()  # two gateways and two workers sweep: they race
        second = s.watch(run_id, 1)
        seen = await asyncio.gather(first.end(), second.end())
        assert time.monotonic() - began < LEASE + SWEEP + SLOW_MACHINE
        third = await s.watch(run_id).end()
        doomed.signal(signal.SIGCONT) if how == signal.SIGSTOP else None
        other = await s.run(script="tokens=1")
        assert (await s.ended(other))["type"] == "final"
        if how == signal.SIGSTOP:  # awake again, it is refused, and works on
            await eventually(lambda: "taken over" in doomed.output)
            assert doomed.popen.poll() is None
        items = await s.items(run_id)
    assert [i["type"] for i in items].count("message.delta") == 2
    assert [(i["type"], i.get("code")) for i in items[-1:]] == [("failed", "worker_lost")]
    assert items[-1]["partial"]["content"] == [{"type": "text", "text": "w1 w2 "}]
    for viewer in (*seen, third):
        assert viewer.ids == list(range(1, len(items) + 1))
        assert viewer.controls == [("end", {"run_id": run_id, "status": "failed", "last_seq": len(items)})]
    buses = [key for key in redis7.command("KEYS", f"{namespace}:*:bus") if isinstance(key, bytes)]  # type: ignore[attr-defined]
    news = b"".join(repr(redis7.command("XRANGE", key, "-", "+")).encode() for key in buses)
    assert news.count(b"run.failed") == 1


# Case 8: the append is applied but its reply is lost; W retries.


@asynccontextmanager
async def lossy(redis: RedisServer, namespace: str, **more: object) -> AsyncIterator[tuple[Broker, Broker, Proxy]]:
    """A worker's broker behind a proxy that can lose replies, and one that sees what the store really has."""
    settings = Settings(namespace=namespace, partitions=4, **more)  # type: ignore[arg-type]
    async with (
        Proxy(redis.port) as proxy,
        api.open(proxy.url, settings) as behind,
        api.open(redis.url, settings) as direct,
    ):
        yield behind, direct, proxy


def lose(broker: Broker, proxy: Proxy, losing: bool = True) -> None:
    """Whether its replies are lost. Its deadline is short while they are, and else one that no slow machine passes."""
    proxy.drop_replies = losing
    broker.store._deadline = 0.4 if losing else 30.0


async def stored(broker: Broker, run_id: str, last: int) -> None:
    async def there() -> bool:
        return (await broker.runs.get(run_id)).last >= last

    await until(there)


async def test_case_08_an_append_whose_reply_is_lost_is_applied_once(redis7: RedisServer, namespace: str):
    async with lossy(redis7, namespace) as (behind, direct, proxy), writing(behind) as p:
        seen = asyncio.create_task(_texts(direct, p.run_id))
        for step in range(4):
            for n in range(10):
                await p.publish(MessageDelta(text=f"{step}.{n} "))
            await p.flush()
            lose(behind, proxy)
            for n in range(10, 20):
                await p.publish(MessageDelta(text=f"{step}.{n} "))
            await stored(direct, p.run_id, step * 20 + 11)  # applied; nobody told the worker
            assert p.last == step * 20 + 10
            lose(behind, proxy, False)
            await p.flush()
        lose(behind, proxy)
        sealing = asyncio.create_task(p.seal(Final()))
        await stored(direct, p.run_id, 81)
        await asyncio.sleep(0.5)  # one more try, its reply lost as well
        lose(behind, proxy, False)
        assert await sealing == 81
        everything = [f"{step}.{n} " for step in range(4) for n in range(20)]
        assert await seen == everything
        assert await _texts(direct, p.run_id) == everything


async def _texts(broker: Broker, run_id: str) -> list[str]:
    seqs, texts = [], []
    async for entry in broker.stream(run_id):
        seqs.append(entry.seq)
        if entry.type == "message.delta":
            texts.append(entry.fields["text"])
    assert seqs == list(range(1, len(seqs) + 1))
    return texts


async def test_case_08_a_lasting_failure_reaches_the_worker_as_an_error(redis7: RedisServer, namespace: str):
    async with lossy(redis7, namespace, outage_limit=1.0) as (behind, direct, proxy), writing(behind) as p:
        await p.publish(MessageDelta(text="a"))
        await p.flush()
        lose(behind, proxy)
        await p.publish(MessageDelta(text="b"))
        with pytest.raises(OutageTooLong):
            await p.flush()
        with pytest.raises(OutageTooLong):
            await p.publish(MessageDelta(text="c"))
        assert [e.data.count(b'"text":"b"') for e in await direct.log.read(p.run_id, 1, limit=9)] == [1]


async def test_case_08_every_other_step_may_be_repeated_when_its_reply_is_lost(redis7: RedisServer, namespace: str):
    async with lossy(redis7, namespace) as (behind, direct, proxy):

        @asynccontextmanager
        async def lost() -> AsyncIterator[None]:
            lose(behind, proxy)
            with pytest.raises(StoreUnavailable):
                yield
            lose(behind, proxy, False)

        async with lost():
            await behind.runs.create(REQUEST, idempotency_key="k")
        record, created = await behind.runs.create(REQUEST, idempotency_key="k")
        assert not created
        assert [r.run_id for r in (await direct.runs.list())[0]] == [record.run_id]
        async with lost():
            await behind.runs.claim(record.run_id, 1, "me")
        claim = await behind.runs.claim(record.run_id, 1, "me")
        with pytest.raises(ClaimRefused):
            await behind.runs.claim(record.run_id, 1, "another")
        async with lost():
            await behind.runs.new_epoch(record.run_id, "me", claim.epoch)
        assert await behind.runs.new_epoch(record.run_id, "me", claim.epoch) == (claim.epoch + 1, 0)
        async with lost():
            await behind.runs.cancel(record.run_id)
        assert (await behind.runs.cancel(record.run_id)).cancel_requested
        assert len(await direct.store.call("XRANGE", direct.keys.control(record.run_id), "-", "+")) == 1
        taken = await direct.runs.get(record.run_id)
        async with lost():
            await behind.runs.takeover(taken)
        assert await behind.runs.takeover(taken) is None
        assert [e.type for e in await direct.log.read(record.run_id, 0, limit=9)] == [b"cancelled"]


async def test_case_08_a_create_whose_reply_is_lost_makes_one_run_over_http(
    redis7: RedisServer, namespace: str, tmp_path: Path
):
    async with Proxy(redis7.port) as proxy:
        settings = {"request_deadline": 1.5, "requeue_after": 0.5, "sweep": 0.5, "partitions": 4, "block": 0.5}
        async with stage(redis7.url, namespace, tmp_path, gateways=0, **settings) as s:
            await s.gateway(proxy.url)
            body = {"runner": "scripted", "input": {"message": "x"}, "metadata": {"script": "tokens=3"}}
            proxy.drop_replies = True
            assert (await s.post("/v1/runs", body, Idempotency_Key="k"))[0] == 503
            proxy.drop_replies = False
            answers: list[tuple[int, Any]] = []
            async with asyncio.timeout(30):
                while len(answers) < 2:  # a 503: the proxy in this process was held up
                    answer = await s.post("/v1/runs", body, Idempotency_Key="k")
                    answers += [answer] if answer[0] != 503 else []
            assert {status for status, _ in answers} <= {200, 201}
            (run_id,) = {answer["run_id"] for _, answer in answers}
            s.worker()
            assert (await s.ended(run_id))["type"] == "final"
            assert [r["run_id"] for r in (await s.get("/v1/runs"))["runs"]] == [run_id]
            assert [i["text"] for i in await s.items(run_id) if i["type"] == "message.delta"] == ["w1 ", "w2 ", "w3 "]


# Case 11: a tab closes, one refreshes, one cancels through another G while W's Redis is away 5 s.


async def test_case_11_leaving_cancels_nothing_and_a_cancel_during_an_outage_of_the_worker_is_obeyed(
    redis7: RedisServer, namespace: str, tmp_path: Path
):
    async with Proxy(redis7.port) as proxy, stage(redis7.url, namespace, tmp_path, gateways=2, block=1.0) as s:
        queued = await s.run(script="tokens=3")
        for gateway in (0, 1):  # before a claim, twice
            status, answer = await s.post(f"/v1/runs/{queued}/cancel", gateway=gateway)
            assert (status, answer["status"]) == (202, "cancelled")
        s.worker(proxy.url)
        run_id = await s.run(script="tokens=5000 rate=50")
        closes, refreshes, cancels = s.watch(run_id), s.watch(run_id), s.watch(run_id, 1)
        for watching in (closes, refreshes, cancels):
            await watching.text(3)
        await closes.leave()
        refreshes.viewer.cut()
        await refreshes.text(10)
        assert (await s.get(f"/v1/runs/{run_id}"))["cancel_requested"] is False, "leaving cancels nothing"
        proxy.refuse = True
        proxy.cut()
        for _ in range(2):
            assert (await s.post(f"/v1/runs/{run_id}/cancel", gateway=1))[0] == 202
        await asyncio.sleep(5)  # the outage itself
        run = await s.get(f"/v1/runs/{run_id}")
        assert (run["status"], run["cancel_requested"]) == ("running", True)
        proxy.refuse = False
        seen = [await refreshes.end(), await cancels.end()]
        assert refreshes.viewer.connections >= 2
        run = await s.get(f"/v1/runs/{run_id}")
        assert run["status"] == "cancelled"
        partial = run["outcome"]["partial"]["content"][0]["text"]
        items = await s.items(run_id)
        for viewer in seen:
            assert viewer.ids == list(range(1, run["last_seq"] + 1))
            assert "".join(viewer.texts) == partial
            assert viewer.controls[-1] == ("end", {"run_id": run_id, "status": "cancelled", "last_seq": viewer.ids[-1]})
        assert partial.startswith("w1 w2 w3 ")
        assert (await s.post(f"/v1/runs/{run_id}/cancel"))[0] == 202, "after the end: a repeat"
        assert await s.items(run_id) == items
        completed = await s.run(script="tokens=1")
        assert (await s.ended(completed))["type"] == "final"
        assert (await s.post(f"/v1/runs/{completed}/cancel"))[0] == 409
        assert await s.fences(queued) == ["cancelled"]
        assert await s.fences(completed) == ["final"]


# Case 14: cancel, warning and lost-worker frames are items with ids of their own.


async def test_case_14_what_happens_to_a_run_is_an_item_with_an_id_of_its_own(gateway: GatewayProcess, broker: Broker):
    queued, _ = await broker.runs.create(REQUEST, enqueue=False)
    await broker.runs.cancel(queued.run_id)
    lost, _ = await broker.runs.create(REQUEST, enqueue=False)
    claim = await broker.runs.claim(lost.run_id, 1, "gone")
    async with broker.publisher(claim) as p:
        await p.publish(MessageDelta(text="a"))
        await p.publish(Event(name="warning", payload={"code": "c", "message": "careful"}))
        await p.flush()
    assert await broker.runs.takeover(await broker.runs.get(lost.run_id)) == "failed"
    for run_id, last, events in (
        (queued.run_id, 1, ["cancelled"]),
        (lost.run_id, 3, ["message.delta", "event", "failed"]),
    ):
        frames = (await ended(gateway, run_id)).frames
        shown = [(f.event, f.id) for f in frames if f.id]
        assert shown == [(event, f"{run_id}:{seq}") for seq, event in enumerate(events, 1)]
        assert [(f.event, f.id) for f in frames if not f.id] == [(":", None), ("retry", None), ("end", None)]
        for seq in range(last):
            assert (await ended(gateway, run_id, seq)).seqs == list(range(seq + 1, last + 1))
        assert (await ended(gateway, run_id, last)).status == 204
    with pytest.raises(RunEnded):
        await broker.runs.cancel(lost.run_id)


# Case 18: W ends without T; cleanup after T is slow.


@pytest.fixture
async def with_fake_hermes(redis7: RedisServer, namespace: str, tmp_path: Path) -> AsyncIterator[Stage]:
    script = tmp_path / "hermes"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{FAKE_HERMES}" "$@"\n')
    script.chmod(0o755)
    async with stage(redis7.url, namespace, tmp_path, block=1.0) as s:
        s.worker(HERMES_BIN=str(script))
        yield s


async def test_case_18_an_end_without_an_outcome_is_a_failure(with_fake_hermes: Stage):
    s = with_fake_hermes
    for runner, message, script, code in (
        ("scripted", "x", "tokens=2 noend=1", "no_outcome"),
        ("hermes", "NORESULT 0", "", "no_result"),
        ("hermes", "NORESULT 1", "", "hermes_failed"),
        ("hermes", "EMPTY", "", "empty_reply"),
    ):
        run_id = await s.run(message, script, runner)
        viewer = await s.watch(run_id).end()
        assert viewer.controls[-1][1]["status"] == "failed"
        outcome = await s.ended(run_id)
        assert (outcome["type"], outcome["code"]) == ("failed", code)
        assert bool(outcome["partial"]) is bool(viewer.texts)
        assert await s.fences(run_id) == ["failed"]


async def test_case_18_the_fence_is_written_before_a_slow_cleanup(with_fake_hermes: Stage, tmp_path: Path):
    """This Hermes goes on for a while after its result; the worker waits for it, the viewers do not."""
    s, go = with_fake_hermes, tmp_path / "go"
    run_id = await s.run(f"LINGER {go}", runner="hermes")
    watching = s.watch(run_id)
    viewer = await watching.end()
    assert viewer.controls[-1][1]["status"] == "completed"
    s.workers[0].signal(signal.SIGTERM)
    go.touch()
    assert await s.workers[0].ended() == 0
    assert go.with_suffix(".gone").exists(), "it was left to end, not killed"
    assert await s.fences(run_id) == ["final"]
