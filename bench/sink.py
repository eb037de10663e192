"""Viewers: many connections in one process of their own, which count what comes and check its order.

``python -m bench.sink`` reads one line of JSON (``Spec``), prints ``ready`` once every connection has its response
head, and at the end, or when its input closes, one line of JSON (``Seen``). ``Sink`` is the bench's side of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Seen", "Sink", "Spec"]

_ITEM = re.compile(rb"id: [^\n]*:(\d+)\nevent: (?!cursor)")
_TS = b'"ts":'


@dataclass
class Spec:
    """``paths``: one connection each. ``frames``: what each of them waits for; ``None``: for the end of its stream.

    ``checked``: of so many connections (default: all) every frame is looked at, and the order of the seqs in their
    ids. Of the others frames are only counted: a sink that cannot keep up changes what sending costs.
    ``after``: the seq after which the frames begin. ``mark``: what each frame of an item has, and no control frame.
    ``nice``: how much the process of this sink stands back behind others.
    """

    port: int
    paths: Sequence[str]
    frames: int | None
    checked: int = 1 << 30
    after: int = 0
    timeout: float = 60.0
    headers: Sequence[str] = ()
    mark: str = "id: "
    nice: int = 0


@dataclass
class Seen:
    frames: int = 0
    bytes: int = 0
    """Of bodies, with the framing of HTTP."""
    complete: int = 0
    """Connections that got everything that they waited for."""
    disorder: int = 0
    """Times that a seq did not follow the one before it."""
    latencies: list[float] = field(default_factory=list)
    """Seconds from an item's ``ts`` to its arrival, of the newest item of each read; sorted."""

    def quantile(self, q: float) -> float:
        return self.latencies[min(int(len(self.latencies) * q), len(self.latencies) - 1)] if self.latencies else 0.0


class _Viewer:
    __slots__ = ("checked", "done", "frames", "headed", "rest", "seq", "sock")

    def __init__(self, sock: socket.socket, after: int, checked: bool) -> None:
        self.sock, self.seq, self.checked = sock, after, checked
        self.rest = b""
        self.frames = 0
        self.headed = self.done = False


class _Eyes:
    """All viewers of one sink."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.seen = spec, Seen()
        self.mark = spec.mark.encode()
        self.poll = select.epoll()
        self.viewers: dict[int, _Viewer] = {}
        self.waiting = 0

    def open(self) -> None:
        lines = "".join(f"{line}\r\n" for line in self.spec.headers)
        for path in self.spec.paths:
            sock = socket.create_connection(("127.0.0.1", self.spec.port))
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: bench\r\nAccept: text/event-stream\r\n{lines}\r\n".encode())
            sock.setblocking(False)
            self.viewers[sock.fileno()] = _Viewer(sock, self.spec.after, len(self.viewers) < self.spec.checked)
            self.poll.register(sock.fileno(), select.EPOLLIN)
        self.waiting = len(self.viewers)
        end = time.monotonic() + self.spec.timeout
        while not all(v.headed for v in self.viewers.values()) and time.monotonic() < end:
            self.look(0.05)

    def watch(self) -> None:
        end = time.monotonic() + self.spec.timeout
        self.poll.register(0, select.EPOLLIN)
        while self.waiting and time.monotonic() < end and self.look(1.0):
            pass

    def look(self, timeout: float) -> bool:
        """One round of reads. False: the bench wants the result now."""
        for fd, _ in self.poll.poll(timeout):
            if fd == 0:
                return False
            viewer = self.viewers[fd]
            try:
                received = viewer.sock.recv(1 << 18)
            except BlockingIOError:
                continue
            except ConnectionError:
                received = b""
            if received:
                self.take(viewer, received)
            else:
                self.poll.unregister(fd)
                self.finish(viewer)
        return True

    def take(self, viewer: _Viewer, received: bytes) -> None:
        seen = viewer.rest + received
        if not viewer.headed:
            _, blank, body = seen.partition(b"\r\n\r\n")
            if not blank:
                viewer.rest = seen
                return
            viewer.headed, seen, received = True, body, body
        self.seen.bytes += len(received)
        if viewer.checked or self.spec.frames is None:
            self.check(viewer, seen)
        else:
            viewer.rest = seen[-len(self.mark) + 1 :]
            self.add(viewer, seen.count(self.mark))

    def check(self, viewer: _Viewer, seen: bytes) -> None:
        cut = seen.rfind(b"\n\n") + 2
        if cut < 2:
            viewer.rest = seen
            return
        whole, viewer.rest = seen[:cut], seen[cut:]
        seqs = [int(seq) for seq in _ITEM.findall(whole)]
        if seqs:
            if seqs != list(range(viewer.seq + 1, viewer.seq + 1 + len(seqs))):
                self.seen.disorder += 1
            viewer.seq = seqs[-1]
            at = whole.rfind(_TS) + len(_TS)
            self.seen.latencies.append(time.time() - float(whole[at : at + 22].partition(b",")[0]))
        self.add(viewer, len(seqs), whole[-512:])

    def add(self, viewer: _Viewer, count: int, tail: bytes = b"") -> None:
        viewer.frames += count
        self.seen.frames += count
        wanted = self.spec.frames
        if viewer.frames >= wanted if wanted is not None else b"event: end\n" in tail:
            self.finish(viewer, complete=True)

    def finish(self, viewer: _Viewer, *, complete: bool = False) -> None:
        if not viewer.done:
            viewer.done = True
            self.waiting -= 1
            self.seen.complete += complete


def main() -> None:
    told = open(0, "rb", buffering=0, closefd=False)  # unbuffered, so that epoll sees every line  # noqa: SIM115
    eyes = _Eyes(Spec(**json.loads(told.readline())))
    os.nice(eyes.spec.nice)
    eyes.open()
    print("ready", flush=True)
    eyes.watch()
    eyes.seen.latencies.sort()
    print(json.dumps(asdict(eyes.seen)), flush=True)
    told.readline()  # hold the connections until the bench has counted


class Sink:
    """A sink process: ``async with Sink(spec) as sink`` returns once all viewers are connected."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Sink:
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-m", "bench.sink"]
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 26)
        await self._tell(json.dumps(asdict(self._spec)))
        line = await self._line()
        if line != b"ready\n":
            raise RuntimeError(f"the sink could not connect: {line!r}")
        return self

    async def seen(self, *, now: bool = False) -> Seen:
        """What was seen, once all have everything or the time is over; ``now``: so far."""
        if now:
            await self._tell("")
        return Seen(**json.loads(await self._line()))

    async def __aexit__(self, *_: object) -> None:
        assert self._process
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _tell(self, line: str) -> None:
        assert self._process
        assert self._process.stdin
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    async def _line(self) -> Any:
        assert self._process
        assert self._process.stdout
        return await self._process.stdout.readline()


if __name__ == "__main__":
    main()
