"""The lab: the servers that rows share, runs to measure on, and the two sizes of everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from uuid import uuid4

from bench import processes
from bench.processes import Process
from broker.api import Broker
from broker.items import Final, MessageDelta
from broker.publisher import Publisher
from broker.redis import Store
from broker.requests import RunInput, RunRequest
from broker.settings import Settings

__all__ = ["TEXT", "Lab"]

TEXT = " hello wor"
"""The text of one token delta: with it a frame has about 200 bytes."""
_REQUEST = RunRequest(runner="scripted", input=RunInput(message="bench"))


class Lab:
    """``short``: small sizes, for the checks alone. ``tell``: takes a line that says what is being done."""

    def __init__(self, directory: Path, *, short: bool = False, tell: Callable[[str], None] = lambda _: None) -> None:
        self.directory, self.short, self.tell = directory, short, tell
        self.namespace = f"b{uuid4().hex[:8]}"
        self._started: list[Process] = []
        self._shared: dict[str, Process] = {}
        self._broker: Broker | None = None

    def size(self, full: int, short: int) -> int:
        return short if self.short else full

    # Servers.

    @property
    def redis(self) -> Process:
        """The Redis of our own processes."""
        return self._share("redis", lambda: processes.redis(self.directory))

    @property
    def gateway(self) -> Process:
        """A gateway with the settings that users get, but for the sweep."""
        return self._share("gateway", self.new_gateway)

    def new_gateway(self, **settings: object) -> Process:
        """None of them looks after runs of rows that are over: whoever follows one would read for that."""
        settings = {"sweep": 3600, **settings}
        return self.start(processes.gateway(self.directory, self.redis.port, self.namespace, settings))

    def fresh(self, **settings: object) -> Process:
        """A gateway that has served nobody yet; the shared one where only counts matter, which needs no start."""
        return self.gateway if self.short else self.new_gateway(**settings)

    def let_go(self, gateway: Process) -> None:
        """Stop one that is not shared."""
        if not self.short:
            gateway.stop()

    def start(self, process: Process) -> Process:
        """Have a process stopped with the lab, if it still runs then."""
        self._started.append(process)
        return process

    def _share(self, name: str, make: Callable[[], Process]) -> Process:
        if name not in self._shared:
            self._shared[name] = self.start(make())
        return self._shared[name]

    # Runs.

    async def broker(self) -> Broker:
        """This process's own broker: what a worker has."""
        if self._broker is None:
            url = f"redis://127.0.0.1:{self.redis.port}/0"
            settings = Settings(redis_url=url, namespace=self.namespace, run_max_items=1_000_000)
            self._broker = Broker(await Store.connect(url, settings), settings)
        return self._broker

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Publisher]:
        """A run that this process has claimed, and its publisher. It gets its fence at the end."""
        broker = await self.broker()
        record, _ = await broker.runs.create(_REQUEST, enqueue=False)
        claim = await broker.runs.claim(record.run_id, record.attempt, "bench")
        async with broker.publisher(claim) as publisher:
            yield publisher
            if publisher.error is None:
                await publisher.seal(Final())

    async def stored(self, items: int, text: str = TEXT) -> str:
        """The id of an ended run with so many deltas, and its fence behind them."""
        async with self.run() as publisher:
            for _ in range(items):
                await publisher.publish(MessageDelta(text=text))
            await publisher.flush()
        return publisher.run_id

    @staticmethod
    def path(run_id: str, **query: object) -> str:
        rest = "&".join(f"{name}={value}" for name, value in query.items())
        return f"/v1/runs/{run_id}/stream" + (f"?{rest}" if rest else "")

    async def __aenter__(self) -> Lab:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._broker is not None:
            await self._broker.aclose()
        for process in reversed(self._started):
            process.stop()


async def paced(rounds: int, pause: float) -> AsyncIterator[int]:
    """Rounds ``pause`` seconds apart, by the clock: a late one does not delay the rest."""
    due = time.monotonic()
    for number in range(rounds):
        yield number
        due += pause
        if (rest := due - time.monotonic()) > 0:
            await asyncio.sleep(rest)
