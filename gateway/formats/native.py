"""The native SSE format: the event name is the item's type, the id is the cursor ``run_id:seq``.

Source of the form: docs/protocol.md, “SSE, native format”. An item's stored JSON goes onto the wire as it is, with
``run_id`` and ``seq`` spliced in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import msgspec

from broker.items import Entry, Mode, modes_of

__all__ = ["NATIVE", "NativeFormat"]

_KNOWN_TYPES_MAX = 1_024


class _Shown(dict[bytes, bool]):
    """Whether a set of modes shows a type. Filled as types appear; ``IntFlag`` arithmetic costs 1 µs a time."""

    def __init__(self, modes: int) -> None:
        super().__init__()
        self._modes = modes

    def __missing__(self, type_: bytes) -> bool:
        shown = bool(int(modes_of(type_)) & self._modes)
        if len(self) < _KNOWN_TYPES_MAX:  # types come from the log: a worker that invents names must not fill memory
            self[type_] = shown
        return shown


@lru_cache(maxsize=4_096)
def _template(run_id: bytes) -> bytes:
    """The frame of one run with room for seq, type, seq and the rest of the JSON. A run id holds no ``%``."""
    return b'id: %b:%%d\nevent: %%b\ndata: {"run_id":"%b","seq":%%d,%%b\n\n' % (run_id, run_id)


def _control(event: str, fields: dict[str, str | int]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(fields))


class NativeFormat:
    """Implements ``Format``. Holds no state but caches."""

    name: ClassVar[str] = "native"
    heartbeat: ClassVar[bytes] = b": hb\n"
    goes_on: ClassVar[bool] = True

    def __init__(self) -> None:
        self._everything = int(Mode.EVENTS)
        self._shown = [_Shown(modes) for modes in range(1 << len(Mode))]

    def opening(self, retry_ms: int) -> bytes:
        return b": runcast\nretry: %d\n\n" % retry_ms

    def retry(self, milliseconds: int) -> bytes:
        return b"retry: %d\n\n" % milliseconds

    def items(self, run_id: bytes, entries: Sequence[Entry], modes: Mode) -> bytes:
        frame = _template(run_id)
        wanted = int(modes)
        if wanted & self._everything:
            return b"".join([frame % (e.seq, e.type, e.seq, e.data[1:]) for e in entries])
        shown = self._shown[wanted]
        return b"".join([frame % (e.seq, e.type, e.seq, e.data[1:]) for e in entries if shown[e.type]])

    def reset(self, run_id: str, reason: str) -> bytes:
        return _control("reset", {"run_id": run_id, "reason": reason})

    def gap(self, run_id: str, requested: int, earliest: int, latest: int) -> bytes:
        return _control("gap", {"run_id": run_id, "requested": requested, "earliest": earliest, "latest": latest})

    def cursor(self, run_id: str, seq: int) -> bytes:
        return b"id: %b:%d\n" % (run_id.encode(), seq) + _control("cursor", {"run_id": run_id, "seq": seq})

    def end(self, run_id: str, status: str, last_seq: int) -> bytes:
        return _control("end", {"run_id": run_id, "status": status, "last_seq": last_seq})


NATIVE = NativeFormat()
