"""Checkpoints: one JSON file a task, written whole or not at all, and by its present worker alone.

``DIR/TASK.json`` is ``{"format", "fence", "saved_at", "task"}``. A new version is written beside it, brought to the
disk, and renamed over it; then the directory is brought to the disk too.

The fence is the number of the attempt that has the task: it grows with each worker. A worker writes in a folder of its
own, ``DIR/.open/TASK.FENCE``, and whoever comes after it removes that folder before it reads. So a worker that was
frozen between writing and renaming, and wakes up again, has nothing left to rename: no lock is held that a frozen
process could keep, and no check is made that could be too old by the time of the rename.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from pathlib import Path

import msgspec

from broker.errors import Fenced, StoreError
from broker.ids import check_id
from broker.task_model import Task

__all__ = ["FORMAT", "Checkpoint", "CheckpointFile", "CheckpointTooNew", "CheckpointUnreadable", "Checkpoints"]

FORMAT = 1


class CheckpointUnreadable(StoreError):
    """The file is no checkpoint of that task."""


class CheckpointTooNew(CheckpointUnreadable):
    """It is one of a later version of Runcast: a worker of that version can go on with it."""


class _Head(msgspec.Struct):
    format: int


class CheckpointFile(msgspec.Struct, kw_only=True):
    """What a checkpoint holds: the task with its plan, states, results, approvals and history."""

    format: int
    fence: int
    saved_at: float
    task: Task


_head_decoder = msgspec.json.Decoder(_Head)
_decoder = msgspec.json.Decoder(CheckpointFile)


class Checkpoints:
    """The checkpoints in one directory, which the workers of several hosts may share. All of it blocks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open = directory / ".open"

    def path(self, task_id: str) -> Path:
        return self.directory / f"{check_id(task_id, 'task_id')}.json"

    def known_identity(self) -> str | None:
        """The same where it was made already; makes nothing. Raises ``OSError``."""
        try:
            return (self.directory / ".identity").read_text("ascii").strip() or None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def identity(self) -> str:
        """What tells this directory from that of another host: made when first asked for. Raises ``OSError``."""
        self._open.mkdir(parents=True, exist_ok=True)
        file = self.directory / ".identity"
        for _ in range(2):
            with contextlib.suppress(FileNotFoundError):
                if known := file.read_text("ascii").strip():
                    return known
            mine = self.directory / f".identity.{secrets.token_hex(6)}"
            mine.write_text(secrets.token_hex(8) + "\n", "ascii")
            with contextlib.suppress(FileExistsError):
                os.link(mine, file)
            mine.unlink()
        return file.read_text("ascii").strip()

    def read(self, task_id: str) -> CheckpointFile | None:
        """The newest checkpoint, or ``None``. Raises ``CheckpointUnreadable``, ``CheckpointTooNew``, ``OSError``."""
        path = self.path(task_id)
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            known = _head_decoder.decode(found).format
            if known > FORMAT:
                raise CheckpointTooNew(f"{path} has format {known}, this version knows {FORMAT}")
            kept = _decoder.decode(found)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CheckpointUnreadable(f"{path} is no checkpoint: {error}") from error
        if kept.task.task_id != task_id:
            raise CheckpointUnreadable(f"{path} is the checkpoint of another task, {kept.task.task_id!r}")
        return kept

    def open(self, task_id: str, fence: int) -> Checkpoint:
        """Become the one who writes that task's checkpoint, instead of whoever had a lower fence.

        Raises ``Fenced`` where somebody has a higher one; what ``read`` raises.
        """
        mine = self._open / f"{check_id(task_id, 'task_id')}.{fence}"
        mine.mkdir(parents=True, exist_ok=True)
        # First the folder, then the look around: of two that do so at once, the lower one sees the higher one's.
        others = self._fences(task_id)
        kept = self.read(task_id)
        highest = max([*others, kept.fence if kept is not None else 0])
        if highest > fence:
            shutil.rmtree(mine, ignore_errors=True)
            raise Fenced(f"task {task_id!r} has a worker with fence {highest}: this one, with {fence}, is too late")
        for other in others:
            if other < fence:
                _remove(self._open / f"{task_id}.{other}")
        return Checkpoint(self, task_id, fence, mine)

    def _fences(self, task_id: str) -> list[int]:
        prefix = f"{task_id}."
        names = (name.removeprefix(prefix) for name in os.listdir(self._open) if name.startswith(prefix))
        return [int(rest) for rest in names if rest.isascii() and rest.isdigit()]


def _remove(folder: Path) -> None:
    """Take the folder away from its worker in one step, then remove it."""
    gone = folder.with_name(f".gone.{secrets.token_hex(6)}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


class Checkpoint:
    """One worker's hold on one task's file."""

    def __init__(self, checkpoints: Checkpoints, task_id: str, fence: int, folder: Path) -> None:
        self._checkpoints, self._task_id, self._fence, self._folder = checkpoints, task_id, fence, folder

    def read(self) -> Task | None:
        """The task as it was last written, by whomever. Raises as ``Checkpoints.read``."""
        kept = self._checkpoints.read(self._task_id)
        return None if kept is None else kept.task

    def write(self, task: Task) -> None:
        """Replace the file. On disk when this returns.

        Raises ``Fenced`` where another worker has the task by now (the file is its own then), ``OSError``.
        """
        kept = CheckpointFile(format=FORMAT, fence=self._fence, saved_at=time.time(), task=task)
        fresh = self._folder / secrets.token_hex(6)
        try:
            self._bring_to_disk(fresh, msgspec.json.encode(kept))
            self._put_in_place(fresh)
        except FileNotFoundError as error:
            message = f"task {self._task_id!r} was taken over: its checkpoint is no longer of fence {self._fence}"
            raise Fenced(message) from error

    @staticmethod
    def _bring_to_disk(file: Path, content: bytes) -> None:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())

    def _put_in_place(self, fresh: Path) -> None:
        os.rename(fresh, self._checkpoints.path(self._task_id))
        descriptor = os.open(self._checkpoints.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Let go: nothing more is written. The file stays."""
        shutil.rmtree(self._folder, ignore_errors=True)
