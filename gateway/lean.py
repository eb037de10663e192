"""Parts of uvicorn's connection, made smaller: an idle viewer has one of each."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

__all__ = ["Flow", "Nobody", "Pipeline"]


class Nobody:
    """An event that nobody waits for."""

    def set(self) -> None: ...


class Flow(FlowControl):
    """uvicorn's, except that the event, most of its size, is made where somebody waits."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False
        self._resumed: asyncio.Event | None = None

    async def drain(self) -> None:
        if self.write_paused:
            self._resumed = self._resumed or asyncio.Event()
            await self._resumed.wait()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None


class Pipeline(list[Any]):
    """A deque of requests that came too early, in a tenth of its size: there is hardly ever one."""

    def appendleft(self, request: Any) -> None:
        self.insert(0, request)
