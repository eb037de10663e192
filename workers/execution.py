"""One claimed run, from its claim to its cleanup.

Guarantees:

- Exactly one outcome is tried: the fence is written once, before any cleanup; what the runner returned counts unless a
  stop was asked for before.
- After ``Fenced`` nothing is written any more, and the runner is stopped.
- Whatever the runner does (ends without an outcome, raises, hangs after a stop, cancels itself), the run gets a fence,
  unless the store stays away longer than ``RUNCAST_OUTAGE_LIMIT``; then a sweep ends it as ``worker_lost``.

Who wins: a stop that was asked for before the runner returned (cancel, deadline, worker's end; the first of them) beats
what the runner returns. Taken over beats all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from broker import tracing
from broker.errors import Fenced, OutageTooLong, RuncastError, Sealed, StoreUnavailable
from broker.items import Cancelled, Event, Failed, Final, Item, Raw
from broker.logs import bound
from broker.records import Beat, RunRecord
from broker.requests import RunInput, RunRequest
from workers import metrics
from workers.asking import Answer, StoredAsks
from workers.files import Files
from workers.mirror import Mirror
from workers.observing import Observation
from workers.runner import Outcome, RunContext, Runner, RunnerFailed

if TYPE_CHECKING:
    from broker.api import Broker
    from broker.publisher import Publisher
    from broker.tail import RawEntries, Subscription

__all__ = ["Execution"]

log = logging.getLogger("runcast.worker")
_STOP_GRACE = 10.0
_CANCEL_PATIENCE = 5.0
_HURRY_PATIENCE = 3.0
"""How long a fence may take where the worker was told to end at once."""
_MESSAGE_MAX = 4_000
_RETRY = 0.5
_HAND_BACK_TRIES = 5


class _HandedBack(Fenced):
    """By this worker itself: nothing went wrong."""


class _Input(msgspec.Struct):
    """``d`` of the control entry ``input``, see answer.lua."""

    request_id: str
    answer: str
    by: str = ""


_input_decoder = msgspec.json.Decoder(_Input)


class Execution:
    """Created with the record that the claim answered; ``run`` does everything and raises nothing but cancellation."""

    def __init__(
        self,
        broker: Broker,
        record: RunRecord,
        runner: Runner | None,
        *,
        worker: str,
        known: Sequence[str],
        files: Files | None = None,
    ) -> None:
        self._broker, self._record, self._runner = broker, record, runner
        self._worker, self._known = worker, known
        self._files = files or Files(broker.settings, broker.artifacts)
        self._unreadable = ""
        self.run_id, self.owner, self.attempt = record.run_id, record.owner, record.attempt
        self.publisher: Publisher = broker.publisher(record)
        self.observation = Observation(record, installed=runner is not None)
        self.context = RunContext(
            run_id=record.run_id,
            attempt=record.attempt,
            request=self._parse(record),
            session_id=record.session_id,
            settings=broker.settings,
            publish=self._publish,
            asks=StoredAsks(broker.runs, record.run_id, record.owner, lambda: self.publisher.epoch),
            mirror=self._mirror(broker, record) if getattr(runner, "mirrors", False) else None,
        )
        self._control: Subscription | None = None
        self._task: asyncio.Task[Outcome] | None = None
        self._hurry = asyncio.Event()
        self._unheard: float | None = None
        self.done = False
        """The outcome is stored, or cannot be: beats are of no use."""

    def _parse(self, record: RunRecord) -> RunRequest:
        try:
            return msgspec.convert(record.request, RunRequest)
        except msgspec.ValidationError as error:
            # Made by another version. It cannot run here, and still has to get its fence.
            self._unreadable = str(error)
            return RunRequest(runner=self.runner_name, input=RunInput(message=""))

    def _mirror(self, broker: Broker, record: RunRecord) -> Mirror:
        return Mirror(
            broker.runs,
            broker.log,
            record,
            broker.settings,
            flush=lambda: self.publisher.flush(),  # not bound: there may be another publisher by then
            epoch=lambda: self.publisher.epoch,
            broke=lambda error: self.context.break_off(error),
            names_sources=bool(getattr(self._runner, "names_sources", True)),
        )

    @property
    def _stop_grace(self) -> float:
        return float(getattr(self._runner, "stop_grace", _STOP_GRACE))

    @property
    def runner_name(self) -> str:
        return self._record.runner

    # What others tell it.

    def stop(self, reason: str, *, now: bool = False) -> None:
        """``cancelled`` or ``worker_stopped``. ``now``: write the fence without waiting for the runner."""
        self.context.request_stop(reason)
        if now:
            self.context.hurry = True
            self._hurry.set()

    def heard(self, beat: Beat) -> None:
        """A beat was answered."""
        self._unheard = None
        self.publisher.observe(beat)
        if beat.cancel_requested:
            self.stop("cancelled")

    def unheard(self) -> None:
        """A beat was not answered. A runner that has nothing to publish learns of a long outage only here."""
        now = time.monotonic()
        self._unheard = self._unheard or now
        if now - self._unheard > self._broker.settings.outage_limit:
            message = "the store has not answered a beat for longer than RUNCAST_OUTAGE_LIMIT"
            self.context.break_off(OutageTooLong(message))

    def fenced(self, error: RuncastError) -> None:
        """The run is somebody else's by now."""
        if not self.done:
            self.context.break_off(error)

    # The run.

    async def run(self) -> None:
        with bound(run_id=self.run_id, attempt=self.attempt, session_id=self._record.session_id):
            await self._run()

    async def _run(self) -> None:
        try:
            with self.observation.running():
                await self._run_to_fence()
            self.done = True
            await self._broker.ledger.try_settle(self.run_id)
            await self._tell_session()
        except _HandedBack as done:
            log.info("run %s, attempt %d: %s", self.run_id, self.attempt, done)
        except (Fenced, Sealed) as error:
            metrics.FENCED.inc()
            log.warning("run %s, attempt %d, was taken over: %s", self.run_id, self.attempt, error)
        except RuncastError as error:
            metrics.LOST_OUTCOMES.inc()
            log.error("the outcome of run %s could not be stored: %s", self.run_id, error)
        except Exception:
            metrics.LOST_OUTCOMES.inc()
            log.exception("run %s failed beyond its runner", self.run_id)
        finally:
            self.done = True
            await self._clean_up()
            await self._leave_session()

    async def _tell_session(self) -> None:
        """What the run said is the session's from now on. Its next run begins only when this one has cleared up."""
        if self._record.session_id is not None:
            await self._broker.runs.turns.try_over(self.run_id)

    async def _leave_session(self) -> None:
        if self._record.session_id is None:
            return
        try:
            await self._broker.runs.turns.leave(self.run_id, self.owner)
        except RuncastError as error:
            log.warning("run %s: the next run of its session begins a lease later: %s", self.run_id, error)

    async def _run_to_fence(self) -> None:
        outcome = await self._outcome()
        if self.context.broken is not None:
            raise self.context.broken
        if self._hands_back:
            await self._hand_back()
        with tracing.span("run.fence"):
            await self._fence(outcome)

    async def _fence(self, outcome: Outcome) -> None:
        sealing = asyncio.create_task(self._finish(outcome), name=f"seal {self.run_id}")
        try:
            await self._wait(sealing, self._hurry, None)
            if not sealing.done():
                await asyncio.wait({sealing}, timeout=_HURRY_PATIENCE)
            if not sealing.done():
                raise StoreUnavailable("the worker was told to end at once while the store was away")
        finally:
            sealing.cancel()
            await asyncio.gather(sealing, return_exceptions=True)
        sealing.result()

    @property
    def _hands_back(self) -> bool:
        """The worker goes, and its runner's runs go on elsewhere instead of ending."""
        return self.context.stop_reason == "worker_stopped" and getattr(self._runner, "hands_back", False)

    async def _hand_back(self) -> None:
        """Queue the run as its next attempt, at once instead of when the lease is over. Raises ``Fenced``, of whatever
        kind: it is somebody else's now, or will be."""
        self.done = True  # beats would move what the takeover compares
        for _ in range(_HAND_BACK_TRIES):
            record = await self._broker.runs.get(self.run_id)
            if record.owner != self.owner:
                raise Fenced("it has another owner by now")
            if await self._broker.runs.takeover(record) is not None:
                break
        raise _HandedBack("its worker stops: it was handed back")

    async def _finish(self, outcome: Outcome) -> None:
        try:
            await self.context.close_asks()
            if isinstance(outcome, Final):
                await self.context.end(outcome)
            await self.publisher.seal(self.context.complete(outcome))
        except (StoreUnavailable, Fenced, Sealed):
            raise
        except RuncastError as error:
            outcome = self._refused(error)
            await self._seal_anew(outcome)
        self.observation.ended(outcome)

    def _refused(self, error: RuncastError) -> Failed:
        """The fence instead of one that the store, or JSON, did not take; or behind an item that it did not take."""
        log.error("the outcome of run %s is refused: %s", self.run_id, error)
        if self.publisher.error is not None:
            return Failed(code=error.code, message=f"an item could not be stored: {error}"[:_MESSAGE_MAX])
        message = f"the runner's outcome cannot be stored: {error}"
        return Failed(code="invalid_outcome", message=message[:_MESSAGE_MAX])

    async def _outcome(self) -> Outcome:
        if self._record.cancel_requested:
            if self._record.source is None or self.context.mirror is None:
                return _stopped("cancelled")
            self.context.request_stop("cancelled")  # the runner has to tell the service
        self._listen()
        await self._open()
        if self._unreadable:
            message = f"this worker cannot read the run's request: {self._unreadable}"
            return Failed(code="invalid_request", message=message)
        if self._runner is None:
            known = ", ".join(self._known) or "none is installed"
            return Failed(code="unknown_runner", message=f"no runner {self.runner_name!r} here: known are {known}")
        self.context.resumes = await self._resumes()
        work = self._files.run(self._runner, self.context)
        self._task = asyncio.create_task(work, name=f"run {self.run_id}")
        await self._supervise(self._task)
        return self._judge(self._task)

    async def _open(self) -> None:
        emit, mirror = self.context.emit, self.context.mirror
        if mirror is not None:
            if mirror.source is not None:
                self.context.recall(await mirror.items())
                return
            if self.attempt == 1:
                return
        if self.attempt > 1:
            await emit(Event(name="run.restarted", payload={"attempt": self.attempt}))
        payload: dict[str, object] = {"runner": self.runner_name, "worker": self._worker, "attempt": self.attempt}
        await emit(Event(name="run.started", payload=payload))

    async def _resumes(self) -> str | None:
        """Where the run's session stands in Hermes. Asked for only now: runs before this one may have moved it."""
        session_id = self._record.session_id
        while session_id is not None and not self.context.stop.is_set():
            try:
                return await self._broker.sessions.resumes(session_id)
            except StoreUnavailable:
                await asyncio.sleep(_RETRY)
            except RuncastError as error:
                log.error("run %s goes on with no session of Hermes: %s", self.run_id, error)
                return None
        return None

    async def _supervise(self, task: asyncio.Task[Outcome]) -> None:
        """Return when the runner has ended, or its grace after a stop has."""
        await self._wait(task, self.context.stop, self._record.deadline_s)
        if task.done():
            return
        self.context.request_stop("deadline")
        if self.context.broken is None:
            await self._say_stop(task)
        # A run that is handed back is so quickly, and must not be broken off in it by a worker in a hurry.
        await self._wait(task, asyncio.Event() if self._hands_back else self._hurry, self._stop_grace)

    async def _say_stop(self, task: asyncio.Task[Outcome]) -> None:
        """Tell the viewers, unless that would have to wait for a store that is away."""
        event = Event(name="stop.requested", payload={"reason": self.context.stop_reason})
        saying = asyncio.create_task(self._publish(event))
        await asyncio.wait({saying, task}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)

    @staticmethod
    async def _wait(task: asyncio.Task[Any], event: asyncio.Event, limit: float | None) -> None:
        waiting = asyncio.create_task(event.wait())
        try:
            await asyncio.wait({task, waiting}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    def _judge(self, task: asyncio.Task[Outcome]) -> Outcome:
        context = self.context
        if context.stop_reason is not None:
            return _stopped(context.stop_reason)
        if task.cancelled():
            return Failed(code="runner_error", message="the runner cancelled itself")
        error = task.exception()
        if error is None:
            outcome = task.result()
            if isinstance(outcome, (Final, Failed, Cancelled)):
                return outcome
            message = f"the runner ended without an outcome: it returned {type(outcome).__name__}"
            return Failed(code="no_outcome", message=message)
        if isinstance(error, RunnerFailed):
            return Failed(code=error.code, message=error.message, retryable=error.retryable)
        log.error("the runner of run %s raised", self.run_id, exc_info=error)
        return Failed(code="runner_error", message=f"{type(error).__name__}: {error}"[:_MESSAGE_MAX])

    async def _publish(self, item: Item | Raw) -> None:
        await self.publisher.publish(item)
        self.observation.item(item)

    async def _seal_anew(self, fence: Failed) -> None:
        """Through a new publisher, behind what is stored: the old one may have failed for good on an item.

        What made the store refuse an item may stand in the partial message as well: then the fence goes without it.
        """
        try:
            await self._reopen()
            await self.publisher.seal(self.context.complete(fence))
        except (StoreUnavailable, Fenced, Sealed):
            raise
        except RuncastError as error:
            log.error("run %s: its fence is refused, and goes without the partial message: %s", self.run_id, error)
            await self._reopen()
            await self.publisher.seal(fence)

    async def _reopen(self) -> None:
        await self.publisher.aclose()
        beat = await self._broker.runs.beat(self.run_id, self.owner, self.publisher.epoch)
        record = msgspec.structs.replace(self._record, epoch=beat.epoch, last=beat.last)
        self.publisher = self._broker.publisher(record)

    # Control.

    def _listen(self) -> None:
        key = self._broker.keys.control(self.run_id)
        self._control = self._broker.tail.subscribe(key, b"0-0", self._obey)

    def _obey(self, entries: RawEntries) -> None:
        for _, fields in entries:
            entry = dict(zip(fields[::2], fields[1::2], strict=False))
            match entry.get(b"t"):
                case b"cancel":
                    self.stop("cancelled")
                case b"input":
                    self._hear_answer(entry.get(b"d", b""))

    def _hear_answer(self, d: bytes) -> None:
        try:
            given = _input_decoder.decode(d)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # Somebody else's writing. What the record says counts, and is looked at.
            log.warning("run %s: an entry of its control stream is no answer: %s", self.run_id, error)
            return
        self.context.answered(given.request_id, Answer(given.answer, "answered", given.by))

    # After the fence.

    async def _clean_up(self) -> None:
        if self._control is not None:
            self._control.close()
        await self._end_runner()
        await self.context.clean_up()
        await self.publisher.aclose()

    async def _end_runner(self) -> None:
        task = self._task
        if task is None:
            return
        if not task.done() and self.context.broken is not None and not self.context.hurry:
            await asyncio.wait({task}, timeout=self._stop_grace)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_PATIENCE)
        if not task.done():
            log.error("the runner of run %s does not end though it was cancelled", self.run_id)
        elif self.context.stop_reason and not task.cancelled() and (error := task.exception()) is not None:
            log.info("the runner of run %s ended after its stop with %r", self.run_id, error)


def _stopped(reason: str) -> Outcome:
    match reason:
        case "cancelled":
            return Cancelled()
        case "deadline":
            return Failed(code="deadline", message="the run did not end within its deadline_s")
        case "worker_stopped":
            message = "the worker was stopped before the run had ended"
            return Failed(code="worker_stopped", message=message, retryable=True)
        case _:
            return Failed(code=reason, message=f"the run was stopped: {reason}")
