"""Removes workspaces that nobody used for ``RUNCAST_WORKSPACE_TTL``, and stored files after ``RUNCAST_ARTIFACT_TTL``.

Every worker does it for its own machine's workspaces; of all workers one at a time for the artifact store.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import random
import secrets
import shutil
import stat
import time
from typing import TYPE_CHECKING

from broker.errors import RuncastError
from workers import metrics
from workers.workspace import NO_FOLLOW, SPOOL, Workspaces

if TYPE_CHECKING:
    from broker.api import Broker

__all__ = ["EVERY", "Retention", "remove_unused"]

log = logging.getLogger("runcast.worker")
EVERY = 3_600.0
"""Seconds between two looks."""
_SPOOL_TTL = 86_400.0
"""A spooled file is older than that only where its worker was killed."""
_REMOVED = ".removed-"


class Retention:
    def __init__(self, broker: Broker, workspaces: Workspaces) -> None:
        self._broker, self._settings, self._workspaces = broker, broker.settings, workspaces

    async def run_forever(self) -> None:
        """Looks for ever. Workers that start together do not all look at once."""
        await asyncio.sleep(random.uniform(0, EVERY / 60))
        while True:
            try:
                await self.once()
            except (RuncastError, OSError) as error:
                log.warning("files that nobody needs could not be removed: %s", error)
            except Exception:
                log.exception("removing files that nobody needs failed; it is tried again")
            await asyncio.sleep(EVERY)

    async def once(self) -> None:
        """One look. Raises ``RuncastError``, ``OSError``."""
        if (ttl := self._settings.workspace_ttl) > 0:
            removed = await asyncio.to_thread(remove_unused, self._workspaces, ttl)
            metrics.WORKSPACES_REMOVED.inc(removed)
        if self._settings.artifact_ttl > 0 and await self._turn():
            gone = await self._broker.artifacts.remove_older(self._settings.artifact_ttl)
            metrics.ARTIFACTS_REMOVED.inc(gone)

    async def _turn(self) -> bool:
        """Whether it is this worker's turn: a store is listed once in that time, however many workers there are."""
        key = self._broker.keys.artifacts_swept()
        ttl = str(int(EVERY * 900)).encode()
        return await self._broker.store.call(b"SET", key, b"1", b"NX", b"PX", ttl) is not None


def remove_unused(workspaces: Workspaces, seconds: float) -> int:
    """Remove the workspaces that were last used longer ago and are not in use; returns how many. Blocks."""
    before, removed = time.time() - seconds, 0
    if not workspaces.home.is_dir():
        return 0
    home = workspaces.open_home()
    try:
        _clean_spool(home)
        for name in os.listdir(home):
            if name.startswith(_REMOVED):
                shutil.rmtree(name, dir_fd=home, ignore_errors=True)  # somebody was killed in the middle
            elif name.startswith(("session-", "run-")):
                removed += _remove(home, name, before)
    finally:
        os.close(home)
    return removed


def _remove(home: int, name: str, before: float) -> int:
    with contextlib.suppress(OSError):
        found = os.stat(name, dir_fd=home, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=home)  # a link that an agent put in the place of its workspace
            return 1
        if found.st_mtime >= before:
            return 0
        held = os.open(name, os.O_RDONLY | os.O_DIRECTORY | NO_FOLLOW, dir_fd=home)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(held).st_mtime >= before:
                return 0
            # First out of the way, at once: whoever opens the workspace now gets a new one, never half of this.
            away = _REMOVED + secrets.token_hex(8)
            os.rename(name, away, src_dir_fd=home, dst_dir_fd=home)
            shutil.rmtree(away, dir_fd=home, ignore_errors=True)
            return 1
        finally:
            os.close(held)
    return 0


def _clean_spool(home: int) -> None:
    before = time.time() - _SPOOL_TTL
    with contextlib.suppress(OSError):
        spool = os.open(SPOOL, os.O_RDONLY | os.O_DIRECTORY | NO_FOLLOW, dir_fd=home)
        try:
            for name in os.listdir(spool):
                with contextlib.suppress(OSError):
                    if os.stat(name, dir_fd=spool, follow_symlinks=False).st_mtime < before:
                        os.unlink(name, dir_fd=spool)
        finally:
            os.close(spool)
