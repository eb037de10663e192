"""The gateway's hold on the broker: opened in the background, kept while the process lives.

Who wins: a gateway starts whether Redis is there or not. Until the first connection it answers 503; once connected
the store itself reports its outages, request by request. A store that this process does not fit (another layout)
is reported the same way and tried again: an operator may correct it on either side. Only settings that no store can
mend, such as a URL of an unknown scheme, keep the gateway from starting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.requests import Request

from broker import api
from broker.api import Broker
from broker.audit_file import AuditFile
from broker.errors import BadRequest, RuncastError, StoreUnavailable
from broker.session_follower import SessionFollower
from broker.settings import Settings

__all__ = ["Connection", "connection_of"]

_log = logging.getLogger("runcast.gateway")
_FIRST_PAUSE, _LAST_PAUSE = 0.2, 2.0
_SWEEPER_PAUSE = 1.0


class Connection:
    """``broker`` is the open broker. Give one to share it: then it is swept here, but neither opened nor closed."""

    def __init__(self, settings: Settings, broker: Broker | None = None) -> None:
        self.settings = settings
        self.draining = asyncio.Event()
        """Set when the server shuts down: whatever waits on behalf of a client answers and ends."""
        self._given = broker
        self._broker = broker
        self._why = "the gateway has not reached Redis yet"
        self._misconfigured: BadRequest | None = None
        self._tried = asyncio.Event()

    @property
    def broker(self) -> Broker:
        """Raises ``StoreUnavailable`` while there is none, whatever the reason: its text says which."""
        if self._broker is None:
            raise StoreUnavailable(self._why)
        return self._broker

    def drain(self) -> None:
        """The server is shutting down: end every stream and every wait. Repeatable."""
        self.draining.set()
        if self._broker is not None:
            self._broker.hub.drain()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Holds the broker open. Entering waits for the first try, and for little more than a request's deadline.

        Raises ``BadRequest`` where the settings name no store at all."""
        # One task opens, holds and closes: a context manager wants to be left where it was entered.
        task = asyncio.create_task(self._hold(), name="runcast-gateway-broker")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.request_deadline + 0.5):
                    await self._tried.wait()
            if self._misconfigured is not None:
                raise self._misconfigured
            yield
        finally:
            self.draining.set()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _hold(self) -> None:
        if self._given is not None:
            self._tried.set()
            await _tend(self._given)
        pause = _FIRST_PAUSE
        while self._misconfigured is None:
            try:
                async with api.open(settings=self.settings) as self._broker:
                    self._tried.set()
                    await _tend(self._broker)
            except RuncastError as error:
                self._refused(error)
            except Exception as error:
                # Whatever it was, a gateway that has given up looks to its clients like one that still tries.
                _log.exception("opening the broker failed; it is tried again")
                self._why = f"the broker cannot be opened: {type(error).__name__}"
            finally:
                self._broker = None
            self._tried.set()
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE)

    def _refused(self, error: RuncastError) -> None:
        if isinstance(error, BadRequest):
            self._misconfigured = error
        if str(error) != self._why:
            _log.warning("no broker yet: %s", error)
        self._why = str(error)

    @asynccontextmanager
    async def within(self) -> AsyncIterator[Broker]:
        """The broker for one request's work. Raises ``StoreUnavailable`` where that outlasts the request deadline,
        whatever number of round trips it takes."""
        broker = self.broker
        try:
            async with asyncio.timeout(self.settings.request_deadline):
                yield broker
        except TimeoutError as error:
            seconds = self.settings.request_deadline
            raise StoreUnavailable(f"Redis did not answer within {seconds:g} s") from error


async def _tend(broker: Broker) -> None:
    """What every gateway does for all of them, for ever: it sweeps, and tells sessions and the ledger of runs."""
    follower = SessionFollower(broker.runs, broker.tail)
    audit = AuditFile(broker.store, broker.ledger.audit)
    await asyncio.gather(_sweep(broker), follower.run_forever(), audit.run_forever())


async def _sweep(broker: Broker) -> None:
    """Sweeps for ever. A sweep that fails in a way nobody foresaw must not take the gateway's broker with it."""
    while True:
        try:
            await broker.sweeper.run_forever()
        except Exception:
            _log.exception("the sweep failed; it starts again")
        await asyncio.sleep(_SWEEPER_PAUSE)


def connection_of(request: Request) -> Connection:
    """The one that the application of this request was made with."""
    connection: Connection = request.app.state.connection
    return connection
