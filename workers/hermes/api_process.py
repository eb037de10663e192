"""The process of an API server that this worker starts: Hermes' Python with ``api_listener.py``, under a supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from workers.hermes.command import Unavailable, environment
from workers.hermes.interpreter import interpreter
from workers.hermes.process import NotStarted, SupervisedProcess
from workers.hermes.settings import HermesSettings
from workers.hermes.supervisor import descendants

__all__ = ["ListenerProcess"]

_SCRIPT = Path(__file__).with_name("api_listener.py")
_SETTLE = 1.0
"""Seconds after which a process that was there when a run ended is not just on its way out."""
_LAST_WORDS = 2_000


class ListenerProcess:
    """Made by ``start``. ``aclose`` must be called."""

    def __init__(self, process: SupervisedProcess, cwd: str) -> None:
        self._process, self.cwd = process, cwd
        self.port = 0
        self.asks = True
        """Hermes asks before dangerous commands, as far as its configuration goes."""
        self._before: set[int] = set()
        self._reading = asyncio.create_task(self._first_line(), name="hermes api server")
        self._ended = False

    @classmethod
    async def start(cls, settings: HermesSettings, inherited: Mapping[str, str], key: str) -> ListenerProcess:
        """Returns when it listens. Raises ``NotStarted``; ``Unavailable`` where this Hermes has no API server.

        Cancelled, or after an error, it leaves nothing running.
        """
        cwd = settings.cwd or os.getcwd()
        mark = uuid4().hex
        python = [settings.python] if settings.python else interpreter(settings.bin, inherited)
        argv = [*python, str(_SCRIPT)]
        # Its notices are known by their English words.
        env = environment(inherited, mark, extra={"HERMES_LANGUAGE": "en"})
        process = await SupervisedProcess.start(argv, env, grace=settings.grace, mark=mark, cwd=cwd, stdin=True)
        self = cls(process, cwd)
        try:
            process.write(json.dumps({"key": key, "cwd": cwd}).encode() + b"\n")
            await self._expect(settings.api_start)
        except BaseException:
            process.kill()
            await self.aclose()
            raise
        return self

    async def _expect(self, patience: float) -> None:
        try:
            said = await asyncio.wait_for(asyncio.shield(self._reading), patience)
        except TimeoutError:
            message = f"Hermes' API server did not listen within HERMES_API_START ({patience:g} s). {self.last_words}"
            raise NotStarted(message.strip(), missing=False) from None
        if "unavailable" in said:
            raise Unavailable(f"this Hermes cannot serve its API: {said['unavailable']}")
        if not isinstance(said.get("port"), int):
            raise NotStarted(f"Hermes' API server ended at its start. {self.last_words}".strip(), missing=False)
        self.port, self.asks = said["port"], said.get("asks") is not False
        self._before = await asyncio.to_thread(self._below)
        self._reading = asyncio.create_task(self._drain(), name="hermes api server")

    async def _first_line(self) -> dict[str, Any]:
        line = b""
        while b"\n" not in line and (chunk := await self._process.read()):
            line += chunk
        with contextlib.suppress(ValueError):
            said = json.loads(line.partition(b"\n")[0])
            return said if isinstance(said, dict) else {}
        return {}

    async def _drain(self) -> dict[str, Any]:
        await self._process.wait()
        self._ended = True
        return {}

    @property
    def died(self) -> bool:
        return self._ended

    async def gone(self, patience: float) -> bool:
        """Whether it has ended, or does so within ``patience`` seconds: a connection breaks before its process ends."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._reading), patience)
        return self._ended

    @property
    def last_words(self) -> str:
        return self._process.stderr.strip()[-_LAST_WORDS:]

    async def left_behind(self) -> bool:
        """Whether processes are there that were not when it began to listen, and that stay."""
        first = await asyncio.to_thread(self._below) - self._before
        if not first or self.died:
            return False
        await asyncio.sleep(_SETTLE)
        return bool(first & await asyncio.to_thread(self._below))

    def _below(self) -> set[int]:
        """All processes below its supervisor, to which those come whose parent has ended; without itself."""
        with (
            contextlib.suppress(OSError, ValueError, IndexError),
            open(f"/proc/{self._process.pid}/stat", "rb") as file,
        ):
            parent = int(file.read().rpartition(b")")[2].split()[1])
            return set(descendants(parent)) - {self._process.pid}
        return set()

    def kill(self) -> None:
        self._process.kill()

    async def aclose(self) -> None:
        """SIGTERM, its grace, SIGKILL; returns when nothing of it is left."""
        if not self.port:
            await self._stop_reading()  # two cannot read its output
        try:
            await self._process.aclose()
        finally:
            await self._stop_reading()

    async def _stop_reading(self) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})
