"""Where a relay stands in the service's run: what the run's record keeps for the next attempt. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["OpenRequest", "Position", "read_position"]


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the service asks a person, and was not told the answer to. ``kind``: approval or question."""

    key: str
    kind: str
    payload: dict[str, Any] = {}
    choices: tuple[str, ...] = ()


class Position(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``run_id`` is the service's. ``cursor``: what to ask with, as the service gave it; ``None``: from the start.
    ``count``: how many of its events lie before the cursor. ``open``: what it waits for people to answer.
    ``session``: the agent's session there, where it was told. ``spent``: dollars that no item tells yet."""

    run_id: str
    cursor: str | None = None
    count: int = 0
    open: tuple[OpenRequest, ...] = ()
    session: str | None = None
    spent: str = "0"

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()


def read_position(text: str) -> Position | None:
    """The inverse of ``Position.encoded``; ``None`` where another version wrote something else."""
    try:
        return msgspec.json.decode(text.encode(), type=Position)
    except (msgspec.MsgspecError, UnicodeError):
        return None
