"""The runner ``hermes``: a request → one call of Hermes, its items, its outcome.

``session_id`` of a request is ours and is not passed on. Hermes resumes the session of its own that ``metadata`` names
as ``hermes_session_id`` (blank: none, it begins a new one), else the one in which the run's session is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path

from broker import tracing
from broker.answer import REVIEW_BELOW
from broker.errors import RuncastError
from broker.items import Cost, Event, Final, Item, MessageDelta, Usage
from broker.merge import COUNTS
from broker.requests import RunRequest
from broker.tracing import Span
from workers.hermes.calls import Ask, Batch, Drive, HermesCall
from workers.hermes.command import Call, RefusedCall, Unavailable
from workers.hermes.process import NotStarted
from workers.hermes.settings import HermesSettings
from workers.hermes.starter import Starter
from workers.hermes.transcript import Transcript
from workers.hermes.verdict import Failure
from workers.prices import CostMeter
from workers.runner import RunContext, RunnerFailed

__all__ = ["HermesRunner", "call_of"]

log = logging.getLogger("runcast.worker")
_TRANSCRIPT_MAX = 256 * 1024
"""Bytes of a transcript that the fence carries; a longer one is left to the items, and its size is said."""


class HermesRunner:
    name = "hermes"

    def __init__(self, settings: HermesSettings | None = None, *, environ: Mapping[str, str] | None = None) -> None:
        self.settings = settings or HermesSettings()
        self._starter = Starter(self.settings, environ)

    @property
    def uses_workspace(self) -> bool:
        """Not where the operator named one directory for all, nor in mode api, whose server works in one."""
        return not self.settings.cwd and self.settings.mode != "api"

    @property
    def stop_grace(self) -> float:
        """Hermes' own grace, and what its supervisor needs to kill the rest."""
        return self.settings.grace + 1.0

    async def aclose(self) -> None:
        await self._starter.aclose()

    async def run(self, context: RunContext) -> Final:
        """Raises ``RunnerFailed`` for whatever is no answer; for a stop as well, which the worker judges."""
        with tracing.span("hermes.call", kind="client") as span:
            return await self._converse(context, span)

    async def _converse(self, context: RunContext, span: Span) -> Final:
        call, said = await self._start(context)
        span.set(runcast__hermes__mode=call.mode)

        async def clean_up() -> None:
            if context.hurry:
                call.kill()
            # Done, Hermes still writes its session down; stopped or failed, it has had its time.
            await call.aclose(patience=self.settings.grace if call.told.finished and not context.hurry else 0.0)

        context.defer(clean_up)
        for item in said:
            await context.emit(item)
        try:
            return await _Conversation(context, call, self.settings).run()
        finally:
            told = call.told
            span.set(gen_ai__response__model=told.model, runcast__hermes__session_id=told.session_id)

    async def _start(self, context: RunContext) -> tuple[HermesCall, list[Item]]:
        try:
            async with _until(context.stop):
                return await self._starter.start(call_of(context.request, context.workspace, context.resumes))
        except RefusedCall as refused:
            raise RunnerFailed(refused.code, str(refused)) from refused
        except Unavailable as error:
            message = f"HERMES_MODE={self.settings.mode} is not there: {error}. `runcast doctor` says what is"
            raise RunnerFailed("hermes_mode_unavailable", message) from error
        except NotStarted as error:
            if error.missing:
                raise RunnerFailed(
                    "hermes_not_found", f"{error}. Install Hermes, set HERMES_BIN, or take another runner"
                ) from error
            raise RunnerFailed("hermes_not_started", str(error), retryable=True) from error


@contextlib.asynccontextmanager
async def _until(stop: asyncio.Event) -> AsyncIterator[None]:
    """What is awaited inside is cancelled when ``stop`` is set: a start may take as long as a server's."""

    async def watch() -> None:
        await stop.wait()
        limit.reschedule(asyncio.get_running_loop().time())

    limit = asyncio.timeout(None)
    try:
        async with limit:
            watching = asyncio.create_task(watch(), name="stop before the start")
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not limit.expired():
            raise
        raise RunnerFailed("interrupted", "the run was stopped before Hermes had started", retryable=True) from None


def call_of(request: RunRequest, workspace: Path | None = None, resumes: str | None = None) -> Call:
    return Call(
        prompt=request.input.message,
        model=request.input.model,
        provider=request.input.provider,
        toolsets=tuple(request.input.toolsets or ()),
        max_turns=request.input.max_turns,
        resume=request.metadata.get("hermes_session_id", resumes) or None,
        yolo=request.input.approvals == "yolo",
        cwd=None if workspace is None else str(workspace),
    )


class _Conversation:
    """One call, from its first item to its verdict."""

    def __init__(self, context: RunContext, call: HermesCall, settings: HermesSettings) -> None:
        self._context, self._call = context, call
        self._settings = settings
        self._drive = Drive(call, settings)
        self._transcript = Transcript()
        self._costs = CostMeter()
        self._counted = 0
        self._asks: set[asyncio.Task[None]] = set()

    async def run(self) -> Final:
        async with self._stopping(), self._asking(), aclosing(self._drive.batches()) as batches:
            async for batch in batches:
                await self._pass_on(batch)
        self._context.hermes_session_id = self._call.told.session_id
        failure = self._drive.verdict()
        if failure is not None:
            raise RunnerFailed(failure.code, self._words(failure), retryable=failure.retryable)
        return Final(hermes_session_id=self._call.told.session_id, metadata=self._metadata())

    def _words(self, failure: Failure) -> str:
        """Hermes does not always say which session it does not know."""
        wanted = self._context.request.metadata.get("hermes_session_id") or self._context.resumes or ""
        named = failure.code != "hermes_session_not_found" or wanted in failure.message
        return failure.message if named else f"{failure.message}: {wanted!r}"

    async def _pass_on(self, batch: Batch) -> None:
        self._context.hermes_session_id = self._call.told.session_id
        priced = self._call.told.priced or any(isinstance(item, Cost) for item in batch)
        for item in batch:
            if isinstance(item, Ask):
                self._ask(item)
                continue
            if isinstance(item, MessageDelta):
                self._transcript.add(item)
            await self._context.emit(item)
            if isinstance(item, Usage) and not priced:
                await self._price(item)

    async def _price(self, usage: Usage) -> None:
        """Hermes does not know what this model costs: perhaps we do."""
        told = self._call.told
        self._counted += 1
        spent = {name: getattr(usage, name) for name in COUNTS}
        for item in self._costs.count(told.model or "", spent, call=self._counted, provider=told.provider):
            await self._context.emit(item)

    def _ask(self, ask: Ask) -> None:
        task = asyncio.create_task(self._answer(ask), name=f"{ask.kind} of {self._context.run_id}")
        self._asks.add(task)
        task.add_done_callback(self._asks.discard)

    async def _answer(self, ask: Ask) -> None:
        value = ask.otherwise
        try:
            with self._drive.asking():
                answer = await self._context.ask(
                    ask.kind, ask.payload, choices=ask.choices, free=ask.free, otherwise=ask.otherwise
                )
            value = answer.value
        except (RuncastError, RunnerFailed) as error:
            # Nobody can be asked: Hermes must not wait for ever, and nothing is approved by accident.
            log.warning("run %s: %s %r cannot be asked: %s", self._context.run_id, ask.kind, ask.key, error)
            await self._not_asked(ask, error)
        finally:
            await self._call.answer(ask.key, value)

    async def _not_asked(self, ask: Ask, error: Exception) -> None:
        payload = {"code": "not_asked", "message": f"{ask.kind} taken as {ask.otherwise!r}: {error}"}
        with contextlib.suppress(RuncastError):  # what ends the run ends it elsewhere
            await self._context.emit(Event(name="warning", payload=payload))

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """What is still asked when Hermes has ended is asked in vain."""
        try:
            yield
        finally:
            for task in self._asks:
                task.cancel()
            await asyncio.gather(*self._asks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _stopping(self) -> AsyncIterator[None]:
        """A stop of the run stops Hermes, whose last words are still read."""

        async def watch() -> None:
            await self._context.stop.wait()
            self._call.stop()

        watching = asyncio.create_task(watch(), name=f"stop of {self._context.run_id}")
        try:
            yield
        finally:
            watching.cancel()

    def _metadata(self) -> dict[str, object]:
        told, text = self._call.told, self._transcript.text
        known = {"mode": self._call.mode, "model": told.model, "provider": told.provider, **told.metadata}
        known["duration_ms"] = told.duration_ms
        size = len(text.encode("utf-8", "surrogatepass"))
        if self._settings.review_below != REVIEW_BELOW:
            known["review_below"] = self._settings.review_below  # whoever makes an answer of this needs it
        known |= {"transcript": text} if size <= _TRANSCRIPT_MAX else {"transcript_bytes": size}
        return {name: value for name, value in known.items() if value is not None}
