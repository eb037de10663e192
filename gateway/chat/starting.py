"""A chat request → a run: what has to be right before anything is queued (docs/chat.md, “In order”)."""

from __future__ import annotations

from broker.admission import make_run
from broker.api import Broker
from broker.errors import StoreUnavailable
from broker.records import RunRecord
from broker.requests import RunRequest
from gateway.admission import stage
from gateway.chat.bodies import named_as_here
from gateway.connection import Connection

__all__ = ["begin"]


async def begin(connection: Connection, request: RunRequest, *, principal: str) -> tuple[Broker, RunRecord]:
    """Raises ``SessionNotFound``, ``CostCapReached``, ``StoreUnavailable`` and whatever else refuses a run."""
    if connection.draining.is_set():
        raise StoreUnavailable("this gateway is shutting down: ask another one")
    with named_as_here():
        request = await stage(connection, request)
        async with connection.within() as broker:
            request.check(broker.settings.item_max_bytes)
            if request.session_id is not None:
                await broker.sessions.adopt(request.session_id)
            record, _ = await make_run(
                broker, request, principal=principal, busy=broker.settings.session_busy or "wait"
            )
            return broker, record
