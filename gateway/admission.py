"""Admission: whether a run may be made, and making it. Every endpoint that makes runs goes through here.

What a run may cost is held back before it is queued; where that reaches a cap, nothing is queued and the answer is 402.
Without a cap (the default) nothing is asked of the store.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from broker.api import Broker
from broker.charges import label_of
from broker.errors import ArtifactStoreUnavailable, RuncastError, StoreUnavailable
from broker.records import RunRecord
from broker.requests import RunRequest
from broker.runs import Busy
from broker.staging import staged
from gateway.connection import Connection

__all__ = ["admit", "dismiss", "make_run", "stage"]

_STAGING = 30.0
"""Seconds that the contents of one request may take to be stored."""


async def admit(broker: Broker, request: RunRequest, principal: str, run_id: str) -> None:
    """Hold back what the run may cost. Whoever is let in makes a run under that id, or calls ``dismiss``; where he dies
    before, it is free again after ``RUNCAST_REQUEUE_AFTER``. Repeatable.

    Raises ``CostCapReached`` (402), ``StoreUnavailable``.
    """
    if broker.ledger.caps.set:
        request.check(broker.settings.item_max_bytes)  # what cannot be made is not held back for
        await broker.ledger.reserve(run_id, principal, label_of(msgspec.to_builtins(request)))


async def stage(connection: Connection, request: RunRequest) -> RunRequest:
    """The request with the content of its artifacts in the artifact store. Ahead of ``make_run``, outside of the time
    that Redis has to answer: a store of files may take longer.

    Raises what refuses the request, and ``ArtifactStoreUnavailable`` (503).
    """
    broker = connection.broker
    try:
        async with asyncio.timeout(_STAGING):
            return await staged(request, broker.artifacts, broker.settings)
    except TimeoutError as error:
        raise ArtifactStoreUnavailable(f"the artifact store did not answer within {_STAGING:g} s") from error


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
    except RuncastError:
        await _dismiss_all(broker, admitted)
        raise
    await _dismiss_all(broker, [other for other in admitted if other != made.run_id])
    return made, created


async def _dismiss_all(broker: Broker, run_ids: list[str]) -> None:
    for run_id in run_ids:
        await dismiss(broker, run_id)
