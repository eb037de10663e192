"""Hermes over its command: one call, streamed. Mode ``stream-json``.

``HermesCall`` is what the runner uses: batches of items as they are read, then the verdict. ``HermesClient`` gives the
same as tokens and a result, to Python callers who want no broker.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from broker.items import Item, MessageDelta
from workers.hermes.command import Call, arguments, environment
from workers.hermes.output import OutputParser
from workers.hermes.process import SupervisedProcess
from workers.hermes.settings import HermesSettings
from workers.hermes.verdict import Failure, judge

__all__ = ["HermesCall", "HermesClient", "HermesRunResult", "HermesStreamEvent"]


class HermesCall:
    """One call under way. Made by ``start``; ``aclose`` must be called and ends whatever is left of it.

    Output is read no faster than ``items`` is asked for it: back-pressure reaches Hermes through its pipe.
    """

    def __init__(self, process: SupervisedProcess, settings: HermesSettings) -> None:
        self._process, self._settings = process, settings
        self.seen = OutputParser(line_max=settings.line_max_bytes)
        self._started = time.monotonic()
        self._failure: Failure | None = None
        self._exit_code: int | None = None

    @classmethod
    async def start(
        cls, settings: HermesSettings, call: Call, *, inherited: Mapping[str, str] | None = None
    ) -> HermesCall:
        """Raises ``RefusedCall`` before any process exists, ``NotStarted`` where Hermes cannot be started."""
        argv = arguments(settings.bin, call, stream_args=settings.stream_args)
        mark = uuid4().hex
        env = environment(os.environ if inherited is None else inherited, mark)
        return cls(await SupervisedProcess.start(argv, env, grace=settings.grace, mark=mark), settings)

    async def items(self) -> AsyncIterator[list[Item]]:
        """What each read gave, in order; ends with the ``result`` line, the end of the output, or a limit of time.

        The ``result`` ends it before Hermes has: what Hermes still does is cleanup, and the fence does not wait for it.
        """
        while self.seen.result is None:
            chunk = await self._read()
            if not chunk:
                break
            yield self.seen.feed(chunk)
        if self.seen.result is None and self._failure is None:
            self._exit_code = await self._process.wait()
            yield self.seen.close(succeeded=self._exit_code == 0)

    async def _read(self) -> bytes:
        """The next chunk; ``b""`` at the end, or when a limit has passed. Only time spent waiting is silence."""
        total, silence = self._settings.timeout, self._settings.silence
        left = total - (time.monotonic() - self._started) if total else None
        wait = min(x for x in (left, silence or None) if x is not None) if left is not None or silence else None
        if wait is None:
            return await self._process.read()
        try:
            return await asyncio.wait_for(self._process.read(), max(wait, 0.0))
        except TimeoutError:
            self._failure = self._too_slow(total, silence)
            self.stop()
            return b""

    def _too_slow(self, total: float, silence: float) -> Failure:
        if total and time.monotonic() - self._started >= total:
            return Failure("hermes_timeout", f"Hermes did not end within HERMES_TIMEOUT ({total:g} s)", True)
        return Failure("hermes_silent", f"Hermes printed nothing for HERMES_SILENCE ({silence:g} s)", True)

    def verdict(self) -> Failure | None:
        """Once ``items`` has ended: ``None`` is a success."""
        return self._failure or judge(self.seen, self._exit_code, self._process.stderr)

    @property
    def stderr(self) -> str:
        return self._process.stderr

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    async def aclose(self, *, patience: float = 0.0) -> None:
        """Give Hermes ``patience`` seconds to end by itself, then stop it; return when nothing of it is left."""
        await self._process.aclose(patience=patience)

    async def exit_code(self) -> int | None:
        return await self._process.wait()


@dataclass(frozen=True, slots=True)
class HermesRunResult:
    """``transcript``: all text of the model. ``failure`` is ``None`` where the call succeeded."""

    transcript: str
    stderr: str
    exit_code: int | None
    session_id: str | None
    usage: Mapping[str, Any] | None
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class HermesStreamEvent:
    """``token``: a piece of text. ``done``: the last one, with the result."""

    event: Literal["token", "done"]
    token: str | None = None
    result: HermesRunResult | None = None


class HermesClient:
    def __init__(self, settings: HermesSettings | None = None) -> None:
        self.settings = settings or HermesSettings()

    async def chat_stream(self, call: Call) -> AsyncIterator[HermesStreamEvent]:
        """Tokens as they come, then one ``done``. A failure of the call is in the result; nothing is raised for it.

        Raises ``RefusedCall``, ``NotStarted``. Left early, the call is stopped; nothing of it is left afterwards.
        """
        running = await HermesCall.start(self.settings, call)
        transcript: list[str] = []
        try:
            async for batch in running.items():
                for item in batch:
                    if isinstance(item, MessageDelta):
                        transcript.append(item.text)
                        yield HermesStreamEvent("token", token=item.text)
            ended = running.seen.result
            result = HermesRunResult(
                transcript="".join(transcript),
                stderr=running.stderr,
                exit_code=ended.exit_code if ended else await running.exit_code(),
                session_id=running.seen.session_id,
                usage=ended.usage if ended else None,
                failure=running.verdict(),
            )
            yield HermesStreamEvent("done", result=result)
        finally:
            await running.aclose(patience=self.settings.grace if running.seen.result else 0.0)
