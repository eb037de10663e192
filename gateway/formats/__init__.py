"""Wire formats: how items become frames. A format is one small file and one registration here.

All methods are pure and called from the hub's hot path: bytes in, bytes out; the native one decodes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker.errors import BadRequest
from broker.items import Entry, Mode
from gateway.formats.chat import CHAT
from gateway.formats.native import NATIVE
from gateway.formats.webui import WEBUI

__all__ = ["FORMATS", "Format", "get_format"]


class Format(Protocol):
    """Frames of one wire format. Only frames of ``items`` and ``cursor`` carry an id."""

    @property
    def name(self) -> str: ...

    @property
    def heartbeat(self) -> bytes:
        """What breaks a silence: dispatches nothing in any client."""
        ...

    @property
    def goes_on(self) -> bool:
        """Whether a viewer can go on behind ``gap`` and ``reset``. False: either of them is the last he gets, since
        his client joins blindly what comes."""
        ...

    def opening(self, retry_ms: int) -> bytes:
        """The first bytes of every response."""
        ...

    def retry(self, milliseconds: int) -> bytes:
        """Come back after so long; dispatches nothing."""
        ...

    def items(self, run_id: bytes, entries: Sequence[Entry], modes: Mode) -> bytes:
        """Frames of those entries that ``modes`` show, joined, in order; ``b""`` where none is shown."""
        ...

    def reset(self, run_id: str, reason: str) -> bytes:
        """Forget what you have: everything follows from the start."""
        ...

    def gap(self, run_id: str, requested: int, earliest: int, latest: int) -> bytes:
        """Retention removed what lies between ``requested`` and ``earliest``."""
        ...

    def cursor(self, run_id: str, seq: int) -> bytes:
        """Moves the viewer's position past items that it was not shown."""
        ...

    def end(self, run_id: str, status: str, last_seq: int) -> bytes:
        """The last frame of a run."""
        ...


FORMATS: dict[str, Format] = {NATIVE.name: NATIVE, WEBUI.name: WEBUI, CHAT.name: CHAT}


def get_format(name: str) -> Format:
    """Raises ``BadRequest``, listing the known formats."""
    known = FORMATS.get(name)
    if known is None:
        raise BadRequest(f"unknown format {name[:64]!r}: the formats are {', '.join(FORMATS)}", field="format")
    return known
