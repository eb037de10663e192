"""The runner ``llm``: a request → one streamed model call, its items, its outcome.

One message in, one round out. Tools of ours there are none: a call that the model makes is in its message, and nobody
runs it. So ``approvals`` and ``max_turns`` mean nothing here; ``toolsets`` and ``artifacts`` are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_exponential

from broker import tracing
from broker.items import Event, Final, Item
from broker.requests import RunRequest
from workers.llm.attempt import Attempt
from workers.llm.endpoints import Endpoint, endpoint_of
from workers.llm.failures import CallFailed, Secrets
from workers.llm.options import Options, parse_options
from workers.llm.requests import HttpCall, build
from workers.llm.settings import LlmSettings, VendorKeys
from workers.llm.transport import Reading, Transport
from workers.prices import CostMeter, price
from workers.providers import get_adapter
from workers.runner import RunContext, RunnerFailed

__all__ = ["LlmRunner"]


class LlmRunner:
    name = "llm"
    stop_grace = 5.0

    def __init__(self, settings: LlmSettings | None = None, keys: VendorKeys | None = None) -> None:
        self.settings, self.keys = settings or LlmSettings(), keys or VendorKeys()
        self._transport = Transport(connect=self.settings.connect)

    async def run(self, context: RunContext) -> Final:
        return await _ModelCall(context, self.settings, self._transport, self._prepared(context.request)).run()

    async def aclose(self) -> None:
        """Let go of the connections. The worker calls it after its last run."""
        await self._transport.aclose()

    def _prepared(self, request: RunRequest) -> _Prepared:
        """Raises ``RunnerFailed`` for all that can be known before anything is sent."""
        wanted = request.input
        for name in ("toolsets", "attachments"):
            if getattr(wanted, name):
                raise RunnerFailed("unsupported_input", f"input.{name}: the runner llm has none, it only asks a model")
        options = parse_options(request.metadata)
        endpoint = endpoint_of(wanted.provider, self.settings, self.keys)
        model = wanted.model or endpoint.model
        if not model:
            raise RunnerFailed("not_configured", f"no model is named for {endpoint}: set input.model, or LLM_MODEL")
        options = options.limited_to(self.settings.max_output_tokens)
        return _Prepared(endpoint, model, options, build(endpoint, model, wanted.message, options))


@dataclass(frozen=True, slots=True)
class _Prepared:
    endpoint: Endpoint
    model: str
    options: Options
    call: HttpCall

    def secrets(self) -> Secrets:
        return Secrets(s.get_secret_value() for s in (self.endpoint.key, *self.endpoint.headers.values()))


class _ModelCall:
    """The attempts of one run."""

    def __init__(self, context: RunContext, settings: LlmSettings, transport: Transport, prepared: _Prepared) -> None:
        self._context, self._settings, self._transport, self._prepared = context, settings, transport, prepared
        self._secrets = prepared.secrets()
        self._meter = CostMeter(prepared.endpoint.seller)
        now = asyncio.get_running_loop().time()
        self._deadline = now + settings.timeout if settings.timeout else None
        self._attempt: Attempt | None = None
        self._attempts = 0

    async def run(self) -> Final:
        settings = self._settings
        retrying = AsyncRetrying(
            stop=stop_after_attempt(settings.retries + 1),
            retry=retry_if_exception(self._worth_another),
            wait=self._wait,
            before_sleep=self._announce,
            sleep=self._pause,
            reraise=True,
        )
        try:
            await retrying(self._try)
        except CallFailed:
            await self._publish(self._attempt.held if self._attempt else [])
            await self._publish(self._cost())
            raise
        await self._publish(self._cost())
        return Final(metadata=self._metadata())

    async def _try(self) -> None:
        self._attempts += 1
        prepared = self._prepared
        adapter = get_adapter(prepared.endpoint.api)(round=1)
        attempt = self._attempt = Attempt(
            adapter, self._settings, self._context.emit, secrets=self._secrets, deadline=self._deadline
        )
        asked = {"gen_ai__request__model": prepared.model, "gen_ai__provider__name": prepared.endpoint.api}
        with tracing.span("model.call", kind="client", runcast__attempt=self._attempts, **asked) as span:
            async with Reading(self._transport, prepared.call) as reading, _stopping(self._context, reading):
                await attempt.run(reading)
            counts = adapter.usage.counts
            span.set(
                gen_ai__response__model=attempt.model,
                gen_ai__usage__input_tokens=counts.get("input_tokens"),
                gen_ai__usage__output_tokens=counts.get("output_tokens"),
            )

    # Trying again.

    def _worth_another(self, error: BaseException) -> bool:
        if not isinstance(error, CallFailed) or not error.again or self._context.stop.is_set():
            return False
        return (error.wait_s or 0) <= self._settings.retry_wait_max

    def _wait(self, state: RetryCallState) -> float:
        """As long as the server says, else twice as long each time; and a bit, lest all runs come back together."""
        settings = self._settings
        error = state.outcome.exception() if state.outcome else None
        seconds = error.wait_s if isinstance(error, CallFailed) else None
        if seconds is None:
            seconds = wait_exponential(multiplier=settings.retry_wait, max=settings.retry_wait_max)(state)
        return seconds + random.uniform(0, settings.retry_wait)

    async def _announce(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert isinstance(error, CallFailed)
        wait_s = round(state.next_action.sleep if state.next_action else 0.0, 3)
        payload = {"attempt": state.attempt_number + 1, "wait_s": wait_s, "because": error.message, "code": error.code}
        await self._context.emit(Event(name="retry", payload=payload))

    async def _pause(self, seconds: float) -> None:
        """A stop, or the end of the time for all attempts, cuts it short."""
        until = asyncio.get_running_loop().time() + seconds
        until = until if self._deadline is None else min(until, self._deadline)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._context.stop.wait()

    # What came of it.

    def _cost(self) -> list[Item]:
        """Of the last attempt: one that failed before its first token reports no tokens, or is not charged for."""
        if self._attempt is None:
            return []
        counts = self._attempt.adapter.usage.counts
        answered, asked = self._attempt.model, self._prepared.model
        # The one that answered has its price, unless only the alias that was asked for is in the list.
        known = answered and price(answered, self._prepared.endpoint.seller, counts) is not None
        return self._meter.count(answered if answered and known else asked, counts)

    async def _publish(self, items: list[Item]) -> None:
        for item in items:
            await self._context.emit(item)

    def _metadata(self) -> dict[str, object]:
        model = (self._attempt.model if self._attempt else None) or self._prepared.model
        return {"api": self._prepared.endpoint.api, "model": model, "attempts": self._attempts}


@contextlib.asynccontextmanager
async def _stopping(context: RunContext, reading: Reading) -> AsyncIterator[None]:
    """A stop of the run closes the request at once, also while an item waits for the store."""

    async def watch() -> None:
        await context.stop.wait()
        reading.stop()

    watching = asyncio.create_task(watch(), name=f"stop of {context.run_id}")
    try:
        yield
    finally:
        watching.cancel()
