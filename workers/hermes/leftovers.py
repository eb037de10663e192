"""Finds and ends what is left of a Hermes call whose supervisor was killed. Linux: reads ``/proc``."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from workers.hermes.command import MARK
from workers.hermes.supervisor import descendants

__all__ = ["end", "marked"]

_PAUSE = 0.05


def marked(mark: str) -> set[int]:
    """The living processes that carry ``mark`` in their environment, and everything that descends from them.

    The latter finds a tool that was started with a cleared environment, as long as its parent lives.
    """
    wanted = f"{MARK}={mark}".encode()
    found: set[int] = set()
    for name in os.listdir("/proc"):
        # Another user's processes, and such that end while we look, are none of ours.
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/environ", "rb") as file:
            if wanted in file.read().split(b"\0") and _alive(int(name)):
                found.add(int(name))
    for pid in tuple(found):
        found.update(descendants(pid))
    found.discard(os.getpid())
    return found


def _alive(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def end(mark: str, grace: float) -> int:
    """SIGTERM, ``grace`` seconds, then SIGKILL until nothing is left; returns how many were killed.

    Blocks: not for the event loop.
    """
    first = known = marked(mark)
    for pid in first:
        _send(pid, signal.SIGTERM)
    give_up = time.monotonic() + grace
    while first and time.monotonic() < give_up:
        time.sleep(_PAUSE)
        # What was seen as a descendant counts even after its parent, by which it was found, has gone.
        known = marked(mark) | {pid for pid in known if _exists(pid)}
        if not known:
            return 0
    killed = set(known)
    limit = time.monotonic() + 10.0
    while known and time.monotonic() < limit:
        for pid in known:
            _send(pid, signal.SIGKILL)
        time.sleep(_PAUSE)
        known = marked(mark)
        killed |= known
    return len(killed)


def _exists(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _alive(pid)
    return False


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
