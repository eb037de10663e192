"""The trace goes on to what a run calls: models' APIs, runner services, Hermes' API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr

from broker import api, tracing
from broker.items import MessageDelta
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.workers.llm.endpoint import answer, serve, stream
from tests.workers.llm.wire import pieces
from tests.workers.remote.stage import staged
from workers.hermes.api_server import _Server
from workers.llm.runner import LlmRunner
from workers.llm.settings import LlmSettings, VendorKeys
from workers.runner import Runner
from workers.worker import Worker


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def traceparent(span: ReadableSpan) -> str:
    assert span.context
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"


def parent_of(span: ReadableSpan) -> int:
    assert span.parent
    return int(span.parent.span_id)


async def run_of(runner: Runner, message: str) -> None:
    """One run of it, through a worker, to its end."""
    settings = Settings(redis_url=f"memory:{uuid4().hex}", block=0.5, worker_drain=0.0)
    async with api.open(settings=settings) as broker:
        worker = Worker(broker, runners={runner.name: runner}, sweep=False)
        record, _ = await broker.runs.create(RunRequest(runner=runner.name, input=RunInput(message=message)))
        taken = await broker.runs.claim(record.run_id, 1, "owner")
        worker._start(taken)
        async for _ in broker.stream(record.run_id):
            pass
        await worker._stop_runs()


async def test_a_models_api_is_told_and_each_attempt_is_a_span(spans: InMemorySpanExporter) -> None:
    plays = answer(503, {"error": {"message": "later"}}), stream(*pieces("openai.chat", "hello"))
    async with serve(*plays) as endpoint:
        settings = LlmSettings(
            base_url=endpoint.url,
            api="openai.chat",
            key=SecretStr("a-key-of-the-test"),
            model="gpt-4o",
            retry_wait=0.01,
        )
        runner = LlmRunner(settings, VendorKeys())
        await run_of(runner, "a very private question")
        await runner.aclose()
    first, second = named(spans, "model.call")
    assert [e.headers["traceparent"] for e in endpoint.exchanges] == [traceparent(first), traceparent(second)]
    (run,) = named(spans, "run")
    assert run.context
    assert {parent_of(first), parent_of(second)} == {run.context.span_id}
    assert first.status.description == "provider_error"
    told = dict(second.attributes or {})
    assert (told["runcast.attempt"], told["gen_ai.request.model"]) == (2, "gpt-4o")
    assert told["gen_ai.provider.name"] == "openai.chat"
    said = "".join(span.to_json() for span in spans.get_finished_spans())
    assert "private" not in said
    assert "a-key-of-the-test" not in said


async def test_a_runner_service_is_told_and_polls_are_no_spans(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    async with staged(f"memory:{uuid4().hex}", tmp_path) as stage:
        await stage.run(play=lambda run: run.whole("hello"))
        (call,) = named(spans, "remote.call")
        asked = stage.service.asked
    (start,) = [one for one in asked if one.method == "POST"]
    assert start.headers["traceparent"] == traceparent(call)
    assert dict(call.attributes or {})["runcast.what"] == "runs"
    polls = [one for one in asked if one.method == "GET"]
    assert polls
    (run,) = named(spans, "run")
    assert {one.headers["traceparent"] for one in polls} == {traceparent(run)}


async def test_hermes_api_server_is_told(spans: InMemorySpanExporter) -> None:
    seen: list[Any] = []

    def taken(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("traceparent"))
        return httpx.Response(200, json={"features": {"run_events_sse": True}})

    server = _Server("http://127.0.0.1:1", "key", None)
    server.client._transport = httpx.MockTransport(taken)
    with tracing.span("x") as span:
        await server.abilities()
        here = span.traceparent
    await server.abilities()
    await server.aclose()
    assert seen == [here, None]


async def test_an_ask_is_a_span_as_long_as_it_takes(spans: InMemorySpanExporter) -> None:
    class Asks:
        name = "asks"

        async def run(self, context: Any) -> Any:
            await context.ask("question", {"question": "?"}, free=True, timeout=0.05, otherwise="none")
            await context.emit(MessageDelta(text="x"))

    await run_of(Asks(), "x")
    (ask,) = named(spans, "run.ask")
    assert dict(ask.attributes or {}) == {"runcast.kind": "question", "runcast.how": "expired"}
    assert ask.end_time is not None
    assert ask.start_time is not None
    assert ask.end_time - ask.start_time >= 50_000_000
    (run,) = named(spans, "run")
    assert run.status.description == "no_outcome"
