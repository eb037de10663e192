"""What ``runcast doctor`` says about tasks: where their checkpoints lie, and whether all hosts mean the same place."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from broker.redis import Store
from broker.settings import Settings
from ops.consumers import queue_readers
from ops.findings import Finding, State
from workers.tasks.checkpoints import Checkpoints
from workers.tasks.hosts import Host, task_hosts

__all__ = ["check_tasks", "of_hosts"]

_SHARE = "workers on several hosts need one shared RUNCAST_TASKS_DIR, or RUNCAST_TASKS=0 on all hosts but one"


async def check_tasks(store: Store, settings: Settings) -> list[Finding]:
    """Raises ``StoreUnavailable``."""
    path = settings.tasks_path
    existing = next(p for p in (path, *path.parents) if p.exists())
    if settings.tasks and not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        return [Finding("tasks", State.WRONG, f"{path} cannot be written", "set RUNCAST_TASKS_DIR")]
    identity = await asyncio.to_thread(Checkpoints(path).known_identity) if settings.tasks else None
    _, alive = await queue_readers(store, settings.tasks_queue)
    return [of_hosts(await task_hosts(store), str(path) if settings.tasks else "", identity, alive=alive)]


def of_hosts(hosts: Sequence[Host], path: str, identity: str | None = None, *, alive: int) -> Finding:
    """``path``: where this host would keep checkpoints, and the ``identity`` of that directory (``None``: no worker has
    used it yet); empty: it works on no tasks. ``alive``: workers that take tasks at present, while ``hosts`` are those
    of the last week."""
    here = f"checkpoints in {path}" if path else "a worker here works on none (RUNCAST_TASKS=0)"
    if not hosts:
        return Finding("tasks", State.OK, f"{here}; no worker has said that it works on tasks", _SHARE)
    names = sorted({host.name for host in hosts})
    places = "; ".join(f"{host.name}: {host.path}" for host in hosts)
    if len({host.identity for host in hosts}) > 1:
        found = f"several task paths that are not the same directory ({places}): a task waits for the one it began in"
        if alive > 1:
            return Finding("tasks", State.WRONG, found, _SHARE)
        # One worker has one directory: the others were left.
        return Finding("tasks", State.NOTE, f"within the last week {found}", _SHARE)
    if path and identity not in {host.identity for host in hosts}:
        whose = "the workers that there are" if alive else "workers that there were within the last week"
        return Finding("tasks", State.NOTE, f"{here}, which is not the directory of {whose} ({places})", _SHARE)
    return Finding("tasks", State.OK, f"{here}; {_sharing(names, alive)}", "" if len(names) > 1 else _SHARE)


def _sharing(names: Sequence[str], alive: int) -> str:
    since = "" if alive else " within the last week, none at present"
    if len(names) > 1:
        return f"{len(names)} hosts {'share' if alive else 'shared'} it{since} ({', '.join(names)})"
    return f"one host {'works' if alive else 'worked'} on tasks{since}: {names[0]}"
