"""The Lua scripts: one file each, read once when first asked for.

Each script checks everything first and then writes everything; what it takes, answers and refuses stands at the
top of its file. Workers in other languages call the same scripts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["SCRIPTS", "Script", "load"]

_RUNS = ("create", "claim", "append", "beat", "takeover", "cancel", "ask", "answer")
_LEDGER = ("reserve", "settle", "release")
_NAMES = (*_RUNS, "session", "sessions", *_LEDGER, "task_commit", "task_decide")


@dataclass(frozen=True)
class Script:
    """A script's source, and the SHA-1 by which Redis knows it."""

    name: str
    source: bytes
    sha: str

    @classmethod
    def of(cls, name: str, source: bytes) -> Script:
        return cls(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


@cache
def load(name: str) -> Script:
    """The script ``NAME.lua`` of this package. ``KeyError`` for a name that is none."""
    if name not in _NAMES:
        raise KeyError(name)
    return Script.of(name, (resources.files(__name__) / f"{name}.lua").read_bytes())


class _Scripts(Mapping[str, Script]):
    """All scripts by name; a file is read when it is first asked for, so that importing does no work."""

    def __getitem__(self, name: str) -> Script:
        return load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


SCRIPTS: Mapping[str, Script] = _Scripts()
