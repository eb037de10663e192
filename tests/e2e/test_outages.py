"""Workers that die or sleep, stores that go away, restart or lose their end: one fence, nothing twice, nothing hung."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker import api
from broker.api import Broker, StreamEntry
from broker.items import FENCES, Final, MessageDelta
from broker.publisher import Publisher
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.e2e.processes import Gateway, SseViewer, Worker, environment, http_json
from tests.servers import Proxy, RedisServer, eventually

QUICK = {"lease": 2.0, "beat": 0.4, "sweep": 0.4, "block": 1.0}
REQUEST = RunRequest(runner="x", input=RunInput(message="x"))


@asynccontextmanager
async def claimed(broker: Broker) -> AsyncIterator[Publisher]:
    record, _ = await broker.runs.create(REQUEST, enqueue=False)
    claim = await broker.runs.claim(record.run_id, record.attempt, "test")
    async with broker.publisher(claim) as publisher:
        yield publisher


async def publish(p: Publisher, first: int, last: int) -> None:
    for n in range(first, last + 1):
        await p.publish(MessageDelta(text=f"{n} "))


async def watch(broker: Broker, run_id: str, got: list[StreamEntry]) -> None:
    async for entry in broker.stream(run_id):
        got.append(entry)


def seqs(entries: list[StreamEntry]) -> list[int]:
    return [e.seq for e in entries if not e.control]


class Cluster:
    """A redis-server, a gateway and as many workers as a test starts, all real processes."""

    def __init__(self, url: str, namespace: str, directory: Path, **settings: object) -> None:
        self.settings = {**QUICK, **settings}
        self.env = environment(url, namespace, **self.settings)
        self.directory = directory
        self.gateway = Gateway(self.env, directory / "gateway.log")
        self.workers: list[Worker] = []

    def worker(self) -> Worker:
        self.workers.append(Worker(self.env, self.directory / f"worker{len(self.workers)}.log"))
        return self.workers[-1]

    async def start_run(self, script: str, **request: object) -> str:
        body = {"runner": "scripted", "input": {"message": "x"}, "metadata": {"script": script}, **request}
        status, answer = await http_json(self.gateway.port, "POST", "/v1/runs", body)
        assert status == 201, answer
        return str(answer["run_id"])

    def viewer(self, run_id: str, **how: object) -> asyncio.Task[SseViewer]:
        viewer = SseViewer(run_id, [self.gateway.port], **how)  # type: ignore[arg-type]
        task = asyncio.create_task(viewer.watch())
        task.viewer = viewer  # type: ignore[attr-defined]
        return task

    async def run(self, run_id: str) -> dict:
        return (await http_json(self.gateway.port, "GET", f"/v1/runs/{run_id}"))[1]

    async def fences(self, run_id: str) -> list[str]:
        _, page = await http_json(self.gateway.port, "GET", f"/v1/runs/{run_id}/items?limit=1000")
        return [i["type"] for i in page["items"] if i["type"] in FENCES]

    def stop(self) -> None:
        for process in (*self.workers, self.gateway):
            process.kill()


@pytest.fixture
async def cluster(
    request: pytest.FixtureRequest, redis7: RedisServer, namespace: str, tmp_path: Path
) -> AsyncIterator[Cluster]:
    """``request.param``: other settings than the quick ones."""
    cluster = Cluster(redis7.url, namespace, tmp_path, **getattr(request, "param", {}))
    try:
        await cluster.gateway.ready()
        yield cluster
    finally:
        cluster.stop()


async def text_came(task: asyncio.Task[SseViewer], count: int = 2) -> SseViewer:
    viewer: SseViewer = task.viewer  # type: ignore[attr-defined]
    await eventually(lambda: len(viewer.texts) >= count, 40)
    return viewer


async def test_a_killed_workers_run_fails_once_and_every_viewer_ends(cluster: Cluster):
    doomed = cluster.worker()
    run_id = await cluster.start_run("tokens=500 rate=50 hang=20")
    before = cluster.viewer(run_id)
    await text_came(before)
    doomed.popen.kill()
    killed = time.monotonic()
    rest = [cluster.worker(), cluster.worker()]  # several sweepers race
    after = cluster.viewer(run_id)
    first, second = await asyncio.wait_for(asyncio.gather(before, after), 40)
    assert time.monotonic() - killed < 2.0 + 0.4 + 10.0, "within the lease and a sweep, and what a slow machine adds"
    late = await asyncio.wait_for(cluster.viewer(run_id), 30)
    assert await cluster.fences(run_id) == ["failed"]
    run = await cluster.run(run_id)
    assert run["outcome"]["code"] == "worker_lost"
    assert "w1 " in run["outcome"]["partial"]["content"][0]["text"], "what was written is kept"
    for viewer in (first, second, late):
        assert viewer.ids == list(range(1, run["last_seq"] + 1))
    assert all(w.popen.poll() is None for w in rest)


async def test_a_worker_that_slept_through_its_lease_is_refused_when_it_wakes(cluster: Cluster):
    sleeper = cluster.worker()
    run_id = await cluster.start_run("tokens=400 rate=40")
    viewing = cluster.viewer(run_id)
    await text_came(viewing)
    sleeper.signal(signal.SIGSTOP)
    viewer = await asyncio.wait_for(viewing, 40)
    last = (await cluster.run(run_id))["last_seq"]
    sleeper.signal(signal.SIGCONT)
    await eventually(lambda: "fenced" in sleeper.output.lower() or "another owner" in sleeper.output.lower())
    other = await cluster.start_run("tokens=3")
    await asyncio.wait_for(cluster.viewer(other), 30)  # and it works on
    assert (await cluster.run(run_id))["last_seq"] == last
    assert await cluster.fences(run_id) == ["failed"]
    assert viewer.ids == list(range(1, last + 1))


async def test_a_run_that_may_be_retried_starts_again_and_says_so(cluster: Cluster):
    doomed = cluster.worker()
    run_id = await cluster.start_run("tokens=60 rate=30", on_worker_lost="retry")
    viewing = cluster.viewer(run_id)
    await text_came(viewing)
    doomed.popen.kill()
    cluster.worker()
    viewer = await asyncio.wait_for(viewing, 50)
    run = await cluster.run(run_id)
    assert (run["status"], run["attempt"]) == ("completed", 2)
    assert viewer.ids == list(range(1, run["last_seq"] + 1))
    assert "".join(viewer.texts).endswith("".join(f"w{n} " for n in range(1, 61)))


@pytest.mark.parametrize("cluster", [{"lease": 30.0}], indirect=True)
async def test_cancel_is_durable_and_repeats_are_harmless(cluster: Cluster):
    queued = await cluster.start_run("tokens=3")
    for _ in range(2):
        assert (await http_json(cluster.gateway.port, "POST", f"/v1/runs/{queued}/cancel"))[0] == 202
    assert await cluster.fences(queued) == ["cancelled"]
    worker = cluster.worker()
    run_id = await cluster.start_run("tokens=2000 rate=50")
    viewers = [cluster.viewer(run_id) for _ in range(3)]
    for viewing in viewers:
        await text_came(viewing)
    viewers[0].cancel()  # a tab closes: nothing happens to the run
    worker.signal(signal.SIGSTOP)  # the worker cannot hear it now
    for _ in range(2):
        assert (await http_json(cluster.gateway.port, "POST", f"/v1/runs/{run_id}/cancel"))[0] == 202
    worker.signal(signal.SIGCONT)
    ended = await asyncio.wait_for(asyncio.gather(*viewers[1:]), 40)
    run = await cluster.run(run_id)
    assert run["status"] == "cancelled"
    assert run["outcome"]["partial"]["content"][0]["text"].startswith("w1 w2 ")
    assert all(v.ids == list(range(1, run["last_seq"] + 1)) for v in ended)
    assert (await http_json(cluster.gateway.port, "POST", f"/v1/runs/{run_id}/cancel"))[0] == 202, "a repeat"
    completed = await cluster.start_run("tokens=1")
    await asyncio.wait_for(cluster.viewer(completed), 30)
    assert (await http_json(cluster.gateway.port, "POST", f"/v1/runs/{completed}/cancel"))[0] == 409
    assert await cluster.fences(run_id) == ["cancelled"]


@pytest.mark.parametrize(
    ("away", "lease"), [(4.0, 2.0), pytest.param(20.0, 15.0, marks=[pytest.mark.long, pytest.mark.timeout(150)])]
)
async def test_an_outage_longer_than_the_lease_kills_no_healthy_run(
    redis_server: RedisServer, namespace: str, tmp_path: Path, away: float, lease: float
):
    cluster = Cluster(redis_server.url, namespace, tmp_path, lease=lease)
    try:
        await cluster.gateway.ready()
        cluster.worker()
        cluster.worker()
        run_id = await cluster.start_run("tokens=200 rate=40")
        viewing = cluster.viewer(run_id)
        await text_came(viewing)
        redis_server.pause()
        await asyncio.sleep(away)  # the outage itself
        redis_server.resume()
        viewer = await asyncio.wait_for(viewing, 60)
        run = await cluster.run(run_id)
    finally:
        cluster.stop()
    assert run["status"] == "completed", run["outcome"]
    assert viewer.texts == [f"w{n} " for n in range(1, 201)]
    assert viewer.connections == 1, "an outage of the store costs a live viewer nothing but time"


@pytest.mark.parametrize("kill", [False, True])
async def test_a_restarted_store_continues_every_stream(
    redis_server: RedisServer, namespace: str, tmp_path: Path, kill: bool
):
    settings = Settings(namespace=namespace, block=1.0)
    url = redis_server.url
    async with api.open(url, settings) as worker, api.open(url, settings) as gateway, claimed(worker) as p:
        got: list[StreamEntry] = []
        watching = asyncio.create_task(watch(gateway, p.run_id, got))
        await publish(p, 1, 50)
        await eventually(lambda: len(got) == 50)
        await asyncio.to_thread(redis_server.restart, kill=kill)
        await publish(p, 51, 100)
        last = await p.seal(Final())
        await asyncio.wait_for(watching, 40)
    assert not [e.type for e in got if e.control]
    assert seqs(got) == list(range(1, last + 1))


class Failover:
    """A master, a replica that is up to date until ``lag``, and clients that follow whoever the proxy leads to."""

    def __init__(self, master: RedisServer, replica: RedisServer, proxy: Proxy) -> None:
        self.master, self.replica, self.proxy = master, replica, proxy

    def lag(self) -> None:
        """From here on the master's writes do not reach the replica."""
        self.replica.promote()

    def fail_over(self) -> None:
        self.proxy.target = self.replica.port
        self.master.kill()
        self.proxy.cut()


@pytest.fixture
async def failover(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Failover]:
    replica = RedisServer(tmp_path / "replica").start()
    try:
        replica.replica_of(redis_server)
        async with Proxy(redis_server.port) as proxy:
            yield Failover(redis_server, replica, proxy)
    finally:
        replica.kill()


@pytest.mark.parametrize(("kept", "epoch"), [(1_000, 1), (3, 2)])
async def test_a_promoted_replica_without_the_end_of_the_log(failover: Failover, namespace: str, kept: int, epoch: int):
    settings = Settings(namespace=namespace, block=1.0, resend_items=kept)
    url = failover.proxy.url
    async with api.open(url, settings) as worker, api.open(url, settings) as gateway, claimed(worker) as p:
        got: list[StreamEntry] = []
        watching = asyncio.create_task(watch(gateway, p.run_id, got))
        await publish(p, 1, 90)
        await p.flush()
        key = worker.keys.items(p.run_id)  # which the replica may not have yet
        await eventually(lambda: "90-0" in repr(failover.replica.command("XREVRANGE", key, "+", "-", "COUNT", "1")))
        failover.lag()
        await publish(p, 91, 100)
        await p.flush()
        await eventually(lambda: len(got) == 100)
        failover.fail_over()
        await publish(p, 101, 120)
        last = await p.seal(Final())
        await asyncio.wait_for(watching, 40)
        fresh: list[StreamEntry] = []
        await watch(gateway, p.run_id, fresh)
        record = await gateway.runs.get(p.run_id)
    assert record.epoch == epoch
    assert seqs(fresh) == list(range(1, last + 1)), "the log has no hole"
    texts = "".join(e.fields["text"] for e in fresh if e.type == "message.delta")
    if epoch == 1:
        assert not [e for e in got if e.control]
        assert seqs(got) == list(range(1, last + 1))
        assert texts == "".join(f"{n} " for n in range(1, 121))
        return
    resets = [i for i, e in enumerate(got) if e.control]
    assert [got[i].fields.get("reason") for i in resets] == ["rewound"]
    assert seqs(got[: resets[0]]) == list(range(1, 101))
    assert [(e.seq, e.data) for e in got[resets[0] + 1 :]] == [(e.seq, e.data) for e in fresh]
    assert texts == "".join(f"{n} " for n in [*range(1, 91), *range(98, 121)]), (
        "what was lost is lost, the rest is there"
    )
