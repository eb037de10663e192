"""A small runner service: runs whose events a test writes, over real HTTP.

Its log is immutable, and its cursors are its own: ``c3`` is behind the third event. An event's id counts as a cursor as
well, and so does its bare number.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["Asked", "RunnerService", "ServiceRun", "serving"]

Shape = Callable[[int, str, Mapping[str, Any]], dict[str, Any]]
"""Number, name and payload of an event → how it is sent."""


def _numbered(number: int, name: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    return {"event_id": f"event:{number}", "seq": number, "event": name, "payload": dict(payload)}


@dataclass
class Asked:
    """One request that was made."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class ServiceRun:
    run_id: str
    body: dict[str, Any]
    status: str = "running"
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    answers: list[tuple[str, str]] = field(default_factory=list)
    """What it was told: the key of what it had asked, and the answer."""
    cancels: int = 0

    def say(self, name: str, /, **payload: Any) -> None:
        self.events.append((name, payload))

    def tokens(self, *texts: str) -> None:
        for text in texts:
            self.say("token", text=text)

    def whole(self, *texts: str) -> None:
        """All that a short run says."""
        self.tokens(*texts)
        self.end()

    def end(self) -> None:
        self.say("done", session={"session_id": self.body["session_id"], "message_count": 2}, usage={})
        self.say("stream_end", session_id=self.body["session_id"])
        self.status = "completed"


class RunnerService:
    """``runs`` in the order of their start. ``play`` is called for each new one. ``failing``: a status for every
    request, as long as it is set. ``on_cancel``: whether a cancel ends the run, as it should."""

    def __init__(self) -> None:
        self.url = ""
        self.runs: list[ServiceRun] = []
        self.asked: list[Asked] = []
        self.shape: Shape = _numbered
        self.page = 100
        self.failing: int | None = None
        self.again = 0
        """So many events before the cursor are sent once more with each page."""
        self.on_cancel = True
        self.started_at: str | None = None
        """The cursor that a start is answered with."""
        self._keys: dict[str, ServiceRun] = {}
        self.play: Callable[[ServiceRun], None] = lambda run: None

    def cursors(self) -> list[str | None]:
        """What events were asked for with, in order."""
        return [asked.query.get("cursor") for asked in self.asked if asked.path.endswith("/events")]

    def calls(self, suffix: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.path.endswith(suffix)]

    def answer(self, asked: Asked) -> tuple[int, Any]:
        self.asked.append(asked)
        if self.failing is not None:
            return self.failing, {"error": "failing as it was told"}
        parts = [unquote(part) for part in asked.path.strip("/").split("/")]
        if parts == ["v1", "runs"] and asked.method == "POST":
            return 200, self._start(asked)
        run = next((run for run in self.runs if run.run_id == parts[2]), None) if len(parts) > 2 else None
        if run is None:
            return 404, {"error": "no such run"}
        return self._of_run(run, asked, parts[3:])

    def _start(self, asked: Asked) -> dict[str, Any]:
        key = asked.headers.get("idempotency-key", "")
        run = self._keys.get(key)
        if run is None:
            run = ServiceRun(f"srv/{len(self.runs) + 1}", asked.body)
            self.runs.append(run)
            self._keys[key or run.run_id] = run
            self.play(run)
        started = {"run_id": run.run_id, "stream_id": run.run_id, "status": run.status}
        return started | ({"cursor": self.started_at} if self.started_at is not None else {})

    def _of_run(self, run: ServiceRun, asked: Asked, rest: list[str]) -> tuple[int, Any]:
        match (asked.method, rest):
            case ("GET", []):
                return 200, {"run_id": run.run_id, "status": run.status}
            case ("GET", ["events"]):
                return 200, self._events(run, asked.query.get("cursor"))
            case ("POST", ["cancel"]):
                run.cancels += 1
                if self.on_cancel and run.status == "running":
                    run.say("cancel", message="cancelled at the service")
                    run.status = "cancelled"
                return 200, {"status": "accepted"}
            case ("POST", ["approval"]):
                run.answers.append((asked.body["approval_id"], asked.body["choice"]))
                return 200, {"status": "accepted"}
            case ("POST", ["clarifications", key, "respond"]):
                run.answers.append((key, asked.body["response"]))
                return 200, {"status": "accepted"}
        return 405, {"error": "no such thing"}

    def _events(self, run: ServiceRun, cursor: str | None) -> dict[str, Any]:
        digits = "".join(c for c in cursor or "" if c.isdigit())
        after = int(digits) if digits else 0
        first = max(after - self.again, 0)
        until = min(len(run.events), after + self.page)
        sent = [self.shape(n, *run.events[n - 1]) for n in range(first + 1, until + 1)]
        return {"run_id": run.run_id, "events": sent, "cursor": f"c{until}"}


@asynccontextmanager
async def serving() -> AsyncIterator[RunnerService]:
    """A service that answers at its ``url`` until the end of the block."""
    service = RunnerService()
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await _one(service, reader, writer)
        finally:
            writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield service
    finally:
        server.close()
        for writer in list(writers):
            writer.close()


async def _one(service: RunnerService, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = lines[0].split()
    headers = {n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    status, answer = service.answer(Asked(method, url.path, query, headers, json.loads(body) if body else {}))
    content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()
