"""Health, readiness, metrics, capabilities, unknown addresses, HEAD, the page's files and the OpenAPI document."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from broker.items import TYPES, Mode
from gateway.app import Gateway
from tests.gateway.conftest import Play
from tests.gateway.test_runs import assert_problem


async def test_health_and_readiness(client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert (await client.get("/readyz")).json() == {"status": "ready"}


async def test_a_draining_gateway_is_not_ready_but_lives(client: httpx.AsyncClient, gateway: Gateway) -> None:
    gateway.drain()
    gateway.drain()
    assert_problem(await client.get("/readyz"), 503, "store_unavailable")
    assert (await client.get("/healthz")).status_code == 200


async def test_capabilities(client: httpx.AsyncClient) -> None:
    known = (await client.get("/v1/capabilities")).json()
    assert known["modes"] == [mode.name.lower() for mode in Mode if mode.name]
    assert known["formats"][0] == "native"
    assert known["item_types"] == list(TYPES)
    assert known["control_events"] == ["cursor", "end", "gap", "open", "reset"]
    assert "scripted" in known["runners"]
    assert known["limits"]["body_max_bytes"] == 20_000
    assert known["versions"]["protocol"] == "1"
    assert known["access"] == "none"


async def test_metrics_count_requests_by_route(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    await client.get(f"/v1/runs/{run.id}")
    await client.get("/v1/runs/none")
    await client.get("/nowhere")
    text = (await client.get("/metrics")).text
    assert 'runcast_http_requests_total{method="GET",route="/v1/runs/{run_id}",status="200"}' in text
    assert 'runcast_http_requests_total{method="GET",route="/v1/runs/{run_id}",status="404"}' in text
    assert 'runcast_http_requests_total{method="GET",route="(none)",status="404"}' in text
    assert run.id not in text


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/runs/", 404, "not_found"),
        ("GET", "/v1/runs/a/nothing", 404, "not_found"),
        ("GET", "/ui/none.js", 404, "not_found"),
        ("GET", "/ui/..%2fapp.py", 404, "not_found"),
        ("DELETE", "/v1/runs", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("GET", "/v1/runs/a/cancel", 405, "method_not_allowed"),
        ("POST", "/v1/runs/a/stream", 405, "method_not_allowed"),
        ("PUT", "/v1/runs/a/stream", 405, "method_not_allowed"),
    ],
)
async def test_unknown_addresses_and_methods(
    client: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    assert_problem(await client.request(method, path), status, code)


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/v1/runs", "/v1/capabilities"])
async def test_head(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.head(path)).status_code == 200


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/ui/app.js", "text/javascript; charset=utf-8"),
        ("/workspace/tasks", "text/html; charset=utf-8"),
        ("/workspace/tasks/", "text/html; charset=utf-8"),
        ("/workspace/tasks/run_1", "text/html; charset=utf-8"),
        ("/ui/tasks.css", "text/css; charset=utf-8"),
        ("/ui/style.css", "text/css; charset=utf-8"),
        ("/ui/icon.svg", "image/svg+xml"),
    ],
)
async def test_the_pages_files(client: httpx.AsyncClient, path: str, media_type: str) -> None:
    response = await client.get(path)
    assert response.headers["content-type"] == media_type
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-content-type-options"] == "nosniff"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    again = await client.get(path, headers={"If-None-Match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_the_document_describes_every_route_and_error(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    operations = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
    assert operations == {
        "POST /v1/runs",
        "GET /v1/runs",
        "GET /v1/runs/{run_id}",
        "GET /v1/runs/{run_id}/items",
        "GET /v1/runs/{run_id}/result",
        "GET /v1/runs/{run_id}/stream",
        "HEAD /v1/runs/{run_id}/stream",
        "POST /v1/runs/{run_id}/cancel",
        "POST /v1/runs/{run_id}/input",
        "POST /chat/stream",
        "POST /chat",
        "POST /v1/chat/stream",
        "POST /v1/chat",
        "GET /v1/runs/{run_id}/artifacts/{name}",
        "GET /v1/runs/{run_id}/artifacts",
        "POST /v1/tasks",
        "GET /v1/tasks",
        "GET /v1/tasks/{task_id}",
        "GET /v1/tasks/{task_id}/stream",
        "HEAD /v1/tasks/{task_id}/stream",
        "POST /v1/tasks/{task_id}/steps/{n}/approve",
        "POST /v1/tasks/{task_id}/steps/{n}/reject",
        "POST /v1/tasks/{task_id}/steps/{n}/edit",
        "POST /v1/tasks/{task_id}/approve",
        "POST /v1/tasks/{task_id}/retry",
        "POST /v1/tasks/{task_id}/cancel",
        "POST /v1/tasks/{task_id}/input",
        "GET /v1/events",
        "GET /v1/capabilities",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
    }
    assert all(_resolves(document, ref) for ref in _refs(document))
    assert "HTTPValidationError" not in str(document)
    request = document["components"]["schemas"]["RunRequest"]
    assert request["additionalProperties"] is False
    ids = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(ids) == len(set(ids))


async def test_what_is_answered_is_what_the_document_says(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    await run.end()
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    for path, name in [
        (f"/v1/runs/{run.id}", "Run"),
        ("/v1/runs", "RunPage"),
        (f"/v1/runs/{run.id}/items", "ItemPage"),
        (f"/v1/runs/{run.id}/result", "Result"),
        (f"/v1/runs/{run.id}/artifacts", "ArtifactPage"),
        ("/v1/capabilities", "Capabilities"),
        ("/v1/runs/none", "Problem"),
    ]:
        body = (await client.get(path)).json()
        assert set(body) <= set(schemas[name]["properties"]), name
        assert set(schemas[name]["required"]) <= set(body), name


def _refs(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for child in value.values() for ref in _refs(child)]
    if isinstance(value, list):
        return [ref for child in value for ref in _refs(child)]
    return []


def _resolves(document: dict[str, Any], ref: str) -> bool:
    at: Any = document
    for name in ref.removeprefix("#/").split("/"):
        if name not in at:
            return False
        at = at[name]
    return True
