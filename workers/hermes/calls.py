"""One call of Hermes under way, whatever the mode: what the runner and the client program against.

Every mode gives the same: items in order, questions to people, a verdict. ``drive`` adds the limits of time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from broker.items import Item
from workers.hermes.settings import HermesSettings
from workers.hermes.verdict import Failure

__all__ = ["Ask", "Batch", "Drive", "HermesCall", "Told"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Hermes asks a person and waits. ``key`` is what ``HermesCall.answer`` wants back.

    ``payload`` of an approval: ``command``, ``description``; of a question: ``question``. ``choices`` are the answers
    that are allowed; with ``free`` any other text is, too. ``otherwise`` is the answer where nobody gives one.
    """

    key: str
    kind: Literal["approval", "question"]
    payload: Mapping[str, Any]
    choices: tuple[str, ...] = ()
    free: bool = False
    otherwise: str = "deny"


Batch: TypeAlias = "list[Item | Ask]"


@dataclass(slots=True)
class Told:
    """What a call told about itself so far. ``usage`` is in our meaning (see ``broker.items.Usage``), all rounds."""

    session_id: str | None = None
    model: str | None = None
    provider: str | None = None
    exit_code: int | None = None
    duration_ms: float | None = None
    usage: Mapping[str, int | None] | None = None
    priced: bool = False
    """The call emitted ``cost`` items: Hermes knows its prices."""
    finished: bool = False
    """Hermes said by itself that it is done: what it still does is cleanup, and the fence does not wait for that."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """More that belongs into the fence's metadata."""


class HermesCall(Protocol):
    """Made by the mode's ``start``, which raises ``RefusedCall`` before anything was started, ``NotStarted`` where it
    cannot be started, and ``Unavailable`` where this Hermes does not have the mode. ``aclose`` must be called."""

    mode: str

    @property
    def told(self) -> Told: ...

    async def read(self) -> Batch | None:
        """The next items and asks, in order; ``[]`` where what was read gave none; ``None`` at the end.

        Not called again while a call of it is under way. Read no faster than asked: back-pressure reaches Hermes.
        """

    def verdict(self) -> Failure | None:
        """After the end: ``None`` is a success. A stop that we asked for is not judged: the caller knows."""

    async def answer(self, key: str, answer: str) -> None:
        """Give Hermes the answer to an ``Ask``. Harmless where it no longer waits for it."""

    def stop(self) -> None:
        """Interrupt, and end by force after the grace. Harmless when repeated; ``read`` goes on to the end."""

    def kill(self) -> None:
        """End everything now."""

    @property
    def stderr(self) -> str: ...

    async def aclose(self, *, patience: float = 0.0) -> None:
        """Give it ``patience`` seconds to end by itself, then stop it; return when nothing of it is left."""


class Drive:
    """Reads a call to its end, within the limits of time. Asking a person is no silence.

    Silence is time spent waiting for Hermes: not while a person is asked (``asking``), and not while whoever takes the
    batches is busy with one.
    """

    def __init__(self, call: HermesCall, settings: HermesSettings) -> None:
        self.call, self._settings = call, settings
        self.failure: Failure | None = None
        """The limit that was passed."""
        self._started = self._heard = time.monotonic()
        self._asking = 0

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """While a person is asked. Several may be at once."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            self._heard = time.monotonic()

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Past a limit the call is stopped, and its last words still come. What ``read`` raises is raised."""
        while (batch := await self._read()) is not None:
            yield batch

    async def _read(self) -> Batch | None:
        self._heard = time.monotonic()
        reading = asyncio.ensure_future(self.call.read())
        try:
            while not reading.done():
                self._check()
                await asyncio.wait({reading}, timeout=self._left())
            return reading.result()
        finally:
            if not reading.done():
                reading.cancel()
                # Whoever cleans up reads on: two cannot read at once.
                await asyncio.gather(reading, return_exceptions=True)

    def _left(self) -> float | None:
        """Seconds until a limit may be passed. A person may answer at any time: then silence begins anew."""
        if self.failure is not None:
            return None
        now, s = time.monotonic(), self._settings
        limits = [s.timeout - (now - self._started)] if s.timeout else []
        if s.silence:
            limits.append(s.silence - (0.0 if self._asking else now - self._heard))
        return max(min(limits), 0.0) if limits else None

    def _check(self) -> None:
        if self.failure is None and (passed := self._passed()) is not None:
            self.failure = passed
            self.call.stop()

    def _passed(self) -> Failure | None:
        now, s = time.monotonic(), self._settings
        if s.timeout and now - self._started >= s.timeout:
            return Failure("hermes_timeout", f"Hermes did not end within HERMES_TIMEOUT ({s.timeout:g} s)", True)
        if s.silence and not self._asking and now - self._heard >= s.silence:
            return Failure("hermes_silent", f"Hermes said nothing for HERMES_SILENCE ({s.silence:g} s)", True)
        return None

    def verdict(self) -> Failure | None:
        """After the end: the limit that was passed, else what the call says."""
        return self.failure or self.call.verdict()
