"""Starts a call in the mode that the settings, the request and this Hermes allow together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from broker import tracing
from broker.items import Event, Item
from workers.hermes.api_call import ApiCall
from workers.hermes.api_server import ApiServer
from workers.hermes.bridge_call import BridgeCall
from workers.hermes.calls import HermesCall
from workers.hermes.command import Call, RefusedCall, Unavailable
from workers.hermes.command_call import CommandCall
from workers.hermes.detect import Detector
from workers.hermes.settings import HermesSettings

__all__ = ["Starter"]


class Starter:
    """One per worker or client. ``aclose`` ends the API server, where one was started."""

    def __init__(self, settings: HermesSettings, environ: Mapping[str, str] | None = None) -> None:
        self.settings = settings
        self._inherited: Mapping[str, str] = os.environ if environ is None else environ
        self._detector = Detector(settings, self._inherited)
        self._server: ApiServer | None = None

    async def start(self, call: Call) -> tuple[HermesCall, list[Item]]:
        """The call, and what is to be said about how it was started.

        Raises ``RefusedCall`` for what the mode cannot do, ``NotStarted``, and ``Unavailable`` where a mode that was
        asked for by name is not there.
        """
        if self.settings.mode != "auto":
            return await self._in_mode(self.settings.mode, call), []
        if self.settings.stream_args:
            return await self._in_mode(await self._command_mode(call), call), []
        return await self._best(call)

    async def quiet(self, call: Call) -> HermesCall:
        """The quiet contract: the whole answer, once, at the end. Raises as ``start``."""
        return await self._in_mode("quiet", call)

    async def _best(self, call: Call) -> tuple[HermesCall, list[Item]]:
        why = self._detector.no_bridge()
        if not why:
            try:
                return await self._in_mode("bridge", call), []
            except Unavailable as error:
                why = str(error)
                self._detector.bridge_failed(why)
        mode = await self._command_mode(call, why)
        payload = {"from": "bridge", "to": mode, "because": why}
        return await self._in_mode(mode, call), [Event(name="fallback", payload=payload)]

    async def _command_mode(self, call: Call, why: str = "HERMES_STREAM_ARGS is set") -> str:
        _refuse_asking(call, "a command mode", why)
        return "stream-json" if await self._detector.streams() else "text"

    async def _in_mode(self, mode: str, call: Call) -> HermesCall:
        call = replace(call, cwd=call.cwd or self.settings.cwd or None)
        if mode != "api" and (trace := tracing.traceparent()) is not None:
            call = replace(call, env={**call.env, "TRACEPARENT": trace})
        match mode:
            case "bridge":
                return await BridgeCall.start(self.settings, call, inherited=self._inherited)
            case "api":
                # The trace goes on in the headers of its requests: this server's environment is every run's.
                self._server = self._server or ApiServer(self.settings, inherited=self._inherited)
                return await ApiCall.start(self._server, self.settings, call)
            case _:
                _refuse_asking(call, f"mode {mode}", "only bridge and api can ask")
                return await CommandCall.start(self.settings, call, mode=mode, inherited=self._inherited)

    async def aclose(self) -> None:
        if self._server is not None:
            await self._server.aclose()


def _refuse_asking(call: Call, mode: str, why: str) -> None:
    """Without a way to ask, Hermes would approve by itself or wait for nobody."""
    if not call.yolo:
        message = f"{mode} cannot ask a person ({why}): use approvals “yolo”, or HERMES_MODE bridge or api"
        raise RefusedCall("approvals_unavailable", message)
