"""What comes ahead of ``broker.admission`` in a gateway: the content of a request's artifacts is stored."""

from __future__ import annotations

import asyncio

from broker.errors import ArtifactStoreUnavailable
from broker.requests import RunRequest
from broker.staging import staged
from gateway.connection import Connection

__all__ = ["stage"]

_STAGING = 30.0
"""Seconds that the contents of one request may take to be stored."""


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
