"""Hermes over its command: one call in mode ``stream-json``, ``text`` or ``quiet``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from uuid import uuid4

from workers.hermes.calls import Batch, Told
from workers.hermes.command import Call, arguments, environment
from workers.hermes.output import OutputParser
from workers.hermes.process import SupervisedProcess
from workers.hermes.quiet import QuietParser
from workers.hermes.seen import Reader
from workers.hermes.settings import HermesSettings
from workers.hermes.text import TextParser
from workers.hermes.verdict import Failure, ended_well, judge

__all__ = ["CommandCall"]

_READERS: dict[str, Callable[[int], Reader]] = {
    "stream-json": OutputParser,
    "text": TextParser,
    "quiet": QuietParser,
}
_LAST_WORDS = 2.0
"""Seconds that the end of standard error is waited for, once the command and its output have ended."""


class CommandCall:
    """A ``HermesCall`` (see there). Cancelling ``read`` loses nothing: the next one goes on where it was."""

    def __init__(self, mode: str, process: SupervisedProcess, reader: Reader) -> None:
        self.mode = mode
        self.process = process
        self.reader = reader
        self._exit_code: int | None = None
        self._ended = False

    @classmethod
    async def start(
        cls, settings: HermesSettings, call: Call, *, mode: str, inherited: Mapping[str, str] | None = None
    ) -> CommandCall:
        """Raises ``RefusedCall`` before any process exists, ``NotStarted`` where Hermes cannot be started.

        ``inherited`` stands for the worker's environment. Whether this Hermes has the mode is for the caller to know:
        one without ``--format`` ends as the failure ``hermes_too_old``.
        """
        reader = _READERS[mode](settings.line_max_bytes)
        if isinstance(reader, QuietParser):
            reader.bounded = call.max_turns is not None
        argv = arguments(settings.bin, call, mode=mode, stream_args=settings.stream_args)
        mark = uuid4().hex
        env = environment(os.environ if inherited is None else inherited, mark, mode=mode, extra=call.env)
        process = await SupervisedProcess.start(argv, env, grace=settings.grace, mark=mark, cwd=call.cwd)
        return cls(mode, process, reader)

    @property
    def told(self) -> Told:
        result = self.reader.result
        told = Told(
            session_id=self.reader.session_id,
            model=self.reader.model,
            exit_code=self._exit_code if result is None else result.exit_code,
            duration_ms=self.reader.duration_ms,
            finished=result is not None,
        )
        if result is not None:
            told.usage = result.usage
        return told

    async def read(self) -> Batch | None:
        """The items of the next piece of output. The ``result`` of stream-json is the end, before Hermes' own."""
        if self._ended:
            return None
        chunk = await self.process.read()
        if not chunk:
            return await self._end()
        items: Batch = [*self._heard(), *self.reader.feed(chunk)]
        self._ended = self.reader.result is not None
        return items

    async def _end(self) -> Batch:
        self._exit_code = await self.process.wait()
        await self.process.stderr_end(_LAST_WORDS)
        self._ended = True
        return [*self._heard(), *self.reader.close(succeeded=ended_well(self.reader, self._exit_code))]

    def _heard(self) -> Batch:
        """Only -Q says something on standard error that is not for people alone."""
        return [*self.reader.heard(self.process.stderr)] if self.mode == "quiet" else []

    def verdict(self) -> Failure | None:
        return judge(self.reader, self._exit_code, self.process.stderr)

    async def answer(self, key: str, answer: str) -> None:
        """A command asks nobody."""

    @property
    def stderr(self) -> str:
        return self.process.stderr

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    async def aclose(self, *, patience: float = 0.0) -> None:
        await self.process.aclose(patience=patience)
