"""Pages of items: walking them gives everything once, whatever the sizes, the order, the modes and the budget."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.items import Entry, Mode
from gateway.paging import ItemsAsked, read_page


class FakeLog:
    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.most = 0

    async def read(self, run_id: str, after: int, *, limit: int, until: int | None = None) -> list[Entry]:
        found = [e for e in self.entries if e.seq > after and (until is None or e.seq <= until)][:limit]
        self.most = max(self.most, sum(len(e.data) for e in found))
        return found

    async def read_back(self, run_id: str, before: int | None, *, limit: int) -> list[Entry]:
        return [e for e in reversed(self.entries) if before is None or e.seq < before][:limit]


def record(last: int, ended: bool) -> Any:
    return SimpleNamespace(run_id="r", last=last, ended_=ended)


sizes = st.lists(st.integers(10, 3_000), max_size=60)


@given(sizes, st.integers(0, 20), st.integers(1, 20), st.booleans(), st.booleans(), st.booleans())
def test_walking_pages_gives_each_visible_item_once(
    weights: list[int], removed: int, limit: int, descending: bool, ended: bool, filtered: bool
) -> None:
    entries = [Entry(n, b"usage" if n % 3 else b"message", b"x" * w) for n, w in enumerate(weights, 1)]
    removed = min(removed, len(entries))
    log, run, first = FakeLog(entries[removed:]), record(len(entries), ended), removed + 1
    modes = Mode.MESSAGES if filtered else Mode.EVENTS
    seen: list[int] = []
    after, before = 0, None
    for _ in range(400):
        asked = ItemsAsked(after=after, before=before, descending=descending, limit=limit, modes=modes)
        page = asyncio.run(read_page(log, run, first, asked, budget=4_000))
        seen += [e.seq for e in page.entries]
        assert len(page.entries) <= limit
        assert (page.following is None) == page.complete
        if page.following is None:
            break
        if not descending and not page.entries and page.following == after:
            assert not ended
            break
        if descending:
            before = page.following
        else:
            after = page.following
            if after >= len(entries) and not ended:
                break
    expected = [e.seq for e in entries[removed:] if not filtered or e.type == b"message"]
    assert seen == (expected[::-1] if descending else expected)


@given(st.integers(0, 12), st.one_of(st.none(), st.integers(0, 12)), st.booleans())
def test_bounds_are_exclusive(after: int, before: int | None, descending: bool) -> None:
    log = FakeLog([Entry(n, b"usage", b"{}") for n in range(1, 11)])
    asked = ItemsAsked(after=after, before=before, descending=descending, limit=100, modes=Mode.EVENTS)
    page = asyncio.run(read_page(log, record(10, True), 1, asked, budget=1 << 20))
    inside = [n for n in range(1, 11) if n > after and (before is None or n < before)]
    assert [e.seq for e in page.entries] == (inside[::-1] if descending else inside)
    assert page.complete


def test_a_page_is_bounded_in_bytes() -> None:
    log = FakeLog([Entry(n, b"usage", b"x" * 100_000) for n in range(1, 200)])
    asked = ItemsAsked(after=0, before=None, descending=False, limit=1_000, modes=Mode.EVENTS)
    page = asyncio.run(read_page(log, record(199, True), 1, asked, budget=1_000_000))
    assert sum(len(e.data) for e in page.entries) <= 32 * 100_000
    assert page.following == page.entries[-1].seq


def test_a_live_run_is_never_complete_in_ascending_order() -> None:
    log = FakeLog([Entry(1, b"usage", b"{}")])
    asked = ItemsAsked(after=0, before=None, descending=False, limit=10, modes=Mode.EVENTS)
    page = asyncio.run(read_page(log, record(1, False), 1, asked, budget=1_000))
    assert (page.following, page.complete) == (1, False)
