"""What one event of each kind costs a process, as measured. Pure.

CPU in microseconds of one core (user and system), sizes in bytes. The figures here come from ``python -m
bench.capacity`` (docs/scaling.md says on which machine); the same script writes them for another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from broker.errors import InvalidRequest

__all__ = ["DEFAULT_COSTS", "Costs", "parse_costs", "scaled"]

GATEWAY = (
    "second",
    "turn",
    "sweep",
    "swept",
    "read",
    "asked",
    "delivery",
    "item",
    "write",
    "frame",
    "followed",
    "viewer",
    "beat",
    "join",
    "run",
)
REDIS = (
    *("second", "turn", "sweep", "swept", "append", "item", "read", "asked", "blocked", "delivery", "entry"),
    *("beat", "run", "news", "join"),
)
WORKER = ("second", "turn", "append", "item")
SIZES = (
    *("gateway", "viewer", "feed", "window_entry"),
    *("redis", "record", "stored_run", "stored_item", "stored_byte", "follow", "connection"),
    *("worker", "execution", "kept_item"),
    *("bus_in", "asked_in", "append_in", "entry_out", "swept_out", "frame_out"),
)


@dataclass(frozen=True)
class Costs:
    """Microseconds an event: ``gateway``, ``redis``, ``worker``. Bytes: ``sizes``.

    | event | what it counts |
    |---|---|
    | second | a process that is there |
    | sweep, swept | a look for lost workers; a run that it looks at |
    | append, item | a batch stored; each item of it behind the first |
    | turn | a process that waited is woken: at a low load by each request, the busier it is the more of them at once |
    | read, asked, blocked | a read of a lane; a stream that it asks for, and of those, in a read that has to wait |
    | delivery | a stream in its reply. At a gateway ``item``, at Redis ``entry``: each item behind the stream's first |
    | write, frame | a viewer written to; each frame of the same write behind the first |
    | followed, viewer | a second of a run that is followed; of a viewer |
    | beat | a heartbeat written to a viewer; at Redis, a worker's beat for a run |
    | join | a viewer that comes and goes |
    | run | a run created, claimed and ended; at a gateway, what it does at the news of that |
    | news | what one gateway asks Redis at that news |
    """

    gateway: Mapping[str, float]
    redis: Mapping[str, float]
    worker: Mapping[str, float]
    sizes: Mapping[str, float]
    source: str = field(default="built in")


def parse_costs(text: bytes, name: str) -> Costs:
    """A file that ``python -m bench.capacity --json`` wrote. Raises ``InvalidRequest``, naming what is wrong in it."""
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{name} has no measured costs: {error}", field="measured") from None
    parts: dict[str, dict[str, float]] = {}
    for part, wanted in (("gateway", GATEWAY), ("redis", REDIS), ("worker", WORKER), ("sizes", SIZES)):
        values = found.get(part)
        given = values if isinstance(values, dict) else {}
        missing = [key for key in wanted if _wrong(given.get(key))]
        if missing:
            raise InvalidRequest(f"{name}: {part} lacks {', '.join(missing)} (0 or more)", field="measured")
        parts[part] = _tls(part) | {key: float(given[key]) for key in wanted}
    return Costs(**parts, source=name)


_TLS = {"redis": 4.4, "gateway": 20.0, "worker": 20.0}
"""A request and its reply over TLS, beyond what they cost without: a SET of 100 bytes by redis-benchmark (10.0 and 14.3
µs), an ECHO of the same by the store. The bench does not measure it."""


def _tls(part: str) -> dict[str, float]:
    return {"tls": _TLS[part]} if part in _TLS else {}


def _wrong(value: object) -> bool:
    return not isinstance(value, float | int) or not 0 <= value < float("inf")


def scaled(costs: Costs, factor: float) -> Costs:
    """The same with CPU that takes ``factor`` times as long."""

    def times(events: Mapping[str, float]) -> dict[str, float]:
        return {name: value * factor for name, value in events.items()}

    return Costs(times(costs.gateway), times(costs.redis), times(costs.worker), costs.sizes, costs.source)


DEFAULT_COSTS = Costs(
    gateway=_tls("gateway")
    | {
        "second": 200,
        "turn": 169,
        "sweep": 452,
        "swept": 8.39,
        "read": 126,
        "asked": 0.41,
        "delivery": 0.0,
        "item": 6.33,
        "write": 7.05,
        "frame": 0.63,
        "followed": 8.61,
        "viewer": 0.0,
        "beat": 10.44,
        "join": 338,
        "run": 404,
    },
    redis=_tls("redis")
    | {
        "second": 1625,
        "turn": 52.49,
        "sweep": 0.0,
        "swept": 2.85,
        "append": 49.03,
        "item": 11.97,
        "read": 94.8,
        "asked": 0.25,
        "blocked": 0.41,
        "delivery": 0.0,
        "entry": 2.6,
        "beat": 2.34,
        "run": 88.45,
        "news": 192,
        "join": 9.03,
    },
    worker=_tls("worker")
    | {
        "second": 1036,
        "turn": 137,
        "append": 196,
        "item": 9.45,
    },
    sizes={
        "redis": 1857024,
        "gateway": 75313152,
        "record": 932,
        "swept_out": 122,
        "append_in": 445,
        "stored_run": 3996,
        "stored_item": 0.89,
        "stored_byte": 1.17,
        "frame_out": 88.7,
        "entry_out": 150,
        "asked_in": 70.56,
        "bus_in": 51.95,
        "viewer": 1352,
        "feed": 2668,
        "follow": 466,
        "window_entry": 152,
        "connection": 38336,
        "worker": 76607488,
        "execution": 84378,
        "kept_item": 114,
    },
)
