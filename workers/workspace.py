"""Workspaces: the directories that agents work in. One a session, one a run where there is none.

    ROOT/ns-NAMESPACE/session-ID     where ROOT is RUNCAST_WORKSPACES
                     /run-ID
                     /.spool         files on their way in or out, of one file system with the others

Everything is reached from an open directory, one component after the other, and no link is ever followed: what an agent
left in its workspace can lead nowhere. A workspace in use is locked (``flock``), so that nobody removes it meanwhile.

These functions block: call them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from pathlib import Path

from broker.settings import Settings

__all__ = ["NO_FOLLOW", "SPOOL", "NameTaken", "Spooled", "Workspace", "WorkspaceUnusable", "Workspaces"]

NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | NO_FOLLOW
SPOOL = ".spool"
_TRIES = 50
_PAUSE = 0.05


class WorkspaceUnusable(Exception):
    """It cannot be made, is no directory, or somebody holds it. The message says which."""


class NameTaken(Exception):
    """A directory of the workspace has the name that a file is to have."""


class Workspaces:
    """All of one deployment on this machine. Made without IO."""

    def __init__(self, settings: Settings) -> None:
        self.root = (settings.workspaces or settings.data_dir / "workspaces").absolute()
        self.home = self.root / f"ns-{settings.namespace}"

    def open(self, session_id: str | None, run_id: str) -> Workspace:
        """Make it if it is not there, and hold it until it is closed. Raises ``WorkspaceUnusable``."""
        # The kind stands in front: an id may be “..”.
        name = f"session-{session_id}" if session_id else f"run-{run_id}"
        with contextlib.ExitStack() as opened:
            try:
                home = self.open_home()
                opened.callback(os.close, home)
                spool = _enter(home, SPOOL)
                opened.callback(os.close, spool)
                held = _hold(home, name)
            except OSError as error:
                raise WorkspaceUnusable(f"{self.home / name}: {error.strerror or error}") from error
            opened.pop_all()
        return Workspace(self.home / name, held, spool, home, of_session=bool(session_id))

    def open_home(self) -> int:
        """The directory of this namespace, as a descriptor. Raises ``OSError``."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _enter(root, self.home.name)
        finally:
            os.close(root)


def _enter(parent: int, name: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, _DIRECTORY, dir_fd=parent)


def _hold(home: int, name: str) -> int:
    """The directory, locked against removal, and surely the one that has the name now."""
    for _ in range(_TRIES):
        held = _enter(home, name)
        try:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            there = os.stat(name, dir_fd=home, follow_symlinks=False)
            if os.path.samestat(os.fstat(held), there):
                os.utime(held)
                return held
        except (BlockingIOError, FileNotFoundError):
            pass  # it is being removed: the next try makes a new one
        except BaseException:
            os.close(held)
            raise
        os.close(held)
        time.sleep(_PAUSE)
    raise OSError(errno.EBUSY, "it is being removed, or somebody holds it")


class Workspace:
    """Made by ``Workspaces.open``. ``fd`` is the directory, open; ``path`` is for whoever works in it."""

    def __init__(self, path: Path, fd: int, spool: int, home: int, *, of_session: bool) -> None:
        self.path, self.fd, self._spool, self._home = path, fd, spool, home
        self._of_session = of_session

    def spool(self) -> Spooled:
        """A new file beside the workspaces, to be written."""
        return Spooled(self._spool, self.path.parent / SPOOL)

    def check_free(self, name: str) -> None:
        """Raises ``NameTaken`` where a directory has the name."""
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode):
                raise NameTaken(name)

    def place(self, spooled: Spooled, name: str) -> None:
        """Give a spooled file its name in the workspace. A file or a link of that name is replaced, and not followed.

        Raises ``NameTaken`` where a directory has the name.
        """
        try:
            os.rename(spooled.name, name, src_dir_fd=self._spool, dst_dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise NameTaken(name) from error
            raise

    def close(self) -> None:
        """Let go of it. One of a single run in which nothing lies is removed."""
        with contextlib.suppress(OSError):
            os.utime(self.fd)
        if not self._of_session:
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(self.path.name, dir_fd=self._home)
        for fd in (self.fd, self._spool, self._home):
            os.close(fd)


class Spooled:
    """A file on its way in or out. ``close`` removes it, unless it has got its place meanwhile."""

    def __init__(self, directory: int, path: Path) -> None:
        self.name = secrets.token_hex(16)
        self._directory = directory
        self.path = path / self.name
        self.fd = os.open(self.name, os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_FOLLOW, 0o600, dir_fd=directory)

    def write(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(self.fd, view) :]

    def close(self) -> None:
        os.close(self.fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self._directory)
