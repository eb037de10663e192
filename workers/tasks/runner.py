"""The runner of tasks, and the worker that has them: beside the worker of runs, in the same process.

A task may wait for days, and its steps are runs that need slots: so tasks have a queue and places of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.errors import InvalidRequest
from broker.queue import Queue
from broker.task_model import TASK_RUNNER
from workers import metrics
from workers.runner import Outcome, RunContext, RunnerFailed
from workers.tasks.checkpoints import Checkpoints
from workers.tasks.driver import TaskDriver
from workers.worker import Worker

if TYPE_CHECKING:
    from broker.api import Broker

__all__ = ["TaskRunner", "task_worker"]


class TaskRunner:
    """``mirrors``: a further attempt goes on where the one before stood; no service names its items. ``hands_back``: a
    worker that stops ends no task, it leaves it to the next one."""

    name = TASK_RUNNER
    mirrors = True
    names_sources = False
    hands_back = True
    stop_grace = 10.0

    def __init__(self, broker: Broker, checkpoints: Checkpoints | None = None) -> None:
        self._broker = broker
        self._checkpoints = checkpoints or Checkpoints(broker.settings.tasks_path)

    async def run(self, context: RunContext) -> Outcome:
        try:
            return await TaskDriver(context, self._broker, self._checkpoints).run()
        except InvalidRequest as error:
            raise RunnerFailed("invalid_request", str(error)) from error


def task_worker(broker: Broker, *, name: str | None = None, checkpoints: Checkpoints | None = None) -> Worker:
    """The worker of tasks of this process. It does not sweep: the worker of runs beside it does."""
    settings = broker.settings
    return Worker(
        broker,
        concurrency=max(settings.tasks, 1),
        runners={TASK_RUNNER: TaskRunner(broker, checkpoints)},
        name=name,
        sweep=False,
        queue=Queue(broker.store, name=settings.tasks_queue),
        drain_s=0.0,
        slots=metrics.TASK_SLOTS,
        running=metrics.TASKS_RUNNING,
    )
