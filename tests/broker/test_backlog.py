"""The bounds on what waits for viewers: time without progress, and bytes of all together. The clock is the test's."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from broker.backlog import Backlog
from broker.group import Group
from broker.items import Mode
from broker.viewer import PLAIN, Viewer
from gateway.formats import get_format

KIB = 1 << 10
NATIVE = get_format("native")


def number(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


class Line:
    """A connection whose other end reads what the test says."""

    def __init__(self) -> None:
        self.taken = 0
        self.ends: list[str] = []
        self.viewer = Viewer("r", format=NATIVE, modes=Mode.EVENTS, seq=0, write=lambda _: None, peer=self)

    def waiting(self) -> int:
        return 0 if "abort" in self.ends else self.viewer.given - self.taken

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")


def lines(count: int, size: int) -> list[Line]:
    """Each has ``size`` bytes waiting."""
    made = [Line() for _ in range(count)]
    for line in made:
        line.viewer.send(b"x" * size)
    return made


def look(backlog: Backlog, them: list[Line], now: float) -> list[Line]:
    """→ who was cut by that."""
    open_before = [line for line in them if not line.viewer.closed]
    backlog.look([line.viewer for line in open_before], now)
    for line in them:
        if line in open_before and line.viewer.closed:
            backlog.left(line.viewer, now)
    return [line for line in open_before if line.viewer.closed]


def test_who_takes_nothing_for_so_long_is_cut_and_who_takes_a_byte_now_and_then_is_not():
    backlog = Backlog(1 << 30, 10.0)
    silent, crawling, idle = [*lines(2, 100 * KIB), Line()]
    cuts = number("runcast_viewers_cut_total", reason="stalled")
    for now in range(100, 110):
        assert look(backlog, [silent, crawling, idle], now) == []
        crawling.taken += 1
    assert look(backlog, [silent, crawling, idle], 110) == [silent]
    assert (silent.viewer.reason, silent.ends) == ("stalled", ["close"])
    for now in range(111, 140):
        crawling.taken += 1
        assert look(backlog, [silent, crawling, idle], now) == []
    assert number("runcast_viewers_cut_total", reason="stalled") == cuts + 1


def test_progress_is_seen_though_more_is_written_than_taken():
    backlog = Backlog(1 << 30, 10.0)
    (slow,) = lines(1, 1)
    group = Group(NATIVE, Mode.EVENTS, PLAIN)
    group.write(b"of others, before it came")
    group.add(slow.viewer)
    for now in range(50):
        group.write(b"x" * 1000)
        slow.taken += 10
        assert look(backlog, [slow], now) == []
    assert slow.viewer.given == 50_001
    group.remove(slow.viewer)
    assert slow.viewer.given == 50_001, "out of its group it has been given the same"
    for now in range(50, 59):
        assert look(backlog, [slow], now) == []
    assert look(backlog, [slow], 60) == [slow]


def test_a_connection_that_does_not_take_the_rest_either_is_dropped():
    backlog = Backlog(1 << 30, 10.0)
    takes, takes_not = lines(2, KIB)
    look(backlog, [takes, takes_not], 0)
    resets = number("runcast_viewers_reset_total")
    assert look(backlog, [takes, takes_not], 10) == [takes, takes_not]
    takes.taken = takes.viewer.given
    look(backlog, [], 10.5)
    assert (takes.ends, takes_not.ends) == (["close"], ["close"])
    look(backlog, [], 11.1)
    assert (takes.ends, takes_not.ends) == (["close"], ["close", "abort"])
    look(backlog, [], 12)
    assert number("runcast_viewers_reset_total") == resets + 1
    assert number("runcast_viewers_waiting_bytes") == 0


@pytest.mark.parametrize("more", [81, 161, 241])
def test_over_the_limit_those_that_took_nothing_for_the_longest_go_as_many_as_it_takes(more: int):
    """Four have 80 KiB waiting each, 320 is allowed; a fifth comes with more: the first of the four have to go."""
    backlog = Backlog(320 * KIB, 1000.0)
    old = lines(4, 80 * KIB)
    for now, _ in enumerate(old):
        for line in old[now:]:
            line.taken += 1  # so each has stood still for longer than the next
            line.viewer.send(b"x")
        assert look(backlog, old, now) == []
    (fifth,) = lines(1, more * KIB + KIB)
    cuts = number("runcast_viewers_cut_total", reason="memory")
    assert look(backlog, [*old, fifth], 10.0) == [], "it may be on its way"
    fifth.taken += KIB
    gone = look(backlog, [*old, fifth], 11.0)
    assert gone == old[: -(-more // 80)][:4]
    assert {line.viewer.reason for line in gone} == {"memory"}
    assert number("runcast_viewers_cut_total", reason="memory") == cuts + len(gone)


def test_among_those_that_move_the_one_that_takes_least_goes_first():
    backlog = Backlog(200 * KIB, 1000.0)
    fast, slow, faster = lines(3, 100 * KIB)
    gone = []
    for now in range(1, 4):
        gone += look(backlog, [fast, slow, faster], now)
        for line, pace in ((fast, 500), (slow, 10), (faster, 2000)):
            line.taken += pace
    assert gone == [slow]


def test_one_that_takes_its_bytes_in_lumps_is_not_slower_than_one_that_just_stood_still():
    backlog = Backlog(250 * KIB, 1000.0)
    (lumps,) = lines(1, 150 * KIB)
    for now in range(10):
        if now % 4 == 0:
            lumps.taken += 10 * KIB
        assert look(backlog, [lumps], now) == []
    (still,) = lines(1, 150 * KIB)
    gone = [line for now in (10, 11, 11.5) for line in look(backlog, [lumps, still], now)]
    assert gone == [still]


def test_a_moment_makes_nobody_slow():
    """A large item is on its way to everybody: over the limit, and gone before it was any trouble."""
    backlog = Backlog(KIB, 1000.0)
    crowd = lines(50, 100 * KIB)
    assert look(backlog, crowd, 0) == []
    assert look(backlog, crowd, 0.5) == []
    for line in crowd:
        line.taken = line.viewer.given
    assert look(backlog, crowd, 1.0) == []
    for line in crowd:
        line.viewer.send(b"x" * 100 * KIB)
    assert look(backlog, crowd, 1.5) == [], "that they were full before counts no longer"


def test_what_an_ended_stream_left_behind_counts_and_is_cut_like_any_other():
    backlog = Backlog(150 * KIB, 1000.0)
    ended, going_on = lines(2, 100 * KIB)
    ended.viewer.finish("end")
    backlog.left(ended.viewer, 0)
    cuts = number("runcast_viewers_cut_total", reason="memory")
    look(backlog, [going_on], 0)
    look(backlog, [going_on], 2)
    assert number("runcast_viewers_waiting_bytes") == 200 * KIB
    assert ended.ends == ["close"]
    assert (ended.viewer.reason, going_on.viewer.closed) == ("end", False)
    assert number("runcast_viewers_cut_total", reason="memory") == cuts + 1


def test_who_left_waits_for_nothing():
    backlog = Backlog(1 << 30, 10.0)
    gone, other = lines(2, KIB)
    look(backlog, [gone, other], 0)
    gone.viewer.finish("left")
    backlog.left(gone.viewer, 1)
    look(backlog, [other], 11)
    assert (gone.ends, other.ends) == ([], ["close"])


def test_a_consumer_in_this_process_is_waited_for():
    backlog = Backlog(1, 0.1)
    viewer = Viewer("r", format=NATIVE, modes=Mode.EVENTS, seq=0, write=lambda _: None)
    viewer.send(b"x" * KIB)
    viewer.pause()
    for now in range(10):
        backlog.look([viewer], now)
    assert not viewer.closed
