"""What ``runcast doctor`` looks at where runs have files: the workspaces' root and the artifact store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from broker.artifact_store import ArtifactStore
from broker.errors import RuncastError
from broker.settings import Settings
from ops.findings import Finding, State
from workers.workspace import Workspaces

__all__ = ["check_artifacts", "check_workspaces"]


def check_workspaces(settings: Settings) -> Iterator[Finding]:
    directory = Workspaces(settings).home
    existing = next(p for p in (directory, *directory.parents) if p.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        free = shutil.disk_usage(existing).free >> 20
        state = State.OK if free > 512 else State.NOTE
        yield Finding("workspaces", state, f"{directory}, {free:,} MiB free", "" if free > 512 else "make room there")
    else:
        hint = "set RUNCAST_WORKSPACES to a directory that the worker may write"
        yield Finding("workspaces", State.WRONG, f"{directory} cannot be written: runs of Hermes will fail", hint)


async def check_artifacts(settings: Settings) -> list[Finding]:
    try:
        store = ArtifactStore(settings)
        await store.probe()
    except RuncastError as error:
        hint = "start it, or set RUNCAST_ARTIFACT_STORE and its credentials (docs/artifacts.md)"
        return [Finding("artifacts", State.WRONG, str(error), hint)]
    return [Finding("artifacts", State.OK, f"{store.shown}: written, read, removed")]
