"""``runcast budget`` and ``runcast audit``."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from broker.api import Broker
from broker.errors import CostCapReached
from broker.items import Final, encode
from broker.settings import Settings
from ops.audit import _after
from tests.broker.registry import request
from tests.ops.conftest import Command

CAPS = {"RUNCAST_COST_CAP": "0.9", "RUNCAST_COST_CAP_PRINCIPAL": "0.5", "RUNCAST_COST_RESERVATION": "0.4"}


@pytest.fixture
def capped(runcast: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Ann spent 0.25 and holds back 0.4, somebody unnamed holds back the same, and bob was refused."""
    for name, value in CAPS.items():
        monkeypatch.setenv(name, value)
    runcast.settings = Settings()

    async def happened(broker: Broker) -> None:
        await broker.ledger.reserve("r1", "ann", "m")
        await broker.runs.create(request(), run_id="r1", principal="ann", enqueue=False)
        await broker.runs.claim("r1", 1, "me")
        end = encode(Final(message=None, rounds=1, cost={"total": "0.25", "currency": "USD"}), ts=1.0)
        await broker.log.append("r1", "me", 1, 1, [end])
        await broker.ledger.settle(await broker.runs.get("r1"))
        await broker.ledger.reserve("r2", "ann", "m")
        await broker.ledger.reserve("r3", "", "m")
        with pytest.raises(CostCapReached):
            await broker.ledger.reserve("r4", "bob", "m")

    runcast.broker(happened)
    return runcast


def test_the_budget_says_who_spent_and_holds_back_what(capped: Command) -> None:
    rows = [line.split("\t") for line in capped("budget").out.splitlines()]
    assert rows == [
        ["all together", "0.25", "0.8", "0.9", "1", "0", "1"],
        ["(nobody named)", "0", "0.4", "0.5", "0", "0", "0"],
        ["ann", "0.25", "0.4", "0.5", "1", "0", "0"],
        ["bob", "0", "0", "0.5", "0", "0", "1"],
    ]


def test_the_budget_as_json(capped: Command) -> None:
    (told,) = capped("budget", "--json").lines
    assert (told["spent"], told["reserved"], told["cap"], told["runs"], told["refused"]) == ("0.25", "0.8", "0.9", 1, 1)
    assert sorted(told["principals"]) == ["", "ann", "bob"]
    assert told["principals"]["ann"]["spent"] == "0.25"
    (before,) = capped("budget", "--json", "--day", "2020-02-29").lines
    assert (before["day"], before["spent"], before["principals"]) == ("2020-02-29", "0", {})


def test_without_a_cap_there_is_none(runcast: Command) -> None:
    (told,) = runcast("budget", "--json").lines
    assert (told["cap"], told["spent"]) == (None, "0")
    runcast("budget")


@pytest.mark.parametrize("arguments", [("budget", "--day", "yesterday"), ("audit", "--since", "yesterday")])
def test_what_is_no_time_is_said(runcast: Command, arguments: tuple[str, ...]) -> None:
    result = runcast(*arguments)
    assert result.code == 2
    assert "'yesterday'" in result.err


def test_the_audit_is_lines_of_json(capped: Command) -> None:
    lines = capped("audit").lines
    assert [(line["kind"], line["principal"]) for line in lines] == [("run", "ann"), ("cost_cap", "bob")]
    assert [line["kind"] for line in capped("audit", "--since", lines[0]["id"]).lines] == ["cost_cap"]
    assert len(capped("audit", "--since", "1h").lines) == 2
    assert capped("audit", "--since", "2999-01-31").lines == []


def test_a_recording_is_audited_and_costs_nothing(runcast: Command) -> None:
    runcast.imported("r1")
    (line,) = runcast("audit").lines
    assert (line["run_id"], line["runner"], line["status"], line["booked"]) == ("r1", "import", "completed", "0")


def test_a_cancel_from_here_is_audited(runcast: Command) -> None:
    runcast("run", "hello", "--detach", "--run-id", "r1")
    runcast("cancel", "r1")
    assert [line["kind"] for line in runcast("audit").lines] == ["cancel", "run"]


def test_following_goes_on_with_what_comes(runcast: Command) -> None:
    runcast.imported("r1")
    following = runcast.start("audit", "--follow")
    following.until('"r1"')
    runcast.imported("r2")
    following.until('"r2"')
    following.signal(signal.SIGINT)
    result = following.end()
    assert result.code == 130
    assert [json.loads(line)["run_id"] for line in result.out.splitlines()] == ["r1", "r2"]


@pytest.mark.parametrize(
    ("since", "ms"),
    [
        ("30s", 970_000),
        ("2m", 880_000),
        ("1970-01-01T00:10", 600_000),
        ("1970-01-01T00:10Z", 600_000),
        ("1970-01-01", 0),
    ],
)
def test_since_begins_with_that_moment(since: str, ms: int) -> None:
    before = int(_after(since, 1_000.0).partition("-")[0])
    assert before == max(ms - 1, 0)


def test_since_an_entry_begins_behind_it() -> None:
    known: Any = [_after(since, 0.0) for since in (None, "17-2")]
    assert known == ["0-0", "17-2"]
