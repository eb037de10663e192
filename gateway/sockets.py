"""Options of a stream's socket: what the kernel keeps of it, and for how long. Each is left out where it is not known.

asyncio's buffer is bounded by the high-water mark; the kernel's own would take megabytes more for a peer that does not
read, and a container pays for those too.
"""

from __future__ import annotations

import contextlib
import socket
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["give_up_vanished", "hand_over", "keep_unsent"]

_AFTER_THE_STALL = 10.0
_WMEM_MAX = Path("/proc/sys/net/core/wmem_max")
_USUAL_WMEM_MAX = 212_992


def give_up_vanished(sock: Any, seconds: float) -> None:
    """A peer that is gone without a word acknowledges nothing; the kernel alone would wait some 15 minutes.

    The kernel counts a peer that reads nothing the same way. The hub is to cut that one, and to count it, first.
    """
    if _is_tcp(sock) and hasattr(socket, "TCP_USER_TIMEOUT"):
        after = min(int((seconds + _AFTER_THE_STALL) * 1000), 2**31 - 1)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, after)


def keep_unsent(sock: Any, most: int) -> None:
    """The kernel takes what it can send and about ``most`` bytes more. 0: as much as it likes.

    Then progress shows soon, too: without this a socket with a full buffer takes nothing until a third of it, which
    may be a megabyte, has been read.
    """
    if _is_tcp(sock) and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, most)


def hand_over(sock: Any, waiting: int) -> None:
    """Let the kernel take the last ``waiting`` bytes of a connection that is about to be closed behind them.

    It sends them if the peer comes back to read, and forgets them by itself if it does not.
    """
    keep_unsent(sock, 0)
    if sock is None:
        return
    with contextlib.suppress(OSError):
        has = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        wanted = min(has // 2 + waiting, _wmem_max())  # the kernel doubles it: that much again for what it adds
        if 2 * wanted > has:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wanted)


def _is_tcp(sock: Any) -> bool:
    return sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6)


@cache
def _wmem_max() -> int:
    try:
        return int(_WMEM_MAX.read_text())
    except (OSError, ValueError):
        return _USUAL_WMEM_MAX
