"""Health, readiness, metrics, capabilities: for load balancers, Prometheus and clients that want to know."""

from __future__ import annotations

import asyncio
from importlib.metadata import PackageNotFoundError, entry_points, version

from fastapi import APIRouter, Request
from starlette.responses import Response

from broker.errors import StoreUnavailable
from broker.exposition import CONTENT_TYPE, exposition
from broker.items import CONTROL_EVENTS, TYPES, Mode
from gateway.answers import Capabilities, Health, answer
from gateway.bus import FAMILIES
from gateway.connection import connection_of
from gateway.formats import FORMATS
from gateway.openapi import json_answer, problems, text_answer
from gateway.routes.get import get
from gateway.routes.runs import ITEMS_MAX, RUNS_MAX

__all__ = ["distribution_version", "router"]

router = APIRouter(tags=["service"])

PROTOCOL_VERSION = "1"


def distribution_version() -> str:
    try:
        return version("runcast")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "0"


@get(router, "/healthz", responses={200: json_answer(Health, "The process lives.")})
async def healthz() -> Response:
    """The process lives. Says nothing of Redis: restarting a gateway would not bring that back."""
    return answer(Health(status="ok"))


@get(router, "/readyz", responses={200: json_answer(Health, "Redis answers."), **problems(503)})
async def readyz(request: Request) -> Response:
    """Redis answers and this process is not shutting down: send it requests."""
    connection = connection_of(request)
    if connection.draining.is_set():
        raise StoreUnavailable("this gateway is shutting down")
    async with connection.within() as broker:
        await broker.store.call("PING")
    return answer(Health(status="ready"))


@get(
    router,
    "/metrics",
    responses={200: text_answer("Prometheus' text format.")},
)
async def read_metrics() -> Response:
    """What this process counts, together with those that share its port."""
    # With several processes it reads their files.
    counted = await asyncio.to_thread(exposition)
    return Response(counted, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})


@get(router, "/v1/capabilities", responses={200: json_answer(Capabilities, "What this gateway can do.")})
async def capabilities(request: Request) -> Response:
    """Modes, formats, item types, runners, versions and limits."""
    connection = connection_of(request)
    settings = connection.settings
    return answer(
        Capabilities(
            modes=[mode.name.lower() for mode in Mode if mode.name],
            formats=list(FORMATS),
            item_types=list(TYPES),
            control_events=sorted(CONTROL_EVENTS - {"error"}),
            event_kinds=[f"{family}.*" for family in FAMILIES],
            runners=sorted({point.name for point in entry_points(group="runcast.runners")}),
            access="none" if request.app.state.login is None else "password",
            versions={"runcast": distribution_version(), "protocol": PROTOCOL_VERSION},
            limits={
                "body_max_bytes": settings.body_max_bytes,
                "item_max_bytes": settings.item_max_bytes,
                "items_per_page": ITEMS_MAX,
                "runs_per_page": RUNS_MAX,
                "result_wait_max": settings.result_wait_max,
                "run_max_items": settings.run_max_items,
                "run_max_bytes": settings.run_max_bytes,
                "run_ttl": settings.run_ttl,
                "record_ttl": settings.record_ttl,
                "heartbeat": settings.heartbeat,
                "inbound_count": settings.inbound_count,
                "inbound_bytes": settings.inbound_bytes,
                "inbound_total_bytes": settings.inbound_total_bytes,
            },
        )
    )
