"""A peer: idle viewers on sse-starlette, as its own documentation writes them (a generator that waits on a queue)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import FastAPI
from sse_starlette import EventSourceResponse  # type: ignore[import-not-found]

app = FastAPI()


async def _events() -> AsyncIterator[dict[str, str]]:
    queue: asyncio.Queue[str] = asyncio.Queue()
    yield {"event": "hello", "data": "{}"}
    while True:
        yield {"data": await queue.get()}


@app.get("/stream")
async def stream() -> EventSourceResponse:
    return EventSourceResponse(_events())
