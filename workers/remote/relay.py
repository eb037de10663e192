"""One attempt of one relayed run: begin or go on at the service, poll its events, emit them, until its end.

Exactly once: every event's item carries the event's id. The position (the service's run, its cursor) is kept behind
the items of a page, so an attempt that goes on may be sent events again that are in the log already; those it knows by
their ids. The run at the service is begun once: what names it is kept before anything is asked about it, and where the
service may have begun it though no answer came, it is not asked to again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import msgspec

from broker.items import Cancelled
from workers.mirror import Mirror
from workers.remote.asks import Requests
from workers.remote.events import Step, Translator
from workers.remote.pages import Page, ServiceEvent, Status, read_page, read_started, read_status
from workers.remote.position import Position, read_position
from workers.remote.requests import start_body
from workers.remote.seen import Seen
from workers.remote.service import RunnerService, ServiceFailed
from workers.remote.settings import RemoteSettings
from workers.remote.waiting import Pace, persist
from workers.runner import Outcome, RunContext, RunnerFailed

__all__ = ["Relay"]

log = logging.getLogger("runcast.worker")
_CANCEL_OUTAGE = 8.0
"""How long a cancel is tried: the worker waits ``stop_grace`` for the run's end."""


class Relay:
    """``run`` it once. The position is the service's run and cursor, as the record has it."""

    def __init__(self, context: RunContext, mirror: Mirror, service: RunnerService, settings: RemoteSettings) -> None:
        self._context, self._mirror, self._service, self._settings = context, mirror, service, settings
        self._translator = Translator()
        self._pace = Pace(settings)
        self._seen = Seen()
        self._position = Position(run_id="")
        self._keeping = asyncio.Lock()
        self._requests: Requests | None = None

    async def run(self) -> Outcome:
        """Raises ``RunnerFailed``, and what ends the run here: another owner, too long an outage of the store."""
        if self._mirror.source is not None:
            await self._go_on(self._mirror.source)
        elif self._context.stop.is_set():
            return Cancelled()
        else:
            await self._begin()
        position = self._position
        requests = Requests(self._context, self._service, position.run_id, self._settings.outage, self._keep)
        self._requests = requests
        async with self._cancelling():
            try:
                await requests.reopen(position.open)
                outcome = await self._follow(requests)
            except RunnerFailed as failed:
                if failed.code != "remote_run_lost":
                    self._context.defer(self._cancel)  # nobody would see its end
                raise
            finally:
                await requests.aclose()
        for item in self._translator.closing():
            await self._context.emit(item)
        return outcome

    # Where it begins.

    async def _begin(self) -> None:
        context = self._context
        body = start_body(context.request, run_id=context.run_id, session_id=context.session_id)
        answer = await persist(
            lambda: self._service.start(body, key=context.run_id), self._settings.outage, unsent_only=True
        )
        started = read_started(answer)
        if started is None:
            raise RunnerFailed("remote_unreadable", "the runner service's answer to a new run names no run_id")
        self._position = Position(run_id=started.run_id, cursor=started.cursor)
        await self._keep()

    async def _go_on(self, source: str) -> None:
        position = read_position(source)
        if position is None:
            raise RunnerFailed("remote_unreadable", "this worker cannot read where the run stands at its service")
        log.info("run %s goes on at the service's run %s", self._context.run_id, position.run_id)
        self._position = position
        self._context.hermes_session_id = position.session
        self._seen = Seen(await self._mirror.ids())
        self._translator.recall(await self._mirror.items(), position.spent)

    async def _keep(self) -> None:
        async with self._keeping:  # the newest is what is kept last
            still_open = self._requests.open if self._requests is not None else ()
            self._position = msgspec.structs.replace(self._position, open=still_open, spent=self._translator.spent)
            await self._mirror.keep(self._position.encoded())

    # Following it.

    async def _follow(self, requests: Requests) -> Outcome:
        clock = asyncio.get_running_loop().time
        heard, status = clock(), Status("running", "")
        while True:
            page = await self._page()
            news, end = await self._take(page, requests)
            if end is not None:
                return end
            if news:
                heard, status = clock(), Status("running", "")
            elif status.state != "running":
                return self._translator.ended(status)
            elif self._translator.done:
                return self._translator.completed()
            elif clock() - heard >= self._settings.status_after:
                heard, status = clock(), await self._status()
                if status.state != "running":
                    continue  # what came between the two requests comes first
            await asyncio.sleep(self._pace.after(news=news))

    async def _page(self) -> Page:
        position = self._position
        answer = await persist(lambda: self._service.events(position.run_id, position.cursor), self._settings.outage)
        return read_page(answer, position.run_id, position.cursor, position.count)

    async def _status(self) -> Status:
        """A service need not have the request: then only its events tell the end."""
        try:
            return read_status(await self._service.status(self._position.run_id))
        except ServiceFailed as failed:
            log.debug("run %s: no status: %s", self._context.run_id, failed)
            return Status("running", "")

    async def _take(self, page: Page, requests: Requests) -> tuple[bool, Outcome | None]:
        """Emit what is new on a page; whether anything was, and the outcome where the run's end is among it."""
        news, last = False, False
        for event in page.events:
            if event.id in self._seen:
                continue
            step = self._translator.feed(event)
            if step.end is not None:
                return True, step.end
            await self._emit(step, event, requests)
            self._seen.add(event.id)
            news, last = True, last or event.terminal
        self._move(page)
        if news:
            await self._keep()
        return news, self._translator.completed() if last else None

    def _move(self, page: Page) -> None:
        if page.cursor != self._position.cursor:
            count = self._position.count + len(page.events)
            self._position = msgspec.structs.replace(self._position, cursor=page.cursor, count=count)

    async def _emit(self, step: Step, event: ServiceEvent, requests: Requests) -> None:
        if step.session is not None:
            self._context.hermes_session_id = step.session
            self._position = msgspec.structs.replace(self._position, session=step.session)
        if step.settled is not None:
            await requests.settled(step.settled)
        if step.item is not None:
            await self._context.emit(step.item)
        elif step.ask is not None:
            await requests.put(step.ask, event.id)

    # Stopping it.

    @contextlib.asynccontextmanager
    async def _cancelling(self) -> AsyncIterator[None]:
        """A stop of the run is carried to the service, unless the run is another worker's by now."""

        async def watch() -> None:
            await self._context.stop.wait()
            if self._context.broken is None:
                await self._cancel()

        watching = asyncio.create_task(watch(), name=f"stop of {self._context.run_id}")
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _cancel(self) -> None:
        try:
            await persist(lambda: self._service.cancel(self._position.run_id), _CANCEL_OUTAGE)
        except ServiceFailed as failed:
            log.warning("run %s: the service was not told of the cancel: %s", self._context.run_id, failed)
