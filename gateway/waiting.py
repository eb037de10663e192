"""Waiting for a run's end on behalf of a request. It costs Redis nothing while it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from fastapi import Request

from broker.api import Broker, StreamEntry
from broker.errors import RunNotFound, StoreUnavailable
from broker.items import FENCES
from broker.records import RunRecord
from gateway.connection import Connection

__all__ = ["wait_for_end"]

_AWAY_PAUSE = 1.0


async def wait_for_end(
    request: Request, connection: Connection, broker: Broker, record: RunRecord, seconds: float | None
) -> bool:
    """Returns when the run has ended, the time is over (``None``: it never is), the client is gone, or this process
    drains: → whether somebody still waits for the answer. An attached viewer of the fence alone does the waiting."""
    gone = asyncio.create_task(_gone(request))
    waits = (gone, asyncio.create_task(_fence(broker, record)), asyncio.create_task(connection.draining.wait()))
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return not gone.done()
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _fence(broker: Broker, record: RunRecord) -> None:
    while True:
        try:
            stream = broker.stream(record.run_id, modes="final", after=record.last)
            async with aclosing(cast(AsyncGenerator[StreamEntry, None], stream)) as entries:
                async for entry in entries:
                    if entry.type in FENCES:
                        return
            return  # the stream ends after the fence, and when this process drains
        except RunNotFound:
            return
        except StoreUnavailable:
            await asyncio.sleep(_AWAY_PAUSE)  # the wait may outlast the outage


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
