"""The seam between replay and live, as arithmetic: whatever the schedule, a viewer gets each item once, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.items import Entry
from broker.window import ENTRY_BYTES, Place, Window, above, trim


def entries(first: int, last: int, size: int = 10) -> list[Entry]:
    return [Entry(seq, b"message.delta", b"x" * size) for seq in range(first, last + 1)]


def test_a_new_window_holds_nothing_and_stands_at_the_logs_end():
    window = Window(7, 100)
    assert (window.first, window.seq, len(window)) == (8, 7, 0)
    assert window.place(7) is Place.INSIDE
    assert window.since(7) == []
    assert window.place(6) is Place.BEHIND
    assert window.place(8) is Place.AHEAD


def test_it_is_bounded_in_bytes_but_keeps_the_newest_item():
    window = Window(0, 25)
    window.push(entries(1, 5))
    assert (window.first, window.size) == (4, 20)
    window.push(entries(6, 6, size=1000))
    assert (window.first, window.seq, window.size) == (6, 6, 1000)


@pytest.mark.parametrize("batch", [entries(3, 4), entries(1, 1), [*entries(2, 2), *entries(4, 4)]])
def test_a_batch_that_does_not_follow_is_refused(batch: list[Entry]):
    window = Window(1, 100)
    with pytest.raises(ValueError, match="does not follow"):
        window.push(batch)


def test_what_is_not_inside_cannot_be_taken():
    window = Window(5, 100)
    window.push(entries(6, 8))
    for after in (4, 9):
        with pytest.raises(ValueError, match="not inside"):
            window.since(after)


@pytest.mark.parametrize(("most", "last"), [(0, 3), (10, 3), (19, 3), (20, 4), (1_000, 6)])
def test_a_part_of_it_has_one_entry_and_more_up_to_so_many_bytes(most: int, last: int):
    window = Window(0, 1_000)
    window.push(entries(1, 6))
    assert window.since(2, most) == entries(3, last)
    assert window.since(6, most) == []


def test_restart_forgets():
    window = Window(0, 100)
    window.push(entries(1, 3))
    window.restart(90)
    assert (window.first, window.seq, window.size) == (91, 90, 0)


@given(first=st.integers(1, 50), count=st.integers(0, 20), floor=st.integers(0, 80))
def test_above_slices_like_a_filter(first: int, count: int, floor: int):
    batch = entries(first, first + count - 1)
    assert list(above(batch, floor)) == [e for e in batch if e.seq > floor]


class Schedule:
    """One run, one tail, many viewers; each step is one event-loop step of the real hub."""

    def __init__(self, followed_at: int, limit: int) -> None:
        self.stored = followed_at
        self.window = Window(followed_at, limit)
        self.viewers: list[dict] = []

    def publish(self, count: int) -> None:
        self.stored += count

    def tail(self, count: int) -> None:
        batch = entries(self.window.seq + 1, min(self.window.seq + count, self.stored))
        self.window.push(batch)
        for viewer in self.viewers:
            if viewer["live"]:
                self.write(viewer, above(batch, viewer["seq"]))

    def join(self, after: int) -> None:
        self.viewers.append({"start": after, "seq": after, "live": False, "got": []})

    def step(self, viewer: dict, count: int) -> None:
        """What one turn of the viewer's loop does: attach, or one bounded read of the log."""
        if viewer["live"]:
            return
        place = self.window.place(viewer["seq"])
        if place is Place.BEHIND:
            self.write(viewer, entries(viewer["seq"] + 1, min(viewer["seq"] + count, self.stored)))
            return
        if place is Place.INSIDE:
            self.write(viewer, self.window.since(viewer["seq"]))
        viewer["live"] = True

    def demote(self, viewer: dict) -> None:
        viewer["live"] = False

    @staticmethod
    def write(viewer: dict, batch) -> None:
        viewer["got"].extend(e.seq for e in batch)
        if batch:
            viewer["seq"] = batch[-1].seq


steps = st.lists(
    st.tuples(st.sampled_from(["publish", "tail", "join", "step", "demote"]), st.integers(0, 1 << 16)), max_size=120
)


@given(followed_at=st.integers(0, 30), limit=st.integers(1, 200), steps=steps)
def test_every_viewer_gets_every_item_once_and_in_order(followed_at: int, limit: int, steps: list[tuple[str, int]]):
    s = Schedule(followed_at, limit)
    for what, n in steps:
        if what == "publish":
            s.publish(n % 20)
        elif what == "tail":
            s.tail(1 + n % 15)
        elif what == "join":
            s.join(n % (s.stored + 1))
        elif s.viewers:
            viewer = s.viewers[n % len(s.viewers)]
            s.step(viewer, 1 + n % 7) if what == "step" else s.demote(viewer)
    while s.window.seq < s.stored:
        s.tail(10)
    for viewer in s.viewers:
        while not viewer["live"]:
            s.step(viewer, 5)
        assert viewer["got"] == list(range(viewer["start"] + 1, s.stored + 1))


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(0, 40_000))
def test_all_together_take_no_more_than_is_allowed(counts: list[int], limit: int) -> None:
    windows = []
    for count in counts:
        windows.append(Window(0, 1 << 20))
        windows[-1].push(entries(1, count, size=100))
    one = 100 + ENTRY_BYTES
    held, gone = trim(windows, limit)
    assert held == sum(window.memory for window in windows)
    assert held + gone == sum(count * one for count in counts)
    lengths = [len(window) for window in windows]
    assert held <= max(limit, one * sum(count > 0 for count in counts)), "the newest of each stays"
    assert all(length >= min(count, 1) for length, count in zip(lengths, counts, strict=True))
    cut = {length for length, count in zip(lengths, counts, strict=True) if length < count}
    assert len(cut) <= 1, "what is shortened is shortened to one length"
    assert all(length <= max(cut, default=41) for length in lengths), "and nobody keeps more than those"
    assert gone == 0 or (max(cut) + 1) * one * len(cut) + held > limit - one * len(counts), "no more than needed"
