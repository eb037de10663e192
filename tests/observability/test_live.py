"""What a real deployment says of itself: its numbers, its log records, its traces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Gauge
from prometheus_client.parser import text_string_to_metric_families

from broker import metrics as broker_metrics
from gateway import metrics as gateway_metrics
from tests.observability.collector import Collected
from tests.observability.deployment import SECRET, Deployment, deployed
from tests.observability.queries import asked_for, expressions, legends
from tests.observability.registered import registered
from workers import metrics as worker_metrics

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = f"00-{TRACE}-b7ad6b7169203331-01"
_HISTOGRAM = re.compile(r"_(bucket|sum|count)\Z")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, embedded_dir: Path) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("deployment"), embedded_dir) as deployment:
        _play(deployment)
        yield deployment


def _play(live: Deployment) -> None:
    """Something of everything that is counted."""
    every = "tokens=20 tool=1 reasoning=2 usage=1 cost=0.01"
    assert live.ended(live.run(every))["status"] == "completed"
    assert live.ended(live.run("tokens=3 fail=2"))["status"] == "failed"
    assert live.ended(live.run(runner="nobody-has-it"))["status"] == "failed"
    asking = live.run("ask=1 tokens=2 patience=0.2")
    assert live.ended(asking)["status"] == "completed"
    waiting = live.run("tokens=2 hang=1")
    live.until(lambda: json.loads(live.get(live.port, f"/v1/runs/{waiting}")[1])["status"] == "running")
    assert live.post(f"/v1/runs/{waiting}/cancel", {})[0] in (200, 202)
    live.ended(waiting)
    assert live.post("/v1/runs", {"nonsense": 1})[0] == 422
    assert live.get(live.port, f"/v1/runs/{waiting}/stream?modes=nonsense")[0] == 400


@pytest.fixture(scope="module")
def traced(live: Deployment) -> tuple[str, dict[str, Any]]:
    """A run of Hermes for a caller that has a trace, and its outcome."""
    run_id = live.run(message="ECHO", runner="hermes", traceparent=CALLER, x_request_id="request-of-the-test")
    return run_id, live.ended(run_id)


def span(live: Deployment, name: str, run_id: str = "", **attributes: Any) -> Collected:
    known = {**({"runcast__run_id": run_id} if run_id else {}), **attributes}
    found: list[Collected] = live.collector.until(lambda: live.collector.named(name, **known))
    assert len(found) == 1, found
    return found[0]


def of_trace(live: Deployment, name: str, trace_id: str) -> Collected:
    """The one span of that name in a trace. Each process sends its spans when it likes."""
    found: list[Collected] = live.collector.until(
        lambda: [s for s in live.collector.named(name) if s.trace_id == trace_id]
    )
    assert len(found) == 1, found
    return found[0]


# Metrics.


def test_every_metric_and_label_that_is_queried_is_scraped(live: Deployment) -> None:
    """Names from real scrapes; labels from their series, and where there are none yet, from what is registered."""
    scraped: dict[str, set[str]] = {}
    for text in live.scrapes():
        scraped |= {name: set() for name in re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                scraped.setdefault(sample.name, set()).update(sample.labels)
    declared = registered()
    for expr in expressions():
        for metric, labels in asked_for(expr):
            if metric == "up" or metric.startswith("process_"):
                continue
            name = metric if metric in declared else _HISTOGRAM.sub("", metric)
            known = scraped.get(metric, set()) | set(declared[name].labels) | ({"le"} if name != metric else set())
            assert metric in scraped or name in scraped or name in declared, metric
            assert labels <= known, f"{metric} has {known}, not {labels}: {expr}"


def test_series_have_the_labels_that_are_declared_and_no_others(live: Deployment) -> None:
    declared = registered()
    for text in live.scrapes():
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name if sample.name in declared else _HISTOGRAM.sub("", sample.name)
                if name.startswith("runcast_"):
                    assert set(sample.labels) - {"le"} == set(declared[name].labels), sample


def test_legends_show_labels_that_the_query_keeps() -> None:
    for expr, shown in legends():
        if shown - {"instance"}:
            kept = set().union(*(labels for _, labels in asked_for(expr)))
            assert shown - {"instance"} <= kept, expr


def values(text: str, name: str) -> dict[str, float]:
    """Series of a metric, by their labels as they are printed."""
    return {labels: float(v) for labels, v in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)}


def test_what_happened_is_counted_once_and_under_no_clients_name(live: Deployment) -> None:
    text = live.scrapes()[1]
    outcomes = values(text, "runcast_worker_outcomes_total")
    assert outcomes['code="scripted_failure",outcome="failed",runner="scripted"'] == 1
    assert outcomes['code="unknown_runner",outcome="failed",runner="unknown"'] == 1
    assert outcomes['code="cancelled",outcome="cancelled",runner="scripted"'] == 1
    assert "nobody-has-it" not in text
    assert values(text, "runcast_worker_cost_total")['currency="USD",runner="scripted"'] == pytest.approx(0.02)
    tools = values(text, "runcast_worker_tool_calls_total")
    assert tools == {'result="started",runner="scripted"': 1, 'result="completed",runner="scripted"': 1}
    assert values(text, "runcast_worker_input_wait_seconds_count") == {'how="expired",kind="approval"': 1}
    assert values(text, "runcast_worker_items_total")['type="failed"'] == 2
    assert all(count > 0 for count in values(text, "runcast_worker_tokens_total").values())
    for histogram in ("queue_wait", "first_token", "run"):
        assert sum(values(text, f"runcast_worker_{histogram}_seconds_count").values()) > 0, histogram


def test_processes_behind_one_port_are_one(live: Deployment) -> None:
    """Each request is a connection of its own, and either process may get it."""
    before = values(live.scrapes()[0], "runcast_http_requests_total")
    route = 'method="GET",route="/v1/runs",status="200"'
    for _ in range(12):
        assert live.get(live.port, "/v1/runs")[0] == 200
    for _ in range(6):
        text = live.scrapes()[0]
        assert values(text, "runcast_http_requests_total")[route] == before.get(route, 0) + 12
        assert set(values(text, "runcast_viewers")) == {""}, "one series, whoever has the viewers"
        assert "pid=" not in text


def test_the_gateway_counts_streams_and_problems(live: Deployment) -> None:
    text = live.scrapes()[0]
    assert values(text, "runcast_streams_total")['format="native"'] >= 5
    assert values(text, "runcast_stream_seconds_count")['reason="end"'] >= 4
    problems = values(text, "runcast_http_problems_total")
    assert problems['code="invalid_request"'] >= 1
    assert problems['code="unknown_mode"'] >= 1, "of a stream, too"
    assert values(text, "runcast_stream_bytes_total")[""] > 1000
    assert values(text, "runcast_viewers")[""] == 0


def test_the_workers_port_tells_how_it_stands(live: Deployment) -> None:
    assert live.get(live.worker_port, "/healthz") == (200, '{"status": "ok"}')
    assert live.get(live.worker_port, "/readyz") == (200, '{"status": "ready"}')
    assert live.get(live.worker_port, "/elsewhere")[0] == 404
    assert live.post("/v1/runs", [])[0] == 422


def test_no_series_tells_when_it_began(live: Deployment) -> None:
    assert all("_created" not in text.replace("runcast_runs_created_total", "") for text in live.scrapes())


# Log records.


def test_every_record_of_a_run_has_its_ids(live: Deployment, traced: tuple[str, dict[str, Any]]) -> None:
    run_id, _ = traced
    ours = [r for r in live.records("worker") if r.get("run_id") == run_id]
    assert [r["message"] for r in ours] == ["run started", "run ended: final"]
    for record in ours:
        assert (record["attempt"], record["session_id"], record["service"]) == (1, "s1", "runcast-worker")
        assert record["trace_id"] == TRACE
    assert ours[1]["outcome"] == "final"
    assert ours[1]["duration_s"] >= 0


def test_records_of_all_processes_have_one_form(live: Deployment) -> None:
    records = live.records("gateway")
    assert len({r["pid"] for r in records}) == 3
    for record in records:
        assert {"ts", "level", "logger", "message", "service", "pid"} <= set(record)
        assert "color_message" not in record
    assert {"uvicorn.error", "runcast"} <= {r["logger"] for r in records}


def test_no_secret_is_logged(live: Deployment) -> None:
    assert SECRET not in live.log("gateway") + live.log("worker")


# Traces.


def test_one_trace_connects_request_run_hermes_fence_and_viewer(
    live: Deployment, traced: tuple[str, dict[str, Any]]
) -> None:
    run_id, _ = traced
    run = span(live, "run", run_id)
    request = of_trace(live, "POST /v1/runs", TRACE)
    assert request.parent_id == "b7ad6b7169203331", "the caller's"
    assert request.attributes["http.response.status_code"] == 201
    assert (run.trace_id, run.parent_id, run.service) == (TRACE, request.span_id, "runcast-worker")
    queued, viewer = span(live, "run.queued", run_id), span(live, "stream", run_id)
    assert {queued.parent_id, viewer.parent_id} == {request.span_id}
    assert run.start >= queued.start
    call, fence = of_trace(live, "hermes.call", TRACE), of_trace(live, "run.fence", TRACE)
    assert (call.parent_id, fence.parent_id) == (run.span_id, run.span_id)
    assert call.attributes["runcast.hermes.mode"] == "stream-json"
    assert run.attributes["runcast.outcome"] == "final"
    assert "first_token" in run.events
    assert viewer.attributes["runcast.reason"] == "end"
    (viewing,) = live.collector.until(
        lambda: [s for s in live.collector.named("GET /v1/runs/{run_id}/stream") if s.span_id in viewer.links]
    )
    assert viewing.trace_id != TRACE, "the viewer's own request, linked"


def test_hermes_is_told_of_the_trace(live: Deployment, traced: tuple[str, dict[str, Any]]) -> None:
    _, outcome = traced
    environment = json.loads(outcome["outcome"]["message"]["content"][0]["text"])["env"]
    call = of_trace(live, "hermes.call", TRACE)
    assert environment["TRACEPARENT"] == f"00-{TRACE}-{call.span_id}-01"


def test_a_viewer_with_a_trace_of_his_own_stays_in_it(live: Deployment) -> None:
    run_id = live.run(traceparent=f"00-{'1' * 32}-{'2' * 16}-01")
    live.ended(run_id)
    theirs = "3" * 32
    live.get(live.port, f"/v1/runs/{run_id}/stream", traceparent=f"00-{theirs}-{'4' * 16}-01")
    viewer, made_by = of_trace(live, "stream", theirs), of_trace(live, "POST /v1/runs", "1" * 32)
    assert viewer.links == (made_by.span_id,)


def test_a_failed_run_is_a_failed_span(live: Deployment) -> None:
    run_id = live.run("tokens=3 fail=2")
    live.ended(run_id)
    assert span(live, "run", run_id).status == "scripted_failure"


def test_the_trace_is_shown_to_nobody(live: Deployment) -> None:
    run_id = live.run(traceparent=f"00-{'5' * 32}-{'6' * 16}-01")
    live.ended(run_id)
    for path in ("", "/items", "/result", "/stream"):
        assert "5" * 32 not in live.get(live.port, f"/v1/runs/{run_id}{path}")[1]


def test_polls_of_machines_are_no_traces(live: Deployment) -> None:
    span(live, "run", live.run())
    assert not [s for s in live.collector.spans if re.search("metrics|healthz|readyz", s.name)]


def test_spans_carry_no_text_and_no_query(live: Deployment) -> None:
    run_id = live.run("tokens=1", message="a very private question")
    live.get(live.port, f"/v1/runs/{run_id}/stream?cancel_token=do-not-tell")
    span(live, "run", run_id)
    said = repr(live.collector.spans)
    assert "private" not in said
    assert "do-not-tell" not in said


def test_gauges_of_processes_behind_one_port_add_up() -> None:
    """A gauge without a mode would get a label `pid` there. The worker is one process."""
    for module in (broker_metrics, gateway_metrics):
        for name, metric in vars(module).items():
            if isinstance(metric, Gauge):
                assert metric._multiprocess_mode.startswith("live"), name
    assert worker_metrics.SLOTS is not None
