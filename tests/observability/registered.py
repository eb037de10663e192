"""The metrics that are registered, with their types and labels."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from prometheus_client.metrics import MetricWrapperBase

__all__ = ["Registered", "registered"]


class Registered(NamedTuple):
    type: str
    labels: tuple[str, ...]


def registered() -> dict[str, Registered]:
    """By the name that a query uses: of counters with ``_total``, of histograms without ``_bucket``."""
    found: dict[str, Registered] = {}
    for room in ("broker", "workers", "gateway"):
        for metric in vars(import_module(f"{room}.metrics")).values():
            if isinstance(metric, MetricWrapperBase):
                (described,) = metric.describe()
                name = described.name + ("_total" if described.type == "counter" else "")
                found[name] = Registered(described.type, tuple(metric._labelnames))
    return found
