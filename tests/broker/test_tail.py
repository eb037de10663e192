"""Several that follow the same stream through one process: each gets all that lies behind its own place, once."""

from __future__ import annotations

from uuid import uuid4

import pytest

from broker.api import Broker
from broker.tail import RawEntries, Subscription
from tests.broker.test_hub import b, until

__all__ = ["b"]


class Ear:
    """Hears a stream of numbered entries."""

    def __init__(self, broker: Broker, key: bytes, after: int = 0) -> None:
        self.heard: list[int] = []
        self.subscription: Subscription = broker.tail.subscribe(key, b"%d-0" % after, self._sink)

    def _sink(self, entries: RawEntries) -> None:
        self.heard += [int(id_.partition(b"-")[0]) for id_, _ in entries]

    @property
    def at(self) -> int:
        return self.heard[-1] if self.heard else 0


@pytest.fixture
def key(b: Broker) -> bytes:
    return b.keys.items(f"r-{uuid4().hex}")


async def write(b: Broker, key: bytes, first: int, last: int) -> None:
    await b.store.pipeline([("XADD", key, f"{n}-0", "t", "x", "d", "{}") for n in range(first, last + 1)])


async def test_each_gets_what_lies_behind_its_own_place(b: Broker, key: bytes) -> None:
    await write(b, key, 1, 40)
    first, second, third = Ear(b, key, 10), Ear(b, key), Ear(b, key, 35)
    await until(lambda: first.at == second.at == third.at == 40)
    await write(b, key, 41, 45)
    await until(lambda: first.at == second.at == third.at == 45)
    assert first.heard == list(range(11, 46))
    assert second.heard == list(range(1, 46))
    assert third.heard == list(range(36, 46))


async def test_who_comes_later_with_more_to_catch_up_disturbs_nobody(b: Broker, key: bytes) -> None:
    await write(b, key, 1, 20)
    early = Ear(b, key)
    await until(lambda: early.at == 20)
    late = Ear(b, key)
    await write(b, key, 21, 22)
    await until(lambda: early.at == late.at == 22)
    assert early.heard == late.heard == list(range(1, 23))


async def test_who_leaves_leaves_the_others_where_they_are(b: Broker, key: bytes) -> None:
    ahead, behind = Ear(b, key, 5), Ear(b, key)
    lane = b.tail._lane_of(key)
    await until(lambda: lane._blocked)
    behind.subscription.close()
    behind.subscription.close()
    assert (ahead.subscription.open, behind.subscription.open) == (True, False)
    await write(b, key, 1, 8)  # the read under way was for the one that left
    await until(lambda: ahead.at == 8)
    assert (ahead.heard, behind.heard) == ([6, 7, 8], [])
    ahead.subscription.close()
    assert key not in lane.streams


async def test_who_moves_back_moves_alone(b: Broker, key: bytes) -> None:
    await write(b, key, 1, 6)
    stays, moves = Ear(b, key), Ear(b, key)
    await until(lambda: stays.at == moves.at == 6)
    moves.subscription.move(b"3-0")
    await until(lambda: len(moves.heard) == 9)
    assert (stays.heard, moves.heard[6:]) == (list(range(1, 7)), [4, 5, 6])


async def test_one_sink_that_fails_fails_alone(b: Broker, key: bytes) -> None:
    def fail(_: RawEntries) -> None:
        raise ZeroDivisionError

    broken, sound = b.tail.subscribe(key, b"0-0", fail), Ear(b, key)
    await write(b, key, 1, 1)
    await until(lambda: sound.at == 1)
    assert not broken.open
    await write(b, key, 2, 2)
    await until(lambda: sound.at == 2)
