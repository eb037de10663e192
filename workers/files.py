"""A run with its workspace around it: made, its artifacts fetched, the runner, what it left behind stored.

A runner works in a workspace where its ``uses_workspace`` is true; then ``context.workspace`` is the directory. One
that only passes artifacts on has ``takes_artifacts``, and gets their contents in the request. Any other is given none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from broker.artifact_store import ArtifactStore
from broker.artifacts import InboundArtifact
from broker.errors import ArtifactNotFound, ArtifactStoreUnavailable
from broker.items import Event, Failed, Final
from broker.settings import Settings
from broker.staging import unstaged
from workers.fetching import Fetcher
from workers.inbound import Inbound, expired
from workers.outbound import Outbound
from workers.runner import Outcome, RunContext, Runner, RunnerFailed
from workers.workspace import Workspace, Workspaces, WorkspaceUnusable

__all__ = ["Files"]

log = logging.getLogger("runcast.worker")
T = TypeVar("T")


class Files:
    """One a worker. Made without IO."""

    def __init__(self, settings: Settings, store: ArtifactStore, fetcher: Fetcher | None = None) -> None:
        self._settings, self.store = settings, store
        self.workspaces = Workspaces(settings)
        self._inbound = Inbound(store, settings, fetcher)

    async def run(self, runner: Runner, context: RunContext) -> Outcome:
        """What ``runner.run`` gives, with the files of the workspace in it. Raises what that raises, and
        ``RunnerFailed`` for what is wrong before it."""
        given = context.request.input.artifacts or []
        if getattr(runner, "uses_workspace", False):
            return await self._in_workspace(runner, context, given)
        if given and getattr(runner, "takes_artifacts", False):
            await self._pass_on(context, given)
        elif given:
            message = (
                f"the runner {runner.name!r} works in no workspace here, so it can be given no artifacts: "
                "docs/artifacts.md says which do"
            )
            raise RunnerFailed("artifacts_unsupported", message)
        return await runner.run(context)

    async def _in_workspace(self, runner: Runner, context: RunContext, given: Sequence[InboundArtifact]) -> Outcome:
        workspace = await self._opened(context)
        if given:
            received = await _unless_stopped(context, self._inbound.receive(given, workspace))
            await context.emit(Event(name="artifacts.received", payload={"artifacts": received}))
        outbound = Outbound(workspace, self.store, self._settings, context.run_id)
        await outbound.begin()
        context.workspace = workspace.path
        outcome = await _outcome(runner, context)
        if context.stop.is_set() or not isinstance(outcome, (Final, Failed)):
            return outcome  # nobody waits for files of a run that was stopped
        collected = await _unless_stopped(context, outbound.collect())
        return msgspec.structs.replace(outcome, **collected.fields)

    async def _opened(self, context: RunContext) -> Workspace:
        try:
            workspace = await asyncio.to_thread(self.workspaces.open, context.session_id, context.run_id)
        except WorkspaceUnusable as error:
            raise RunnerFailed(
                "workspace_unusable", f"the workspace cannot be used: {error}", retryable=True
            ) from error

        async def close() -> None:
            await asyncio.to_thread(workspace.close)

        context.defer(close)  # deferred first, so it comes after whatever the runner leaves to be ended
        return workspace

    async def _pass_on(self, context: RunContext, given: Sequence[InboundArtifact]) -> None:
        try:
            whole = [await unstaged(artifact, self.store) for artifact in given]
        except ArtifactNotFound as error:
            raise expired(error) from error
        except ArtifactStoreUnavailable as error:
            raise RunnerFailed(error.code, str(error), retryable=True) from error
        wanted = msgspec.structs.replace(context.request.input, artifacts=whole)
        context.request = msgspec.structs.replace(context.request, input=wanted)


async def _outcome(runner: Runner, context: RunContext) -> Outcome:
    """A failure that the runner tells is an outcome with files, like any other."""
    try:
        return await runner.run(context)
    except RunnerFailed as failed:
        return Failed(code=failed.code, message=failed.message, retryable=failed.retryable)


async def _unless_stopped(context: RunContext, work: Coroutine[Any, Any, T]) -> T:
    """Raises ``RunnerFailed`` as soon as the run is to stop: the worker knows why."""
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(context.stop.wait())
    tasks: tuple[asyncio.Task[Any], ...] = working, stopping
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RunnerFailed("interrupted", "the run was stopped while its files were on their way", retryable=True)
        return working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
