"""The runner ``remote``: a run of ours is a run of a runner service, relayed into our log.

The service is the one of ``REMOTE_URL``. What it is asked, and what becomes of its events: docs/remote.md.
"""

from __future__ import annotations

from workers.remote.relay import Relay
from workers.remote.service import RunnerService
from workers.remote.settings import RemoteSettings
from workers.runner import Outcome, RunContext, RunnerFailed

__all__ = ["RemoteRunner"]


class RemoteRunner:
    name = "remote"
    mirrors = True
    takes_artifacts = True
    stop_grace = 10.0

    def __init__(self, settings: RemoteSettings | None = None) -> None:
        self.settings = settings or RemoteSettings()
        self._service = RunnerService(self.settings)

    async def run(self, context: RunContext) -> Outcome:
        if not self.settings.url:
            raise RunnerFailed("not_configured", "no runner service is named here: set REMOTE_URL")
        if context.mirror is None:
            raise RunnerFailed("not_configured", "a run can be relayed in a worker only: it needs a store")
        return await Relay(context, context.mirror, self._service, self.settings).run()

    async def aclose(self) -> None:
        """Let go of the connections. The worker calls it after its last run."""
        await self._service.aclose()
