"""Hermes for Python callers who want no broker: ``chat`` gives the answer at the end, ``chat_stream`` as it comes.

client = HermesClient()
result = await client.chat("What is on today?")
async for event in client.chat_stream("And tomorrow?", resume=result.session_id):
    print(event.token or "", end="")
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from broker.answer import parse_answer
from broker.items import MessageDelta
from workers.hermes.calls import Ask, Drive, HermesCall
from workers.hermes.command import Call
from workers.hermes.settings import HermesSettings
from workers.hermes.starter import Starter
from workers.hermes.transcript import Transcript
from workers.hermes.verdict import Failure

__all__ = ["Answering", "HermesClient", "HermesRunResult", "HermesStreamEvent"]

Answering: TypeAlias = Callable[[Ask], Awaitable[str]]
"""Gives the answer to an approval or a question; cancelled where the call ends first."""


@dataclass(frozen=True, slots=True)
class HermesRunResult:
    """How a call ended. ``failure`` is ``None`` where it succeeded.

    ``transcript`` is all text of the model, round after round, ``reply`` that of the last round, without the block of
    metadata that it may end with; ``confidence``, ``risk_level`` and ``flag_for_review`` are what that says
    (``broker.answer``). ``usage`` holds token counts in Runcast's meaning (``broker.items.Usage``), ``None`` where the
    mode has none. ``exit_code`` is the process's own, negative for a signal, ``None`` where Hermes said it was done and
    was not waited for.
    """

    transcript: str
    reply: str
    stderr: str
    exit_code: int | None
    session_id: str | None
    usage: Mapping[str, Any] | None
    failure: Failure | None
    mode: str = ""
    confidence: float | None = None
    risk_level: str = "unknown"
    flag_for_review: bool = False

    @property
    def ok(self) -> bool:
        return self.failure is None


@dataclass(frozen=True, slots=True)
class HermesStreamEvent:
    """``token``: a piece of text. ``done``: the last one, with the result."""

    event: Literal["token", "done"]
    token: str | None = None
    result: HermesRunResult | None = None


class HermesClient:
    """Calls Hermes on this machine, with the worker's settings. Several calls at once are fine.

    ``environ`` stands for the process's environment; ``HERMES_HOME`` in it says which configuration counts.
    """

    def __init__(self, settings: HermesSettings | None = None, *, environ: Mapping[str, str] | None = None) -> None:
        self.settings = settings or HermesSettings()
        self._starter = Starter(self.settings, environ)

    async def chat(self, call: Call | str, **options: Any) -> HermesRunResult:
        """The quiet contract (``-Q``), whatever ``HERMES_MODE`` says: one answer, at the end.

        ``options`` are fields of ``Call``. A failure of the call is in the result. Raises ``RefusedCall`` for what
        cannot be passed on, ``NotStarted``. Cancelled, the call is stopped; nothing of it is left afterwards.
        """
        running = await self._starter.quiet(_call(call, options))
        result = None
        async with aclosing(self._events(running, None)) as events:
            async for event in events:
                result = event.result
        assert result is not None
        return result

    async def chat_stream(
        self, call: Call | str, *, answering: Answering | None = None, **options: Any
    ) -> AsyncGenerator[HermesStreamEvent, None]:
        """Tokens as they come, then one ``done``. A failure of the call is in the result; nothing is raised for it.

        ``answering`` answers what Hermes asks; without it dangerous commands run unasked (``--yolo``) and a question
        gets no answer. Raises ``RefusedCall``, ``NotStarted``, ``Unavailable`` (the mode of ``HERMES_MODE`` is not
        there), and what ``answering`` raises, which also ends the call. Closed early or cancelled, the call is
        stopped; nothing of it is left afterwards.
        """
        asked = _call(call, options)
        if answering is not None:
            asked = replace(asked, yolo=False)
        running, _ = await self._starter.start(asked)
        async with aclosing(self._events(running, answering)) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        """End the API server, where mode ``api`` started one."""
        await self._starter.aclose()

    async def _events(
        self, running: HermesCall, answering: Answering | None
    ) -> AsyncGenerator[HermesStreamEvent, None]:
        drive, transcript = Drive(running, self.settings), Transcript()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(_close, running, self.settings)
            asks = await stack.enter_async_context(_Asks(running, drive, answering))
            async with aclosing(drive.batches()) as batches:
                async for batch in batches:
                    for item in batch:
                        if isinstance(item, Ask):
                            asks.put(item)
                        elif isinstance(item, MessageDelta):
                            transcript.add(item)
                            yield HermesStreamEvent("token", token=item.text)
            if asks.error is not None:
                raise asks.error
            result = _result(running, drive, transcript, self.settings.review_below)
            yield HermesStreamEvent("done", result=result)


class _Asks:
    """The questions under way; those that are open at the end are dropped."""

    def __init__(self, call: HermesCall, drive: Drive, answering: Answering | None) -> None:
        self._call, self._drive, self._answering = call, drive, answering
        self._open: set[asyncio.Task[None]] = set()
        self.error: Exception | None = None
        """What the caller's ``answering`` raised: the call is stopped then."""

    async def __aenter__(self) -> _Asks:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def put(self, ask: Ask) -> None:
        task = asyncio.create_task(self._answer(ask), name=f"answer {ask.key}")
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _answer(self, ask: Ask) -> None:
        answer = ask.otherwise
        try:
            if self._answering is not None:
                with self._drive.asking():
                    answer = await self._answering(ask)
        except Exception as error:
            self.error = self.error or error
            self._call.stop()
        finally:
            await self._call.answer(ask.key, answer)


def _call(call: Call | str, options: Mapping[str, Any]) -> Call:
    return replace(call, **options) if isinstance(call, Call) else Call(prompt=call, **options)


async def _close(running: HermesCall, settings: HermesSettings) -> None:
    await running.aclose(patience=settings.grace if running.told.finished else 0.0)


def _result(running: HermesCall, drive: Drive, transcript: Transcript, review_below: float) -> HermesRunResult:
    told = running.told
    answer = parse_answer(transcript.reply, session_id=told.session_id, review_below=review_below)
    return HermesRunResult(
        transcript=transcript.text,
        reply=answer.reply,
        stderr=running.stderr,
        exit_code=told.exit_code,
        session_id=answer.session_id,
        usage=told.usage,
        failure=drive.verdict(),
        mode=running.mode,
        confidence=answer.confidence,
        risk_level=answer.risk_level,
        flag_for_review=answer.flag_for_review,
    )
