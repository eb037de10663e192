"""What the service asks people: put to them here, their answers carried there.

The item of a request is emitted before the events behind it. A request stays in ``open``, and so in what the run's
record keeps, until the service was told the answer: an attempt that goes on asks it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from broker.errors import Fenced, OutageTooLong, RuncastError, Sealed
from broker.items import Event
from workers.remote.position import OpenRequest
from workers.remote.service import RunnerService, ServiceFailed
from workers.remote.waiting import persist
from workers.runner import RunContext

__all__ = ["Requests"]

log = logging.getLogger("runcast.worker")
_DENY = "deny"


class Requests:
    """Of one attempt of one run. ``changed`` is awaited when ``open`` has changed, before anybody sees why."""

    def __init__(
        self,
        context: RunContext,
        service: RunnerService,
        run_id: str,
        outage: float,
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        self._context, self._service, self._run_id, self._outage = context, service, run_id, outage
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._open: dict[str, OpenRequest] = {}

    @property
    def open(self) -> tuple[OpenRequest, ...]:
        return tuple(self._open.values())

    async def reopen(self, requests: Iterable[OpenRequest]) -> None:
        """What an earlier attempt left open."""
        for request in requests:
            await self.put(request, None)

    async def put(self, request: OpenRequest, source_id: str | None) -> None:
        """Ask a person; returns once the item was emitted, or cannot be. One that is open already: nothing."""
        if request.key in self._open:
            return
        self._open[request.key] = request
        await self._changed()
        said = asyncio.Event()
        task = asyncio.create_task(self._ask(request, source_id, said), name=f"request of {self._context.run_id}")
        self._tasks[request.key] = task
        await said.wait()

    async def settled(self, key: str) -> None:
        """It was answered at the service: nobody here has to."""
        self._open.pop(key, None)
        await self._end(key)

    async def aclose(self) -> None:
        for key in list(self._tasks):
            await self._end(key)

    async def _end(self, key: str) -> None:
        task = self._tasks.pop(key, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _ask(self, request: OpenRequest, source_id: str | None, said: asyncio.Event) -> None:
        try:
            answer = await self._answer(request, source_id, said)
            if answer is not None:
                await self._carry(request, answer)
            self._open.pop(request.key, None)
            await self._changed()
        except (Fenced, Sealed, OutageTooLong) as error:
            self._context.break_off(error)
        except Exception:
            log.exception("run %s: a request of the runner service went wrong", self._context.run_id)
        finally:
            said.set()
            if self._tasks.get(request.key) is asyncio.current_task():
                del self._tasks[request.key]

    async def _answer(self, request: OpenRequest, source_id: str | None, said: asyncio.Event) -> str | None:
        """What the service is to be told; ``None``: nothing, since the run stops, or nobody answered a question."""
        is_approval = request.kind == "approval"
        try:
            answer = await self._context.ask(
                "approval" if is_approval else "question",
                request.payload,
                choices=request.choices,
                free=not is_approval,
                otherwise=_otherwise(request),
                source_id=source_id,
                said=said,
            )
        except (Fenced, Sealed, OutageTooLong):
            raise
        except RuncastError as error:
            log.warning("run %s: a request cannot be put to anybody: %s", self._context.run_id, error)
            payload = {"code": "request_refused", "message": str(error)}
            await self._context.emit(Event(name="warning", payload=payload, source_id=source_id))
            return _DENY if is_approval else None
        if answer.how == "stopped":
            return None
        return answer.value if answer.how == "answered" or is_approval else None

    async def _carry(self, request: OpenRequest, answer: str) -> None:
        tell = self._service.approve if request.kind == "approval" else self._service.clarify
        try:
            await persist(lambda: tell(self._run_id, request.key, answer), self._outage)
        except ServiceFailed as failed:
            log.warning("run %s: the service did not take an answer: %s", self._context.run_id, failed)
            payload = {"code": "answer_refused", "message": failed.message}
            await self._context.emit(Event(name="warning", payload=payload))


def _otherwise(request: OpenRequest) -> str:
    if _DENY in request.choices:
        return _DENY
    return request.choices[-1] if request.choices else "no answer"
