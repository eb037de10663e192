"""The keeper: a small process that runs the embedded server of one data directory for as long as it has users.

Run as a file (``python -I -S keeper.py DIR SERVER``), standard library only, so it starts in a few milliseconds and
holds little memory. It detaches, starts the server as its child, says ``ready``, and then waits for whichever comes
first:

| event | what it does |
|---|---|
| nobody holds ``users.lock`` any more (the kernel drops a dead user's lock) | stops the server, ends |
| the server died | ends; the users' next command starts a new keeper |
| SIGTERM | stops the server, ends |
| it is killed itself | the kernel sends the server SIGTERM (Linux: parent death signal), which stops orderly |

Locks (flock) in the directory: ``start.lock`` serialises those who start a keeper; ``users.lock`` is shared by users
and taken alone by a keeper that stops; ``keeper.lock`` is held by the living keeper; ``server.lock`` by keeper and
server both, so a new server never opens the files of one that is still dying.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import sys
import threading
import time

__all__ = ["SOCKET", "main"]

SOCKET = "valkey.sock"
LOG = "valkey.log"
_OPTIONS = ["--port", "0", "--unixsocket", SOCKET, "--unixsocketperm", "700", "--dir", ".", "--logfile", LOG]
_OPTIONS += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--daemonize", "no"]
_OPTIONS += ["--set-proc-title", "no"]
_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 10.0
_START_SECONDS = 20.0


class NotStarted(Exception):
    """Why there is no server; the text goes to whoever asked for it."""


def main(argv: list[str]) -> int:
    """Start a detached keeper; return 0 once its server takes connections, else print why not and return 1."""
    directory, server = argv
    os.umask(0o077)
    os.chdir(directory)
    read, write = os.pipe()
    # Forked twice (the first time by whoever started us): the keeper is nobody's child, so no host application has to
    # wait for it, and none is surprised by a SIGCHLD.
    if os.fork() == 0:
        os.close(read)
        _detach()
        _keep(server, write)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    if said == "ready":
        return 0
    print(said or "the keeper was killed", file=sys.stderr)
    return 1


def _detach() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    # Our session is our own already; these come from elsewhere, and no terminal's keys shall end the server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _keep(server: str, report: int) -> None:
    try:
        held = _lock("keeper.lock", 0.0)
        locked = _lock("server.lock", _STOP_SECONDS, held_by=_previous(held))
        users = os.open("users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        wakeup = _signals()
        pid = _spawn(server, locked)
        os.ftruncate(held, 0)
        os.pwrite(held, f"{os.getpid()} {pid}\n".encode(), 0)
        _wait_ready(pid)
    except (NotStarted, OSError) as error:
        os.write(report, str(error).encode())
        os._exit(1)
    os.write(report, b"ready")
    os.close(report)
    _watch(pid, wakeup, users)


def _lock(name: str, seconds: float, *, held_by: int = 0) -> int:
    """An exclusive lock on a file of the directory. ``held_by`` is a server that outlived its keeper: it is asked to
    go, and forced where it has not after a quarter of the time (a stopped or stuck one hears nothing)."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            passed = time.monotonic() - began
            if passed >= seconds:
                raise NotStarted(f"{name} is held by another process") from None
        if held_by and _is_ours(held_by):
            os.kill(held_by, signal.SIGKILL if passed > seconds / 4 else signal.SIGTERM)
        time.sleep(0.01)


def _previous(held: int) -> int:
    """The server of the keeper before us, as that noted it."""
    noted = os.pread(held, 64, 0).split()
    return int(noted[1]) if len(noted) == 2 and noted[1].isdigit() else 0


def _is_ours(pid: int) -> bool:
    """Whether that process works in this directory: process ids are used again. (Nobody is forced where the kernel
    does not say.)"""
    try:
        return os.path.samefile(f"/proc/{pid}/cwd", ".")
    except OSError:
        return False


def _signals() -> socket.socket:
    """A socket that becomes readable at SIGCHLD and SIGTERM. (A blocking call that a signal is to interrupt would miss
    one that comes just before it.)"""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _kept_open.append(theirs)
    signal.signal(signal.SIGCHLD, _note)
    signal.signal(signal.SIGTERM, _note)
    signal.set_wakeup_fd(theirs.fileno())
    return ours


_kept_open: list[object] = []


def _note(signum: int, frame: object) -> None:
    """The wakeup socket has its byte already."""


def _spawn(server: str, locked: int) -> int:
    """Start the server as our child, with ``server.lock`` open in it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    ours = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != ours:
                os._exit(1)
        signal.set_wakeup_fd(-1)
        os.set_inheritable(locked, True)
        os.execv(server, [server, *_OPTIONS])
    finally:
        os._exit(127)


def _wait_ready(pid: int) -> None:
    """Until the server takes connections. It may still be loading: that is for the users to wait for."""
    end = time.monotonic() + _START_SECONDS
    while not _ask(b"PING\r\n"):
        if _ended(pid):
            raise NotStarted(f"the server ended at once; the end of {LOG}: {_log()}")
        if time.monotonic() > end:
            _stop(pid)
            raise NotStarted(f"the server did not open its socket; the end of {LOG}: {_log()}")
        time.sleep(0.003)


def _ask(request: bytes) -> bytes:
    """One request; what came back first, or nothing."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(SOCKET)
            sock.sendall(request)
            return sock.recv(64)
        except OSError:
            return b""


def _log() -> str:
    try:
        with open(LOG, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 600))
            return log.read().decode(errors="replace")
    except OSError as error:
        return str(error)


def _watch(pid: int, wakeup: socket.socket, users: int) -> None:
    unused, told = os.pipe()
    threading.Thread(target=_wait_unused, args=(users, told), daemon=True).start()
    while not _ended(pid):
        ready, _, _ = select.select([wakeup.fileno(), unused], [], [])
        if unused in ready or signal.SIGTERM in wakeup.recv(64):
            _stop(pid)
            return


def _wait_unused(users: int, told: int) -> None:
    """Blocks until the last user's lock is gone; from then on a new user waits until we have ended."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX)
    finally:
        os.write(told, b"x")  # also where locking fails: better no server than one that never stops


def _stop(pid: int) -> None:
    """An orderly stop: the append-only file is flushed to the disk. By force if that takes too long."""
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + _STOP_SECONDS
    while not _ended(pid):
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
