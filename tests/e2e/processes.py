"""Real processes for the end-to-end tests: gateways, workers, and viewers over raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.servers import eventually, free_port

__all__ = ["Gateway", "SseViewer", "Worker", "environment", "http_json"]

COMMAND = [sys.executable, "-P", "-m", "ops.cli"]


def environment(redis_url: str, namespace: str, **settings: object) -> dict[str, str]:
    """An environment without anybody's settings but the test's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RUNCAST_", "HERMES_"))}
    named = {f"RUNCAST_{k.upper()}": str(v) for k, v in settings.items()}
    return {**kept, "RUNCAST_REDIS_URL": redis_url, "RUNCAST_NAMESPACE": namespace, **named}


class Command:
    """A process of the command with its output in a file."""

    def __init__(self, arguments: list[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as out:
            self.popen = subprocess.Popen(arguments, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    async def ended(self, timeout: float = 40.0) -> int:
        await eventually(lambda: self.popen.poll() is not None, timeout)
        assert self.popen.returncode is not None
        return self.popen.returncode

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        if self.popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.popen.send_signal(signal.SIGCONT)
            self.popen.kill()
        self.popen.wait(30)


class Gateway(Command):
    """``runcast serve`` on a free port. ``delay``: seconds put between a range read and what follows it."""

    def __init__(self, env: dict[str, str], log: Path, *, port: int | None = None, delay: float = 0.0) -> None:
        self.port = port or free_port()
        arguments = [*COMMAND, "serve", "--port", str(self.port)]
        if delay:
            arguments = [sys.executable, "-P", "-m", "tests.e2e.delayed_gateway", str(delay)]
            env = {**env, "RUNCAST_PORT": str(self.port), "PYTHONPATH": str(Path(__file__).parents[2])}
        super().__init__(arguments, env, log)

    async def ready(self, timeout: float = 40.0) -> Gateway:
        async def up() -> bool:
            try:
                status, _ = await http_json(self.port, "GET", "/readyz")
            except OSError:
                return False
            return status == 200

        deadline = time.monotonic() + timeout
        while not await up():
            assert self.popen.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            await asyncio.sleep(0.05)
        return self


class Worker(Command):
    def __init__(self, env: dict[str, str], log: Path, *, concurrency: int = 4) -> None:
        super().__init__([*COMMAND, "worker", "--concurrency", str(concurrency)], env, log)


async def http_json(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 30.0
) -> tuple[int, Any]:
    """One HTTP/1.1 request on a connection of its own. Returns the status and the decoded body (or its text)."""
    payload = b"" if body is None else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(payload)}"]
    head += ["Content-Type: application/json"] if payload else []
    head += [f"{k}: {v}" for k, v in (headers or {}).items()]
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + payload)
            raw = await reader.read()
        finally:
            writer.close()
    top, _, rest = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in top.lower():
        rest = b"".join(_chunks(rest))
    try:
        answer = json.loads(rest)
    except ValueError:
        answer = rest.decode("utf-8", "replace")
    return int(top.split(b" ", 2)[1]), answer


def _chunks(raw: bytes) -> Iterator[bytes]:
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        if not (n := int(size, 16)):
            return
        yield raw[:n]
        raw = raw[n + 2 :]


class SseViewer:
    """One viewer that comes back with its last id until it was answered 204 or got ``end``: what EventSource does.

    ``ids`` are the seqs of the items in the order in which they came; ``controls`` the control events.
    """

    def __init__(
        self, run_id: str, ports: list[int], *, after: int | None = None, query: str = "", retry: float = 0.1
    ) -> None:
        self.run_id, self.ports, self.query, self.retry = run_id, ports, query, retry
        self.last_id = f"{run_id}:{after}" if after is not None else ""
        self.ids: list[int] = []
        self.texts: list[str] = []
        self.controls: list[tuple[str, dict[str, Any]]] = []
        self.ended = False
        self.connections = 0
        self.statuses: list[int] = []
        self.head = b""
        self._writer: asyncio.StreamWriter | None = None

    def cut(self) -> None:
        """Lose the connection, as a network does."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def watch(self) -> SseViewer:
        while not self.ended:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
                await self._once()
            if not self.ended:
                await self._pause()
        return self

    async def _pause(self) -> None:
        await asyncio.sleep(self.retry)

    async def _once(self) -> None:
        port = self.ports[self.connections % len(self.ports)]
        self.connections += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        self._writer = writer
        try:
            head = f"GET /v1/runs/{self.run_id}/stream?{self.query} HTTP/1.1\r\nHost: x\r\n"
            head += "Accept: text/event-stream\r\n"
            head += f"Last-Event-ID: {self.last_id}\r\n" if self.last_id else ""
            writer.write(head.encode() + b"\r\n")
            self.head = await reader.readuntil(b"\r\n\r\n")
            status = int(self.head.split(b" ", 2)[1])
            self.statuses.append(status)
            if status == 204:
                self.ended = True
            elif status == 200:
                await self._read(reader)
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while not self.ended:
            size = int((await reader.readuntil(b"\r\n")).strip(), 16)
            data = await reader.readexactly(size + 2)
            if not size:
                return
            *frames, rest = (rest + data[:-2]).split(b"\n\n")
            for frame in frames:
                self._take(frame)

    _FRAME = re.compile(rb"(?:^|\n)(id|event|data): ([^\n]*)")

    def _take(self, frame: bytes) -> None:
        fields = dict(self._FRAME.findall(frame))
        event = fields.get(b"event", b"").decode()
        if b"id" in fields:
            self.last_id = fields[b"id"].decode()
        if event in ("reset", "gap", "end", "cursor"):
            self.controls.append((event, json.loads(fields[b"data"])))
            self.ended = self.ended or event == "end"
        elif event:
            self.ids.append(int(fields[b"id"].rsplit(b":", 1)[1]))
            if event == "message.delta":
                self.texts.append(json.loads(fields[b"data"])["text"])
