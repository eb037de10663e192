"""The API server of Hermes that mode ``api`` talks to: the operator's, or one that this worker starts and shares.

``HERMES_API_URL`` names the operator's. Without it the first call starts one (``api_listener``), under a supervisor,
on a free port of 127.0.0.1 and with a key of its own, so that nothing is left of it however the worker ends. One that
died, or does not answer, is replaced by the next call. It is stopped when it was idle for some minutes, and when

- a run was given up that had not ended, or
- a run left processes behind (a program that the agent put into the background),

as soon as the runs beside it have ended: what they hold cannot be ended otherwise. Until then new runs get another.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from broker import tracing
from workers.hermes.api_process import ListenerProcess
from workers.hermes.command import Unavailable
from workers.hermes.process import NotStarted
from workers.hermes.settings import HermesSettings

__all__ = ["IDLE", "Abilities", "ApiServer", "Lease"]

IDLE = 600.0
"""Seconds after its last run for which a started server is kept."""
_CONNECT = 5.0
_REQUEST = 30.0
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a server can do beyond the least, by its own list (``/v1/capabilities``)."""

    chooses_models: bool = False
    """A run may name its model and provider."""
    remembers: bool = False
    """A run of a session gets its history from the server, and events can be had again by their number.

    There is no flag for either: both are there where the durable store of runs is, which has one.
    """

    @classmethod
    def of(cls, capabilities: Any) -> Abilities:
        features = capabilities.get("features") if isinstance(capabilities, dict) else None
        if not isinstance(features, dict) or not features.get("run_events_sse"):
            raise Unavailable("the API server has no runs with events (`run_events_sse`): install a newer Hermes")
        return cls(bool(features.get("model_options")), bool(features.get("runs_idempotency")))


class _Server:
    """One address, and how many runs are there. ``process`` is ``None`` for the operator's."""

    def __init__(self, url: str, key: str, process: ListenerProcess | None) -> None:
        self.url, self.key, self.process = url, key, process
        self.runs = 0
        self.retired = False
        self.client = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(_REQUEST, connect=_CONNECT, pool=None),
            limits=httpx.Limits(max_connections=None),  # each run holds one, and the worker limits the runs
            event_hooks=tracing.http_hooks(),
            trust_env=urlsplit(url).hostname not in _LOOPBACK,  # no proxy is on the way to this machine
        )

    async def abilities(self) -> Abilities:
        """Ask it: so it is known to be there, and to take the key, before a run is sent to it."""
        try:
            answer = await self.client.get("/v1/capabilities")
        except httpx.TransportError as error:
            what = f"Hermes' API server at {self.url} does not answer: {error or type(error).__name__}"
            raise NotStarted(what, missing=False) from error
        except httpx.InvalidURL as error:
            raise Unavailable(f"HERMES_API_URL={self.url!r} is no address: {error}") from error
        if answer.status_code in (401, 403):
            raise Unavailable(f"the API server at {self.url} refuses the key: set HERMES_API_KEY to its API_SERVER_KEY")
        if answer.status_code >= 500:
            raise NotStarted(f"the API server at {self.url} answers {answer.status_code}", missing=False)
        if answer.status_code != 200:
            raise Unavailable(f"at {self.url} is no API server of Hermes (it answers {answer.status_code})")
        try:
            return Abilities.of(answer.json())
        except ValueError as error:
            raise Unavailable(f"at {self.url} is no API server of Hermes (it answers no JSON)") from error

    async def aclose(self) -> None:
        await self.client.aclose()
        if self.process is not None:
            await self.process.aclose()


class Lease:
    """A run's hold on a server. ``release`` must be called, once."""

    def __init__(self, owner: ApiServer, server: _Server, abilities: Abilities) -> None:
        self._owner, self._server, self.abilities = owner, server, abilities
        self._held = True

    @property
    def client(self) -> httpx.AsyncClient:
        return self._server.client

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def cwd(self) -> str | None:
        """Where the server works; ``None``: the operator's server, which decides."""
        return None if self._server.process is None else self._server.process.cwd

    @property
    def asks(self) -> bool:
        """Hermes asks before dangerous commands. Of the operator's server that is not known, and believed."""
        return self._server.process is None or self._server.process.asks

    async def died(self, patience: float = 0.0) -> bool:
        """Whether the process of a started server has ended. Of the operator's it is never known."""
        return self._server.process is not None and await self._server.process.gone(patience)

    @property
    def last_words(self) -> str:
        """The end of what a started server printed for people. It is shared by the runs."""
        return "" if self._server.process is None else self._server.process.last_words

    async def release(self, *, ended: bool) -> None:
        """``ended``: the run has ended, as far as the server is concerned.

        Where it has not, and no other run is on a started server, that one is gone when this returns.
        """
        if self._held:
            self._held = False
            await self._owner._release(self._server, ended)


class ApiServer:
    """One per worker process (or client). ``aclose`` must be called; nothing is started before the first ``lease``."""

    def __init__(
        self, settings: HermesSettings, *, inherited: Mapping[str, str] | None = None, idle: float = IDLE
    ) -> None:
        self._settings, self._idle_after = settings, idle
        self._inherited = inherited
        self._server: _Server | None = None
        self._closed = False
        self._starting = asyncio.Lock()
        self._idling: asyncio.TimerHandle | None = None
        self._all: set[_Server] = set()
        self._closing: dict[_Server, asyncio.Task[None]] = {}

    async def address(self) -> tuple[str, str]:
        """URL and key of a server that answers."""
        lease = await self.lease()
        await lease.release(ended=True)
        return lease.url, lease._server.key

    async def lease(self) -> Lease:
        """Raises ``NotStarted`` (another attempt may succeed) and ``Unavailable`` (it would not)."""
        async with self._starting:
            server, abilities = await self._usable()
            server.runs += 1
            self._stop_idling()
            return Lease(self, server, abilities)

    async def _usable(self) -> tuple[_Server, Abilities]:
        if self._closed:
            raise NotStarted("Hermes' API server was stopped together with its worker", missing=False)
        server = self._server
        if server is not None and (server.process is None or not server.process.died):
            try:
                return server, await server.abilities()
            except NotStarted:
                if server.process is None:
                    raise
        if server is not None:
            self._retire(server)
        self._server = server = await self._new()
        self._all.add(server)
        return server, await server.abilities()

    async def _new(self) -> _Server:
        s = self._settings
        if s.api_url:
            return _Server(s.api_url.rstrip("/"), s.api_key.get_secret_value(), None)
        key = secrets.token_urlsafe(32)
        process = await ListenerProcess.start(s, os.environ if self._inherited is None else self._inherited, key)
        return _Server(f"http://127.0.0.1:{process.port}", key, process)

    async def _release(self, server: _Server, ended: bool) -> None:
        server.runs -= 1
        if server.process is None:
            return
        if not ended or server.process.died or await self._left_behind(server):
            self._retire(server)
        self._retire_if_done(server)
        if server in self._closing:
            await asyncio.shield(self._closing[server])
        elif server is self._server and not server.runs:
            self._stop_idling()
            self._idling = asyncio.get_running_loop().call_later(self._idle_after, self._idled, server)

    async def _left_behind(self, server: _Server) -> bool:
        """Told only of the last run: whose they are cannot be seen."""
        idle = server.process is not None and not server.runs and not server.retired
        return idle and server.process is not None and await server.process.left_behind() and not server.runs

    def _idled(self, server: _Server) -> None:
        if not server.runs:
            self._retire(server)

    def _stop_idling(self) -> None:
        if self._idling is not None:
            self._idling.cancel()

    def _retire(self, server: _Server) -> None:
        """It gets no new runs, and ends with its last one."""
        server.retired = True
        if self._server is server:
            self._server = None
        self._retire_if_done(server)

    def _retire_if_done(self, server: _Server) -> None:
        if server.retired and not server.runs and server not in self._closing and server in self._all:
            if server.process is not None:
                server.process.kill()  # whatever is worth a grace was asked to end before
            self._closing[server] = asyncio.create_task(self._close(server), name="hermes api server ends")

    async def _close(self, server: _Server) -> None:
        try:
            await server.aclose()
        finally:
            self._all.discard(server)
            self._closing.pop(server, None)

    async def aclose(self) -> None:
        """Stop what was started, with its grace; returns when nothing of it is left. Runs on it break off."""
        self._closed = True
        self._stop_idling()
        async with self._starting:
            self._server = None
        for server in self._all - self._closing.keys():
            self._closing[server] = asyncio.create_task(self._close(server), name="hermes api server ends")
        await asyncio.gather(*self._closing.values())
