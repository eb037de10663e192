"""The runs of a task: what they are asked, and what the task hears of them while they run."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.admission import make_run
from broker.errors import (
    BadRequest,
    Conflict,
    CostCapReached,
    RuncastError,
    RunEnded,
    RunExists,
    RunNotFound,
    StoreUnavailable,
)
from broker.requests import RunInput, RunRequest
from broker.runs import Busy
from broker.task_model import Step, Task, Trouble
from workers.tasks.changes import Heard
from workers.tasks.planning import planning_prompt, step_prompt

if TYPE_CHECKING:
    from broker.api import Broker, StreamEntry

__all__ = ["Child", "planning_request", "step_request", "stop_run"]

log = logging.getLogger("runcast.tasks")
_AGAIN_AFTER = 0.5
_MAKES_MAX = 20
"""Tries to make a run that fails by a fault which nobody foresaw, before it is one of the step."""
_MESSAGE_MAX = 2_000
_EVENTS = {
    "approval.requested": "asked",
    "question.asked": "asked",
    "input.answered": "answered",
    "run.restarted": "restarted",
}


def planning_request(task: Task) -> RunRequest:
    """The run that makes the plan. Nobody has approved anything yet, so it may run nothing that is dangerous."""
    return _request(task, planning_prompt(task), "plan", task.options.planner, {}, approvals="ask")


def step_request(task: Task, step: Step) -> RunRequest:
    """The run of a step."""
    said, options = step_prompt(task, step), task.options
    return _request(task, said, f"step:{step.n}", options.runner, step.metadata, approvals=options.approvals)


def _request(
    task: Task, said: str, component: str, runner: str, metadata: Mapping[str, str], *, approvals: str
) -> RunRequest:
    options = task.options
    given = RunInput(
        message=said,
        model=options.model,
        provider=options.provider,
        toolsets=None if options.toolsets is None else list(options.toolsets),
        max_turns=options.max_turns,
        approvals="yolo" if approvals == "yolo" else "ask",
    )
    return RunRequest(
        runner=runner,
        input=given,
        session_id=options.session_id,
        metadata={**options.metadata, **metadata},
        # Its result is not recorded yet, so to run it again is right; the same run, as its next attempt.
        on_worker_lost="retry",
        parent_run_id=task.task_id,
        component=component,
    )


class _Refused(Exception):
    """The run is not made: ``trouble`` says why, and the same would be said again."""

    def __init__(self, error: Exception) -> None:
        code, retryable = (error.code, error.retryable) if isinstance(error, RuncastError) else ("internal", True)
        self.trouble = Trouble(code=code, message=str(error)[:_MESSAGE_MAX], retryable=retryable)


class Child:
    """A run of the task, made if it is not there, and followed to its end. ``heard`` fills up; ``changed`` says so.

    The run's id was drawn, and written down, before: whoever follows it after a crash makes no second one.
    """

    def __init__(self, broker: Broker, run_id: str, request: RunRequest, principal: str, *, after: int) -> None:
        self._broker, self.run_id, self._request, self._principal = broker, run_id, request, principal
        self._after = after
        self._makes = 0
        self.heard: deque[Heard] = deque()
        self.changed = asyncio.Event()
        self._following = asyncio.create_task(self._follow(), name=f"follow {run_id}")

    async def aclose(self) -> None:
        """Follow it no more. The run goes on."""
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    def _hear(self, heard: Heard) -> None:
        self.heard.append(heard)
        self.changed.set()

    async def _follow(self) -> None:
        while True:
            try:
                await self._make()
                await self._read()
                record = await self._broker.runs.get(self.run_id)
            except RunNotFound:
                self._hear(Heard(what="ended", seq=self._after))
                return
            except _Refused as refused:
                self._hear(Heard(what="ended", seq=self._after, trouble=refused.trouble))
                return
            except StoreUnavailable as error:
                log.info("run %s is followed again when the store is back: %s", self.run_id, error)
            except Exception:
                log.exception("run %s could not be followed; it is tried again", self.run_id)
            else:
                if record.is_ended:
                    self._hear(Heard(what="ended", seq=record.last, record=record))
                    return
            await asyncio.sleep(_AGAIN_AFTER)

    async def _make(self) -> None:
        """Like any run it is paid for before it is made; one that is there was. Raises ``_Refused``, and what passes by
        itself."""
        if await self._broker.runs.find(self.run_id) is not None:
            return
        # A step is no caller that could come again: it waits for its turn where others would be refused.
        busy: Busy | None = "wait" if self._broker.settings.session_busy else None
        try:
            await make_run(self._broker, self._request, principal=self._principal, run_id=self.run_id, busy=busy)
        except RunExists:
            return
        except StoreUnavailable:
            raise
        except (BadRequest, Conflict, CostCapReached) as error:
            raise _Refused(error) from error
        except Exception as error:
            self._makes += 1
            if self._makes >= _MAKES_MAX:
                raise _Refused(error) from error
            raise

    async def _read(self) -> None:
        async for entry in self._broker.stream(self.run_id, after=self._after):
            self._after = entry.seq
            if not entry.control:
                self._notice(entry)

    def _notice(self, entry: StreamEntry) -> None:
        if entry.type != "event":
            return
        fields = entry.fields
        what = _EVENTS.get(fields.get("name", ""))
        if what is not None:
            self._hear(Heard(what=what, seq=entry.seq, fields=fields))


async def stop_run(broker: Broker, run_id: str) -> None:
    """Have a run end, durably. Harmless where it has ended, or never was. Raises ``StoreUnavailable``."""
    try:
        await broker.runs.cancel(run_id)
    except (RunNotFound, RunEnded):
        return
