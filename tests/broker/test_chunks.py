"""Chunks: how reads are cut into parts, and what the cache finds and forgets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.chunks import PART_BYTES, Chunk, ChunkCache, cut
from broker.items import Entry


def entries(first: int, sizes: list[int]) -> list[Entry]:
    return [Entry(first + i, b"message.delta", b"x" * size) for i, size in enumerate(sizes)]


@given(after=st.integers(0, 50), sizes=st.lists(st.sampled_from([0, 1, 100, 30_000, PART_BYTES, 2 * PART_BYTES])))
def test_parts_hold_everything_once_in_order_and_are_bounded(after: int, sizes: list[int]) -> None:
    whole = entries(after + 1, sizes)
    parts = list(cut(after, whole))
    assert [entry for _, part in parts for entry in part] == whole
    assert [start for start, _ in parts] == [after, *(part[-1].seq for _, part in parts)][: len(parts)]
    for _, part in parts:
        assert len(part) == 1 or sum(len(entry.data) for entry in part) <= PART_BYTES


def test_a_chunk_is_found_where_one_of_its_parts_begins():
    cache = ChunkCache(1 << 20)
    chunk = Chunk(10, entries(11, [40_000, 40_000, 40_000]))
    cache.put("r", 0, chunk)
    assert [cache.find("r", 0, after, False) is chunk for after in range(9, 15)] == [
        False,
        True,
        True,
        True,
        False,
        False,
    ]
    assert cache.find("r", 1, 10, False) is None
    assert cache.find("other", 0, 10, False) is None


def test_a_compacted_viewer_finds_a_chunk_at_its_start_and_not_inside_of_a_merged_item():
    cache = ChunkCache(1 << 20)
    data = b'{"ts":1.5,"component_id":"agent","round":1,"index":0,"text":"%b"}' % (b"x" * 40_000)
    chunk = Chunk(0, [Entry(seq, b"message.delta", data) for seq in range(1, 4)])
    cache.put("r", 0, chunk)
    assert cache.find("r", 0, 0, True) is chunk
    for after in (1, 2):
        found = cache.find("r", 0, after, True)
        assert found is None or after in found.parts(True)


def test_what_was_used_longest_ago_goes_first_and_can_no_longer_be_found():
    cache = ChunkCache(100_000)
    for n in range(3):
        cache.put("r", 0, Chunk(n, entries(n + 1, [20_000])))
    assert cache.find("r", 0, 0, False) is None
    assert cache.find("r", 0, 1, False) is not None
    cache.put("r", 0, Chunk(3, entries(4, [20_000])))
    assert [cache.find("r", 0, n, False) is not None for n in range(4)] == [False, True, False, True]


def test_many_small_chunks_count_for_what_they_cost():
    cache = ChunkCache(100_000)
    for n in range(1_000):
        cache.put("r", 0, Chunk(n, entries(n + 1, [1])))
    assert sum(cache.find("r", 0, n, False) is not None for n in range(1_000)) < 100


def test_a_part_that_two_chunks_share_outlives_the_older_one():
    cache = ChunkCache(1 << 20)
    older, newer = Chunk(0, entries(1, [60_000, 60_000])), Chunk(1, entries(2, [60_000, 60_000]))
    cache.put("r", 0, older)
    cache.put("r", 0, newer)
    assert cache.find("r", 0, 0, False) is older
    assert cache.find("r", 0, 1, False) is newer
    cache.put("r", 0, Chunk(0, entries(1, [10])))
    assert cache.find("r", 0, 1, False) is newer
