"""Which hosts work on tasks, and in which directory each keeps their checkpoints: for ``runcast doctor``.

Several hosts need one shared directory, or all but one must leave tasks alone: a task whose checkpoint lies elsewhere
is handed on until the host comes along that has it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING

import msgspec

from broker.errors import RuncastError
from workers.tasks.checkpoints import Checkpoints

if TYPE_CHECKING:
    from broker.redis import Store

__all__ = ["Host", "note_host", "task_hosts"]

log = logging.getLogger("runcast.tasks")
_FORGOTTEN_AFTER = 7 * 86_400.0


class Host(msgspec.Struct, kw_only=True, frozen=True):
    """``identity`` is that of the directory ``path``; ``at``: when it was last said, seconds since the epoch."""

    name: str
    identity: str
    path: str
    at: float


async def note_host(store: Store, checkpoints: Checkpoints) -> None:
    """Say that this host works on tasks, and where. News only: what goes wrong is logged."""
    try:
        identity = await asyncio.to_thread(checkpoints.identity)
        here = Host(name=socket.gethostname(), identity=identity, path=str(checkpoints.directory), at=time.time())
        # Two directories of one host are two places as well.
        field = f"{here.name} {here.identity}"
        await store.call(b"HSET", store.keys.task_hosts(), field, msgspec.json.encode(here))
    except (RuncastError, OSError) as error:
        log.warning("the place of tasks' checkpoints could not be told: %s", error)


async def task_hosts(store: Store) -> list[Host]:
    """Who has said so within a week, the newest first. Raises ``StoreUnavailable``."""
    flat = await store.call(b"HVALS", store.keys.task_hosts())
    known = [msgspec.json.decode(value, type=Host) for value in flat or ()]
    recent = [host for host in known if host.at > time.time() - _FORGOTTEN_AFTER]
    return sorted(recent, key=lambda host: -host.at)
