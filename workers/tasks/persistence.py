"""Tries again what an outage or a full disk refuses for a while."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.errors import OutageTooLong, StoreUnavailable
from broker.task_model import Task
from workers import metrics
from workers.tasks.checkpoints import Checkpoint

__all__ = ["LAST_BACKOFF", "persisted", "written"]

log = logging.getLogger("runcast.tasks")
T = TypeVar("T")
_FIRST_BACKOFF, LAST_BACKOFF = 0.05, 1.0
"""Seconds between two tries."""
_WRITE_TRIES = 5


async def persisted(step: Callable[[], Awaitable[T]], limit: float) -> T:
    """``step``, until the store answers. Raises ``OutageTooLong`` after ``limit`` seconds, and what ``step`` raises."""
    since, pause = time.monotonic(), _FIRST_BACKOFF
    while True:
        try:
            return await step()
        except StoreUnavailable as error:
            if time.monotonic() - since >= limit:
                raise OutageTooLong("the store has been away for longer than RUNCAST_OUTAGE_LIMIT") from error
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(pause * 2, LAST_BACKOFF)


async def written(hold: Checkpoint, task: Task) -> None:
    """Write the checkpoint. Raises ``Fenced``, and ``OSError`` where the disk refuses for longer than a moment."""
    for left in reversed(range(_WRITE_TRIES)):
        try:
            await asyncio.to_thread(hold.write, task)
            return
        except OSError as error:
            metrics.CHECKPOINTS_FAILED.inc()
            log.error("the checkpoint of task %s cannot be written: %s", task.task_id, error)
            if not left:
                raise
        await asyncio.sleep(LAST_BACKOFF)
