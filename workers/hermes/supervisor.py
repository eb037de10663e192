"""Runs one command and sees to it that nothing of it outlives whoever asked for it. Standard library only.

Started as a file, not as a module: ``python -I -S supervisor.py CONTROL_FD GRACE COMMAND…``. ``CONTROL_FD`` is a
socket whose other end the worker holds. The supervisor becomes a child subreaper, so every process that descends
from the command stays its descendant, whatever session or process group it moved to and whoever its parent was.

The command's standard input is the supervisor's own, which lets go of it once the command has it: who writes to a
command that is gone gets a broken pipe.

Worker → supervisor, one byte each: ``s`` stop (SIGTERM, ``GRACE`` seconds, then SIGKILL of everything), ``k`` kill
now. The end of the stream, however the worker ended (SIGKILL included), is ``s``. SIGTERM, SIGINT and SIGHUP to the
supervisor are ``s`` as well.

Supervisor → worker, one JSON object a line: ``{"started": pid}`` or ``{"error": "…", "errno": n}``; then
``{"exit": code}`` when the command has ended (negative: by that signal); then ``{"clean": killed}`` when no
descendant is left, with the number of those that had to be killed (``stuck``: some cannot be).

If the supervisor itself is killed, the kernel sends SIGTERM to the command, and the worker clears up the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

__all__ = ["Supervisor", "children_of", "descendants", "main"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_PAUSE = 0.02
_KILL_LIMIT = 30.0
"""A process in uninterruptible sleep cannot be killed; after so long the supervisor says so and ends."""
_libc = ctypes.CDLL(None, use_errno=True)


def children_of() -> dict[int, list[int]]:
    """Parent → children of every process that is alive (zombies left out)."""
    tree: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            # The command's name stands in parentheses and may itself hold spaces and parentheses.
            fields = file.read().rpartition(b")")[2].split()
            if fields[0] not in (b"Z", b"X"):
                tree.setdefault(int(fields[1]), []).append(int(name))
    return tree


def descendants(root: int) -> list[int]:
    """Every living process below ``root``, parents before children."""
    tree = children_of()
    found: list[int] = []
    queue = [root]
    while queue:
        below = tree.get(queue.pop(), [])
        found.extend(below)
        queue.extend(below)
    return found


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _in_child(parent: int) -> None:
    """Between fork and exec. A supervisor that died meanwhile would leave the command without its signal."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)


class Supervisor:
    """One command's life. ``run`` returns when no descendant is left."""

    def __init__(self, control: socket.socket, grace: float, argv: list[str]) -> None:
        self._control, self._grace, self._argv = control, grace, argv
        self._exit: int | None = None
        self._deadline: float | None = None
        self._killed: set[int] = set()
        self._pid = 0
        self._listening = True

    def run(self) -> int:
        if not self._start():
            return 127
        with selectors.DefaultSelector() as selector:
            wakeup = self._wake_on_signals()
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(wakeup, selectors.EVENT_READ)
            self._reap()
            while self._exit is None:
                self._wait(selector, wakeup)
                self._reap()
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    break
        clean = self._kill_all()
        self._say({"clean" if clean else "stuck": len(self._killed)})
        return 0 if clean else 1

    def _start(self) -> bool:
        parent = os.getpid()
        try:
            child = subprocess.Popen(self._argv, preexec_fn=lambda: _in_child(parent), restore_signals=True)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._say({"error": str(error), "errno": getattr(error, "errno", None) or 0})
            return False
        # Kept: a Popen that is collected reaps its process, and the exit code would be lost to `_reap`.
        self._child, self._pid = child, child.pid
        self._let_go_of_stdin()
        self._say({"started": child.pid})
        return True

    def _let_go_of_stdin(self) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)

    def _wake_on_signals(self) -> socket.socket:
        """SIGCHLD and the requests to stop end the wait of the selector."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self._kept_open = theirs
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop())
        return ours

    def _wait(self, selector: selectors.BaseSelector, wakeup: socket.socket) -> None:
        timeout = None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)
        for key, _ in selector.select(timeout):
            if key.fileobj is wakeup:
                with contextlib.suppress(OSError):
                    wakeup.recv(4096)
            else:
                self._obey(selector)

    def _obey(self, selector: selectors.BaseSelector) -> None:
        try:
            asked = self._control.recv(64)
        except OSError:
            asked = b""
        if b"k" in asked:
            self._deadline = time.monotonic()
        elif b"s" in asked or not asked:
            self._stop()
        if not asked:
            selector.unregister(self._control)

    def _stop(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace
            _send(self._pid, signal.SIGTERM)
            # A stopped process takes no SIGTERM before it goes on.
            _send(self._pid, signal.SIGCONT)

    def _reap(self) -> None:
        """Collect whatever ended: as subreaper this process is the parent of all orphans below it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if self._exit is None:  # something else collected it: better an unknown end than none
                    self._exit = -signal.SIGKILL
                    self._say({"exit": self._exit})
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._exit = os.waitstatus_to_exitcode(status)
                self._say({"exit": self._exit})

    def _kill_all(self) -> bool:
        """SIGKILL whatever descends, again and again until a look finds nothing: what forks meanwhile is found next."""
        give_up = time.monotonic() + _KILL_LIMIT
        me = os.getpid()
        while time.monotonic() < give_up:
            left = descendants(me)
            if not left and self._exit is not None:
                return True
            for pid in left:
                _send(pid, signal.SIGKILL)
            self._killed.update(left)
            time.sleep(_KILL_PAUSE)
            self._reap()
        return False

    def _say(self, what: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(what).encode() + b"\n")


def main(arguments: list[str]) -> int:
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    if not sys.platform.startswith("linux"):
        control.sendall(b'{"error": "Hermes is supervised through Linux\'s child subreaper and /proc", "errno": 0}\n')
        return 126
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        error = os.strerror(ctypes.get_errno())
        control.sendall(json.dumps({"error": f"no child subreaper: {error}", "errno": 0}).encode() + b"\n")
        return 126
    return Supervisor(control, float(arguments[1]), arguments[2:]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
