"""Hermes for Python callers, of stand-ins, for the tests."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from tests.workers.installed import Installed
from workers.hermes.client import HermesClient, HermesRunResult
from workers.hermes.command import Call

__all__ = ["client", "streamed"]


def client(hermes: Installed, mode: str = "auto", **settings: Any) -> HermesClient:
    return HermesClient(hermes.settings(mode=mode, **settings), environ=hermes.env)


async def streamed(client: HermesClient, call: Call | str, **options: Any) -> tuple[list[str], HermesRunResult]:
    """The tokens and the result: exactly one, at the end."""
    async with asyncio.timeout(30), aclosing(client.chat_stream(call, **options)) as stream:
        events = [event async for event in stream]
    assert [event.event for event in events] == ["token"] * (len(events) - 1) + ["done"]
    assert all((event.token is None) is (event.event == "done") for event in events)
    result = events[-1].result
    assert result is not None
    assert all(event.result is None for event in events[:-1])
    return [event.token or "" for event in events[:-1]], result
