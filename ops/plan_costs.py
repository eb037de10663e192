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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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
        "second": 0,
        "turn": 148,
        "sweep": 622,
        "swept": 9.12,
        "read": 82.91,
        "asked": 0.73,
        "delivery": 3.23,
        "item": 6.37,
        "write": 8.57,
        "frame": 0.35,
        "followed": 5.29,
        "viewer": 2.3,
        "beat": 12.3,
        "join": 281,
        "run": 1424,
    },
    redis=_tls("redis")
    | {
        "second": 794,
        "turn": 62.92,
        "sweep": 116,
        "swept": 2.51,
        "append": 64.17,
        "item": 10.74,
        "read": 27.07,
        "asked": 0.44,
        "blocked": 1.29,
        "delivery": 0,
        "entry": 0,
        "beat": 57.51,
        "run": 360,
        "news": 218,
        "join": 0,
    },
    worker=_tls("worker")
    | {
        "second": 136,
        "turn": 126,
        "append": 247,
        "item": 9.06,
    },
    sizes={
        "redis": 1857088,
        "gateway": 75321344,
        "record": 914,
        "swept_out": 122,
        "append_in": 442,
        "connection": 38336,
        "stored_run": 4783,
        "stored_item": 1.01,
        "stored_byte": 1.17,
        "frame_out": 95.18,
        "entry_out": 151,
        "asked_in": 71.81,
        "bus_in": 52.17,
        "viewer": 3951,
        "feed": 3304,
        "follow": 336,
        "window_entry": 238,
        "worker": 76541952,
        "execution": 84378,
        "kept_item": 114,
    },
)
