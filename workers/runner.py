"""What makes a run: the ``Runner`` protocol, what a runner is given, and how runners are found.

Somebody else's agent becomes a runner by an entry point in the group ``runcast.runners``::

    [project.entry-points."runcast.runners"]
    mine = "my_package:MyRunner"

The entry point names a class or a function without arguments that gives the runner; it is called once a worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import UNSET

from broker import tracing
from broker.asks import Kind
from broker.errors import Fenced, InvalidItem, RuncastError, Sealed, StoreUnavailable
from broker.items import FENCES, Cancelled, Failed, Final, Item, Raw, encode
from broker.requests import RunRequest
from broker.settings import Settings
from broker.steps import Steps
from workers.asking import Answer, Asking, AskStore
from workers.mirror import Mirror, mirrored
from workers.rounds import Rounds
from workers.tool_args import ToolArgs

__all__ = ["GROUP", "Answer", "Outcome", "RunContext", "Runner", "RunnerFailed", "load_runners"]

GROUP = "runcast.runners"
log = logging.getLogger("runcast.worker")
_FENCE_MARGIN = 256
"""Bytes of a fence beside its fields: its type, its time, the name of a field."""

Outcome: TypeAlias = Final | Failed | Cancelled
"""How a run ended. What is left empty (message, rounds, usage, cost, partial) the worker fills in."""


class RunnerFailed(Exception):
    """Raise it to end the run with ``failed``; what was emitted so far is kept as ``partial``."""

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code, self.message, self.retryable = code, message, retryable


@runtime_checkable
class Runner(Protocol):
    """Makes runs, several at once.

    ``run`` emits items through the context and returns the outcome. Only a returned ``Final`` is a success: returning
    anything else, returning nothing, or raising is a failure. It must watch ``context.stop`` and return soon after it
    is set; ``stop_grace`` (optional, seconds, 10) later it is cancelled. The fence is written as soon as ``run`` has
    returned, or at the end of that grace, so what takes time and makes no item belongs into ``context.defer``.

    ``mirrors`` (optional, False): it relays runs of another service, see ``workers.mirror``; ``names_sources``
    (optional, True) belongs to it. ``hands_back`` (optional, False): a worker that stops does not end its runs, they go
    on elsewhere as their next attempt.

    ``uses_workspace`` (optional, False): it works in ``context.workspace``. ``takes_artifacts`` (optional, False): it
    works elsewhere, and still knows what to do with the artifacts of a request. See ``workers.files``.

    ``aclose`` (optional, a coroutine) is called once, when the worker ends, after the last run.
    """

    name: str

    async def run(self, context: RunContext) -> Outcome: ...


class RunContext:
    """One attempt of one run, as its runner sees it."""

    def __init__(
        self,
        *,
        run_id: str,
        attempt: int,
        request: RunRequest,
        session_id: str | None,
        settings: Settings,
        publish: Callable[[Item | Raw], Awaitable[None]],
        asks: AskStore | None = None,
        mirror: Mirror | None = None,
    ) -> None:
        self.run_id, self.attempt, self.request = run_id, attempt, request
        self.session_id, self.settings = session_id, settings
        self.stop = asyncio.Event()
        """Set: come to an end. ``stop_reason`` says why."""
        self.stop_reason: str | None = None
        self.hurry = False
        """The worker does not wait: end what is left without grace."""
        self.hermes_session_id: str | None = None
        """The session of Hermes that this run is in, once its runner knows: it stands in the fence."""
        self.resumes: str | None = None
        """The session of Hermes in which the run's session is, as it stood when the run began: to be gone on with."""
        self.workspace: Path | None = None
        """Of a runner that ``uses_workspace``: the directory that the run is to work in, its artifacts in it."""
        self.mirror = mirror
        """Of a runner that ``mirrors``: where it stood, and how to keep where it stands."""
        self.broken: RuncastError | None = None
        """Why nothing can be published any more, once that is so."""
        self._publish = publish
        self._asking = None if asks is None else Asking(asks, settings, emit=self.emit, broke=self.break_off)
        self._rounds = Rounds()
        self._steps = Steps(self._rounds.merger)
        self._args = ToolArgs()
        self._deferred: list[Callable[[], Awaitable[None]]] = []

    async def emit(self, item: Item | Raw) -> None:
        """Publish an item. Waits while the store is slower than the runner: back-pressure.

        A delta of a later round first closes the one before with its ``message`` item. A ``message`` that is not the
        merge of its round's items is preceded by ``event merge.mismatch``. Cancelled while it waits, the item was not
        taken. Raises ``InvalidItem``, and what ends the run: ``Fenced``, ``Sealed``, ``OutageTooLong``.
        """
        type_ = item.type if isinstance(item, Raw) else str(type(item).__struct_config__.tag)
        if type_ in FENCES:
            raise InvalidItem(f"a runner returns its outcome, it does not emit {type_!r}")
        round_ = _round_of(item, type_)
        if round_ is not None and round_ > self._rounds.current:
            await self._close_round(interim=True)
            self._rounds.current = round_
        if type_ == "message":
            for event in self._rounds.mismatch(item):
                await self._put(event)
        await self._put(item)

    async def end_round(self) -> None:
        """Emit the merged ``message`` of the round under way, if it has content and was not closed yet."""
        await self._close_round()

    async def _close_round(self, *, interim: bool = False) -> None:
        for message in self._rounds.closing():
            await self._put(msgspec.structs.replace(message, interim=True) if interim else message)

    async def ask(
        self,
        kind: Kind,
        payload: Mapping[str, Any],
        *,
        choices: Sequence[str] = (),
        free: bool = False,
        timeout: float | None = None,
        otherwise: str,
        source_id: str | None = None,
        said: asyncio.Event | None = None,
    ) -> Answer:
        """Ask a person, and wait for the answer. Several may be open at once.

        ``payload`` is what he is to see: of an approval ``command`` and ``description``, of a question ``question``.
        ``choices`` are answers that are allowed; with ``free`` any other text is, too. Where nobody answers within
        ``timeout`` seconds (``None``: ``settings.input_timeout``), or the run is to stop, it is ``otherwise``.

        Items: ``approval.requested`` or ``question.asked`` (with ``source_id``, if given; ``said`` is set as soon as it
        was emitted, or cannot be any more), then ``input.answered``. Cancelled, the ask is closed, and
        that item follows. While the store is away it waits. Raises ``InvalidItem`` (nobody could answer that),
        ``TooManyAsks``, and what ends the run, as ``emit`` does.
        """
        if self._asking is None:
            raise RunnerFailed("input_unavailable", "nobody can be asked here: this run has no store")
        if self.broken is not None:
            raise self.broken
        with tracing.span("run.ask", runcast__kind=kind) as span:
            answer = await self._asking.ask(
                kind,
                payload,
                choices=choices,
                free=free,
                timeout=timeout,
                otherwise=otherwise,
                source_id=source_id,
                said=said,
            )
            span.set(runcast__how=answer.how)
            return answer

    def defer(self, cleanup: Callable[[], Awaitable[None]]) -> None:
        """Have ``cleanup`` awaited after the fence was written, whichever it was. The last deferred comes first."""
        self._deferred.append(cleanup)

    # For the worker.

    def request_stop(self, reason: str) -> None:
        """The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
        self.stop.set()
        if self._asking is not None:
            self._asking.stop()

    def break_off(self, error: RuncastError) -> None:
        """Nothing may be published any more: every ``emit`` raises ``error`` from now on."""
        self.broken = self.broken or error
        self.request_stop(error.code)

    def answered(self, request_id: str, answer: Answer) -> None:
        """A person answered what the runner asked."""
        if self._asking is not None:
            self._asking.delivered(request_id, answer)

    async def close_asks(self) -> None:
        """Settle what is still asked, and say so: the fence follows. Returns when the store has answered."""
        if self._asking is not None:
            await self._asking.close()

    async def end(self, outcome: Final) -> None:
        """Close the last round, and say where the runner's message differs from its items. Before the fence."""
        for item in self._rounds.ending(outcome):
            await self._put(item)

    def complete(self, outcome: Outcome) -> Outcome:
        """The outcome with what the runner left empty."""
        merged = self._rounds.merger
        seen: dict[str, Any] = {"hermes_session_id": self.hermes_session_id, "usage": merged.usage, "cost": merged.cost}
        if isinstance(outcome, Final):
            seen |= {"message": merged.message(), "rounds": merged.rounds}
        else:
            seen["partial"] = merged.partial()
        missing = {name: value for name, value in seen.items() if not getattr(outcome, name)}
        completed: Outcome = msgspec.structs.replace(outcome, **missing)
        return self._with_steps(self._placed(completed))  # type: ignore[arg-type]  # it stays what it is

    def _with_steps(self, outcome: Outcome) -> Outcome:
        """In what room the rest leaves: the outcome itself is never cut for their sake."""
        try:
            if outcome.steps is not UNSET or not (steps := self._steps.told()):
                return outcome
            room = self.settings.item_max_bytes - len(encode(outcome).data) - _FENCE_MARGIN
            if len(msgspec.json.encode(steps)) > room:
                steps = self._steps.told(room)
        except (InvalidItem, TypeError, ValueError, RecursionError) as error:
            log.warning("run %s: its fence goes without its steps: %s", self.run_id, error)
            return outcome
        return msgspec.structs.replace(outcome, steps=steps) if steps else outcome

    async def clean_up(self) -> None:
        if self._asking is not None:
            await self._asking.abandon()
        while self._deferred:
            try:
                await self._deferred.pop()()
            except Exception:
                log.exception("cleaning up after run %s failed", self.run_id)

    def recall(self, items: Iterable[Item | Raw]) -> None:
        """What earlier attempts of a relayed run emitted: it counts on."""
        for item in items:
            self._told(item)
        self._rounds.current = max(self._rounds.current, self._rounds.merger.rounds)

    # Inside.

    def _placed(self, item: Item | Raw) -> Item | Raw:
        """An item of a run that does a part of another one says of which, and which part."""
        parent, component = self.request.parent_run_id, self.request.component
        if parent is None:
            return item
        if isinstance(item, Raw):
            return Raw(item.type, {"parent_run_id": parent, **item.fields})
        placed: dict[str, str] = {"parent_run_id": parent} if item.parent_run_id is UNSET else {}
        if component is not None and item.component_id == "agent":
            placed["component_id"] = component
        return msgspec.structs.replace(item, **placed)

    async def _put(self, item: Item | Raw) -> None:
        if self.broken is not None:
            raise self.broken
        item = self._placed(self._args.told(item))
        if self.mirror is not None and self.mirror.names_sources and not mirrored(item):
            item = _without_source(item)
        try:
            await self._publish(item)
        except (Fenced, Sealed, StoreUnavailable) as error:
            self.break_off(error)
            raise
        self._told(item)

    def _told(self, item: Item | Raw) -> None:
        self._rounds.add(item)
        self._steps.add(item, time.time())


_ROUNDED = frozenset({"message.delta", "reasoning.delta", "refusal.delta", "annotation", "tool_call.delta", "message"})


def _without_source(item: Item | Raw) -> Item | Raw:
    if isinstance(item, Raw):
        return Raw(item.type, {**item.fields, "source_id": None})
    return msgspec.structs.replace(item, source_id=None)


def _round_of(item: Item | Raw, type_: str) -> int | None:
    if type_ not in _ROUNDED:
        return None
    round_ = item.fields.get("round", 1) if isinstance(item, Raw) else getattr(item, "round", 1)
    return round_ if isinstance(round_, int) else None


def load_runners() -> dict[str, Runner]:
    """All runners that are installed, by name. Runs for one that cannot be loaded fail, and say why."""
    runners: dict[str, Runner] = {}
    for point in entry_points(group=GROUP):
        try:
            runners[point.name] = point.load()()
        except Exception as error:
            log.exception("the runner %r (%s) cannot be loaded", point.name, point.value)
            runners[point.name] = _Unloadable(point.name, error)
    return runners


class _Unloadable:
    """Stands in for an installed runner that could not be made: settings that are wrong, say."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name, self._error = name, error

    async def run(self, context: RunContext) -> Outcome:
        raise RunnerFailed("runner_unavailable", f"the runner {self.name!r} cannot be loaded here: {self._error}")
