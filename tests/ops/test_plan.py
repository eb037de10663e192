"""``runcast plan``: the model's arithmetic, its bounds, the command, and its counts against real processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.capacity_sizes import Size, measure
from bench.cost_meter import Point, fit
from bench.lab import Lab
from broker.errors import InvalidRequest
from ops.capacity import gateway_use, redis_use
from ops.plan_costs import DEFAULT_COSTS, GATEWAY, REDIS, SIZES, WORKER, parse_costs, scaled
from ops.plan_events import followed, gateway_events, reads, redis_events
from ops.plan_lines import amount, plan_fields, plan_lines
from ops.plan_load import Load, Setup, stock
from ops.plan_sizes import Limits, grown, planned
from tests.conftest import missing
from tests.ops.conftest import Command
from tests.servers import redis_binary

LOAD = Load(viewers=1_000, runs=100, rate=10, retention=3_600)
COSTS = DEFAULT_COSTS


@pytest.mark.long
async def test_counts_are_those_of_real_processes(tmp_path: Path) -> None:
    if redis_binary() is None:
        missing("there is no redis-server on this machine (Debian: apt install redis-server)")
    async with Lab(tmp_path) as lab:
        compared = await measure(lab, Size(9, 3, 10, 1), COSTS, seconds=3.0, settle=False)
    found = {one.what: one for one in compared}
    assert found["gateway, connections to Redis"].predicted == found["gateway, connections to Redis"].measured
    for what, spare in (("worker, connections to Redis", 2), ("Redis, connections", 4)):
        # Those for commands are opened when they are needed.
        assert 0 <= found[what].predicted - found[what].measured <= spare, what
    for what in ("Redis, scripts/s", "Redis, reads/s"):
        assert found[what].predicted == pytest.approx(found[what].measured, rel=0.3), what
    assert found["Redis, memory, MiB"].predicted == pytest.approx(found["Redis, memory, MiB"].measured, rel=0.3)


# The words.


def test_one_of_a_thing_is_no_plural() -> None:
    one = Load(viewers=1, runs=1, rate=1, retention=3_600)
    assert plan_lines(planned(one, Setup(), Limits(), COSTS), "here")[0] == (
        "1 viewer of 1 run at once, 1 item/s of each: 1 item/s, 1 frame/s"
    )


# The model.


def test_a_spread_run_is_followed_by_as_many_gateways_as_it_has_viewers_or_nearly_all() -> None:
    few, many = replace(LOAD, viewers=100), replace(LOAD, viewers=100_000)
    for gateways in (1, 4, 16):
        setup = Setup(gateways=gateways)
        assert followed(few, setup) * gateways == pytest.approx(100)
        assert followed(many, setup) == pytest.approx(100)
        assert followed(many, replace(setup, by_run=True)) * gateways == pytest.approx(100)
    assert followed(replace(LOAD, viewers=50), Setup()) == 50


def test_viewers_cost_redis_nothing_and_gateways_cost_it_a_read_each() -> None:
    one = redis_events(LOAD, Setup(pace=0), COSTS)
    more = redis_events(grown_viewers(2), Setup(pace=0), COSTS)
    assert more["read"] <= one["read"]
    assert {k: v for k, v in more.items() if k != "join"} == pytest.approx(
        {k: v for k, v in one.items() if k != "join"}, rel=0.05
    )
    two = redis_events(grown_viewers(10), Setup(gateways=2, pace=0), COSTS)
    assert two["delivery"] == pytest.approx(2 * one["delivery"])
    assert two["append"] == one["append"] == 1_000


def grown_viewers(times: float) -> Load:
    return replace(LOAD, viewers=LOAD.viewers * times)


def test_reads_follow_the_batches_of_few_runs_and_the_pace_of_many() -> None:
    calm = reads(replace(LOAD, runs=2, viewers=2, rate=1), Setup(), COSTS)
    assert calm.reads == pytest.approx(2, rel=0.06)
    assert calm.blocked == pytest.approx(1, abs=0.01)
    busy = reads(replace(LOAD, runs=1_000, viewers=1_000, rate=20), Setup(), COSTS)
    assert busy.reads == pytest.approx(2 / 0.006, rel=0.01)
    assert busy.blocked < 0.01
    assert reads(replace(LOAD, rate=0), Setup(), COSTS).reads == pytest.approx(2 / 5)


def test_a_run_with_many_viewers_is_read_the_less_often() -> None:
    one = replace(LOAD, runs=1, rate=100)
    few, many = (reads(replace(one, viewers=n), Setup(), COSTS).reads for n in (10, 1_000))
    assert few == pytest.approx(100, rel=0.1)
    assert 1 / 0.025 < many < 1 / 0.021
    assert reads(replace(one, viewers=1_000), Setup(pace=0), COSTS).reads == pytest.approx(few, rel=0.1)


def test_items_that_come_together_are_written_together() -> None:
    single, batched = (gateway_events(replace(LOAD, batch=n), Setup(), COSTS) for n in (1, 10))
    assert single["write"] + single["frame"] == batched["write"] + batched["frame"] == 10_000
    assert batched["write"] == pytest.approx(1_000)


def test_silent_viewers_get_heartbeats_and_filtered_ones_cursors() -> None:
    assert gateway_events(LOAD, Setup(), COSTS)["beat"] == 0
    assert gateway_events(replace(LOAD, rate=0), Setup(), COSTS)["beat"] == 1_000 / 5
    assert gateway_events(replace(LOAD, shown=0.5), Setup(cursor_seconds=2), COSTS)["beat"] == 1_000 / 2


def test_connections_of_a_cluster_are_a_lane_for_each_partition_and_three_for_each_primary() -> None:
    setup = Setup(cluster=True, nodes=3, partitions=64, gateways=20)
    assert gateway_use(LOAD, setup, COSTS).connections == 64 + 9
    assert redis_use(LOAD, setup, COSTS).connections == 20 * (22 + 3) + (4 + 2 + 9) / 3
    assert gateway_use(LOAD, Setup(), COSTS).connections == 2 + 3


def test_retention_and_the_bounds_of_a_run_say_what_is_kept() -> None:
    load = Load(viewers=0, runs=10, rate=5, retention=600, run_seconds=60, record_ttl=6_000, item_bytes=100)
    there = stock(load, Setup())
    assert (there.runs, there.records) == (110, 1_010)
    assert there.items == 100 * 301 + 10 * 150
    assert stock(load, Setup(run_max_items=50)).items == 100 * 51 + 10 * 50
    assert stock(replace(load, retention=60_000), Setup()).runs == 1_010
    assert stock(replace(load, runs_per_day=86_400), Setup()).runs == 610


def test_a_busy_process_wakes_less_often() -> None:
    calm, busy = (redis_use(grown(LOAD, n), Setup(), COSTS).cpu for n in (0.1, 10))
    assert busy < 100 * calm
    assert redis_use(LOAD, Setup(), scaled(COSTS, 2)).cpu > redis_use(LOAD, Setup(), COSTS).cpu


# Sizes and bounds.


def test_a_plan_has_the_fewest_gateways_that_do() -> None:
    found = planned(replace(LOAD, viewers=200_000), Setup(), Limits(), COSTS)
    assert found.fits
    assert found.gateway.cpu <= 0.6
    assert found.setup.gateways > 1
    fewer = replace(found.setup, gateways=found.setup.gateways - 1)
    assert gateway_use(found.load, fewer, COSTS).cpu > 0.6


def test_the_multiple_of_a_bound_is_where_the_load_meets_it() -> None:
    found = planned(LOAD, Setup(), Limits(), COSTS)
    bound = next(b for b in found.bounds if b.name == "memory of a primary")
    assert redis_use(grown(LOAD, bound.multiple), found.setup, COSTS).memory == pytest.approx(bound.limit, rel=1e-3)
    assert found.bounds[0].multiple == min(b.multiple for b in found.bounds)
    assert not found.wall.by_processes


def test_one_server_is_taken_where_it_does_and_else_a_cluster() -> None:
    assert not planned(LOAD, Setup(), Limits(), COSTS).setup.cluster
    much = planned(replace(LOAD, retention=86_400), Setup(partitions=256), Limits(redis_memory=1 << 30), COSTS)
    assert much.setup.cluster
    assert much.setup.nodes > 3
    assert much.fits
    held = planned(replace(LOAD, retention=86_400), Setup(), Limits(redis_memory=1 << 30), COSTS, nodes=1)
    assert not held.fits
    assert held.bounds[0].name == "memory of a primary"


def test_what_no_process_mends_is_told() -> None:
    """Every process looks at every open run: there is a load at which that alone takes a core of each."""
    found = planned(Load(viewers=10, runs=3_000_000, rate=0, retention=0), Setup(concurrency=1_000), Limits(), COSTS)
    assert not found.fits
    assert "CPU of a gateway for all runs" in [b.name for b in found.bounds if b.multiple < 1]
    text = "\n".join(plan_lines(found, "built in"))
    assert "cannot be carried" in text


# Costs.


def measured(**changed: object) -> bytes:
    parts: dict[str, object] = {
        part: dict.fromkeys(names, 1.0)
        for part, names in (("gateway", GATEWAY), ("redis", REDIS), ("worker", WORKER), ("sizes", SIZES))
    }
    return json.dumps(parts | {"machine": {"python": "3.11"}} | changed).encode()


def test_measured_costs_are_read_and_wrong_ones_named() -> None:
    assert parse_costs(measured(), "x.json").gateway["write"] == 1.0
    for wrong, says in (
        (measured(worker={"second": 1.0, "append": -1.0}), "worker lacks turn, append, item"),
        (measured(sizes=3), "sizes lacks"),
        (b"[]", "x.json has no measured costs"),
        (b"\xff", "x.json has no measured costs"),
        (b'{"a":' * 100_000, "x.json has no measured costs"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            parse_costs(wrong, "x.json")


def test_a_fit_finds_the_costs_behind_sums() -> None:
    events = [{"a": 1.0, "b": 2.0}, {"a": 3.0, "c": 1.0}, {"b": 5.0, "c": 2.0}, {"a": 1.0, "b": 1.0, "c": 1.0}]
    costs = {"a": 4.0, "b": 0.5, "c": 7.0}
    points = [Point(e, sum(n * costs[name] for name, n in e.items())) for e in events]
    assert fit(points, ("a", "b", "c", "never")) == pytest.approx(costs | {"never": 0.0}, rel=1e-4)
    assert min(fit([Point({"a": 1.0}, 5.0), Point({"a": 1.0, "b": 1.0}, 4.0)], ("a", "b")).values()) == 0.0


# The command.


def test_the_command_plans(runcast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNCAST_RECORD_TTL", "3600")
    arguments = ("plan", "--viewers", "5e3", "--runs", "500", "--rate", "2", "--retention", "600")
    result = runcast(*arguments, "--json")
    assert (result.code, result.err) == (0, "")
    (plan,) = result.lines
    assert plan["fits"]
    assert plan["load"]["viewers"] == 5_000
    assert plan["workers"]["number"] == 157  # 500 runs, 4 at once, four fifths of the slots
    assert plan["redis"]["number"] == 1
    assert [b["multiple"] for b in plan["bounds"] if b["multiple"]] == sorted(
        b["multiple"] for b in plan["bounds"] if b["multiple"]
    )
    text = runcast(*arguments)
    assert "First to give way: runs at once in all workers" in text.out


def test_what_cannot_be_carried_exits_1(runcast: Command) -> None:
    result = runcast("plan", "--viewers", "1", "--runs", "1000", "--redis-memory", "1", "--nodes", "1")
    assert result.code == 1
    assert "memory of a primary" in result.out


def test_settings_and_measured_costs_count(runcast: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_bytes(measured())
    monkeypatch.setenv("RUNCAST_LANES", "7")
    arguments = ("plan", "--viewers", "100", "--runs", "10", "--retention", "60", "--json", "--measured", str(file))
    (plan,) = runcast(*arguments).lines
    assert plan["gateways"]["connections"] == 10
    assert plan["costs"] == str(file)
    (slow,) = runcast(*arguments, "--cpu-factor", "3").lines
    assert slow["workers"]["cpu"] == pytest.approx(3 * plan["workers"]["cpu"], rel=0.01)
    file.write_text("{}")
    refused = runcast(*arguments)
    assert refused.code == 2
    assert "costs.json: gateway lacks" in refused.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("--viewers", "1"), "--runs"), (("--viewers", "-1", "--runs", "1"), "--viewers"), (("--runs", "0"), "--runs")],
)
def test_wrong_figures_exit_2(runcast: Command, arguments: tuple[str, ...], says: str) -> None:
    result = runcast("plan", *arguments)
    assert result.code == 2
    assert says in result.err


def test_the_fields_of_a_plan_are_json() -> None:
    fields = plan_fields(planned(LOAD, Setup(), Limits(), COSTS), "built in")
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.25, "0.25"), (9_999, "9,999"), (12_345, "12.3 k"), (1_234_567, "1.23 M"), (2e9, "2 G")],
)
def test_amounts_are_short(number: float, text: str) -> None:
    assert amount(number) == text
