"""Gateways for the tests: real processes that can be drained, killed and started again on their port, and a client
that sees what is on the wire: heads, chunks, frames, to the byte."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from broker.api import Broker
from broker.items import Final, Item, MessageDelta
from broker.publisher import Publisher
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.servers import die_with_parent, free_port

__all__ = ["Frame", "GatewayProcess", "Response", "frames_of", "say", "until", "writing"]

_SERVE = "from broker.settings import Settings; from gateway.server import serve; serve(Settings(), %s)"
_ROOT = Path(__file__).parent.parent


class GatewayProcess:
    """``gateway.server.serve`` in a process. Its port stays the same however often it is started."""

    def __init__(self, settings: Settings, directory: Path, *, workers: int = 1) -> None:
        self.settings = settings
        self._options = f"workers={workers}, log_level='info'"
        self.port = free_port()
        self.log_file = directory / f"gateway-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def start(self, timeout: float = 40.0) -> GatewayProcess:
        """Start it; returns once it answers."""
        environment = {f"RUNCAST_{k.upper()}": _text(getattr(self.settings, k)) for k in self.settings.model_fields_set}
        environment |= {"RUNCAST_PORT": str(self.port), "PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"}
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE % self._options],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        end = time.monotonic() + timeout
        while not self._answers():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/healthz", timeout=10) as reply:
            return bool(reply.status == 200)
        return False

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def signal(self, number: int) -> None:
        assert self._process
        self._process.send_signal(number)

    async def ended(self, timeout: float = 40.0) -> int:
        """Its exit code, once it has one."""
        process = self._process
        assert process
        await until(lambda: process.poll() is not None, timeout)
        return process.returncode

    def kill(self) -> None:
        """SIGKILL and wait; harmless when it has ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def number(self, name: str) -> float:
        """A metric's value now, with its labels as Prometheus prints them."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=20) as reply:
            text = reply.read().decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    async def reads(self, name: str, value: float, timeout: float = 30.0) -> None:
        """Wait until a metric has this value."""
        end = time.monotonic() + timeout
        while (seen := await asyncio.to_thread(self.number, name)) != value:
            assert time.monotonic() < end, f"{name} is {seen}, not {value}"
            await asyncio.sleep(0.02)


def _text(value: Any) -> str:
    return str(value.get_secret_value() if hasattr(value, "get_secret_value") else value)


async def until(true: Callable[[], object], timeout: float = 30.0) -> None:
    """Wait for a state; ``true`` may be a coroutine function."""
    end = time.monotonic() + timeout
    while not (await found if inspect.isawaitable(found := true()) else found):
        assert time.monotonic() < end, f"not true within {timeout} s"
        await asyncio.sleep(0.005)


# Frames.

_FRAME = re.compile(
    rb"(?:id: (?P<id>[^\n]*)\n)?event: (?P<event>[^\n]+)\ndata: (?P<data>[^\n]*)\n\n"
    rb"|retry: (?P<retry>[0-9]+)\n\n|: (?P<comment>[^\n]*)\n"
)


class Frame(NamedTuple):
    """One frame as it was on the wire. ``event`` is ``retry`` or ``:`` (a comment) for those."""

    event: str
    data: Any
    id: str | None = None


def frames_of(wire: bytes, *, cut: bool = False) -> list[Frame]:
    """Bytes → frames. Fails where anything is no whole frame of the native format; ``cut``: but the last one."""
    return _scan(wire, cut)[0]


def _scan(wire: bytes, cut: bool) -> tuple[list[Frame], int]:
    """The frames, and where the last one ended."""
    frames: list[Frame] = []
    at = 0
    while at < len(wire):
        match = _FRAME.match(wire, at)
        if match is None and cut and b"\n\n" not in wire[at:]:
            break
        assert match, f"no frame at {at}: {wire[at : at + 200]!r}"
        at = match.end()
        if match["event"]:
            frame_id = match["id"].decode() if match["id"] is not None else None
            frames.append(Frame(match["event"].decode(), json.loads(match["data"]), frame_id))
        elif match["retry"]:
            frames.append(Frame("retry", int(match["retry"])))
        else:
            frames.append(Frame(":", match["comment"].decode()))
    return frames, at


class Response:
    """One request on one connection, or several after each other. ``wire`` is the body so far, framing taken off."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.status, self.version = 0, ""
        self.headers: dict[str, str] = {}
        self._body = bytearray()
        self.complete = False
        """The body came to its proper end; a connection that merely broke off leaves this False."""

    @classmethod
    async def open(cls, port: int, target: str, *, limit: int = 1 << 16, **how: Any) -> Response:
        """Connect, send the request, read the head."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
        response = cls(reader, writer)
        await response.ask(target, **how)
        return response

    async def ask(
        self,
        target: str,
        *,
        method: str = "GET",
        version: str = "1.1",
        headers: Sequence[tuple[str, str]] = (),
        behind: bytes = b"",
    ) -> Response:
        """The (next) request of this connection, then its answer's head. ``behind`` is sent in the same write."""
        lines = [f"{method} {target} HTTP/{version}", "Host: gateway", *(f"{k}: {v}" for k, v in headers)]
        self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + behind)
        await self.head(method)
        return self

    async def head(self, method: str = "GET") -> None:
        async with asyncio.timeout(30):
            raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = raw.split("\r\n")[:-2]
        self.version, status, *_ = first.split(" ", 2)
        self.status = int(status)
        self.headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        self._body, self.complete = bytearray(), method == "HEAD" or self.status in (204, 304)

    @property
    def wire(self) -> bytes:
        return bytes(self._body)

    @property
    def chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "")

    async def part(self) -> bytes:
        """The next piece of the body: one chunk, or what there is; ``b""`` at its end."""
        if self.chunked:
            size = int((await self.reader.readuntil(b"\r\n")), 16)
            part = await self.reader.readexactly(size + 2)
            assert part.endswith(b"\r\n")
            part = part[:-2]
        elif (length := self.headers.get("content-length")) is not None:
            part = await self.reader.readexactly(int(length) - len(self._body))
        else:
            part = await self.reader.read(1 << 16)
        self._body += part
        self.complete = self.complete or not part
        return part

    async def body(self, timeout: float = 30.0) -> bytes:
        """Read to the body's proper end."""
        async with asyncio.timeout(timeout):
            while not self.complete:
                await self.part()
        return self.wire

    def forget(self) -> None:
        """Drop what came of the body so far: of one of many megabytes."""
        self._body.clear()

    async def until(self, true: Callable[[list[Frame]], object], timeout: float = 30.0) -> list[Frame]:
        """Read on until what came so far satisfies ``true``. In a chunked body every chunk must be whole frames."""
        frames, at = _scan(self.wire, not self.chunked)
        async with asyncio.timeout(timeout):
            while not true(frames):
                assert not self.complete, f"it ended with {frames}"
                await self.part()
                more, size = _scan(bytes(self._body[at:]), not self.chunked)
                frames += more
                at += size
        return frames

    async def upto(self, seq: int, timeout: float = 30.0) -> list[Frame]:
        """Read on until the item or cursor of that seq has come."""
        return await self.until(lambda frames: any((f.id or "").endswith(f":{seq}") for f in frames), timeout)

    @property
    def frames(self) -> list[Frame]:
        return frames_of(self.wire)

    @property
    def seqs(self) -> list[int]:
        """The seqs of the items, in the order in which they came."""
        return [f.data["seq"] for f in self.frames if f.id is not None and f.event != "cursor"]

    @property
    def controls(self) -> list[Frame]:
        return [f for f in self.frames if f.event in ("reset", "gap", "cursor", "end", "open", "error")]

    def leave(self) -> None:
        """Drop the connection at once."""
        self.writer.transport.abort()

    async def closed(self, timeout: float = 30.0) -> bytes:
        """Wait until the other side has closed; what it still sent."""
        async with asyncio.timeout(timeout):
            return await self.reader.read()

    async def __aenter__(self) -> Response:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()


# Runs.


@asynccontextmanager
async def writing(broker: Broker, run_id: str | None = None) -> AsyncIterator[Publisher]:
    """A run that the test plays the worker of: its publisher."""
    request = RunRequest(runner="scripted", input=RunInput(message="hello"))
    record, _ = await broker.runs.create(request, run_id=run_id, enqueue=False)
    claim = await broker.runs.claim(record.run_id, record.attempt, f"owner of {record.run_id}")
    async with broker.publisher(claim) as publisher:
        yield publisher


async def say(publisher: Publisher, *items: Item | int | str, end: bool = False) -> int:
    """Publish items (a number: so many deltas; a text: one delta), and wait until they are stored: → the last seq."""
    for item in items:
        if isinstance(item, int):
            for _ in range(item):
                await publisher.publish(MessageDelta(text="x "))
        else:
            await publisher.publish(MessageDelta(text=item) if isinstance(item, str) else item)
    if end:
        await publisher.publish(Final())
    await publisher.flush()
    return publisher.last
