"""What a run's worker does while people are asked: registers, waits, denies at the time limit, tells the viewers.

Order of one ask: it is registered in the run's record; the item ``approval.requested`` or ``question.asked`` is
emitted; it is settled, by a person or by this worker; the item ``input.answered`` follows, exactly one for each item
before it as long as the run lives.

Who wins: whoever settles it first, by the store's compare-and-set. A person's answer arrives through the run's control
stream; since that entry can be lost on its way (a failover, a control stream that nobody follows), an open ask is also
looked up now and then, and its time limit asks the store, not this process's memory.

While the store is away, nothing is lost and nothing is decided: registering and settling are tried again, for
``outage_limit`` seconds like an append.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import UNSET

from broker.asks import Asked, How, Kind
from broker.errors import (
    AlreadyAnswered,
    Fenced,
    OutageTooLong,
    RuncastError,
    RunEnded,
    RunNotFound,
    Sealed,
    StoreUnavailable,
    UnknownRequest,
)
from broker.items import Event, Item
from broker.records import OpenAsk, Settled
from broker.runs import Runs
from broker.settings import Settings
from workers import metrics

__all__ = ["Answer", "AskStore", "Asking", "StoredAsks"]

T = TypeVar("T")
Emit: TypeAlias = Callable[[Item], Awaitable[None]]
_ASKED = {"approval": "approval.requested", "question": "question.asked"}
_FIRST_BACKOFF, _LAST_BACKOFF = 0.05, 1.0
_OVER = (Fenced, Sealed, RunNotFound, RunEnded, AlreadyAnswered, OutageTooLong)
"""What the store says where this attempt may write nothing more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``how``: ``answered``, ``by`` a person (a principal, or empty where nobody has to say who he is); ``expired``:
    nobody did in time; ``stopped``: the run stops. Then ``value`` is what was to be taken otherwise."""

    value: str
    how: How
    by: str = ""


@dataclass(eq=False)
class _Ask:
    kind: Kind
    payload: Mapping[str, Any]
    choices: Sequence[str]
    free: bool
    timeout: float
    otherwise: str
    source_id: str | None = None
    said: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its item was emitted, or never will be."""
    request_id: str = field(default_factory=lambda: f"ask_{secrets.token_hex(8)}")
    deadline: float = 0.0
    answer: Answer | None = None
    """What the control stream brought."""
    withdrawn: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()


class _Stopped(Exception):
    """The run stops before the store took an ask."""


class AskStore(Protocol):
    """What asking needs of the store, for one attempt of one run. Every method raises ``StoreUnavailable``."""

    async def register(self, ask: _Ask, timeout: float) -> Asked:
        """Repeatable. Raises ``Fenced``, ``Sealed``, ``RunNotFound``, ``TooManyAsks``, ``InvalidItem``."""

    async def settle(self, request_id: str, answer: str, how: How) -> Settled:
        """Raises ``UnknownRequest``, ``RunNotFound``, ``RunEnded``, ``AlreadyAnswered`` (void)."""

    async def look(self, request_id: str) -> OpenAsk | Settled | None: ...


class StoredAsks:
    """``AskStore`` over the broker's runs. ``epoch`` is the publisher's, which may change."""

    def __init__(self, runs: Runs, run_id: str, owner: str, epoch: Callable[[], int]) -> None:
        self._runs, self._run_id, self._owner, self._epoch = runs, run_id, owner, epoch

    async def register(self, ask: _Ask, timeout: float) -> Asked:
        try:
            return await self._runs.asks.ask(
                self._run_id,
                self._owner,
                self._epoch(),
                ask.request_id,
                kind=ask.kind,
                payload=ask.payload,
                choices=ask.choices,
                free=ask.free,
                timeout=timeout,
            )
        except Fenced as error:
            record = await self._runs.get(self._run_id)
            if record.owner == self._owner and not record.is_ended:
                # The store lost items, and the publisher is just changing the epoch.
                raise StoreUnavailable("the run's epoch is changing") from error
            raise

    async def settle(self, request_id: str, answer: str, how: How) -> Settled:
        return await self._runs.asks.settle(self._run_id, request_id, answer, how=how)

    async def look(self, request_id: str) -> OpenAsk | Settled | None:
        return await self._runs.asks.look(self._run_id, request_id)


class Asking:
    """The open asks of one attempt. ``broke`` is called with what ends the run: another owner, too long an outage."""

    def __init__(
        self, store: AskStore, settings: Settings, *, emit: Emit, broke: Callable[[RuncastError], None]
    ) -> None:
        self._store, self._settings, self._emit, self._broke = store, settings, emit, broke
        self._open: dict[str, _Ask] = {}
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._stopped = False

    async def ask(
        self,
        kind: Kind,
        payload: Mapping[str, Any],
        *,
        choices: Sequence[str],
        free: bool,
        timeout: float | None,
        otherwise: str,
        source_id: str | None = None,
        said: asyncio.Event | None = None,
    ) -> Answer:
        """See ``RunContext.ask``."""
        said = said or asyncio.Event()
        if self._stopped:
            said.set()
            return Answer(otherwise, "stopped")
        seconds = self._settings.input_timeout if timeout is None else timeout
        ask = _Ask(kind, dict(payload), tuple(dict.fromkeys(choices)), free, seconds, otherwise, source_id, said)
        # A task of its own: a runner that gives up waiting must not leave an ask open behind it.
        task = asyncio.create_task(self._run(ask), name=f"ask {ask.request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            ask.withdrawn = True
            ask.changed.set()
            raise

    def delivered(self, request_id: str, answer: Answer) -> None:
        """The control stream brought an answer. Of an ask that is not open here (an earlier attempt's): nothing."""
        ask = self._open.get(request_id)
        if ask is not None and ask.answer is None:
            ask.answer = answer
            ask.changed.set()

    def stop(self) -> None:
        """The run stops: what is open is settled as ``stopped``, unless a person came first."""
        self._stopped = True
        for ask in self._open.values():
            ask.changed.set()

    async def close(self) -> None:
        """``stop``, and return when everything is settled and said: the fence may follow then."""
        self.stop()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def abandon(self) -> None:
        """Give up what is open: the run is not ours any more, or its fence is written."""
        self._stopped = True
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Answer]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its runner may have gone: then nobody else takes notice

    # One ask.

    async def _run(self, ask: _Ask) -> Answer:
        self._open[ask.request_id] = ask  # first: its answer may be here before the store's reply is
        metrics.INPUT_OPEN.inc()
        try:
            return await self._from_first_to_last(ask)
        except _OVER as error:
            gone = error if isinstance(error, (Fenced, Sealed, OutageTooLong)) else Fenced(str(error))
            self._broke(gone)
            raise gone from error
        finally:
            ask.said.set()
            metrics.INPUT_OPEN.dec()
            del self._open[ask.request_id]

    async def _from_first_to_last(self, ask: _Ask) -> Answer:
        try:
            asked = await self._persist(lambda: self._store.register(ask, ask.timeout), unless_stopped=True)
        except _Stopped:
            return Answer(ask.otherwise, "stopped")
        if self._stopped or ask.withdrawn:
            return await self._settle(ask, "stopped")  # before anybody saw it
        ask.deadline = time.monotonic() + ask.timeout
        metrics.INPUT_ASKED.labels(ask.kind).inc()
        await self._emit(_asked_item(ask, asked))
        ask.said.set()
        answer = await self._answer(ask)
        metrics.INPUT_SETTLED.labels(ask.kind, answer.how).inc()
        metrics.INPUT_WAIT.labels(ask.kind, answer.how).observe(max(time.monotonic() - ask.deadline + ask.timeout, 0.0))
        said = {"request_id": ask.request_id, "kind": ask.kind, "answer": answer.value, "how": answer.how}
        await self._emit(Event(name="input.answered", payload=said))
        return answer

    async def _answer(self, ask: _Ask) -> Answer:
        while ask.answer is None:
            if self._stopped or ask.withdrawn:
                return await self._settle(ask, "stopped")
            if ask.left <= 0:
                return await self._settle(ask, "expired")
            if not await _within(ask.changed, min(ask.left, self._settings.beat)):
                await self._look(ask)
        return ask.answer

    async def _settle(self, ask: _Ask, how: How) -> Answer:
        while True:
            try:
                settled = await self._persist(lambda: self._store.settle(ask.request_id, ask.otherwise, how))
            except UnknownRequest:  # lost by a failover, before anybody answered it
                await self._register_again(ask)
            else:
                return _answer_of(settled)

    async def _look(self, ask: _Ask) -> None:
        try:
            found = await self._store.look(ask.request_id)
            if found is None:
                await self._store.register(ask, max(ask.left, 1.0))
        except StoreUnavailable:
            return  # looked for again; at the time limit it is tried until the store is back
        if isinstance(found, Settled) and ask.answer is None:
            ask.answer = _answer_of(found)

    async def _register_again(self, ask: _Ask) -> None:
        await self._persist(lambda: self._store.register(ask, max(ask.left, 1.0)))

    async def _persist(self, step: Callable[[], Awaitable[T]], *, unless_stopped: bool = False) -> T:
        """``step``, until the store answers. Raises ``OutageTooLong``, and what ``step`` raises."""
        since, pause = time.monotonic(), _FIRST_BACKOFF
        while True:
            try:
                return await step()
            except StoreUnavailable as error:
                if time.monotonic() - since >= self._settings.outage_limit:
                    message = "the store has been away for longer than RUNCAST_OUTAGE_LIMIT: nobody can be asked"
                    raise OutageTooLong(message) from error
            if unless_stopped and self._stopped:
                raise _Stopped
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LAST_BACKOFF)


def _asked_item(ask: _Ask, asked: Asked) -> Event:
    ours = {
        "request_id": ask.request_id,
        "choices": list(ask.choices),
        "free": ask.free,
        "timeout_s": ask.timeout,
        "expires_at": asked.expires_at,
    }
    source_id = UNSET if ask.source_id is None else ask.source_id
    return Event(name=_ASKED[ask.kind], payload={**ask.payload, **ours}, source_id=source_id)


def _answer_of(settled: Settled) -> Answer:
    return Answer(settled.answer, settled.how, settled.by)  # type: ignore[arg-type]  # the script knows these three


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, for so long at most; whether it came. It is cleared."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
