"""Child processes of ``runcast up``: started, watched, started again, stopped; none outlives its parent.

Each child is the same command that a deployment runs. It gets a session of its own, so that Ctrl-C reaches only the
parent, which stops the children in order; and a pipe on its stdin, whose end tells it that the parent is gone however
that happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Child", "command_of", "stop_with_stdin"]

_AGAIN_AFTER = 1.0
_TRIES = 5
_STEADY = 60.0


def command_of(*arguments: str) -> list[str]:
    """``runcast`` with ``arguments``, under this interpreter. ``-P``: the working directory holds nothing of ours."""
    return [sys.executable, "-P", "-m", "ops.cli", *arguments, "--stop-with-stdin"]


def stop_with_stdin() -> None:
    """Send this process SIGTERM once stdin ends. For children, whose stdin is a pipe from the parent."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1024):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()


class Child:
    """One supervised process. ``say`` is given its lines of output."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        say: Callable[[str, str], None],
        *,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name, self._command, self._environment, self._say = name, command, dict(environment), say
        self._pass_fds = pass_fds
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[None] | None = None
        self.recent: deque[str] = deque(maxlen=20)

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,
            pass_fds=self._pass_fds,
        )
        self._output = asyncio.create_task(self._relay(self._process))

    async def wait(self) -> int:
        """The exit code, once it has ended and its output was read."""
        assert self._process
        assert self._output
        code = await self._process.wait()
        await asyncio.wait({self._output}, timeout=1.0)
        return code

    async def watch(self) -> int:
        """Start it again whenever it ends; give up and return its code where that keeps happening."""
        loop = asyncio.get_running_loop()
        tries = 0
        while True:
            began = loop.time()
            code = await self.wait()
            tries = 1 if loop.time() - began > _STEADY else tries + 1
            if tries > _TRIES:
                return code
            self._say(self.name, f"ended ({_how(code)}); starting it again")
            await asyncio.sleep(_AGAIN_AFTER)
            await self.start()

    async def stop(self, grace: float) -> None:
        """SIGTERM, ``grace`` seconds, SIGKILL. Returns when it is gone."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.terminate()
        try:
            async with asyncio.timeout(grace):
                await process.wait()
        except TimeoutError:
            self.kill()
            await process.wait()
        finally:
            self.kill()  # also where the wait was cancelled

    def terminate(self) -> None:
        """SIGTERM once more: the worker's second is the one that waits for no run."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _relay(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than the reader's limit
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self.recent.append(text)
            self._say(self.name, text)


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"
