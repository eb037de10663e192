"""Exit codes of the command: a table, so that scripts can rely on them (docs/commands.md says the same)."""

from __future__ import annotations

from enum import IntEnum

from broker.errors import (
    ArtifactNotFound,
    ArtifactStoreUnavailable,
    BadRequest,
    Conflict,
    DataDirUnusable,
    Fenced,
    RuncastError,
    RunNotFound,
    Sealed,
    StoreUnavailable,
    TaskNotFound,
    UnknownRequest,
)

__all__ = ["Exit", "exit_of_error", "exit_of_status"]


class Exit(IntEnum):
    """What a command ended with. A child killed by a signal has 128 + its number, as shells count."""

    OK = 0
    FAILED = 1
    """The run failed, a check of ``doctor`` failed, or something broke that has no code of its own."""
    USAGE = 2
    """Wrong arguments, settings or input: the same call can never succeed."""
    NOT_FOUND = 3
    STORE_AWAY = 4
    CANCELLED = 5
    CONFLICT = 6
    """The state forbids it: the run has ended, the id is taken, the layout differs, the port is in use."""
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


_OF_ERROR: tuple[tuple[type[RuncastError], Exit], ...] = (
    (BadRequest, Exit.USAGE),
    (DataDirUnusable, Exit.USAGE),
    (RunNotFound, Exit.NOT_FOUND),
    (ArtifactNotFound, Exit.NOT_FOUND),
    (UnknownRequest, Exit.NOT_FOUND),
    (TaskNotFound, Exit.NOT_FOUND),
    (StoreUnavailable, Exit.STORE_AWAY),
    (ArtifactStoreUnavailable, Exit.STORE_AWAY),
    (Conflict, Exit.CONFLICT),
    (Fenced, Exit.CONFLICT),
    (Sealed, Exit.CONFLICT),
)

_OF_STATUS = {"completed": Exit.OK, "failed": Exit.FAILED, "cancelled": Exit.CANCELLED}


def exit_of_error(error: RuncastError) -> Exit:
    return next((code for kind, code in _OF_ERROR if isinstance(error, kind)), Exit.FAILED)


def exit_of_status(status: str) -> Exit:
    """The code of a command that followed a run to its end."""
    return _OF_STATUS.get(status, Exit.FAILED)
