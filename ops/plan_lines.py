"""How a plan looks in a terminal, and as JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import Any

from ops.capacity import Use
from ops.plan_load import Load, Setup, stock
from ops.plan_sizes import Bound, Plan

__all__ = ["amount", "plan_fields", "plan_lines"]

_STEPS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def plan_lines(plan: Plan, source: str) -> list[str]:
    """``source``: where the costs come from."""
    lines = [*_load_lines(plan.load, plan.setup), "", *_process_lines(plan), "", *_bound_lines(plan.bounds), ""]
    return [*lines, *_verdict(plan), f"Costs: {source}. Agents, files and the proxy in front are not in it."]


def _load_lines(load: Load, setup: Setup) -> list[str]:
    there, each = stock(load, setup), _plural(f"{load.rate:g}", "item")
    return [
        f"{_many(load.viewers, 'viewer')} of {_many(load.runs, 'run')} at once, {each}/s of each: "
        f"{_many(load.runs * load.rate, 'item')}/s, {_many(load.viewers * load.rate * load.shown, 'frame')}/s",
        f"{_many(load.arrivals * 86_400, 'run')} a day. Kept: {_many(there.items, 'item')} of "
        f"{_many(there.runs, 'run')}, {_many(there.records, 'record')}",
    ]


def _process_lines(plan: Plan) -> list[str]:
    setup = plan.setup
    store = "Redis primaries" if setup.cluster else "Redis server"
    rows = [("", "number", "CPU of each", "memory of each", "connections of each")]
    for name, number, use in (
        ("gateways", setup.gateways, plan.gateway),
        ("workers", setup.workers, plan.worker),
        (store, setup.nodes, plan.redis),
    ):
        rows.append((name, f"{number:,}", f"{use.cpu:.0%}", size(use.memory), f"{use.connections:,}"))
    lines = [f"{row[0]:<17}{row[1]:>9}{row[2]:>14}{row[3]:>17}{row[4]:>22}" for row in rows]
    net = f"{size(plan.redis.net_in)}/s in, {size(plan.redis.net_out)}/s out"
    return [
        *lines,
        f"{store}, the busiest: {net}. All gateways: {size(plan.gateway.net_out * setup.gateways)}/s to viewers.",
    ]


def _bound_lines(bounds: tuple[Bound, ...]) -> list[str]:
    lines = [f"{'bound':<35}{'used':>7}  {'met at':>9}  moved by"]
    for bound in bounds:
        lines.append(f"{bound.name:<35}{bound.used / bound.limit:>7.0%}  {_times(bound.multiple):>9}  {bound.mend}")
    return lines


def _verdict(plan: Plan) -> list[str]:
    first, wall = plan.bounds[0], plan.wall
    if not plan.fits:
        return [
            f"This cannot be carried so: {first.name}, met at {_times(first.multiple)} the load. It takes {first.mend}."
        ]
    lines = [f"First to give way: {first.name}, at {_times(first.multiple)} the load. It takes {first.mend}."]
    if wall is not first:
        lines.append(f"First that neither gateways nor workers move: {wall.name}, at {_times(wall.multiple)} the load.")
    return lines


def _times(multiple: float) -> str:
    if not isfinite(multiple):
        return "never"
    return f"{multiple:.2g} ×" if multiple < 10 else f"{amount(multiple)} ×"


def amount(number: float) -> str:
    """1234567 → ``1.23 M``."""
    for name, step in _STEPS:
        if number >= 10 * step or (name != "k" and number >= step):
            return f"{number / step:.3g} {name}"
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.2g}"


def _many(number: float, thing: str) -> str:
    return _plural(amount(number), thing)


def _plural(shown: str, thing: str) -> str:
    return f"{shown} {thing}{'' if shown == '1' else 's'}"


def size(number: float) -> str:
    for name, step in _SIZES:
        if number >= step:
            return f"{number / step:.3g} {name}"
    return f"{number:.0f} B"


def plan_fields(plan: Plan, source: str) -> dict[str, Any]:
    """``multiple`` is null for a bound that is never met."""

    def used(number: int, use: Use) -> dict[str, Any]:
        return {"number": number, **asdict(use)}

    def bound(one: Bound) -> dict[str, Any]:
        return {**asdict(one), "multiple": one.multiple if isfinite(one.multiple) else None}

    setup = plan.setup
    return {
        "load": asdict(plan.load),
        "kept": asdict(stock(plan.load, setup)),
        "cluster": setup.cluster,
        "gateways": used(setup.gateways, plan.gateway),
        "workers": used(setup.workers, plan.worker),
        "redis": used(setup.nodes, plan.redis),
        "bounds": [bound(one) for one in plan.bounds],
        "fits": plan.fits,
        "costs": source,
    }
