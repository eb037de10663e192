"""The log of a run: append, read, bounds. The only code that touches an items stream.

An item lies under the stream id ``<seq>-0``, so a seq is a place in the stream and a range of seqs is one read. All
writes go through ``append.lua``, which checks everything and then writes everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from broker import metrics
from broker.errors import Fenced, InvalidItem, ItemTooBig, LogGap, RuncastError, RunNotFound, Sealed, StoreError
from broker.ids import check_id
from broker.items import Encoded, Entry
from broker.records import ENDED, RunRecord, pairs, parse_record
from broker.redis import Store
from broker.scripts import SCRIPTS

__all__ = ["LogState", "RunLog", "entries_of"]

_STATE = (b"status", b"epoch", b"rewound_to", b"first", b"last", b"bytes")


def entries_of(raw: Sequence[Any]) -> list[Entry]:
    """Entries as XRANGE and XREAD answer them, ``[[id, [b"t", t, b"d", d]], …]``, undecoded."""
    if not raw:
        return []
    first = int(raw[0][0][:-2])
    if int(raw[-1][0][:-2]) - first == len(raw) - 1:  # no hole between ascending ids: counting is faster than parsing
        return [Entry(seq, fields[1], fields[3]) for seq, (_, fields) in enumerate(raw, first)]
    return [Entry(int(id_[:-2]), fields[1], fields[3]) for id_, fields in raw]


class LogState(NamedTuple):
    """What a viewer's resume depends on. ``first``: the first kept seq, ``last + 1`` where nothing is kept."""

    status: str
    epoch: int
    rewound_to: int
    first: int
    last: int
    bytes: int
    relayed: bool = False
    """Relayed from another service, whose ids its items have: look an unknown cursor up with ``RunLog.seq_of``."""

    @property
    def is_ended(self) -> bool:
        return self.status in ENDED

    @property
    def average(self) -> int:
        """Bytes an item, roughly."""
        return self.bytes // max(self.last - self.first + 1, 1)


class RunLog:
    """Reads and appends. Every method raises ``StoreUnavailable`` where Redis is away, and ``InvalidId``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys
        self._append = SCRIPTS["append"]

    def items_key(self, run_id: str) -> bytes:
        """The items stream, for whoever follows it (``Tail``)."""
        return self._keys.items(run_id)

    async def append(self, run_id: str, owner: str, epoch: int, first_seq: int, items: Sequence[Encoded]) -> int:
        """Store ``items`` as ``first_seq``, ``first_seq + 1``, …; returns the log's last seq.

        Order: as given, whole or not at all. Repeatable: what is stored already is skipped, so after
        ``StoreUnavailable``, or when the call was cancelled, the same call may be made again. A fence among the items
        ends the run in the same step.

        Raises, in this order: ``RunNotFound``; ``Fenced``, the run is another owner's or epoch's; ``Sealed``;
        ``LogGap``, carrying the log's end, where ``first_seq`` does not follow it; ``ItemTooBig``; ``InvalidItem``.
        """
        p = self._keys.partition(check_id(run_id))
        keys = (
            self._keys.run(run_id),
            self._keys.items(run_id),
            self._keys.control(run_id),
            self._keys.live(p),
            self._keys.bus(p),
            self._keys.ids(run_id),
        )
        args: list[Any] = [run_id, owner, epoch, first_seq]
        for item in items:
            args += (item.type, item.data)
        reply = await self._store.script(self._append, keys, args)
        if reply[0] == b"OK":
            return int(reply[1])
        refusal = _refusal(run_id, reply)
        metrics.APPEND_REFUSED.labels(refusal.code).inc()
        raise refusal

    async def read(self, run_id: str, after: int, *, limit: int, until: int | None = None) -> list[Entry]:
        """Up to ``limit`` items after the seq ``after`` and up to the seq ``until``, oldest first."""
        end = b"+" if until is None else b"%d-0" % max(until, 0)
        start = b"%d-0" % (max(after, 0) + 1)
        raw = await self._store.call(b"XRANGE", self.items_key(check_id(run_id)), start, end, b"COUNT", max(limit, 0))
        return entries_of(raw or ())

    async def read_back(self, run_id: str, before: int | None, *, limit: int) -> list[Entry]:
        """Up to ``limit`` items before the seq ``before`` (``None``: from the end), newest first."""
        if before is not None and before <= 1:
            check_id(run_id)
            return []
        start = b"+" if before is None else b"%d-0" % (before - 1)
        key = self.items_key(check_id(run_id))
        raw = await self._store.call(b"XREVRANGE", key, start, b"-", b"COUNT", max(limit, 0))
        return entries_of(raw or ())

    async def state(self, run_id: str) -> LogState:
        """How a log stands: one round trip whose cost depends neither on the run's length nor on its request.

        Raises ``RunNotFound``.
        """
        fields = (b"HMGET", self._keys.run(check_id(run_id)), b"source", *_STATE)
        (source, status, *numbers), kept = await self._store.pipeline([fields, (b"XLEN", self._keys.items(run_id))])
        if status is None:
            raise RunNotFound(run_id)
        epoch, rewound_to, first, last, size = map(int, numbers)
        relayed = source is not None
        return LogState(status.decode(), epoch, rewound_to, first if kept else last + 1, last, size, relayed)

    async def seq_of(self, run_id: str, source_id: str) -> int | None:
        """The seq of the item to which a service gave that id; ``None``: no such id, or the run is not relayed.

        Ask it for runs whose ``LogState.relayed`` (``RunRecord.source is not None``) says so, with any id that a client
        sends: nothing about its form is assumed. Of several items with one id it is the newest. The seq may lie before
        the first kept item by one (nothing is missed then), never further: older ids are forgotten with their items.

        A client that counts by what stands behind the id's last ``:`` sends that number as a seq beside the id. It is
        a seq of the service's then, which need not be ours: where an id that is known here ends in that number, the
        item with the id is meant. Any other number is one of our seqs.
        """
        score = await self._store.call(
            b"ZSCORE", self._keys.ids(check_id(run_id)), source_id.encode("utf-8", "replace")
        )
        return None if score is None else int(float(score))

    async def source_ids(self, run_id: str) -> list[str]:
        """All ids that ``seq_of`` knows, by their seqs."""
        ids = await self._store.call(b"ZRANGE", self._keys.ids(check_id(run_id)), 0, -1)
        return [id_.decode() for id_ in ids]

    async def bounds(self, run_id: str) -> tuple[RunRecord, int]:
        """The record and the first kept seq (``last + 1`` where nothing is kept), of one moment.

        Raises ``RunNotFound``.
        """
        key = self._keys.run(check_id(run_id))
        flat, kept = await self._store.pipeline([(b"HGETALL", key), (b"XLEN", self._keys.items(run_id))], atomic=True)
        if not flat:
            raise RunNotFound(run_id)
        record = parse_record(run_id, pairs(flat))
        return record, record.first if kept else record.last + 1


def _refusal(run_id: str, reply: Sequence[Any]) -> RuncastError:
    match reply[0]:
        case b"NOTFOUND":
            return RunNotFound(run_id)
        case b"FENCED":
            return Fenced(f"run {run_id!r} has another owner or epoch by now: it was taken over, or is not claimed")
        case b"SEALED":
            return Sealed(f"run {run_id!r} has its fence at {reply[1]}: nothing follows it")
        case b"GAP":
            return LogGap(int(reply[1]))
        case b"TOOBIG":
            return ItemTooBig(f"item {reply[1]} of run {run_id!r} has {reply[2]} bytes, {reply[3]} are allowed")
        case b"BADITEM":
            return InvalidItem(f"item {reply[1]} of run {run_id!r}: {reply[2].decode()}")
        case _:
            return StoreError(f"append answered {reply!r}, which this version does not know")
