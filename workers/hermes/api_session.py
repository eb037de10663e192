"""What Hermes has written down about a run's session: what its events leave out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import httpx

from broker.items import Cost, Event, Item
from workers.hermes.api_events import ApiEvents
from workers.hermes.api_request import Begun, session_path
from workers.hermes.api_server import Lease
from workers.providers.usage import UsageCounter

__all__ = ["Settled", "settle"]

_GET = 5.0
_INPUT = ("input_tokens", "cache_read_tokens", "cache_write_tokens")
"""Hermes' sessions count what was not cached apart from what was."""
_COUNTS = (*_INPUT, "output_tokens", "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class Settled:
    usage: Mapping[str, int | None] | None = None
    """Of the whole run, in our meaning."""
    model: str | None = None
    session_id: str | None = None
    """Where Hermes went on under another id in the middle of the run: that one."""
    priced: bool = False
    items: list[Item] = field(default_factory=list)


async def settle(lease: Lease, begun: Begun, seen: ApiEvents) -> Settled:
    """Ask for the session once the run has ended. Nothing of it is needed: without an answer it is left out."""
    found = (await _get(lease, session_path(begun.session_id))).get("session")
    row: Mapping[str, Any] = found if isinstance(found, dict) else {}
    grown = _grown(row, begun.before, seen.reported)
    counter = UsageCounter()
    items = counter.set(**{**grown, **seen.reported})
    costs = _cost(row, begun.before) if grown else []
    rotated = await _rotated(lease, begun.session_id) if row.get("ended_at") else None
    if rotated is not None:
        payload = {"hermes_session_id": rotated, "rotated_from": begun.session_id}
        items.append(Event(name="hermes.session", payload=payload))
    model = row.get("model")
    usage = counter.counts if items else None
    return Settled(usage, model if isinstance(model, str) and model else None, rotated, bool(costs), items + costs)


async def _rotated(lease: Lease, session_id: str) -> str | None:
    told = (await _get(lease, f"{session_path(session_id)}/messages?limit=1")).get("session_id")
    return told if isinstance(told, str) and told != session_id else None


async def _get(lease: Lease, path: str) -> dict[str, Any]:
    try:
        body = (await lease.client.get(path, timeout=_GET)).json()
    except (httpx.HTTPError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def _grown(row: Mapping[str, Any], before: Mapping[str, Any], reported: Mapping[str, Any]) -> dict[str, int]:
    """What the run added to the session's counts, where it is what the run itself reports: otherwise another run was
    in the session, too, or one of the two counts something else."""
    grown = {name: _count(row.get(name)) - _count(before.get(name)) for name in _COUNTS}
    whole = sum(grown[name] for name in _INPUT)
    if not reported or (whole, grown["output_tokens"]) != (reported.get("input_tokens"), reported.get("output_tokens")):
        return {}
    return grown


def _cost(row: Mapping[str, Any], before: Mapping[str, Any]) -> list[Item]:
    name = "actual_cost_usd" if row.get("actual_cost_usd") is not None else "estimated_cost_usd"
    amount = _decimal(row.get(name)) - _decimal(before.get(name))
    if amount <= 0:
        return []
    return [Cost(amount=f"{amount:f}", total=f"{amount:f}", estimated=name.startswith("estimated"))]


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _decimal(value: Any) -> Decimal:
    return Decimal(repr(value)) if isinstance(value, (int, float)) and math.isfinite(value) else Decimal(0)
