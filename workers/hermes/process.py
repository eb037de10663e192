"""One supervised command as asyncio sees it: read its output, stop it, be sure that nothing of it is left.

Back-pressure: nothing is read ahead beyond one small buffer, so a caller that does not read stops the command's writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from workers import metrics
from workers.hermes import leftovers

__all__ = ["NotStarted", "SupervisedProcess"]

_READ = 64 * 1024
_STDERR_KEPT = 64 * 1024
_Reading: TypeAlias = "tuple[asyncio.StreamReader, asyncio.ReadTransport]"
_SUPERVISOR = Path(__file__).with_name("supervisor.py")


class NotStarted(Exception):
    """The command could not be started. ``missing``: there is no such program, or it is not executable."""

    def __init__(self, message: str, *, missing: bool) -> None:
        super().__init__(message)
        self.missing = missing


class SupervisedProcess:
    """Made by ``start``. ``aclose`` must be called: it ends whatever is left."""

    def __init__(self, process: subprocess.Popen[bytes], pipes: _Pipes, mark: str, grace: float) -> None:
        self._process, self._pipes, self.mark, self._grace = process, pipes, mark, grace
        self._kept: deque[bytes] = deque()
        self._kept_size = 0
        self._killing = False
        self.pid = 0
        self.exit_code: int | None = None
        self.killed = 0
        """Processes that had to be killed after the command's own end, or after its grace."""
        self._exited = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        grace: float,
        mark: str,
        cwd: str | None = None,
        stdin: bool = False,
    ) -> SupervisedProcess:
        """Raises ``NotStarted``, also for a ``cwd`` that is no directory. Cancelled, it leaves nothing running.

        ``stdin``: the command gets a pipe that ``write`` fills, instead of an empty input.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                process = _spawn(argv, env, grace, theirs, cwd, stdin)
            except BaseException:
                ours.close()
                raise
        try:
            pipes = await _Pipes.of(process, ours)
        except BaseException:
            await asyncio.to_thread(process.wait)  # the supervisor has lost its pipe, and clears up
            raise
        self = cls(process, pipes, mark, grace)
        self._tasks.append(asyncio.create_task(self._keep_stderr(), name="hermes stderr"))
        try:
            await self._expect_start(argv[0])
        except BaseException:
            await self.aclose()
            raise
        metrics.PROCESSES.inc()
        self._tasks.append(asyncio.create_task(self._watch(), name="hermes supervisor"))
        return self

    async def _expect_start(self, program: str) -> None:
        line = await self._pipes.control.readline()
        answer: dict[str, Any] = {"error": "its supervisor ended at once", "errno": 0}
        if line.endswith(b"\n"):
            answer = json.loads(line)
        if "error" in answer:
            missing = answer["errno"] in (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC)
            raise NotStarted(f"{program!r} could not be started: {answer['error']}", missing=missing)
        self.pid = answer["started"]

    async def read(self) -> bytes:
        """The next piece of standard output; ``b""`` at its end, which comes when every holder of it has gone."""
        return await self._pipes.stdout.read(_READ)

    def write(self, data: bytes) -> None:
        """Send ``data`` to the command's input, in order. Never waits; harmless where the command has gone.

        What the command does not read is kept, without limit: write what is bounded.
        """
        if self._pipes.stdin is not None:
            self._pipes.stdin.write(data)

    def close_stdin(self) -> None:
        """The end of the command's input, behind what was written."""
        if self._pipes.stdin is not None:
            self._pipes.stdin.close()

    @property
    def stderr(self) -> str:
        """The end of what came on standard error so far."""
        return b"".join(self._kept).decode("utf-8", "replace")

    async def stderr_end(self, patience: float) -> None:
        """Wait until standard error has ended, ``patience`` seconds at most: a holder of it may live on."""
        await asyncio.wait(self._tasks[:1], timeout=patience)

    async def wait(self) -> int | None:
        """The command's exit code, negative for a signal, once it has ended. ``None``: its supervisor was killed."""
        await self._exited.wait()
        return self.exit_code

    def stop(self) -> None:
        """SIGTERM now, SIGKILL of everything after the grace. Harmless when repeated."""
        self._ask(b"s")

    def kill(self) -> None:
        """SIGKILL of everything now."""
        self._killing = True
        self._ask(b"k")

    async def aclose(self, *, patience: float = 0.0) -> None:
        """Return when nothing of the command is left: give it ``patience`` seconds to end by itself, then stop it.

        Cancelled, it still leaves the supervisor, which sees the closed pipe and does the rest by itself.
        """
        try:
            if patience and self._exited_not():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._drain_until_exit(), patience)
            self.stop()
            await self._drain_until_exit()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            for task in self._tasks:
                task.cancel()
            self._pipes.close()
        await asyncio.to_thread(self._process.wait)

    def _exited_not(self) -> bool:
        return not self._exited.is_set()

    async def _drain_until_exit(self) -> None:
        """Read on, so that a command that is still writing can end."""
        while await self.read():
            pass

    def _ask(self, what: bytes) -> None:
        if not self._pipes.asking.is_closing():
            self._pipes.asking.write(what)

    async def _keep_stderr(self) -> None:
        while chunk := await self._pipes.stderr.read(_READ):
            self._kept.append(chunk)
            self._kept_size += len(chunk)
            while self._kept_size - len(self._kept[0]) >= _STDERR_KEPT:
                self._kept_size -= len(self._kept.popleft())

    async def _watch(self) -> None:
        clean = False
        try:
            while line := await self._pipes.control.readline():
                said = json.loads(line)
                if "exit" in said:
                    self.exit_code = said["exit"]
                    self._exited.set()
                if "clean" in said:
                    clean, self.killed = True, said["clean"]
            if not clean:
                await self._clear_up()
        finally:
            self._exited.set()
            metrics.PROCESSES.dec()
            metrics.KILLED.inc(self.killed)

    async def _clear_up(self) -> None:
        """The supervisor was killed. The kernel has told the command to end; see that it does, and all of it."""
        metrics.SUPERVISORS_LOST.inc()
        grace = 0.0 if self._killing else self._grace
        self.killed = await asyncio.to_thread(leftovers.end, self.mark, grace)


class _Pipes:
    """The asyncio ends of a process that asyncio did not start.

    asyncio's own subprocess transport kills its child when it is closed or collected, and a supervisor that is killed
    cannot clear up. Here it only loses its pipe, which is what it waits for.
    """

    def __init__(
        self,
        stdout: _Reading,
        stderr: _Reading,
        control: asyncio.StreamReader,
        asking: asyncio.StreamWriter,
        stdin: _Writing | None,
    ) -> None:
        (self.stdout, out), (self.stderr, err) = stdout, stderr
        self.control, self.asking, self.stdin = control, asking, stdin
        self._transports = out, err

    @classmethod
    async def of(cls, process: subprocess.Popen[bytes], control: socket.socket) -> _Pipes:
        """Whatever it raises, nothing that it opened stays open."""
        assert process.stdout is not None
        assert process.stderr is not None
        with contextlib.ExitStack() as undo:
            for end in (control, process.stdin, process.stdout, process.stderr):
                if end is not None:
                    undo.callback(end.close)
            reader, writer = await asyncio.open_connection(sock=control)
            undo.callback(writer.transport.abort)
            stdin = None if process.stdin is None else await _Writing.to(process.stdin)
            if stdin is not None:
                undo.callback(stdin.abort)
            out = await _reading(process.stdout)
            undo.callback(out[1].close)
            err = await _reading(process.stderr)
            undo.pop_all()
        return cls(out, err, reader, writer, stdin)

    def close(self) -> None:
        self.asking.close()
        if self.stdin is not None:
            self.stdin.abort()
        for transport in self._transports:
            transport.close()


async def _reading(pipe: IO[bytes]) -> _Reading:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_READ)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader, transport


class _Writing(asyncio.BaseProtocol):
    """The asyncio end of a pipe that is written to. A transport may not be touched once its pipe is lost."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def to(cls, pipe: IO[bytes]) -> _Writing:
        transport, self = await asyncio.get_running_loop().connect_write_pipe(cls, pipe)
        self._transport = transport
        return self

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Behind what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Now: a command that no longer reads would be waited for."""
        if self._transport is not None:
            self._transport.abort()


def _encoded(argv: Sequence[str]) -> list[bytes]:
    """The program as the worker's locale has it, everything else in UTF-8: a prompt may hold what that locale lacks.

    The supervisor passes on the bytes as they are.
    """
    return [os.fsencode(argv[0]), *(argument.encode("utf-8", "surrogateescape") for argument in argv[1:])]


def _spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    grace: float,
    control: socket.socket,
    cwd: str | None,
    stdin: bool,
) -> subprocess.Popen[bytes]:
    if cwd is not None and not os.path.isdir(cwd):
        raise NotStarted(f"{cwd!r}, where {argv[0]!r} should work, is no directory", missing=False)
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISOR), str(control.fileno()), str(grace), *_encoded(argv)],
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=dict(env),
            cwd=cwd,
            pass_fds=(control.fileno(),),
            # A Ctrl-C in the terminal is for the worker, which then stops its runs in order.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise NotStarted(f"{argv[0]!r} could not be started: {error}", missing=False) from error
