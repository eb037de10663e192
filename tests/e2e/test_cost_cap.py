"""The cost cap with real processes: a worker and a gateway are killed in the middle, and the books are exact all the
same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from broker import api
from broker.api import Broker
from broker.charges import charge_of
from broker.records import RunRecord
from broker.settings import Settings
from tests.broker.books import lines_of, nano
from tests.e2e.processes import Gateway, Worker, environment, http_json
from tests.gateways import until
from tests.servers import RedisServer

CAP, RESERVATION = "0.5", "0.1"
FAST = {
    "lease": 1.0,
    "beat": 0.2,
    "sweep": 0.2,
    "requeue_after": 1.0,
    "partitions": 4,
    "block": 0.5,
    "worker_drain": 0.0,
}
LIMITS = {"cost_cap": CAP, "cost_reservation": RESERVATION}


@asynccontextmanager
async def opened(server: RedisServer, namespace: str) -> AsyncIterator[Broker]:
    settings = Settings(redis_url=server.url, namespace=namespace, partitions=4, **LIMITS)  # type: ignore[arg-type]
    async with api.open(settings=settings) as broker:
        yield broker


Process = TypeVar("Process", Gateway, Worker)


def killed(stack: AsyncExitStack, process: Process) -> Process:
    """It ends with the test."""
    stack.callback(process.kill)
    return process


async def ask(port: int) -> str | None:
    """A run of about a second; ``None``: refused."""
    body = {"runner": "scripted", "input": {"message": "x"}, "metadata": {"script": "tokens=30 rate=30 cost=0.03"}}
    status, made = await http_json(port, "POST", "/v1/runs", body)
    assert status in (201, 402), made
    return str(made["run_id"]) if status == 201 else None


async def records(broker: Broker, run_ids: list[str]) -> list[RunRecord]:
    return [await broker.runs.get(run_id) for run_id in run_ids]


def charged(record: RunRecord) -> int:
    charge = charge_of(record)
    return charge.nano if charge.known else max(charge.nano, nano(RESERVATION))


async def test_killed_workers_and_gateways_leave_exact_books(
    redis7: RedisServer, namespace: str, tmp_path: Path
) -> None:
    audit = tmp_path / "audit.jsonl"
    env = environment(redis7.url, namespace, **FAST, **LIMITS, audit_file=audit)
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(opened(redis7, namespace))
        gateways = [killed(stack, Gateway(env, tmp_path / f"g{n}.log")) for n in range(2)]
        doomed = killed(stack, Worker(env, tmp_path / "doomed.log", concurrency=2))
        await asyncio.gather(*(gateway.ready() for gateway in gateways))
        answers = await asyncio.gather(*(ask(gateway.port) for _ in range(8) for gateway in gateways))
        made = [run_id for run_id in answers if run_id]
        assert len(made) == 5

        def doomeds(record: RunRecord) -> bool:
            return record.status == "running" and f"-{doomed.popen.pid}-" in record.owner

        async def at_work() -> bool:
            return any(map(doomeds, await records(broker, made)))

        await until(at_work, 40)
        other = killed(stack, Worker(env, tmp_path / "other.log", concurrency=2))  # which has left it something to do
        doomed.kill()
        gateways[0].kill()

        async def over() -> bool:
            total = (await broker.ledger.budget()).total
            return all(r.is_ended for r in await records(broker, made)) and total.runs == len(made)

        await until(over, 40)
        ended = await records(broker, made)
        total = (await broker.ledger.budget()).total
        assert [r.outcome["item"]["code"] for r in ended if r.outcome and r.status == "failed"].count(
            "worker_lost"
        ) >= 1
        assert (total.spent, total.reserved) == (sum(map(charged, ended)), 0)
        assert total.spent <= nano(CAP) + nano(RESERVATION)
        entries = [e async for e in broker.ledger.audit.read()]
        assert sorted(e.fields["run_id"] for e in entries if e.fields["kind"] == "run") == sorted(made)
        await until(lambda: len(lines_of(audit)) == len(entries), 20)
        assert [line["id"] for line in lines_of(audit)] == [e.id for e in entries]
        assert sum(Decimal(line.get("booked", "0")) for line in lines_of(audit)) * 10**9 == total.spent
        assert json.loads(audit.read_bytes().splitlines()[0])["kind"] == "cost_cap"
        assert other.popen.poll() is None
