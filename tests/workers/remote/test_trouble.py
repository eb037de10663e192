"""A service, or a store, that does not do as it should."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.runner_service import Asked, RunnerService, ServiceRun
from tests.servers import RedisServer, eventually
from tests.workers.remote.stage import KEY, Stage, staged
from workers.remote.runner import RemoteRunner
from workers.remote.settings import RemoteSettings


async def _fails(stage: Stage, status: int) -> dict[str, Any]:
    """The fence of a run whose service answers its start with that."""
    stage.service.failing = status
    try:
        entries = await stage.follow(await stage.create())
    finally:
        stage.service.failing = None
    assert entries[-1].type == "failed"
    return entries[-1].fields


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "remote_auth"), (403, "remote_auth"), (422, "remote_refused"), (302, "remote_refused")],
)
async def test_a_refused_start(stage: Stage, status: int, code: str) -> None:
    fence = await _fails(stage, status)
    assert (fence["code"], fence["retryable"]) == (code, False)
    assert str(status) in fence["message"]
    assert KEY not in fence["message"]


async def test_a_start_that_may_have_worked_is_not_repeated(stage: Stage) -> None:
    fence = await _fails(stage, 502)
    assert (fence["code"], fence["retryable"]) == ("remote_unavailable", True)
    assert len(stage.service.asked) == 1


async def test_a_start_that_was_not_taken_up_is_repeated(stage: Stage) -> None:
    stage.service.failing, stage.service.play = 503, lambda run: run.whole("a")
    run_id = await stage.create()
    await eventually(lambda: len(stage.service.asked) >= 3)
    stage.service.failing = None
    entries = await stage.follow(run_id)
    assert entries[-1].type == "final"
    assert len(stage.service.runs) == 1


async def test_a_service_that_is_away_for_a_while(stage: Stage) -> None:
    run_id = await stage.create()
    run = await stage.started()
    run.tokens("a")
    await stage.has(run_id, 1)
    stage.service.failing = 500
    run.tokens("b")
    asked = len(stage.service.asked)
    await eventually(lambda: len(stage.service.asked) >= asked + 3)
    stage.service.failing = None
    run.end()
    entries = await stage.follow(run_id)
    assert [entry.type for entry in entries[:2]] == ["message.delta", "message.delta"]
    assert entries[-1].type == "final"


async def test_a_service_that_stays_away(url: str, tmp_path: Path) -> None:
    async with staged(url, tmp_path, limits={"outage": 0.3}) as stage:
        run_id = await stage.create()
        run = await stage.started()
        run.tokens("a")
        await stage.has(run_id, 1)
        stage.service.failing = 503
        entries = await stage.follow(run_id)
        assert (entries[-1].fields["code"], entries[-1].fields["retryable"]) == ("remote_unavailable", True)
        assert entries[-1].fields["partial"]["content"][0]["text"] == "a"
        # Nobody would see its end: once it answers again it is told to stop.
        stage.service.failing = None
        await eventually(lambda: run.cancels, 15)


async def test_a_run_that_the_service_forgot(stage: Stage) -> None:
    run_id = await stage.create()
    await stage.started()
    stage.service.runs.clear()
    entries = await stage.follow(run_id)
    assert entries[-1].fields["code"] == "remote_run_lost"


@pytest.mark.parametrize("answer", [b"[]", b"no json", b'"text"', b'{"status": "ok"}', b'{"run_id": 5}'])
async def test_an_answer_that_is_none(stage: Stage, answer: bytes) -> None:
    stage.service.answer = lambda asked: (200, answer)  # type: ignore[method-assign]
    entries = await stage.follow(await stage.create())
    assert entries[-1].fields["code"] == "remote_unreadable"


async def test_an_answer_that_is_too_long(url: str, tmp_path: Path) -> None:
    async with staged(url, tmp_path, limits={"response_max_bytes": 1_024}) as stage:
        entries = await stage.run(play=lambda run: run.tokens("x" * 5_000))
        assert entries[-1].fields["code"] == "remote_unreadable"
        assert "REMOTE_RESPONSE_MAX_BYTES" in entries[-1].fields["message"]


async def test_odd_events_pass(stage: Stage) -> None:
    plain = stage.service.answer

    def odd(asked: Asked) -> tuple[int, Any]:
        status, answer = plain(asked)
        if asked.path.endswith("/events"):
            answer["events"] += ["text", None, 5]
        return status, answer

    stage.service.answer = odd  # type: ignore[method-assign]
    stage.service.shape = lambda n, name, payload: {"event_id": f"ä{n}\n", "seq": n, "event": name, "data": payload}
    entries = await stage.run(play=lambda run: run.whole("a", "b"))
    assert [entry.fields["source_id"] for entry in entries[:2]] == ["srv/1:1", "srv/1:2"]
    assert entries[-1].type == "final"


async def test_a_service_that_does_not_heed_a_cancel(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteRunner, "stop_grace", 0.3)
    async with staged(url, tmp_path) as stage:
        stage.service.on_cancel = False
        run_id = await stage.create()
        run = await stage.started()
        await stage.broker.runs.cancel(run_id)
        entries = await stage.follow(run_id)
        assert entries[-1].type == "cancelled"
        assert run.cancels == 1


async def test_nothing_is_configured(tmp_path: Path) -> None:
    async with staged("memory:", tmp_path) as stage:
        assert stage.worker
        stage.worker.runners["remote"] = RemoteRunner(RemoteSettings())
        entries = await stage.follow(await stage.create())
        assert entries[-1].fields["code"] == "not_configured"


@pytest.mark.parametrize("value", ["ftp://x", "x.example", "http://u:p@x", "http://x/?a=1", "http://x:99999"])
def test_a_url_that_is_none(value: str) -> None:
    with pytest.raises(ValueError) as caught:
        RemoteSettings(url=value)
    assert "REMOTE_URL" in str(caught.value) or "port" in str(caught.value).lower()
    assert "u:p" not in str(caught.value)


async def test_a_restart_of_the_store(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "own").start()
    try:
        async with staged(server.url, tmp_path) as stage:
            run_id = await stage.create()
            run = await stage.started()
            run.tokens("a", "b")
            await stage.has(run_id, 2)
            await asyncio.to_thread(server.restart)
            run.whole("c", "d")
            entries = await stage.follow(run_id)
        assert [e.fields["text"] for e in entries if e.type == "message.delta"] == ["a", "b", "c", "d"]
        assert entries[-1].type == "final"
    finally:
        server.stop()


async def test_runs_do_not_mix(stage: Stage) -> None:
    def play(run: ServiceRun) -> None:
        run.whole(*[f"{run.run_id} "] * 20)

    stage.service.play, stage.service.page = play, 3
    made = [await stage.create() for _ in range(8)]
    for entries in await asyncio.gather(*map(stage.follow, made)):
        texts = {entry.fields["text"] for entry in entries if entry.type == "message.delta"}
        assert len(texts) == 1
        assert sum(entry.type == "message.delta" for entry in entries) == 20


async def test_a_request_in_the_own_tongue_of_the_service(stage: Stage) -> None:
    """The names of the run adapter's contract, which are other than those of its event stream."""

    def play(run: ServiceRun) -> None:
        run.say("token.delta", delta="x")
        run.say("tool.started", tool_call_id="t", name="web", arguments={"q": 1})
        run.say("tool.updated", tool_call_id="t", stdout="line")
        run.say("tool.done", tool_call_id="t", result="r", is_error=True, duration_ms=5)
        run.say("usage.final", usage={"prompt_tokens": 2, "completion_tokens": 1, "estimated_cost": 0.25})
        run.events.append(("done", {"status": "completed"}))
        run.status = "completed"

    plain = stage.service.shape
    stage.service.shape = lambda n, name, payload: plain(n, name, payload) | {"terminal": name == "done"}
    entries = await stage.run(play=play)
    kinds = [entry.type for entry in entries]
    assert kinds == [
        "message.delta",
        "tool.started",
        "tool.progress",
        "tool.failed",
        "usage",
        "cost",
        "message",
        "final",
    ]
    assert entries[5].fields["total"] == "0.25"
    assert entries[-1].fields["source_id"] == "event:6"
    assert entries[-1].fields["cost"]["total"] == "0.25"


def test_the_service_is_a_service() -> None:
    """The stand-in's cursors go where they say."""
    service = RunnerService()
    service.answer(Asked("POST", "/v1/runs", {}, {}, {"session_id": "s"}))
    service.runs[0].whole("a", "b")
    for cursor, left in (("", 4), ("c1", 3), ("event:2", 2), ("4", 0)):
        query = {"cursor": cursor} if cursor else {}
        _, page = service.answer(Asked("GET", "/v1/runs/srv%2F1/events", query, {}, {}))
        assert len(page["events"]) == left
