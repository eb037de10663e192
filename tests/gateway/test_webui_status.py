"""``/api/status`` as the WebUI's clients read it: is this such a server, is it ready, may streams be opened."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from broker.errors import StoreUnavailable
from gateway.app import Gateway

FLAGS = {"session_sse", "session_sse_enabled", "session_sse_summary", "sse", "sse_enabled", "sse_summary"}
FINGERPRINTS = {"release_date", "hermes_home", "gateway_running", "authenticated", "setup_mode", "initialized"}


def as_the_app_reads_it(status: dict[str, Any]) -> tuple[bool, bool, bool]:
    """Known as a Hermes server; ready; its streams may be used."""
    known = bool(status["version"].strip()) and bool(FINGERPRINTS & set(status))
    setting_up = {"setup", "initial_setup", "not_ready", "initializing"}
    ready = not status["setup_mode"] and status["initialized"] and status["status"] not in setting_up
    return known, ready, any(status[flag] is True for flag in FLAGS & set(status))


async def test_a_client_finds_a_server_that_is_ready_and_streams(client: httpx.AsyncClient) -> None:
    response = await client.get("/api/status")
    assert response.status_code == 200
    status = response.json()
    assert as_the_app_reads_it(status) == (True, True, True)
    assert (status["status"], status["store"], status["gateway_sse"]) == ("ok", True, False)
    assert (status["auth_enabled"], status["authenticated"]) == (False, True)
    assert (await client.head("/api/status")).status_code == 200


async def test_without_the_store_it_is_still_that_server(
    client: httpx.AsyncClient, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(gateway.connection.broker.store, "call", away)
    response = await client.get("/api/status")
    status = response.json()
    assert response.status_code == 200
    assert as_the_app_reads_it(status) == (True, True, True)
    assert (status["status"], status["store"]) == ("degraded", False)
