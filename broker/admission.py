"""Admission: whether a run may be made, and making it. Every endpoint that makes runs goes through here, and so does
every step of a task.

What a run may cost is held back before it is queued; where that reaches a cap, nothing is queued (a request is answered
402, the task halts at that step). Without a cap (the default) nothing is asked of the store.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from broker.charges import label_of
from broker.errors import RuncastError, RunExists, StoreUnavailable
from broker.records import RunRecord
from broker.requests import RunRequest
from broker.runs import Busy

if TYPE_CHECKING:
    from broker.api import Broker

__all__ = ["admit", "dismiss", "make_run"]


async def admit(broker: Broker, request: RunRequest, principal: str, run_id: str) -> None:
    """Hold back what the run may cost. Whoever is let in makes a run under that id, or calls ``dismiss``; where he dies
    before, it is free again after ``RUNCAST_REQUEUE_AFTER``. Repeatable.

    Raises ``CostCapReached`` (402), ``StoreUnavailable``.
    """
    if broker.ledger.caps.set:
        request.check(broker.settings.item_max_bytes)  # what cannot be made is not held back for
        await broker.ledger.reserve(run_id, principal, label_of(msgspec.to_builtins(request)))


async def dismiss(broker: Broker, run_id: str) -> None:
    """The run that was admitted will not be made. Raises nothing: a sweep does it where the store is away."""
    with contextlib.suppress(StoreUnavailable):
        await broker.ledger.release(run_id)


async def make_run(
    broker: Broker,
    request: RunRequest,
    *,
    principal: str,
    run_id: str | None = None,
    idempotency_key: str | None = None,
    busy: Busy | None = None,
) -> tuple[RunRecord, bool]:
    """Admit a run and make it: → its record, and whether this call made it. A repeated request, by its idempotency
    key, is let in whatever was spent: its run is there.

    Raises ``CostCapReached`` and what ``Runs.create`` raises.
    """
    admitted: list[str] = []

    async def before(run_id: str) -> None:
        await admit(broker, request, principal, run_id)
        admitted.append(run_id)

    try:
        made, created = await broker.runs.create(
            request,
            run_id=run_id,
            idempotency_key=idempotency_key,
            principal=principal,
            before=before if broker.ledger.caps.set else None,
            busy=busy,
        )
    except StoreUnavailable:
        raise  # nobody knows whether it was made, nor where this is cancelled: the sweeps find out
    except RunExists:
        for taken in admitted:
            await _yield_to(broker, taken)
        raise
    except RuncastError:
        await _dismiss_all(broker, admitted)
        raise
    await _dismiss_all(broker, [other for other in admitted if other != made.run_id])
    return made, created


async def _dismiss_all(broker: Broker, run_ids: list[str]) -> None:
    for run_id in run_ids:
        await dismiss(broker, run_id)


async def _yield_to(broker: Broker, run_id: str) -> None:
    """Somebody else made the run of that id: what is held back under it is that run's, unless it is over."""
    with contextlib.suppress(RuncastError):
        record = await broker.runs.find(run_id)
        if record is not None and record.is_ended:
            await broker.ledger.try_settle(run_id)
            await broker.ledger.release(run_id)
