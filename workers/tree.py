"""What lies in a workspace: files, and what is none and why. No link is followed, nothing is opened but directories.

``walk`` blocks: call it in a thread.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.artifact_names import is_showable
from workers.workspace import NO_FOLLOW

__all__ = ["ENTRIES_MAX", "Seen", "Tree", "opened", "walk"]

ENTRIES_MAX = 20_000
"""Entries of a workspace that are looked at."""
_DEEPEST = 32
_NOT_COLLECTED = frozenset({"__pycache__", "node_modules"})
_KINDS = {
    stat.S_IFLNK: "symlink",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


class Seen(NamedTuple):
    """By what a changed file is known. Nobody but the kernel sets ``ctime_ns``."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Seen:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@dataclass(slots=True)
class Tree:
    """``files`` and ``others`` by path, directories parted by “/”. ``others``: why it is no file to be kept, and by
    what it is known again. ``whole``: nothing was left unseen."""

    files: dict[str, Seen] = field(default_factory=dict)
    others: dict[str, tuple[str, int]] = field(default_factory=dict)
    entries: int = 0
    whole: bool = True

    def changes(self, before: Tree, since_ns: int) -> Iterator[tuple[str, str]]:
        """Path and reason of what is new or changed; a file has no reason. ``since_ns``: when ``before`` was walked,
        which counts for what that did not get to."""
        for path, seen in sorted(self.files.items()):
            known = before.files.get(path)
            if seen != known and (known is not None or before.whole or seen.ctime_ns >= since_ns):
                yield path, ""
        for path, (reason, ident) in sorted(self.others.items()):
            if before.others.get(path) != (reason, ident):
                yield path, reason


def walk(fd: int) -> Tree:
    """All below the open directory ``fd``. What cannot be read is said in ``others``; raises nothing."""
    tree = Tree()
    _walk(fd, "", os.fstat(fd).st_dev, 0, tree)
    return tree


def _walk(fd: int, prefix: str, dev: int, depth: int, tree: Tree) -> None:
    with os.scandir(fd) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if tree.entries >= ENTRIES_MAX:
            tree.whole = False
            return
        tree.entries += 1
        with contextlib.suppress(FileNotFoundError):  # gone meanwhile
            _look(fd, entry.name, prefix + entry.name, dev, depth, tree)


def _look(fd: int, name: str, path: str, dev: int, depth: int, tree: Tree) -> None:
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    reason = _reason(name, path, found, dev)
    if reason:
        tree.others[path] = reason, found.st_ino
    elif stat.S_ISREG(found.st_mode):
        tree.files[path] = Seen.of(found)
    elif depth >= _DEEPEST:
        tree.others[path] = "too_deep", found.st_ino
    else:
        _descend(fd, name, path, dev, depth, tree, found.st_ino)


def _descend(fd: int, name: str, path: str, dev: int, depth: int, tree: Tree, ident: int) -> None:
    try:
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | NO_FOLLOW, dir_fd=fd)
    except OSError:  # no permission, or a link by now
        tree.others[path] = "unreadable", ident
        return
    try:
        _walk(below, path + "/", dev, depth + 1, tree)
    except OSError:
        tree.others[path] = "unreadable", ident
    finally:
        os.close(below)


def _reason(name: str, path: str, found: os.stat_result, dev: int) -> str:
    """Why it is not kept, and not descended into; empty where nothing speaks against it."""
    kind = stat.S_IFMT(found.st_mode)
    if kind in _KINDS:
        return _KINDS[kind]
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        return "device"
    if found.st_dev != dev:
        return "other_file_system"
    if name.startswith("."):
        return "hidden"
    if name in _NOT_COLLECTED:
        return "not_collected"
    if not is_showable(path):
        return "unusable_name"
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        return "hard_link"
    return ""


@contextlib.contextmanager
def opened(fd: int, path: str) -> Iterator[int]:
    """The file ``path`` below the open directory ``fd``, opened for reading without following a link anywhere on the
    way and without waiting (for a fifo's writer). Raises ``OSError``."""
    with contextlib.ExitStack() as closing:
        at = fd
        *directories, name = path.split("/")
        for directory in directories:
            at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | NO_FOLLOW, dir_fd=at)
            closing.callback(os.close, at)
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | NO_FOLLOW, dir_fd=at)
        closing.callback(os.close, file)
        yield file
