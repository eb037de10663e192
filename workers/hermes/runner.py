"""The runner ``hermes``: a request → one call of Hermes, its items, its outcome.

``session_id`` of a request is ours and is not passed on. A Hermes session is resumed where ``metadata`` has
``hermes_session_id``: the id that an earlier run's ``final`` named.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from broker.items import Final
from broker.requests import RunRequest
from workers.hermes.cli import HermesCall
from workers.hermes.command import Call, RefusedCall
from workers.hermes.process import NotStarted
from workers.hermes.settings import HermesSettings
from workers.runner import RunContext, RunnerFailed

__all__ = ["HermesRunner", "call_of"]


class HermesRunner:
    name = "hermes"

    def __init__(self, settings: HermesSettings | None = None, *, environ: Mapping[str, str] | None = None) -> None:
        self.settings = settings or HermesSettings()
        self._environ = environ

    @property
    def stop_grace(self) -> float:
        """Hermes' own grace, and what its supervisor needs to kill the rest."""
        return self.settings.grace + 1.0

    async def run(self, context: RunContext) -> Final:
        call = await self._start(context)

        async def clean_up() -> None:
            if context.hurry:
                call.kill()
            # After its result Hermes still writes its session down; stopped or failed, it has had its time.
            await call.aclose(patience=self.settings.grace if call.seen.result and not context.hurry else 0.0)

        context.defer(clean_up)
        async with _stopping(context, call):
            async for items in call.items():
                for item in items:
                    context.hermes_session_id = call.seen.session_id
                    await context.emit(item)
        failure = call.verdict()
        if failure is not None:
            raise RunnerFailed(failure.code, failure.message, retryable=failure.retryable)
        return Final(hermes_session_id=call.seen.session_id, metadata=_metadata(call))

    async def _start(self, context: RunContext) -> HermesCall:
        try:
            return await HermesCall.start(self.settings, call_of(context.request), inherited=self._environ)
        except RefusedCall as refused:
            raise RunnerFailed(refused.code, str(refused)) from refused
        except NotStarted as error:
            if error.missing:
                raise RunnerFailed(
                    "hermes_not_found", f"{error}. Install Hermes, set HERMES_BIN, or take another runner"
                ) from error
            raise RunnerFailed("hermes_not_started", str(error), retryable=True) from error


def call_of(request: RunRequest) -> Call:
    """Raises ``RefusedCall`` for what this mode cannot do."""
    if request.input.approvals == "ask":
        # Without a way to ask, Hermes would approve by itself or wait for nobody.
        raise RefusedCall("approvals_unavailable", "mode stream-json cannot ask for approvals: use approvals “yolo”")
    return Call(
        prompt=request.input.message,
        model=request.input.model,
        provider=request.input.provider,
        toolsets=tuple(request.input.toolsets or ()),
        max_turns=request.input.max_turns,
        resume=request.metadata.get("hermes_session_id"),
    )


@contextlib.asynccontextmanager
async def _stopping(context: RunContext, call: HermesCall) -> AsyncIterator[None]:
    """A stop of the run stops Hermes, whose last words are still read."""

    async def watch() -> None:
        await context.stop.wait()
        call.stop()

    watching = asyncio.create_task(watch(), name=f"stop of {context.run_id}")
    try:
        yield
    finally:
        watching.cancel()


def _metadata(call: HermesCall) -> dict[str, object]:
    result = call.seen.result
    known = {"model": call.seen.model, "duration_ms": result.duration_ms if result else None}
    return {name: value for name, value in known.items() if value is not None}
