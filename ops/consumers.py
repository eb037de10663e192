"""Who reads a queue at present, as far as Redis tells: for ``runcast doctor``."""

from __future__ import annotations

from typing import Any

from broker.errors import RuncastError
from broker.redis import Store

__all__ = ["queue_readers"]


async def queue_readers(store: Store, name: str) -> tuple[int, int]:
    """Entries that wait in the queue ``name``, and workers that asked it lately; 0 and 0 where nobody has yet."""
    key = store.keys.queue(name)
    try:
        waiting = int(await store.call(b"XLEN", key))
        there = waiting or await store.call(b"EXISTS", key)
        consumers = await store.call(b"XINFO", b"CONSUMERS", key, b"workers") if there else []
    except RuncastError:
        return 0, 0
    return waiting, sum(1 for consumer in consumers if _idle_s(consumer) < 3 * store.settings.block)


def _idle_s(consumer: list[Any]) -> float:
    fields = dict(zip(consumer[::2], consumer[1::2], strict=False))
    return float(fields.get(b"idle", 0)) / 1000
