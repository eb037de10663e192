"""Tasks through the NestJS proxy: made, decided and followed as at the gateway itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from broker import api
from broker.api import Broker
from broker.settings import Settings
from tests.e2e.nestjs import NestProxy
from tests.e2e.test_nestjs import head_of
from tests.gateways import GatewayProcess, Response
from tests.servers import RedisServer
from tests.tasks.conftest import PLAN, Person, Working, says, states, working

__all__ = ["says", "working"]

pytestmark = pytest.mark.timeout(240)  # the first test on a machine waits for npm


@pytest.fixture(scope="module")
def settings(redis7: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(
        redis_url=redis7.url,
        namespace=f"t{uuid4().hex[:12]}",
        data_dir=Path(tmp_path_factory.mktemp("tasks")),
        partitions=4,
        heartbeat=0.3,
        block=0.2,
        beat=0.5,
    )


@pytest.fixture(scope="module")
def proxy(nest: Callable[..., NestProxy], gateway: GatewayProcess) -> NestProxy:
    return nest(gateway.port)


@pytest.fixture
async def broker(settings: Settings) -> AsyncIterator[Broker]:
    async with api.open(settings=settings) as opened:
        yield opened


@pytest.fixture
async def person(proxy: NestProxy, broker: Broker) -> AsyncIterator[Person]:
    """Somebody who knows the proxy alone."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{proxy.port}", timeout=20) as client:
        yield Person(client, broker)


async def alike(ports: tuple[int, int], method: str, target: str, sent: bytes | None = None, *more: Any) -> Response:
    """The same request of the gateway and through the proxy: one answer, to the byte. → that of the proxy."""
    body = [] if sent is None else [("Content-Type", "application/json"), ("Content-Length", str(len(sent)))]
    direct, passed = [
        await Response.open(port, target, method=method, headers=[*body, *more], behind=sent or b"") for port in ports
    ]
    assert (passed.status, await passed.body()) == (direct.status, await direct.body()), (method, target)
    assert head_of(passed) == head_of(direct), (method, target)
    for answer in (direct, passed):
        answer.leave()
    return passed


async def test_a_task_is_worked_on_through_it(
    proxy: NestProxy, gateway: GatewayProcess, person: Person, working: Working
) -> None:
    plan = [PLAN[0], PLAN[1], {**PLAN[2], "risk": "critical"}]
    ports = gateway.port, proxy.port
    async with working():
        task_id = await person.makes(steps=plan, by="ann")
        target = f"/v1/tasks/{task_id}"
        live = await Response.open(proxy.port, f"{target}/stream")
        await person.is_("waiting")
        await live.until(lambda frames: any(f.data.get("name") == "task.step_waiting" for f in frames if f.id))
        told = await person.says("steps/2/edit", instruction="Change half of it.", by="bob", revision=1)
        assert told["steps"][0]["revision"] == 2
        await person.says("steps/2/approve", by="bob", revision=2, reason="that half")
        await person.until(lambda task: task["status"] == "waiting" and task["current_step"] == 3)
        await person.says("steps/3/reject", by="ann", reason="not yet")
        await person.is_("halted")
        await person.says("retry", by="ann")
        await person.is_("waiting")
        await person.says("approve", up_to="critical", by="cid")
        seen = await person.until(lambda task: task["run_status"] == "completed")
        await live.body()
    assert states(seen) == ["completed"] * 3
    assert [step["result"] for step in seen["steps"]] == ["LOOK AROUND.", "CHANGE HALF OF IT.", "TELL WHAT CHANGED."]
    by = [(entry["what"], entry["by"]) for entry in seen["history"] if entry["by"]]
    assert [what for what, _ in by] == [
        "created",
        "step_edited",
        "step_approved",
        "step_rejected",
        "retried",
        "approved",
    ]
    assert [who for _, who in by] == ["ann", "bob", "bob", "ann", "ann", "cid"]

    for query, cursor in (("", 0), ("?compact=1", 0), ("?format=webui", 0), ("?modes=final", 0), ("", 7)):
        again = await alike(ports, "GET", f"{target}/stream{query}", None, ("Last-Event-ID", f"{task_id}:{cursor}"))
        assert again.status == 200
        if not query and not cursor:
            assert again.seqs == live.seqs == list(range(1, seen["last_seq"] + 1))
            assert [f for f in again.frames if f.id] == [f for f in live.frames if f.id]
    live.leave()
    for path in (target, "/v1/tasks", "/v1/tasks?limit=1", f"/v1/runs/{task_id}/items"):
        assert (await alike(ports, "GET", path)).status == 200


async def test_what_is_refused_is_told_as_the_gateway_tells_it(
    proxy: NestProxy, gateway: GatewayProcess, person: Person
) -> None:
    ports = gateway.port, proxy.port
    task_id = await person.makes(steps=PLAN)
    await person.says("steps/2/approve", by="ann")
    before = await person.sees()
    asks: list[tuple[str, Any, int, str]] = [
        (f"{task_id}/steps/2/approve", {}, 409, "step_conflict"),
        (f"{task_id}/steps/9/approve", {}, 404, "unknown_step"),
        (f"{task_id}/steps/2/reject", {}, 422, "invalid_request"),
        (f"{task_id}/steps/3/reject", {"reason": "x" * 3_000}, 413, "item_too_big"),
        (f"{task_id}/steps/3/edit", {"title": "t", "revision": 4}, 409, "step_changed"),
        (f"{task_id}/steps/3/edit", {"colour": "red"}, 422, "invalid_request"),
        (f"{task_id}/approve", {"up_to": "all"}, 422, "invalid_request"),
        (f"{task_id}/retry", {}, 409, "task_not_halted"),
        (f"{task_id}/input", {"request_id": "q", "answer": "x"}, 404, "unknown_request"),
        ("run_none/cancel", {}, 404, "task_not_found"),
    ]
    for path, body, status, code in asks:
        answer = await alike(ports, "POST", f"/v1/tasks/{path}", json.dumps(body).encode())
        assert (answer.status, json.loads(answer.wire)["code"]) == (status, code), path
        assert answer.headers["content-type"] == "application/problem+json"
    assert (await alike(ports, "POST", "/v1/tasks", b'{"goal": ')).status == 400
    assert await person.sees() == before

    token = [("X-Cancel-Token", "another")]
    assert (await alike(ports, "POST", f"/v1/tasks/{task_id}/cancel", b"{}", *token)).status == 403
    await person.says("cancel", by="ann", reason="enough")
    assert (await person.sees())["cancel_requested"]
    answer = await alike(ports, "POST", f"/v1/tasks/{task_id}/steps/3/edit", b'{"title": "t"}')
    assert (answer.status, json.loads(answer.wire)["code"]) == (409, "task_ended")
