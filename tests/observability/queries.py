"""What the dashboard and the alerts ask Prometheus, taken apart by a parser of its language."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import yaml

__all__ = ["DEPLOY", "Asked", "asked_for", "expressions"]

DEPLOY = Path(__file__).parents[2] / "deploy"
_VARIABLES = {"$__rate_interval": "5m", "$instance": ".*"}
_FROM_PROMETHEUS = {"instance", "job"}
"""Labels that a scrape adds."""


class Asked(NamedTuple):
    metric: str
    labels: frozenset[str]


def expressions() -> list[str]:
    """Every query of the dashboard and of the alerts, Grafana's variables filled in."""
    return [_filled(expr) for expr in [*_of_dashboard(), *_of_alerts()]]


def _of_dashboard() -> Iterator[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "runcast.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def _of_alerts() -> Iterator[str]:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "runcast-alerts.yml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])


def _filled(expr: str) -> str:
    for name, value in _VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def asked_for(expr: str) -> set[Asked]:
    """The metrics of a query, each with the labels that it is matched or grouped by. Raises ``ValueError``."""
    return set(_walk(promql.parse(expr), frozenset()))


def _walk(node: Any, grouped: frozenset[str]) -> Iterator[Asked]:
    match node:
        case promql.VectorSelector():
            yield Asked(node.name, (frozenset(m.name for m in node.matchers.matchers) | grouped) - _FROM_PROMETHEUS)
        case promql.MatrixSelector():
            yield from _walk(node.vector_selector, grouped)
        case promql.AggregateExpr():
            by = frozenset(node.modifier.labels) if node.modifier is not None else frozenset()
            yield from _walk(node.expr, grouped | by)
        case promql.Call():
            for argument in node.args:
                yield from _walk(argument, grouped)
        case promql.BinaryExpr():
            yield from _walk(node.lhs, grouped)
            yield from _walk(node.rhs, grouped)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from _walk(node.expr, grouped)


def legends() -> Iterator[tuple[str, set[str]]]:
    """Each query of the dashboard with the labels that its legend shows."""
    dashboard = json.loads((DEPLOY / "grafana" / "runcast.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield _filled(target["expr"]), set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
