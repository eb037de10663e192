"""``runcast plan``: what a load needs, before it is there. No store is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from broker.settings import Settings
from ops.exits import Exit
from ops.options import Number, default_of, json_option, load_settings
from ops.plan_costs import DEFAULT_COSTS, Costs, parse_costs, scaled
from ops.plan_lines import plan_fields, plan_lines
from ops.plan_load import Load, Setup
from ops.plan_sizes import Limits, planned
from ops.terminal import Terminal

__all__ = ["plan"]

_COUNT = Number(0, 1e12)
_POSITIVE = Number(0, 1e12, min_open=True)
_PART = Number(0, 1, min_open=True)
_GIB, _MIB = 1 << 30, 1 << 20


@click.command()
@click.option("--viewers", type=_COUNT, required=True, help="Who watch at the same moment.")
@click.option("--runs", type=_POSITIVE, required=True, help="Open at the same moment.")
@click.option("--rate", type=_COUNT, default=20.0, show_default=True, help="Items a second of each run.")
@click.option("--retention", type=_COUNT, help="Seconds that items of ended runs are kept." + default_of("run_ttl"))
@click.option("--run-seconds", type=_POSITIVE, default=120.0, show_default=True, help="How long a run takes.")
@click.option("--runs-per-day", type=_COUNT, help="Where --runs is a peak.  [default: as many as that makes all day]")
@click.option("--item-bytes", type=_POSITIVE, default=95.0, show_default=True, help="Stored bytes of an item.")
@click.option("--batch", type=Number(1, 1000), default=1.0, show_default=True, help="Items in one append.")
@click.option("--shown", type=_PART, default=1.0, show_default=True, help="Part of the items that viewers' modes show.")
@click.option("--by-run", is_flag=True, help="The proxy sends all viewers of a run to one gateway.")
@click.option("--tls", is_flag=True, help="Between Redis and everybody else.")
@click.option("--concurrency", type=click.IntRange(1), help="Runs at once in a worker." + default_of("concurrency"))
@click.option("--nodes", type=click.IntRange(1, 4096), help="Redis primaries.  [default: as few as do]")
@click.option("--headroom", type=_PART, default=0.6, show_default=True, help="Part of a core to plan a process for.")
@click.option("--gateway-memory", type=_POSITIVE, default=1024.0, show_default=True, help="MiB for a gateway.")
@click.option("--open-files", type=click.IntRange(1), default=65_536, show_default=True, help="Limit of a gateway.")
@click.option("--redis-memory", type=_POSITIVE, default=16.0, show_default=True, help="GiB of a primary.")
@click.option("--redis-connections", type=click.IntRange(1), default=10_000, show_default=True, help="Its maxclients.")
@click.option("--network", type=_POSITIVE, default=10.0, show_default=True, help="Gbit/s of a primary's machine.")
@click.option("--cpu-factor", type=_POSITIVE, default=1.0, show_default=True, help="CPU time there over that measured.")
@click.option(
    "--measured",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Costs measured on your machine: the file of `python -m bench.capacity --json FILE`.",
)
@json_option
def plan(**given: Any) -> Exit:
    """Gateways, workers, Redis, memory and connections for a load, and what would break first.

    Settings count as in RUNCAST_…: partitions, lanes, sweep, heartbeat and the rest. Exit code: 0; 1 where no number of
    processes carries it.
    """
    settings = load_settings()
    costs = _costs(given["measured"], given["cpu_factor"])
    found = planned(_load(given, settings), _setup(given, settings), _limits(given), costs, given["nodes"])
    terminal = Terminal()
    if given["as_json"]:
        terminal.json(plan_fields(found, costs.source))
    else:
        for line in plan_lines(found, costs.source):
            terminal.line(line)
    return Exit.OK if found.fits else Exit.FAILED


def _costs(measured: Path | None, factor: float) -> Costs:
    costs = DEFAULT_COSTS if measured is None else parse_costs(measured.read_bytes(), str(measured))
    return scaled(costs, factor)


def _load(given: dict[str, Any], settings: Settings) -> Load:
    names = ("viewers", "runs", "rate", "run_seconds", "runs_per_day", "item_bytes", "batch", "shown")
    retention = settings.run_ttl if given["retention"] is None else given["retention"]
    return Load(**{name: given[name] for name in names}, retention=retention, record_ttl=settings.record_ttl)


def _setup(given: dict[str, Any], settings: Settings) -> Setup:
    names = (
        *("lanes", "partitions", "block", "pace", "sweep", "beat", "heartbeat", "cursor_seconds", "window_bytes"),
        *("windows_memory", "resend_bytes", "resend_items", "run_max_items", "run_max_bytes", "item_max_bytes"),
    )
    kept = {name: getattr(settings, name) for name in names}
    concurrency = given["concurrency"] or settings.concurrency
    return Setup(**kept, by_run=given["by_run"], tls=given["tls"], concurrency=concurrency)


def _limits(given: dict[str, Any]) -> Limits:
    return Limits(
        headroom=given["headroom"],
        gateway_memory=given["gateway_memory"] * _MIB,
        gateway_files=given["open_files"],
        redis_memory=given["redis_memory"] * _GIB,
        redis_connections=given["redis_connections"],
        redis_net=given["network"] * 1e9 / 8,
    )
