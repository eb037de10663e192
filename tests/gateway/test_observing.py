"""Each request's id, its records and its span."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY
from starlette.types import Receive, Scope, Send

from broker import api
from broker.api import Broker
from broker.feed import Feed
from broker.logs import bound, current
from broker.settings import Settings
from broker.tail import _Lane
from gateway.app import Gateway
from gateway.observing import ObserveRequests
from tests.gateways import say, until, writing

BODY = {"runner": "scripted", "input": {"message": "hello"}}


@pytest.fixture
def bound_to_records() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Every record of ours, with what was bound when it was made."""
    seen: list[tuple[str, dict[str, Any]]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append((record.getMessage(), dict(current())))

    keep = Keep()
    logging.getLogger("runcast").addHandler(keep)
    yield seen
    logging.getLogger("runcast").removeHandler(keep)


async def test_a_plain_id_is_taken_and_any_other_replaced(client: httpx.AsyncClient) -> None:
    taken = await client.get("/healthz", headers={"x-request-id": "Abc-1.2_3"})
    assert taken.headers["x-request-id"] == "Abc-1.2_3"
    for bad in ("two words", "x" * 65, 'a"b', ""):
        made = (await client.get("/v1/runs/none", headers={"x-request-id": bad})).headers["x-request-id"]
        assert re.fullmatch(r"[0-9a-f]{16}", made), bad


async def test_records_of_a_request_have_its_id(
    client: httpx.AsyncClient,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    bound_to_records: list[tuple[str, dict[str, Any]]],
) -> None:
    async def broken(*_: object, **__: object) -> None:
        logging.getLogger("runcast.store").error("something is wrong")
        raise RuntimeError("wrong")

    monkeypatch.setattr(broker.runs, "list", broken)
    answer = await asyncio.create_task(client.get("/v1/runs", headers={"x-request-id": "mine"}))
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
    assert ("something is wrong", {"request_id": "mine"}) in bound_to_records
    await client.get("/v1/runs/none")
    assert current() == {}


async def test_an_error_that_leaves_still_has_its_id_for_the_server() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("wrong")

    async def served() -> dict[str, Any]:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-request-id", b"mine")]}
        with pytest.raises(RuntimeError):
            await ObserveRequests(app)(scope, None, None)  # type: ignore[arg-type]
        return dict(current())

    assert await asyncio.create_task(served()) == {"request_id": "mine"}


async def test_what_serves_everybody_is_about_nobody(
    memory_settings: Settings, bound_to_records: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lanes and the hub's clock start with the first viewer, and outlive him."""
    wrong = RuntimeError("wrong")
    monkeypatch.setattr(Feed, "tick", Mock(side_effect=wrong))
    monkeypatch.setattr(_Lane, "_connect_and_read", AsyncMock(side_effect=wrong))

    def said(words: str) -> list[dict[str, Any]]:
        return [ids for message, ids in bound_to_records if words in message]

    async with api.open(settings=memory_settings) as broker, writing(broker) as publisher:
        await say(publisher, "hello")
        with bound(request_id="first"):
            stream = broker.stream(publisher.run_id)
            await anext(stream)
        await until(lambda: said("could not be seen to") and said("starts again"))
        await stream.aclose()
    assert said("could not be seen to")[0] == said("starts again")[0] == {}


async def test_problems_are_counted_by_code_also_where_a_stream_is_refused(client: httpx.AsyncClient) -> None:
    def count(code: str) -> float:
        return REGISTRY.get_sample_value("runcast_http_problems_total", {"code": code}) or 0

    before = count("run_not_found"), count("unknown_mode")
    await client.get("/v1/runs/none")
    await client.get("/v1/runs/none/stream")
    await client.get("/v1/runs/none/stream?modes=nonsense")
    assert (count("run_not_found"), count("unknown_mode")) == (before[0] + 2, before[1] + 1)


def named(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    return list(spans.get_finished_spans())


async def test_spans_are_named_by_templates(
    client: httpx.AsyncClient, spans: InMemorySpanExporter, gateway: Gateway
) -> None:
    for path in ("/v1/runs/none", "/v1/runs/none/stream", "/no/such/address", "/metrics"):
        await client.get(path)
    await client.request("BREW", "/v1/runs")
    assert [s.name for s in named(spans)] == [
        "GET /v1/runs/{run_id}",
        "GET /v1/runs/{run_id}/stream",
        "GET (none)",
        "other /v1/runs",
    ]


async def test_only_our_own_layer_traces(client: httpx.AsyncClient, spans: InMemorySpanExporter) -> None:
    """FastAPI traces by itself where it finds a provider, with paths and queries: cancel tokens among them."""
    await client.get("/v1/runs?session_id=do-not-tell")
    (span,) = named(spans)
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "runcast"
    assert "do-not-tell" not in span.to_json()


async def test_a_server_error_fails_its_span(
    client: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch, spans: InMemorySpanExporter
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret words")

    monkeypatch.setattr(broker.runs, "list", broken)
    await client.get("/v1/runs")
    (span,) = named(spans)
    assert span.status.description in ("500", "RuntimeError")
    assert "secret" not in span.to_json()


async def test_without_traces_nothing_is_kept_of_a_callers(client: httpx.AsyncClient, broker: Broker) -> None:
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    made = await client.post("/v1/runs", json=BODY, headers={"traceparent": caller})
    assert (await broker.runs.get(made.json()["run_id"])).trace is None


@pytest.mark.parametrize("key", [None, "a-key"])
async def test_with_traces_the_record_keeps_what_made_it(
    client: httpx.AsyncClient, broker: Broker, spans: InMemorySpanExporter, key: str | None
) -> None:
    caller = f"00-{'a' * 32}-{'b' * 16}-01"
    headers = {"traceparent": caller, **({"idempotency-key": key} if key else {})}
    made = await client.post("/v1/runs", json=BODY, headers=headers)
    run_id = made.json()["run_id"]
    (span,) = named(spans)
    assert span.context
    kept = f"00-{'a' * 32}-{span.context.span_id:016x}-01"
    assert (await broker.runs.get(run_id)).trace == kept == await broker.runs.trace_of(run_id)
    if key:
        again = await client.post("/v1/runs", json=BODY, headers={"idempotency-key": key})
        assert (again.status_code, again.json()["run_id"]) == (200, run_id), "a trace is no part of the request"


async def test_what_is_no_traceparent_is_passed_over(client: httpx.AsyncClient, spans: InMemorySpanExporter) -> None:
    await client.get("/v1/runs", headers={"traceparent": "nonsense"})
    (span,) = named(spans)
    assert span.parent is None
