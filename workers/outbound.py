"""What a run leaves behind: the new and changed files of its workspace → the artifact store, and a list of them.

Bounded in number, size and time. Nothing fails the run: what is left out is said, with the reason.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
import time
from dataclasses import dataclass, field
from typing import Any

from broker.artifact_names import media_type, shown
from broker.artifact_store import ArtifactStore
from broker.errors import RuncastError
from broker.settings import Settings
from workers import metrics
from workers.tree import Seen, Tree, opened, walk
from workers.workspace import Spooled, Workspace

__all__ = ["Collected", "Outbound"]

SKIPPED_SHOWN = 50
_BLOCK = 1 << 20
_COARSE_NS = 20_000_000
"""A file system's clock may be so far behind."""


@dataclass(slots=True)
class Collected:
    """``files``: ``{name, size, sha256, type}``. ``skipped``: the first of those that were left out, with ``reason``;
    ``left_out`` counts all."""

    files: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0

    def skip(self, path: str, reason: str, size: int | None = None) -> None:
        metrics.ARTIFACTS_SKIPPED.labels(reason).inc()
        self.left_out += 1
        if len(self.skipped) < SKIPPED_SHOWN:
            told = {"name": shown(path), "reason": reason}
            self.skipped.append(told if size is None else {**told, "size": size})

    @property
    def fields(self) -> dict[str, Any]:
        """As the fence tells them."""
        told: dict[str, Any] = {"artifacts": self.files}
        if self.left_out:
            told["artifacts_skipped"] = {"count": self.left_out, "files": self.skipped}
        return told


class _Changed(Exception):
    """The file is not, or no longer, what was seen. ``args[0]`` is the reason."""


class Outbound:
    """One run's. ``begin`` before the agent works, ``collect`` after."""

    def __init__(self, workspace: Workspace, store: ArtifactStore, settings: Settings, run_id: str) -> None:
        self._workspace, self._store, self._settings, self._run_id = workspace, store, settings, run_id
        self._before = Tree()
        self._since = 0

    async def begin(self) -> None:
        """Remember what lies there."""
        self._since = time.time_ns() - _COARSE_NS
        self._before = await asyncio.to_thread(walk, self._workspace.fd)

    async def collect(self) -> Collected:
        """Store what is new. Raises nothing but cancellation."""
        collected = Collected()
        try:
            tree = await asyncio.to_thread(walk, self._workspace.fd)
        except OSError as error:
            collected.skip("", error.strerror or "unreadable")
            return collected
        deadline = time.monotonic() + self._settings.outbound_seconds
        total = 0
        for path, reason in tree.changes(self._before, self._since):
            size = tree.files[path].size if path in tree.files else None
            reason = reason or self._beyond(collected, tree.files[path].size, total, deadline)
            if not reason:
                reason = await self._keep(path, tree.files[path], collected, deadline)
                total += 0 if reason else tree.files[path].size
            if reason:
                collected.skip(path, reason, size)
        if not tree.whole:
            collected.skip("", "too_many_entries")
        return collected

    def _beyond(self, collected: Collected, size: int, total: int, deadline: float) -> str:
        """The limit that another file would pass; empty where none."""
        settings = self._settings
        if size > settings.outbound_bytes:
            return "too_big"
        if len(collected.files) >= settings.outbound_count:
            return "too_many"
        if total + size > settings.outbound_total_bytes:
            return "total_too_big"
        return "time" if time.monotonic() >= deadline else ""

    async def _keep(self, path: str, seen: Seen, collected: Collected, deadline: float) -> str:
        """Why it could not be kept; empty where it is."""
        spooled = await asyncio.to_thread(self._workspace.spool)
        try:
            size, digest = await asyncio.to_thread(_copied, self._workspace.fd, path, seen, spooled)
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                await self._store.put(self._store.of_run(self._run_id, digest), spooled.path)
        except _Changed as changed:
            return str(changed.args[0])
        except TimeoutError:
            return "time"
        except OSError as error:
            return "unreadable" if error.errno in (errno.EACCES, errno.EPERM) else "changed_while_read"
        except RuncastError:
            return "store_unavailable"
        finally:
            await asyncio.to_thread(spooled.close)
        metrics.ARTIFACTS_STORED.inc()
        metrics.ARTIFACT_BYTES.labels("out").inc(size)
        collected.files.append({"name": path, "size": size, "sha256": digest, "type": media_type(path)})
        return ""


def _copied(fd: int, path: str, seen: Seen, spooled: Spooled) -> tuple[int, str]:
    """The file as it was seen → the spooled one; its size and SHA-256, both of what was copied.

    Raises ``_Changed`` where it became another one, or changed, before the copy was whole; ``OSError``.
    """
    digest, size = hashlib.sha256(), 0
    with opened(fd, path) as file:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or Seen.of(found) != seen:
            raise _Changed("changed_while_read")
        while block := os.read(file, _BLOCK):
            size += len(block)
            if size > seen.size:
                raise _Changed("changed_while_read")
            digest.update(block)
            spooled.write(block)
        if size != seen.size or Seen.of(os.fstat(file)) != seen:
            raise _Changed("changed_while_read")
    return size, digest.hexdigest()
