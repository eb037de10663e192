"""The one writer of a run: order, batches, back-pressure, outages, lost answers, rewound logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from broker.errors import Fenced, InvalidItem, LogGap, OutageTooLong, Sealed, StoreUnavailable
from broker.items import Cancelled, Encoded, Event, Final, MessageDelta, Raw, decode
from broker.publisher import Publisher
from broker.records import Beat
from broker.settings import Settings


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.publisher._FIRST_BACKOFF", 0.0005)
    monkeypatch.setattr("broker.publisher._LAST_BACKOFF", 0.005)


class Log:
    """The append script's contract in memory; ``faults`` are consumed one per call."""

    def __init__(self) -> None:
        self.items: list[Encoded] = []
        self.epoch, self.owner = 1, "me"
        self.calls: list[int] = []
        self.faults: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = self.most = 0

    async def append(self, run_id: str, owner: str, epoch: int, first_seq: int, items: list[Encoded]) -> int:
        self.calls.append(len(items))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            fault = self.faults.pop(0) if self.faults else ""
            if fault == "away":
                raise StoreUnavailable("away")
            last = self.apply(owner, epoch, first_seq, items)
            if fault == "answer lost":
                raise StoreUnavailable("the answer was lost")
            return last
        finally:
            self.running -= 1

    def apply(self, owner: str, epoch: int, first_seq: int, items: list[Encoded]) -> int:
        if (owner, epoch) != (self.owner, self.epoch):
            raise Fenced("not yours")
        if first_seq > len(self.items) + 1:
            raise LogGap(len(self.items))
        self.items.extend(items[len(self.items) + 1 - first_seq :])
        return len(self.items)

    def rewind(self, to: int) -> None:
        del self.items[to:]

    async def beat(self, run_id: str, owner: str, epoch: int) -> Beat:
        return Beat(len(self.items), self.epoch, False)

    async def new_epoch(self, run_id: str, owner: str, epoch: int) -> tuple[int, int]:
        if owner != self.owner:
            raise Fenced("not yours")
        self.epoch += 1
        return self.epoch, len(self.items)

    @property
    def texts(self) -> list[str]:
        return [getattr(decode(*e), "text", e.type) for e in self.items]


def publisher(log: Log, last: int = 0, **overrides: object) -> Publisher:
    settings = Settings(_env_file=None, **overrides)  # type: ignore[arg-type]
    return Publisher(log, log, "run", owner="me", epoch=1, last=last, settings=settings, clock=lambda: 1.0)


def delta(text: object) -> MessageDelta:
    return MessageDelta(text=str(text))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110  # any state at all, not one event
            await asyncio.sleep(0.001)


async def test_items_are_stored_in_order_and_in_batches_with_one_append_in_flight():
    log = Log()
    async with publisher(log) as p:
        log.gate.clear()
        for n in range(150):
            await p.publish(delta(n))
        await until(lambda: log.running == 1)
        for n in range(150, 300):
            await p.publish(delta(n))
        log.gate.set()
        await p.flush()
    assert log.texts == [str(n) for n in range(300)]
    assert log.most == 1
    assert len(log.calls) <= 3
    assert p.last == 300


async def test_seal_returns_the_fences_seq_and_nothing_follows_it():
    log = Log()
    async with publisher(log) as p:
        await p.publish(delta("a"))
        assert await p.seal(Final()) == 2
        with pytest.raises(Sealed):
            await p.publish(delta("b"))
    assert log.texts == ["a", "final"]


async def test_a_full_buffer_makes_the_runner_wait_and_nothing_is_lost():
    log = Log()
    async with publisher(log, publisher_items=10) as p:
        log.gate.clear()
        done: list[int] = []

        async def run() -> None:
            for n in range(100):
                await p.publish(delta(n))
                done.append(n)

        runner = asyncio.create_task(run())
        await until(lambda: len(done) >= 10 and log.running == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(done) <= 21, "ten wait, at most one batch of ten is under way"
        log.gate.set()
        await runner
        await p.flush()
    assert log.texts == [str(n) for n in range(100)]


async def test_a_publish_cancelled_while_it_waits_was_not_taken():
    log = Log()
    async with publisher(log, publisher_items=1) as p:
        log.gate.clear()
        await p.publish(delta("first"))
        await until(lambda: log.running == 1)
        await p.publish(delta("second"))
        waiting = asyncio.create_task(p.publish(delta("never")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        log.gate.set()
        await p.publish(delta("third"))
        await p.flush()
    assert log.texts == ["first", "second", "third"]


async def test_a_lost_answer_stores_nothing_twice():
    log = Log()
    log.faults = ["answer lost", "away", "answer lost"]
    async with publisher(log) as p:
        for n in range(3):
            await p.publish(delta(n))
            await p.flush()
    assert log.texts == ["0", "1", "2"]


async def test_an_outage_that_outlasts_its_limit_reaches_the_runner_as_an_error():
    log = Log()
    log.faults = ["away"] * 1000
    async with publisher(log, outage_limit=0.2) as p:
        await p.publish(delta("a"))
        with pytest.raises(OutageTooLong):
            await p.flush()
        with pytest.raises(OutageTooLong):
            await p.publish(delta("b"))


async def test_whoever_waits_for_room_hears_of_the_error_too():
    log = Log()
    log.gate.clear()
    async with publisher(log, publisher_items=1) as p:
        await p.publish(delta("a"))
        await until(lambda: log.running == 1)
        await p.publish(delta("b"))
        waiting = asyncio.create_task(p.publish(delta("c")))
        await asyncio.sleep(0)
        log.owner = "somebody else"
        log.gate.set()
        with pytest.raises(Fenced):
            await waiting


async def test_items_that_the_store_lost_are_sent_again_under_their_seqs():
    log = Log()
    async with publisher(log) as p:
        for n in range(100):
            await p.publish(delta(n))
        await p.flush()
        log.rewind(90)
        await p.publish(delta(100))
        await p.flush()
    assert log.texts == [str(n) for n in range(101)]
    assert log.epoch == 1


async def test_a_beat_that_sees_a_short_log_has_it_mended_without_a_new_item():
    log = Log()
    async with publisher(log) as p:
        for n in range(10):
            await p.publish(delta(n))
        await p.flush()
        log.rewind(4)
        p.observe(await log.beat("run", "me", 1))
        await p.flush()
    assert log.texts == [str(n) for n in range(10)]


async def test_what_can_no_longer_be_sent_again_changes_the_epoch_and_is_reported():
    log = Log()
    async with publisher(log, resend_items=3) as p:
        for n in range(10):
            await p.publish(delta(n))
            await p.flush()
        log.rewind(5)
        await p.publish(delta("after"))
        await p.flush()
        assert p.epoch == 2
    rewound = decode(*log.items[5])
    assert isinstance(rewound, Event)
    assert (rewound.name, rewound.payload) == ("log.rewound", {"epoch": 2, "lost_from": 6, "lost_to": 7})
    assert log.texts[:5] + log.texts[6:] == ["0", "1", "2", "3", "4", "7", "8", "9", "after"]


async def test_a_text_longer_than_an_item_may_be_is_split_and_other_fields_are_cut():
    log = Log()
    async with publisher(log, item_max_bytes=1024) as p:
        await p.publish(delta("é" * 3000))
        await p.publish(Raw("tool.progress", {"call_id": "c", "name": "n", "preview": "y" * 5000}))
        await p.flush()
    deltas = [e for e in log.items if e.type == "message.delta"]
    assert "".join(decode(*e).text for e in deltas) == "é" * 3000  # type: ignore[union-attr]
    assert all(len(e.data) <= 1024 for e in log.items)
    assert b"truncated_bytes" in log.items[-1].data


@pytest.mark.parametrize("item", [Raw("Not A Type", {}), Raw("end", {}), MessageDelta(text=object())])  # type: ignore[arg-type]
async def test_a_bad_item_is_refused_and_the_publisher_goes_on(item):
    log = Log()
    async with publisher(log) as p:
        with pytest.raises(InvalidItem):
            await p.publish(item)
        await p.publish(delta("fine"))
        await p.flush()
    assert log.texts == ["fine"]


async def test_closed_it_refuses():
    log = Log()
    p = publisher(log)
    await p.publish(delta("a"))
    await p.seal(Cancelled())
    await p.aclose()
    with pytest.raises(Sealed):
        await p.publish(delta("b"))


@hypothesis_settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(st.sampled_from(["publish", "flush", "answer lost", "away", "rewind"]), max_size=40))
def test_whatever_the_store_does_the_log_is_what_was_published(script: list[str]):
    async def play() -> None:
        log = Log()
        n = 0
        async with publisher(log) as p:
            for step in script:
                if step == "publish":
                    await p.publish(delta(n))
                    n += 1
                elif step == "flush":
                    await p.flush()
                elif step == "rewind":
                    log.rewind(len(log.items) * 2 // 3)
                else:
                    log.faults.append(step)
            await p.publish(delta(n))
            await p.flush()
        assert log.texts == [str(i) for i in range(n + 1)]
        assert log.epoch == 1

    asyncio.run(play())
