"""The error tree of the broker: every failure that a caller can meet, each with a stable code.

``code`` is part of the contract (it travels in problem+json, in ``failed`` items and in exit messages);
``retryable`` says whether the same call may succeed later without being changed.

    RuncastError
    ├── BadRequest            the caller must change something
    │   ├── InvalidId, UnknownMode, InvalidItem, InvalidRequest, ItemTooBig
    ├── RunNotFound
    ├── SessionNotFound
    ├── TaskNotFound
    │   └── UnknownStep
    ├── UnknownRequest        the run asked nothing of that id
    ├── Conflict              the state forbids it
    │   ├── RunExists, IdempotencyConflict, RunEnded, ClaimRefused, LayoutMismatch
    │   ├── AlreadyAnswered, TooManyAsks, SessionBusy
    │   ├── StepConflict, StepChanged, TaskEnded, TaskFull, TaskNotHalted
    ├── ArtifactNotFound      the run has no file of that name, or it is no longer kept
    ├── ArtifactStoreUnavailable  where files are kept does not answer, or refuses
    ├── CostCapReached        no run may be paid for today
    ├── Fenced                this worker no longer owns the run
    ├── Sealed                the run has its fence
    ├── LogGap                the log ends before the items that were to follow
    ├── LogRewound            the log lost items that cannot be sent again
    ├── StoreUnavailable      Redis did not answer, or answers that it cannot serve now
    │   └── OutageTooLong     the publisher gave up
    └── StoreError            Redis, or what it stands on, is at fault
        └── DataDirUnusable
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AlreadyAnswered",
    "ArtifactNotFound",
    "ArtifactStoreUnavailable",
    "BadRequest",
    "ClaimRefused",
    "Conflict",
    "CostCapReached",
    "DataDirUnusable",
    "Fenced",
    "IdempotencyConflict",
    "InvalidId",
    "InvalidItem",
    "InvalidRequest",
    "ItemTooBig",
    "LayoutMismatch",
    "LogGap",
    "LogRewound",
    "OutageTooLong",
    "RunEnded",
    "RunExists",
    "RunNotFound",
    "RuncastError",
    "Sealed",
    "SessionBusy",
    "SessionNotFound",
    "StepChanged",
    "StepConflict",
    "StoreError",
    "StoreUnavailable",
    "TaskEnded",
    "TaskFull",
    "TaskNotFound",
    "TaskNotHalted",
    "TooManyAsks",
    "UnknownMode",
    "UnknownRequest",
    "UnknownStep",
]


class RuncastError(Exception):
    """Base of all. ``str(error)`` says what was wrong, what is allowed, and what to do."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False


class BadRequest(RuncastError):
    """Input that can never succeed as it is. ``field`` names the part that is wrong."""

    code = "bad_request"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidId(BadRequest):
    code = "invalid_id"


class UnknownMode(BadRequest):
    code = "unknown_mode"


class InvalidItem(BadRequest):
    code = "invalid_item"


class InvalidRequest(BadRequest):
    code = "invalid_request"


class ItemTooBig(BadRequest):
    code = "item_too_big"


class RunNotFound(RuncastError):
    """No record of that run: it never was, or its record has expired."""

    code = "run_not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no run {run_id!r} is known: it was never created, or its record has expired")
        self.run_id = run_id


class SessionNotFound(RuncastError):
    """No session of that id: it never was, or it has expired."""

    code = "session_not_found"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"no session {session_id!r} is known: it was never made, or it has expired")
        self.session_id = session_id


class TaskNotFound(RuncastError):
    """No task of that id: there is no such run, or it is no task's."""

    code = "task_not_found"

    def __init__(self, task_id: str) -> None:
        super().__init__(f"no task {task_id!r} is known: it was never made, or it has expired")
        self.task_id = task_id


class UnknownStep(TaskNotFound):
    """The task has no step of that number."""

    code = "unknown_step"

    def __init__(self, message: str) -> None:
        RuncastError.__init__(self, message)


class UnknownRequest(RuncastError):
    """The run asked nothing under that id, or it was settled so long ago that it is forgotten."""

    code = "unknown_request"

    def __init__(self, run_id: str, request_id: str) -> None:
        super().__init__(f"run {run_id!r} asked nothing under the id {request_id!r}")
        self.run_id, self.request_id = run_id, request_id


class Conflict(RuncastError):
    code = "conflict"


class RunExists(Conflict):
    code = "run_exists"


class IdempotencyConflict(Conflict):
    code = "idempotency_conflict"


class RunEnded(Conflict):
    code = "run_ended"


class ClaimRefused(Conflict):
    """Somebody else claimed that attempt, or the run was cancelled or has ended."""

    code = "claim_refused"


class LayoutMismatch(Conflict):
    """This process was configured with another number of partitions than the store was laid out with."""

    code = "layout_mismatch"


class AlreadyAnswered(Conflict):
    """Another answer came first. ``how`` it came about: ``answered``, ``expired``, ``stopped``, or ``void``, which is
    what becomes of an ask when its run is started again: there is no ``answer`` then."""

    code = "already_answered"

    def __init__(self, message: str, *, answer: str | None, how: str) -> None:
        super().__init__(message)
        self.answer, self.how = answer, how


class TooManyAsks(Conflict):
    """The run waits for as many answers as it may."""

    code = "too_many_asks"


class SessionBusy(Conflict):
    """The session has one run at a time, and ``run_id`` is open. The next one may begin when that has ended."""

    code = "session_busy"
    retryable = True

    def __init__(self, session_id: str, run_id: str) -> None:
        busy = f"session {session_id!r} has one run at a time, and {run_id!r} is open"
        super().__init__(f"{busy}: wait for its end, or cancel it")
        self.run_id = run_id


class ArtifactNotFound(RuncastError):
    """The run left no file of that name, has not ended yet, or the file is no longer kept."""

    code = "artifact_not_found"


class ArtifactStoreUnavailable(RuncastError):
    """The artifact store did not answer, is full, or refused: no word of Redis."""

    code = "artifact_store_unavailable"
    retryable = True


class CostCapReached(RuncastError):
    """What was spent today and what runs that go on hold back reach a cap: ``scope`` is ``total`` or ``principal``.

    ``retry_after``: seconds to the next day (UTC). Sooner it may succeed where runs that go on turn out cheaper than
    what they hold back."""

    code = "cost_cap"
    retryable = True

    def __init__(self, message: str, *, scope: str, retry_after: int) -> None:
        super().__init__(message)
        self.scope, self.retry_after = scope, retry_after


class StepConflict(Conflict):
    """The step, or the task, is in no state for that: it was decided already, it runs, or it has ended."""

    code = "step_conflict"


class StepChanged(Conflict):
    """Somebody edited the step since whoever decides looked at it."""

    code = "step_changed"


class TaskEnded(Conflict):
    """Nothing can be decided about it any more."""

    code = "task_ended"


class TaskFull(Conflict):
    """More has happened to the task than is kept."""

    code = "task_full"


class TaskNotHalted(Conflict):
    """It goes on by itself, or waits for an approval: there is nothing to retry."""

    code = "task_not_halted"


class Fenced(RuncastError):
    """The run belongs to another owner or epoch by now: stop, and write nothing more."""

    code = "fenced"


class Sealed(RuncastError):
    """The run has ended; nothing is ever appended after its fence."""

    code = "sealed"


class LogGap(RuncastError):
    """The append does not follow the log's end. ``last`` is where the log ends."""

    code = "log_gap"

    def __init__(self, last: int) -> None:
        super().__init__(f"the log ends at {last}: send what follows it")
        self.last = last


class LogRewound(RuncastError):
    """Items that were stored are gone and cannot be sent again. ``last`` is where the log ends now."""

    code = "log_rewound"

    def __init__(self, last: int) -> None:
        super().__init__(f"the store lost items: the log ends at {last} now")
        self.last = last


class StoreUnavailable(RuncastError):
    """Redis did not answer in time, refused the connection, or is loading or read-only."""

    code = "store_unavailable"
    retryable = True


class OutageTooLong(StoreUnavailable):
    """The publisher kept retrying for ``RUNCAST_OUTAGE_LIMIT`` and gave up."""

    code = "outage_too_long"


class StoreError(RuncastError):
    """Redis answered with an error that is a fault of ours or of its configuration."""

    code = "store_error"


class DataDirUnusable(StoreError):
    """The data directory of the embedded server cannot be made, written or locked."""

    code = "data_dir_unusable"
