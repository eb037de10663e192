"""What a run is given: the artifacts of its request → its workspace. All of them, or none and the run ends.

They are fetched beside the workspace first and get their names once all are there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from broker.artifact_names import media_type
from broker.artifact_store import ArtifactStore
from broker.artifacts import InboundArtifact, check_inbound, content_of
from broker.errors import ArtifactNotFound, ArtifactStoreUnavailable, BadRequest
from broker.settings import Settings
from workers import metrics
from workers.fetching import Fetched, Fetcher
from workers.runner import RunnerFailed
from workers.workspace import NameTaken, Spooled, Workspace

__all__ = ["Inbound", "expired"]


def expired(error: ArtifactNotFound) -> RunnerFailed:
    """The failure of a run whose content, which came with its request, is not in the store."""
    return RunnerFailed("artifact_expired", f"content that came with the request is not there, send it again: {error}")


class Inbound:
    """One a worker."""

    def __init__(self, store: ArtifactStore, settings: Settings, fetcher: Fetcher | None = None) -> None:
        self._store, self._settings = store, settings
        self._fetcher = fetcher or Fetcher(settings)

    async def receive(self, artifacts: Sequence[InboundArtifact], workspace: Workspace) -> list[dict[str, Any]]:
        """Returns what was received: ``{name, size, sha256, type}``. Raises ``RunnerFailed``, with a code of
        docs/artifacts.md; then nothing of it lies in the workspace, unless the disk itself failed."""
        try:
            received = await self._receive(artifacts, workspace)
        except RunnerFailed as failed:
            metrics.ARTIFACTS_REFUSED.labels(failed.code).inc()
            raise
        metrics.ARTIFACTS_RECEIVED.inc(len(received))
        metrics.ARTIFACT_BYTES.labels("in").inc(sum(one["size"] for one in received))
        return received

    async def _receive(self, artifacts: Sequence[InboundArtifact], workspace: Workspace) -> list[dict[str, Any]]:
        seconds = self._settings.inbound_seconds
        try:
            check_inbound(artifacts, self._settings)  # whoever made the run may not have
            with ExitStack() as spooled:
                async with asyncio.timeout(seconds):
                    files = await self._spooled(artifacts, workspace, spooled)
                await asyncio.to_thread(_place, workspace, [(a.name, file) for a, file, _ in files])
            return [one for _, _, one in files]
        except TimeoutError as error:
            message = f"the artifacts were not there within RUNCAST_INBOUND_SECONDS ({seconds:g} s)"
            raise RunnerFailed("artifact_timeout", message, retryable=True) from error
        except BadRequest as error:
            raise RunnerFailed("artifact_refused", str(error)) from error
        except ArtifactNotFound as error:
            raise expired(error) from error
        except ArtifactStoreUnavailable as error:
            raise RunnerFailed(error.code, str(error), retryable=True) from error
        except NameTaken as error:
            message = f"{error.args[0]!r} is a directory in this workspace: give the artifact another name"
            raise RunnerFailed("artifact_name_taken", message) from error
        except OSError as error:
            message = f"the workspace cannot be written: {error.strerror or error}"
            raise RunnerFailed("workspace_unusable", message, retryable=True) from error

    async def _spooled(
        self, artifacts: Sequence[InboundArtifact], workspace: Workspace, closing: ExitStack
    ) -> list[tuple[InboundArtifact, Spooled, dict[str, Any]]]:
        files, total = [], 0
        for artifact in artifacts:
            spooled = workspace.spool()
            closing.callback(spooled.close)
            digest = hashlib.sha256()

            def write(piece: bytes, file: Spooled = spooled, counted: Any = digest) -> None:
                counted.update(piece)
                file.write(piece)

            limit = min(self._settings.inbound_bytes, self._settings.inbound_total_bytes - total)
            try:
                got = await self._content(artifact, write, limit)
            except RunnerFailed as failed:
                message = f"artifact {artifact.name!r}: {failed.message}"
                raise RunnerFailed(failed.code, message, retryable=failed.retryable) from failed
            total += got.size
            kind = media_type(artifact.name)
            kind = got.type or kind if kind == "application/octet-stream" else kind
            told = {"name": artifact.name, "size": got.size, "sha256": digest.hexdigest(), "type": kind}
            files.append((artifact, spooled, told))
        return files

    async def _content(self, artifact: InboundArtifact, write: Any, limit: int) -> Fetched:
        if artifact.url is not None:
            return await self._fetcher.fetch(artifact.url, write, limit)
        stored = artifact.stored
        if stored is None:
            content = content_of(artifact)
            write(content)
            return Fetched(len(content), "")
        digest = hashlib.sha256()
        async for piece in self._store.read(self._store.of_request(stored.sha256), 0, stored.size):
            digest.update(piece)
            write(piece)
        if digest.hexdigest() != stored.sha256:
            raise RunnerFailed(
                "artifact_store_unavailable", "the artifact store gave something else than was put there"
            )
        return Fetched(stored.size, "")


def _place(workspace: Workspace, files: list[tuple[str, Spooled]]) -> None:
    for name, _ in files:
        workspace.check_free(name)
    for name, spooled in files:
        workspace.place(spooled, name)
