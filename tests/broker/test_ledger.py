"""The ledger on every kind of store: reservations, the cap, bookings, whoever tells of an end and however often."""

from __future__ import annotations

import asyncio
import random
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from broker.errors import CostCapReached
from broker.ledger import FIRST_RESERVATION, LAST_RUNS, Settlement
from broker.money import shown
from broker.redis import Store
from broker.session_follower import SessionFollower
from broker.settings import Settings
from broker.sweep import Sweeper
from broker.tail import Tail
from tests.broker.books import Books, fence, nano

DAY = 86_400


@pytest.fixture
def books(store: Store) -> Books:
    return Books(store, cost_cap=Decimal(1), cost_reservation=Decimal("0.4"))


# What a run holds back.


async def test_a_run_holds_back_what_the_setting_says(books: Books) -> None:
    assert await books.ledger.reserve("r1", "", "m") == nano("0.4")
    assert (await books.total()).reserved == nano("0.4")


async def test_without_a_setting_it_holds_back_what_the_models_last_runs_cost_at_most(store: Store) -> None:
    books = Books(store, cost_cap=Decimal(100))
    assert await books.ledger.reserve("first", "", "m") == FIRST_RESERVATION
    for cost in ["0.9", "0.03", *["0.02"] * (LAST_RUNS - 2)]:
        await books.ledger.settle(await books.over(await books.begun(), fence(cost=cost)))
    assert await books.ledger.reserve("second", "", "m") == nano("0.9")
    assert await books.ledger.reserve("other", "", "n") == FIRST_RESERVATION
    await books.ledger.settle(await books.over(await books.begun(), fence(cost="0.01")))
    assert await books.ledger.reserve("third", "", "m") == nano("0.03")


async def test_a_cost_that_is_not_known_says_nothing_of_the_next(store: Store) -> None:
    books = Books(store, cost_cap=Decimal(100))
    for end in (fence(tokens=5), fence("failed", code="unknown_runner", message="")):
        await books.ledger.settle(await books.over(await books.begun(), end))
    assert await books.ledger.reserve("r", "", "m") == FIRST_RESERVATION


async def test_a_repeated_reservation_is_one(books: Books) -> None:
    got = await asyncio.gather(*(books.ledger.reserve("r1", "", "m") for _ in range(5)))
    assert set(got) == {nano("0.4")}
    assert (await books.total()).reserved == nano("0.4")


async def test_odd_models_and_principals_have_accounts_of_their_own(books: Books) -> None:
    for who in ("", "a b: c\nd", "“ü”"):
        await books.reserved(principal=who, model=f"{who}/\x00 m" * 50)
    assert {n: a.reserved for n, a in (await books.ledger.budget()).principals.items()} == dict.fromkeys(
        ("", "a b: c\nd", "“ü”"), nano("0.4")
    )


# The cap.


async def test_the_cap_lets_in_what_begins_below_it(books: Books) -> None:
    for _ in range(3):
        await books.reserved()
    with pytest.raises(CostCapReached, match=r"\$1 a day.*\$0 spent, \$1\.2 held back") as refused:
        await books.reserved()
    assert refused.value.scope == "total"
    assert 0 < refused.value.retry_after <= DAY
    total = await books.total()
    assert (total.reserved, total.refused) == (nano("1.2"), 1)


async def test_what_was_spent_counts_as_what_is_held_back(books: Books) -> None:
    run_id = await books.reserved()
    await books.ledger.settle(await books.over(await books.begun(run_id), fence(cost="1")))
    with pytest.raises(CostCapReached, match=r"\$1 spent; try again after"):
        await books.reserved()


async def test_a_principal_has_a_cap_of_its_own(store: Store) -> None:
    books = Books(store, cost_cap_principal=Decimal("0.5"), cost_reservation=Decimal("0.4"))
    await books.reserved(principal="ann")
    await books.reserved(principal="ann")
    with pytest.raises(CostCapReached) as refused:
        await books.reserved(principal="ann")
    assert refused.value.scope == "principal"
    await books.reserved(principal="bob")
    assert (await books.total()).reserved == nano("1.2")


async def test_a_cap_of_nothing_lets_in_nothing(store: Store) -> None:
    with pytest.raises(CostCapReached):
        await Books(store, cost_cap=Decimal(0), cost_reservation=Decimal(0)).reserved()


async def test_the_first_refusal_of_each_principal_is_audited_all_are_counted(books: Books) -> None:
    for _ in range(3):
        await books.reserved()
    for who in ("ann", "ann", "bob", "ann"):
        with pytest.raises(CostCapReached):
            await books.reserved(principal=who)
    assert [(e.fields["kind"], e.fields["principal"]) for e in await books.audited()] == [
        ("cost_cap", "ann"),
        ("cost_cap", "bob"),
    ]
    principals = (await books.ledger.budget()).principals
    assert [principals[who].refused for who in ("ann", "bob")] == [3, 1]


async def test_what_is_released_is_free(books: Books) -> None:
    runs = [await books.reserved() for _ in range(3)]
    assert await asyncio.gather(*(books.ledger.release(runs[0]) for _ in range(3))) == [True, False, False]
    await books.reserved()
    assert (await books.total()).reserved == nano("1.2")


async def test_without_a_cap_and_an_audit_nothing_is_sent(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(store, audit_max_entries=0)
    ended = await books.over(await books.begun(), fence(cost="1"))

    async def nothing(*_: Any) -> Any:
        raise AssertionError("a command was sent")

    for way in ("call", "script", "pipeline"):
        monkeypatch.setattr(store, way, nothing)
    ledger = books.ledger
    assert await ledger.reserve("r", "", "m") is None
    assert await ledger.settle(ended) is None
    assert (await ledger.release("r"), await ledger.settle_ended(["r"]), await ledger.sweep(set())) == (False, 0, 0)
    await ledger.try_settle("r")
    await ledger.audit.note("cancel", run_id="r")


# Settling.


async def test_an_end_is_booked_once_whoever_tells_it(books: Books) -> None:
    run_id = await books.reserved(principal="ann")
    ended = await books.over(await books.begun(run_id, principal="ann"), fence(cost="0.0123456789", tokens=7))
    told = await asyncio.gather(*(books.ledger.settle(ended) for _ in range(6)))
    assert [s for s in told if s] == [Settlement(nano("0.012345679"), nano("0.4"))]
    books_of_today = await books.ledger.budget()
    assert books_of_today.total == books_of_today.principals["ann"]
    total = books_of_today.total
    assert (total.spent, total.reserved, total.runs, total.unknown) == (nano("0.012345679"), 0, 1, 0)
    assert (total.input_tokens, total.output_tokens) == (7, 1)
    (entry,) = await books.audited()
    assert (entry.fields["kind"], entry.fields["run_id"], entry.fields["booked"]) == ("run", run_id, "0.012345679")


async def test_an_open_run_is_not_settled(books: Books) -> None:
    run = await books.begun(await books.reserved())
    assert await books.ledger.settle(run) is None
    assert await books.ledger.settle_ended([run.run_id]) == 0
    assert (await books.total()).reserved == nano("0.4")


@pytest.mark.parametrize(
    ("end", "booked"),
    [
        (fence(tokens=9), "0.4"),
        (fence("failed", code="hermes_died", message=""), "0.4"),
        (fence("failed", code="hermes_not_found", message=""), "0"),
        (fence("failed", code="worker_lost", message="", cost="0.1"), "0.4"),
        (fence("failed", code="worker_lost", message="", cost="0.7"), "0.7"),
        (fence("cancelled", cost="0.2"), "0.2"),
    ],
)
async def test_what_is_booked(books: Books, end: Any, booked: str) -> None:
    run = await books.begun(await books.reserved())
    await books.log.append(run.run_id, "me", run.epoch, 1, [fence("event", name="x")])
    settled = await books.ledger.settle(await books.over(run, end))
    assert settled is not None
    assert shown(settled.booked) == booked
    assert (await books.total()).reserved == 0


async def test_a_run_that_nothing_was_reserved_for_is_booked_too(store: Store) -> None:
    books = Books(store)
    assert await books.ledger.settle(await books.over(await books.begun(), fence(cost="2"))) == Settlement(
        nano("2"), None
    )
    assert await books.ledger.settle(await books.over(await books.begun(), fence(tokens=5))) == Settlement(0, None)
    total = await books.total()
    assert (total.spent, total.reserved, total.runs, total.unknown) == (nano("2"), 0, 2, 1)


async def test_a_broken_record_keeps_no_other_from_being_settled(books: Books) -> None:
    broken, whole = await books.begun(), await books.begun()
    for run in (broken, whole):
        await books.over(run, fence(cost="0.1"))
    await books.store.call("HSET", books.keys.run(broken.run_id), "request", "no JSON")
    assert await books.ledger.settle_ended([broken.run_id, "never-made", whole.run_id]) == 1
    assert await books.spent() == "0.1"


# Days.


async def test_a_run_is_booked_on_the_day_of_its_reservation(books: Books) -> None:
    """The reservation was made just before midnight, the run just after it."""
    run_id = await books.reserved(principal="ann")
    today = int((await books.store.call("TIME"))[0]) // DAY
    await books.store.call("HSET", books.keys.ledger("held"), run_id, f"{today - 1} {nano('0.4')} ann")
    ended = await books.over(await books.begun(run_id, principal="ann"), fence(cost="0.3"))
    await books.ledger.settle(ended)
    assert (await books.total()).spent == 0
    before = await books.ledger.budget(today - 1)
    assert (before.total.spent, before.principals["ann"].runs) == (nano("0.3"), 1)


async def test_a_new_day_has_a_new_budget_whatever_this_process_takes_for_today(books: Books) -> None:
    for _ in range(3):
        await books.reserved()
    today = int((await books.store.call("TIME"))[0]) // DAY
    held = books.keys.ledger("held")
    for run_id in (await books.store.call("HGETALL", held))[::2]:  # as if all of that had been yesterday
        await books.store.call("HSET", held, run_id, f"{today - 1} {nano('0.4')} ")
    days = [books.keys.ledger(f"day:{(await books.ledger.budget(d)).day}") for d in (today, today - 1)]
    await books.store.call("HSET", days[1], *await books.store.call("HGETALL", days[0]))
    await books.store.call("DEL", days[0])
    books.ledger._today = today - 1
    await books.reserved()
    assert (await books.total()).reserved == nano("0.4")
    for run_id in (await books.store.call("HGETALL", held))[::2]:
        await books.ledger.release(run_id.decode())
    assert ((await books.total()).reserved, (await books.ledger.budget(today - 1)).total.reserved) == (0, 0)


async def test_the_books_of_a_day_and_the_marks_of_runs_expire(books: Books) -> None:
    ended = await books.over(await books.begun(await books.reserved()), fence(cost="0.3"))
    await books.ledger.settle(ended)
    key = books.keys.ledger(f"day:{(await books.ledger.budget()).day}")
    assert 39 * DAY < await books.store.call("PTTL", key) / 1000 <= 40 * DAY
    mark = await books.store.call("PTTL", books.keys.ledger(f"settled:{ended.run_id}"))
    assert await books.store.call("PTTL", books.keys.run(ended.run_id)) < mark


# Whoever dies.


async def test_what_a_dead_gateway_reserved_is_free_after_a_while(books: Books) -> None:
    await books.reserved("never-made")
    made = await books.begun(await books.reserved())
    assert await books.ledger.sweep(set()) == 0
    assert (await books.total()).reserved == nano("0.8")
    for run_id in ("never-made", made.run_id):
        await books.store.call("ZADD", books.keys.ledger("open"), "INCR", -11, run_id)
    assert await books.ledger.sweep(set()) == 1
    assert (await books.total()).reserved == nano("0.4")


async def test_a_sweep_settles_what_nobody_told(books: Books) -> None:
    ended = await books.over(await books.begun(await books.reserved()), fence(cost="0.1"))
    going = await books.begun(await books.reserved())
    assert await books.ledger.sweep({going.run_id}) == 1
    assert (await books.spent(), (await books.total()).reserved) == ("0.1", nano("0.4"))
    assert await books.ledger.settle(ended) is None


async def test_a_lost_worker_is_booked_with_its_fence(books: Books) -> None:
    run = await books.begun(await books.reserved())
    sweeper = Sweeper(books.runs)
    for now in (0.0, 8.0):
        await sweeper.sweep_once(now=now)
    assert (await sweeper.sweep_once(now=16.0)).failed == 1
    total = await books.total()
    assert (total.spent, total.reserved, total.unknown) == (nano("0.4"), 0, 1)
    assert [e.fields["code"] for e in await books.audited()] == ["worker_lost"]
    assert (await books.runs.get(run.run_id)).status == "failed"


async def test_the_attempts_of_a_run_add_up(books: Books) -> None:
    run = await books.begun(await books.reserved(), on_worker_lost="retry")
    cost = fence("cost", amount="0.3", total="0.3", currency="USD", estimated=True)
    await books.log.append(run.run_id, "me", run.epoch, 1, [cost])
    assert await books.runs.takeover(await books.runs.get(run.run_id)) == "queued"
    assert (await books.runs.get(run.run_id)).cost is None
    again = await books.runs.claim(run.run_id, 2, "me")
    assert again.earlier == ({"total": "0.3", "currency": "USD", "estimated": True},)
    await books.ledger.settle(await books.over(again, fence(cost="0.25")))
    assert await books.spent() == "0.55"


async def test_a_cancelled_run_that_nobody_took_costs_nothing(books: Books) -> None:
    run_id = await books.reserved()
    await books.runs.create(books.asked(), run_id=run_id)
    await books.runs.cancel(run_id, principal="ann")
    total = await books.total()
    assert (total.spent, total.reserved, total.runs) == (0, 0, 1)
    assert sorted(e.fields["kind"] for e in await books.audited()) == ["cancel", "run"]


async def test_the_follower_settles_also_what_the_bus_has_forgotten(books: Books) -> None:
    ended = [await books.over(await books.begun(), fence(cost="0.1")) for _ in range(3)]
    bus = books.keys.bus(books.keys.partition(ended[0].run_id))
    await books.store.call("XTRIM", bus, "MAXLEN", 0)
    await books.store.call("XADD", bus, "*", "kind", "worker.started", "run_id", "", "session_id", "", "d", "{}")
    tail = Tail(books.store, books.store.settings)
    try:
        for _ in range(2):
            await SessionFollower(books.runs, tail).catch_up()
    finally:
        await tail.aclose()
    assert sorted(e.fields["run_id"] for e in await books.audited()) == sorted(r.run_id for r in ended)
    assert (await books.total()).runs == 3


# The property.


class Pods:
    """Several processes' ledgers over one store, and a random life of each run. Costs are at most what is reserved."""

    def __init__(self, pods: list[Books], seed: int) -> None:
        self.pods, self._draw = pods, random.Random(seed)
        self.highest, self.refused = 0, 0
        self.paid: dict[str, int] = {}
        self.lost: set[str] = set()

    async def look(self) -> None:
        total = await self.pods[0].total()
        self.highest = max(self.highest, total.spent + total.reserved)

    async def one(self, number: int) -> None:
        draw, books = self._draw, self._draw.choice(self.pods)
        run_id, who = f"r-{uuid4().hex}", f"p{number % 3}"
        fate = draw.choice(
            ["ends", "ends", "told twice", "worker dies", "worker dies late", "gateway dies", "not made"]
        )
        cost = draw.randrange(nano("0.1") + 1)
        await asyncio.sleep(0)
        try:
            await books.ledger.reserve(run_id, who, "m")
        except CostCapReached:
            self.refused += 1
            return
        finally:
            await self.look()
        if fate == "gateway dies":
            self.lost.add(run_id)
            return
        if fate == "not made":
            await books.ledger.release(run_id)
            return
        run = await books.begun(run_id, principal=who)
        if fate == "worker dies":
            await books.runs.takeover(run)
            self.paid[run_id] = nano("0.1")  # what it spent is not known
        else:
            ended = await books.over(run, fence(cost=shown(cost)))
            self.paid[run_id] = cost
            if fate != "worker dies late":
                tellers = self.pods if fate == "told twice" else [books]
                await asyncio.gather(*(pod.ledger.settle(ended) for pod in tellers))
        await self.look()


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_no_more_is_spent_than_the_cap_and_one_reservation(
    store: Store, settings: Settings, seed: int
) -> None:
    others = [await Store.connect(store.url, settings) for _ in range(2)]
    try:
        limits: dict[str, Any] = {
            "cost_cap": Decimal("0.8"),
            "cost_reservation": Decimal("0.1"),
            "requeue_after": 0.0,
        }
        pods = Pods([Books(s, **limits) for s in (store, *others)], seed)
        for start in range(0, 45, 15):
            await asyncio.gather(*(pods.one(n) for n in range(start, start + 15)))
        assert pods.refused > 0
        assert nano("0.8") <= pods.highest <= nano("0.8") + nano("0.1") - 1
        await asyncio.gather(*(pod.ledger.sweep(set()) for pod in pods.pods))
        books = await pods.pods[0].ledger.budget()
        assert books.total.reserved == 0
        assert books.total.spent == sum(pods.paid.values()) == sum(a.spent for a in books.principals.values())
        assert books.total.runs == len(pods.paid)
        entries = [e.fields["run_id"] for e in await pods.pods[0].audited() if e.fields["kind"] == "run"]
        assert sorted(entries) == sorted(pods.paid)
    finally:
        for other in others:
            await other.aclose()
