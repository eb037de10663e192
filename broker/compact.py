"""Compaction: a run of adjacent deltas of one block → one delta. Stored form in, stored form out.

A viewer that catches up on ten thousand token deltas wants their text, not ten thousand frames. The guarantees:

- **Same merge.** Folding the compacted entries gives what folding the plain ones gives.
- **Same cursors.** A merged entry has the seq and the ``ts`` of its *last* member. A viewer that was cut after it
  resumes behind all of its text; one that was cut before it resumes before all of it. Nothing doubles.
- **Nothing is crossed.** Members follow one another in the log without a hole. So no other item is passed over,
  ``run.restarted`` among them, even where the caller filtered the entries before.
- **Bounded.** A merged entry holds at most ``MAX_TEXT`` bytes of text (as UTF-8), unless one delta alone is longer.
- **Nothing is lost.** A delta with any field that is not known here (a signature, a mark, what a newer worker adds)
  passes unchanged, as does everything that is no delta.

Pure: no clock, no IO. Raises nothing: an entry that cannot be read passes unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from broker.items import Entry, escape

__all__ = ["MAX_TEXT", "compact"]

MAX_TEXT = 64 * 1024
"""Bytes of text in one merged entry."""


# Field order is that of `broker.items`: a merged delta has the bytes that its publisher would have written.
class _Text(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    ts: float
    component_id: str = "agent"
    parent_run_id: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    round: int = 1
    index: int = 0
    choice: int | UnsetType = UNSET
    text: str = ""


class _Call(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    ts: float
    component_id: str = "agent"
    parent_run_id: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    round: int = 1
    index: int = 0
    choice: int | UnsetType = UNSET
    call_id: str = ""
    name: str | UnsetType = UNSET
    arguments: str = ""


_Delta: TypeAlias = _Text | _Call
_read_text: Callable[[bytes], _Delta] = msgspec.json.Decoder(_Text).decode
_read_call: Callable[[bytes], _Delta] = msgspec.json.Decoder(_Call).decode
_READERS = {
    b"message.delta": _read_text,
    b"reasoning.delta": _read_text,
    b"refusal.delta": _read_text,
    b"tool_call.delta": _read_call,
}
_encode = msgspec.json.Encoder().encode


def compact(entries: Sequence[Entry]) -> list[Entry]:
    """Ascending entries of one run → fewer entries that mean the same, in the same order."""
    out: list[Entry] = []
    block: _Block | None = None
    for entry in entries:
        reader = _READERS.get(entry.type)
        delta = None
        if reader is not None:
            try:
                delta = reader(entry.data)
            except (msgspec.MsgspecError, RecursionError):
                delta = None
        if block is not None:
            if delta is not None and block.take(entry, delta):
                continue
            out.append(block.close())
            block = None
        if delta is None:
            out.append(entry)
        else:
            block = _Block(entry, delta)
    if block is not None:
        out.append(block.close())
    return out


class _Block:
    """The adjacent deltas of one block, so far."""

    __slots__ = ("deltas", "first", "last", "room")

    def __init__(self, entry: Entry, delta: _Delta) -> None:
        self.first = delta
        self.last = entry
        self.deltas = [delta]
        self.room = MAX_TEXT - _length(delta)

    def take(self, entry: Entry, delta: _Delta) -> bool:
        """Add the next entry, if it goes on where this block ends and there is room. False: it does not."""
        last = self.last
        room = self.room - _length(delta)
        if room < 0 or entry.seq != last.seq + 1 or entry.type != last.type or not _same(self.first, delta):
            return False
        self.room = room
        self.last = entry
        self.deltas.append(delta)
        return True

    def close(self) -> Entry:
        """One entry for all of them; the entry itself where it is alone."""
        if len(self.deltas) == 1:
            return self.last
        merged = self.first
        merged.ts = self.deltas[-1].ts
        if isinstance(merged, _Call):
            merged.arguments = "".join([d.arguments for d in self.deltas if isinstance(d, _Call)])
        else:
            merged.text = "".join([d.text for d in self.deltas if isinstance(d, _Text)])
        return Entry(self.last.seq, self.last.type, escape(_encode(merged)))


def _length(delta: _Delta) -> int:
    text = delta.arguments if isinstance(delta, _Call) else delta.text
    return len(text) if text.isascii() else len(text.encode())


def _same(first: _Delta, delta: _Delta) -> bool:
    return (
        delta.index == first.index
        and delta.round == first.round
        and delta.choice == first.choice
        and delta.component_id == first.component_id
        and delta.session_id == first.session_id
        and delta.parent_run_id == first.parent_run_id
        and (isinstance(first, _Text) or _continues(first, delta))
    )


def _continues(first: _Call, delta: _Delta) -> bool:
    """A fragment of the same call: no name (names join by rules of their own), and no other id."""
    return isinstance(delta, _Call) and delta.name is UNSET and delta.call_id in ("", first.call_id)
