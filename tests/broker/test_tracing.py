"""Traces: off they are nothing, on they connect what belongs together."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from broker import tracing
from broker.errors import InvalidRequest, StoreUnavailable
from broker.logs import unbound
from broker.settings import Settings

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ON = Settings(traces=True)


def named(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def id_of(span: ReadableSpan) -> int:
    assert span.context
    return int(span.context.span_id)


def test_off_is_nothing() -> None:
    assert not tracing.start(Settings(), "tests")
    assert not tracing.active()
    with tracing.span("x", parent=CALLER, a=1) as span:
        span.set(a__b=1)
        span.event("e")
        span.fail("code")
        assert span.traceparent is None
        assert tracing.traceparent() is None
    assert tracing.start_span("x") is tracing.NOTHING
    assert (tracing.outgoing(), tracing.http_hooks(), tracing.ids()) == ({}, {}, {})
    tracing.stop()


_ROOMS = {
    "worker": "import workers.worker, workers.hermes.runner, workers.llm.runner, workers.remote.runner",
    "gateway": "from gateway.app import create_app; from broker.settings import Settings; create_app(Settings())",
}


@pytest.mark.parametrize("room", _ROOMS)
def test_off_nothing_that_traces_is_imported(room: str) -> None:
    """redis-py and FastAPI import other parts of OpenTelemetry by themselves, where they are installed."""
    traces = ("opentelemetry.sdk.trace", "opentelemetry.exporter")
    look = f"import sys; print([m for m in sys.modules if m.startswith({traces})])"
    assert printed(f"{_ROOMS[room]}\n{look}") == "[]\n"


def test_off_a_worker_needs_nothing_of_opentelemetry() -> None:
    without = "import sys; sys.modules['opentelemetry'] = None"
    traced = "from broker import tracing\nwith tracing.span('x'): print(tracing.active())"
    assert printed(f"{without}\n{_ROOMS['worker']}\n{traced}") == "False\n"


def printed(program: str) -> str:
    environment = {**os.environ, "RUNCAST_REDIS_URL": "memory:"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    tracing.check(Settings())
    with pytest.raises(InvalidRequest, match=r"install runcast\[otel\]"):
        tracing.start(ON, "tests")
    assert not tracing.active()


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        (CALLER, True),
        (CALLER[:-2] + "00", True),
        ("cc" + CALLER[2:], True),
        ("ff" + CALLER[2:], False),
        (CALLER.upper(), False),
        (CALLER + "-more", False),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        ("", False),
        (CALLER + "\n", False),
    ],
)
def test_what_is_a_traceparent(value: str, is_one: bool) -> None:
    assert tracing.is_traceparent(value) is is_one


def test_spans_nest_and_name_their_trace(spans: InMemorySpanExporter) -> None:
    with tracing.span("outer", kind="server", parent=CALLER, a__b=1, none=None) as outer:
        assert tracing.traceparent() == outer.traceparent
        assert tracing.ids()["trace_id"] == TRACE
        with tracing.span("inner") as inner:
            inner.rename("renamed")
            inner.event("something", n=2)
            assert tracing.outgoing() == {"traceparent": inner.traceparent}
        assert tracing.traceparent() == outer.traceparent
    assert tracing.traceparent() is None
    found = named(spans)
    assert found["outer"].parent is not None
    assert f"{found['outer'].parent.trace_id:032x}" == TRACE
    assert found["renamed"].parent is not None
    assert found["renamed"].parent.span_id == id_of(found["outer"])
    assert dict(found["outer"].attributes or {}) == {"a.b": 1}
    assert found["outer"].kind is trace.SpanKind.SERVER
    assert [event.name for event in found["renamed"].events] == ["something"]
    assert found["outer"].resource.attributes["service.name"] == "tests"


def test_what_was_made_elsewhere_goes_on_here(spans: InMemorySpanExporter) -> None:
    waited = tracing.start_span("waited", parent=CALLER, link=CALLER, since=time.time() - 5)
    assert tracing.traceparent() is None, "it is current nowhere"
    waited.end()
    span = named(spans)["waited"]
    assert span.end_time is not None
    assert span.start_time is not None
    assert 5 <= (span.end_time - span.start_time) / 1e9 < 60
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [TRACE]


def test_what_is_not_sampled_is_not_sent_and_goes_on_as_such(spans: InMemorySpanExporter) -> None:
    with tracing.span("x", parent=CALLER[:-2] + "00"):
        assert (tracing.traceparent() or "").endswith("-00")
    assert named(spans) == {}


@pytest.mark.parametrize(
    ("error", "code"),
    [(StoreUnavailable("secret words"), "store_unavailable"), (ValueError("secret words"), "ValueError")],
)
def test_an_error_fails_its_span_by_code_and_not_by_its_words(
    spans: InMemorySpanExporter, error: Exception, code: str
) -> None:
    with pytest.raises(type(error)), tracing.span("x"):
        raise error
    span = named(spans)["x"]
    assert span.status.description == code
    assert dict(span.attributes or {}) == {"error.type": code}
    assert "secret" not in span.to_json()


async def test_tasks_are_part_of_what_started_them_unless_they_serve_everybody(spans: InMemorySpanExporter) -> None:
    async def seen() -> str | None:
        return tracing.traceparent()

    with tracing.span("x") as span:
        theirs, everybodys = asyncio.create_task(seen()), asyncio.create_task(seen(), context=unbound())
    assert (await theirs, await everybodys) == (span.traceparent, None)


def test_the_first_start_counts_and_whoever_began_it_ends_it(spans: InMemorySpanExporter) -> None:
    assert not tracing.start(ON, "other", exporter=InMemorySpanExporter())
    with tracing.tracing(ON, "other"):
        pass
    assert tracing.active()


def test_the_process_provider_stays_as_it_is(spans: InMemorySpanExporter) -> None:
    """Libraries that trace by themselves (FastAPI does, with paths and queries) find none of ours."""
    assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"


def test_the_operators_variables_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "his-name")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment=here")
    exporter = InMemorySpanExporter()
    with_exporter: dict[str, Any] = {"exporter": exporter}
    assert tracing.start(ON, "ours", **with_exporter)
    try:
        with tracing.span("x"):
            pass
        resource = named(exporter)["x"].resource.attributes
        assert (resource["service.name"], resource["deployment"]) == ("his-name", "here")
    finally:
        tracing.stop()


def test_a_collector_that_is_away_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    began = time.monotonic()
    with tracing.tracing(ON, "tests"):
        for _ in range(100):
            with tracing.span("x"):
                pass
    assert time.monotonic() - began < 20
    assert not tracing.active()
