"""An API server like Hermes', for the tests: real HTTP on 127.0.0.1, its runs played from a script.

``newer``: numbers its events and tells them again. Otherwise, as 0.19.0 does, it has one subscriber a run, who finds
nothing when he comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

__all__ = ["DROP", "FakeApi", "Run", "Until", "delta", "tool"]

KEY = "a key of sixteen characters"
DROP = "drop"
"""In a script: the connection of the events breaks."""
_ENDS = {"run.completed": "completed", "run.failed": "failed", "run.cancelled": "cancelled"}


def delta(text: str) -> dict[str, Any]:
    return {"event": "message.delta", "delta": text}


def tool(name: str = "terminal", *, error: bool = False) -> list[dict[str, Any]]:
    started = {"event": "tool.started", "tool": name, "preview": "ls"}
    return [started, {"event": "tool.completed", "tool": name, "duration": 0.25, "error": error}]


@dataclass
class Until:
    """In a script: what comes next waits for it."""

    reached: Callable[[Run], bool]


@dataclass
class Run:
    run_id: str
    body: dict[str, Any]
    status: dict[str, Any]
    events: list[dict[str, Any]] = field(default_factory=list)
    posts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """What was posted to it: ``stop`` and ``approval``, with their bodies."""
    subscriptions: list[str | None] = field(default_factory=list)
    """The ``Last-Event-ID`` of each request for its events."""
    over: bool = False

    def posted(self, what: str) -> list[dict[str, Any]]:
        return [body for name, body in self.posts if name == what]


class FakeApi:
    """Serves while inside ``async with``."""

    def __init__(self, *, newer: bool = True) -> None:
        self.newer = newer
        self.script: list[Any] = []
        self.runs: list[Run] = []
        self.sessions: dict[str, dict[str, Any]] = {}
        self.messages: dict[str, list[dict[str, Any]]] = {}
        self.tips: dict[str, str] = {}
        """Session → the one in which it went on."""
        self.models: list[str] = ["hermes-agent"]
        self.refuses: tuple[int, Any] | None = None
        self.requests: list[tuple[str, str]] = []
        self.keepalive = 10.0
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> FakeApi:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.vanish()

    async def vanish(self) -> None:
        """As when its process is killed."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget(self) -> None:
        """As when it was started again."""
        self.runs.clear()
        for writer in self._streams:
            writer.transport.abort()

    # One connection, one request after the other.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path, headers = _parsed(head)
                raw = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._answer(writer, method, path, headers, json.loads(raw) if raw else {})
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _answer(
        self, writer: asyncio.StreamWriter, method: str, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> None:
        path = path.partition("?")[0]
        self.requests.append((method, path))
        if headers.get("authorization") != f"Bearer {KEY}":
            return _json(writer, 401, _error("Invalid API key", "invalid_api_key"))
        match method, path.strip("/").split("/"):
            case "GET", ["v1", "capabilities"]:
                newer = {"model_options": True, "runs_idempotency": {"supported": True}} if self.newer else {}
                _json(writer, 200, {"features": {"run_events_sse": True, **newer}})
            case "GET", ["v1", "models"]:
                _json(writer, 200, {"data": [{"id": name} for name in self.models]})
            case "POST", ["v1", "runs"]:
                _json(writer, *(self.refuses or (202, self._start(body))))
            case "GET", ["api", "sessions", session, *more]:
                self._session(writer, unquote(session), more)
            case method, ["v1", "runs", run_id, *more]:
                run = next((run for run in self.runs if run.run_id == run_id), None)
                if run is None:
                    _json(writer, 404, _error(f"Run not found: {run_id}", "run_not_found"))
                elif more == ["events"]:
                    await self._events(writer, run, headers.get("last-event-id"))
                elif more:
                    async with self._changed:
                        run.posts.append((more[0], body))
                        self._changed.notify_all()
                    _json(writer, 200, {"run_id": run_id})
                else:
                    _json(writer, 200, run.status)
            case _:
                _json(writer, 404, _error("Not found", ""))

    def _session(self, writer: asyncio.StreamWriter, session: str, more: list[str]) -> None:
        if session not in self.sessions:
            _json(writer, 404, _error(f"Session not found: {session}", "session_not_found"))
        elif more:
            told = {"session_id": self.tips.get(session, session), "data": self.messages.get(session, [])}
            _json(writer, 200, told)
        else:
            _json(writer, 200, {"session": {"id": session, **self.sessions[session]}})

    # Runs.

    def _start(self, body: dict[str, Any]) -> dict[str, Any]:
        run_id = f"run_{len(self.runs) + 1}"
        session_id = body.get("session_id") or run_id
        status = {"run_id": run_id, "status": "running", "session_id": self.tips.get(session_id, session_id)}
        run = Run(run_id, body, status)
        self.runs.append(run)
        self.sessions.setdefault(status["session_id"], {})
        task = asyncio.get_running_loop().create_task(self._play(run, list(self.script)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return {"run_id": run_id, "status": "started"}

    async def _play(self, run: Run, script: list[Any]) -> None:
        for step in script:
            async with self._changed:
                if isinstance(step, Until):
                    await self._changed.wait_for(partial(step.reached, run))
                elif step == DROP:
                    await self._changed.wait_for(lambda: bool(run.subscriptions) and bool(self._streams))
                    self._streams.pop().close()
                elif "status" in step and "event" not in step:
                    run.status |= step
                else:
                    self._happen(run, step)
                self._changed.notify_all()
            await asyncio.sleep(0)

    def _happen(self, run: Run, event: dict[str, Any]) -> None:
        name = event["event"]
        if name in _ENDS:
            run.status |= {**event, "status": _ENDS[name]}
            run.over = True
        run.status["updated_at"] = len(run.events)
        run.events.append(event | ({"seq": len(run.events)} if self.newer else {}))

    async def _events(self, writer: asyncio.StreamWriter, run: Run, last: str | None) -> None:
        run.subscriptions.append(last)
        if not self.newer and len(run.subscriptions) > 1:
            return _json(writer, 404, _error(f"Run not found: {run.run_id}", "run_not_found"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        self._streams.add(writer)
        at = int(last) + 1 if last is not None and self.newer else 0
        try:
            while not writer.is_closing():
                for event in run.events[at:]:
                    number = f"id: {event['seq']}\n" if self.newer else ""
                    _chunk(writer, f"{number}data: {json.dumps(event)}\n\n")
                at = len(run.events)
                if run.over:
                    _chunk(writer, ": stream closed\n\n")
                    writer.write(b"0\r\n\r\n")
                    return
                await writer.drain()
                await self._next(writer, run, at)
        finally:
            self._streams.discard(writer)

    async def _next(self, writer: asyncio.StreamWriter, run: Run, at: int) -> None:
        async with self._changed:
            self._changed.notify_all()
            changed = self._changed.wait_for(lambda: len(run.events) > at or writer.is_closing())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed, self.keepalive)
                return
        _chunk(writer, ": keepalive\n\n")


def _parsed(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.decode().strip().split("\r\n")
    method, path, _ = first.split(" ")
    return method, path, {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


def _json(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    body = json.dumps(value).encode() if not isinstance(value, bytes) else value
    head = f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def _chunk(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _error(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "code": code}}
