"""Who may open what: whoever comes as far as here may everything (a password stands in front, gateway/webui/gate.py),
and the principal is the empty string, unless ``RUNCAST_PRINCIPAL_HEADER`` names a header in which a proxy that asks
people who they are says it.

A cancel token that is given is checked all the same: a wrong one is a mistake that must not pass in silence.
"""

from __future__ import annotations

import re

from starlette.requests import HTTPConnection
from starlette.types import Scope

from broker.api import Broker
from broker.errors import BadRequest
from gateway.problems import Forbidden

__all__ = ["check_cancel_token", "principal_of", "trust_header"]


_HEADER = "runcast.principal_header"
"""Where the scope says which header it is."""
_PRINCIPAL = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,198}[\x21-\x7e])?\Z")


def trust_header(scope: Scope, name: str | None) -> None:
    """Let ``principal_of`` believe a header of this request. ``None``: none."""
    if name is not None:
        scope[_HEADER] = name


def principal_of(connection: HTTPConnection) -> str:
    """In whose name the request comes. Without the header (the proxy did not ask), ``""``.

    Raises ``BadRequest`` where the header comes twice, so that a proxy that adds it to a caller's own is no way in.
    """
    if (name := connection.scope.get(_HEADER)) is None:
        return ""
    given = [value for value in connection.headers.getlist(name) if value]
    if not given:
        return ""
    if len(given) > 1 or not _PRINCIPAL.match(given[0]):
        raise BadRequest(f"{name} is to come once, as 1 to 200 printable ASCII characters", field=name)
    return given[0]


async def check_cancel_token(broker: Broker, run_id: str, token: str | None) -> None:
    """Raises ``Forbidden`` where a token was given that is not this run's. A blank one is none."""
    if token and not await broker.runs.check_cancel_token(run_id, token):
        raise Forbidden("this cancel token does not belong to this run: use the one that creating the run returned")
