"""Follow one run in the terminal until its fence, or until Ctrl-C says what to do instead."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from broker.api import Broker, StreamEntry
from broker.errors import RuncastError
from broker.items import STATUS_OF_FENCE, Entry, Mode
from ops.render import Renderer, Shown

__all__ = ["Follower", "Interrupts", "Line", "hint_after", "line_of_entry"]


@dataclass(frozen=True, slots=True)
class Line:
    """One entry, decoded, as renderers take it."""

    seq: int
    type: str
    fields: dict[str, Any]


def line_of_entry(entry: Entry) -> Line:
    return Line(entry.seq, entry.type.decode(), msgspec.json.decode(entry.data))


class Interrupts:
    """SIGINT (and SIGTERM where asked) as something to wait for, instead of an exception in the middle of anything.

    Use as a context manager inside a running loop; afterwards signals mean again what they meant before.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self._signals = signals or (signal.SIGINT,)
        self._arrived: asyncio.Queue[signal.Signals] = asyncio.Queue()

    def __enter__(self) -> Interrupts:
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.add_signal_handler(number, self._arrived.put_nowait, number)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.remove_signal_handler(number)

    async def wait(self) -> signal.Signals:
        """The next signal; several that arrived are answered one by one."""
        return await self._arrived.get()

    async def race(self, work: Awaitable[Any]) -> signal.Signals | None:
        """Wait for ``work`` or the next signal. ``None``: the work is done, and its error raised if it had one.

        A signal leaves ``work`` (a task) running: the caller decides.
        """
        task, arrival = asyncio.ensure_future(work), asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait({task, arrival}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
                return None
            return arrival.result()
        finally:
            if not arrival.done():
                arrival.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({arrival})


class Follower:
    """Feeds one run's entries to a renderer, then to ``seen``. ``last``: the last seq that was shown or passed over."""

    def __init__(
        self,
        broker: Broker,
        run_id: str,
        renderer: Renderer,
        *,
        modes: Mode | None = None,
        seen: Callable[[Shown], None] | None = None,
    ) -> None:
        self._broker, self._run_id, self._renderer, self._seen = broker, run_id, renderer, seen
        self._modes = modes or Mode.EVENTS
        self.last = 0
        self.status: str | None = None

    async def follow(self, *, after: int | str | None = None, compact: bool = False) -> str:
        """Show everything after ``after`` until the fence. Returns the run's status. Raises ``RunNotFound``."""
        entries = self._broker.stream(self._run_id, modes=self._modes, after=after, compact=compact)
        async with _closing(entries):
            async for entry in entries:
                self._show(entry)
        if self.status is None:
            await self._show_outcome()
        return self.status or "failed"

    def _show(self, entry: Shown) -> None:
        self.last = max(self.last, entry.seq)
        self._renderer.feed(entry)
        if self._seen is not None:
            self._seen(entry)
        self.status = STATUS_OF_FENCE.get(entry.type, self.status)

    async def _show_outcome(self) -> None:
        """The stream ended without a fence: retention took the items, or the viewer held them all. The record knows."""
        record = await self._broker.runs.get(self._run_id)
        if record.outcome:
            self._show(Line(int(record.outcome["seq"]), str(record.outcome["type"]), dict(record.outcome["item"])))
        self.status = record.status

    def close(self) -> None:
        self._renderer.close(self.status)


@contextlib.asynccontextmanager
async def _closing(entries: AsyncIterator[StreamEntry]) -> AsyncIterator[None]:
    """End the generator now, not when it is collected."""
    try:
        yield
    finally:
        close = getattr(entries, "aclose", None)
        if close is not None:
            await close()


@contextlib.contextmanager
def hint_after(delay: float, say: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Run ``say`` if the block takes longer than ``delay`` seconds. What goes wrong in it is nobody's business."""

    async def later() -> None:
        await asyncio.sleep(delay)
        with contextlib.suppress(RuncastError):
            await say()

    task = asyncio.ensure_future(later())
    try:
        yield
    finally:
        task.cancel()
