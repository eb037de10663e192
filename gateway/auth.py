"""Who may open what. Access mode ``none``: everybody may everything, and the principal is the empty string.

A cancel token that is given is checked all the same: a wrong one is a mistake that must not pass in silence.
"""

from __future__ import annotations

from starlette.requests import HTTPConnection

from broker.api import Broker
from gateway.problems import Forbidden

__all__ = ["check_cancel_token", "principal_of"]


def principal_of(connection: HTTPConnection) -> str:
    """In whose name the request comes."""
    return ""


async def check_cancel_token(broker: Broker, run_id: str, token: str | None) -> None:
    """Raises ``Forbidden`` where a token was given that is not this run's. A blank one is none."""
    if token and not await broker.runs.check_cancel_token(run_id, token):
        raise Forbidden("this cancel token does not belong to this run: use the one that creating the run returned")
