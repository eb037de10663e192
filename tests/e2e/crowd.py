"""A crowd: many viewers that join one busy run at any moment and anywhere, over gateways, while the store fails."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import msgspec

from broker import api
from broker.items import Final, MessageDelta
from broker.publisher import Publisher
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from tests.e2e.processes import SseViewer

__all__ = ["Crowd", "Life", "Spectator", "start_run"]

REQUEST = RunRequest(runner="x", input=RunInput(message="x"))


@dataclass
class Life:
    """What a viewer got from where it began, or was reset, to where it ended, or was reset."""

    start: int
    seqs: list[int] = field(default_factory=list)
    data: list[int] = field(default_factory=list)
    """CRCs of the items' data."""

    @property
    def last(self) -> int:
        return self.seqs[-1] if self.seqs else self.start


class Spectator(SseViewer):
    """Reads in bulk and keeps what it got as lives."""

    _event = re.compile(rb"(?:^|\n)(?:id: [^\n]*:([0-9]+)\n)?event: ([^\n]+)\ndata: ([^\n]*)\n(?=\n)")

    def __init__(self, run_id: str, ports: list[int], *, after: int) -> None:
        super().__init__(run_id, ports, after=after)
        self.lives = [Life(after)]

    async def _read(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while data := await reader.read(1 << 18):
            data = rest + data
            cut = data.rfind(b"\n\n") + 2  # a chunk of HTTP ends where a frame does
            rest, data = data[cut:], data[:cut]
            for seq, event, body in self._event.findall(data):
                if event == b"end":
                    self.ended = True
                    return
                self._take_one(seq, event, body)

    def _take_one(self, seq: bytes, event: bytes, body: bytes) -> None:
        if event == b"reset":
            self.controls.append(("reset", msgspec.json.decode(body)))
            self.lives.append(Life(0))
            self.last_id = ""
        elif event == b"cursor":
            self.last_id = f"{self.run_id}:{seq.decode()}"
        elif seq:
            life = self.lives[-1]
            life.seqs.append(int(seq))
            life.data.append(crc32(body))
            self.last_id = f"{self.run_id}:{life.last}"
        else:
            self.controls.append((event.decode(), msgspec.json.decode(body)))


async def start_run(broker: api.Broker, run_id: str | None = None) -> Publisher:
    record, _ = await broker.runs.create(REQUEST, run_id=run_id, enqueue=False)
    claim = await broker.runs.claim(record.run_id, record.attempt, "test")
    return broker.publisher(claim)


class Crowd:
    """``viewers`` that join within the run's first three quarters; ``disturb`` is called after a third of it."""

    def __init__(
        self,
        url: str,
        settings: Settings,
        ports: list[int],
        *,
        viewers: int,
        rate: int,
        seconds: float,
        spectator: type[Spectator] = Spectator,
    ) -> None:
        self.url, self.settings, self.ports, self._spectator = url, settings, ports, spectator
        self.count, self.rate, self.seconds = viewers, rate, seconds
        self.viewers: list[Spectator] = []
        self.published = 0
        self._rng = random.Random(8)

    async def play(self, disturb: Callable[[Publisher], Awaitable[Any]]) -> None:
        """The run from its first item to its fence, which is waited for by all. Then ``check`` it."""
        async with api.open(self.url, self.settings) as broker, await start_run(broker) as publisher:
            watching: list[asyncio.Task[SseViewer]] = []
            disturbing: asyncio.Task[Any] | None = None
            began = time.monotonic()
            while (now := time.monotonic() - began) < self.seconds or not (disturbing and disturbing.done()):
                await self._publish(publisher, now)
                while len(self.viewers) < min(self.count, now / (self.seconds * 0.75) * self.count):
                    watching.append(asyncio.create_task(self._join(publisher).watch()))
                if disturbing is None and now > self.seconds / 3:
                    disturbing = asyncio.ensure_future(disturb(publisher))
                await asyncio.sleep(0.005)
            await disturbing
            self.last = await publisher.seal(Final())
            async with asyncio.timeout(60):
                await asyncio.gather(*watching)
            self.epoch = publisher.epoch
            truth = self._spectator(publisher.run_id, self.ports, after=0)
            async with asyncio.timeout(60):
                await truth.watch()
            self.truth = truth.lives[0]
            self.rewound = await self._rewinds(broker, publisher.run_id)

    async def _publish(self, publisher: Publisher, now: float) -> None:
        while self.published < now * self.rate:
            self.published += 1
            await publisher.publish(MessageDelta(text=f"{self.published} "))
            if self.published % 50 == 0:
                return  # behind after an outage: viewers join all the same

    def _join(self, publisher: Publisher) -> Spectator:
        viewer = self._spectator(publisher.run_id, self._rng.sample(self.ports, len(self.ports)), after=0)
        start = self._rng.choice([0, self._rng.randint(0, publisher.last), publisher.last])
        viewer.lives[0].start, viewer.last_id = start, f"{publisher.run_id}:{start}"
        self.viewers.append(viewer)
        return viewer

    async def _rewinds(self, broker: api.Broker, run_id: str) -> list[dict[str, Any]]:
        entries = [e async for e in broker.stream(run_id) if e.type == "event"]
        return [e.fields for e in entries if e.fields["name"] == "log.rewound"]

    def check(self) -> int:
        """Every viewer has all from where it began, in order and as the log has it; or was reset once, since it had
        seen what the log lost, and has all of it from then on: → how many were reset."""
        assert len(self.viewers) == self.count
        assert self.truth.seqs == list(range(1, self.last + 1)), "the log has no hole"
        for viewer in self.viewers:
            told = (viewer.connections, viewer.controls, [(x.start, x.last, len(x.seqs)) for x in viewer.lives])
            for life in viewer.lives:
                assert life.seqs == list(range(life.start + 1, life.last + 1)), told
            final = viewer.lives[-1]
            assert final.last == self.last, told
            assert final.data == self.truth.data[final.start :], told
            assert all((name, fields["reason"]) == ("reset", "rewound") for name, fields in viewer.controls), told
            assert len(viewer.lives) <= 1 + len(self.rewound), told
        reset = [viewer for viewer in self.viewers if len(viewer.lives) > 1]
        for viewer in reset:
            lost = self.rewound[0]
            assert viewer.lives[0].last >= lost["lost_from"], "it had seen what was lost"
        return len(reset)
