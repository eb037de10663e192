"""Two peers in Python: a queue for each viewer, behind Starlette's StreamingResponse or sse-starlette.

Both as their own documentation writes them. What is posted is one frame, made by the publisher, and put into every
queue; sse-starlette takes its fields and renders them for each viewer, as it has no other way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

try:
    from sse_starlette import EventSourceResponse  # type: ignore[import-not-found]
except ImportError:
    EventSourceResponse = None

app = FastAPI()
viewers: dict[asyncio.Queue[tuple[int, str]], None] = {}


async def _queued() -> AsyncIterator[tuple[int, str]]:
    queue: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
    viewers[queue] = None
    try:
        while True:
            yield await queue.get()
    finally:
        del viewers[queue]


@app.post("/pub/{seq}")
async def publish(seq: int, request: Request) -> Response:
    body = (await request.body()).decode()
    for queue in viewers:
        queue.put_nowait((seq, body))
    return Response(status_code=204)


@app.get("/viewers")
async def count() -> int:
    return len(viewers)


@app.get("/plain")
async def plain() -> StreamingResponse:
    async def frames() -> AsyncIterator[str]:
        yield ": hello\n\n"
        async for seq, body in _queued():
            yield f"id: {seq}\nevent: message.delta\ndata: {body}\n\n"

    return StreamingResponse(frames(), media_type="text/event-stream")


@app.get("/sse")
async def sse() -> Response:
    async def events() -> AsyncIterator[dict[str, str]]:
        yield {"event": "hello", "data": "{}"}
        async for seq, body in _queued():
            yield {"id": str(seq), "event": "message.delta", "data": body}

    response: Response = EventSourceResponse(events())
    return response
