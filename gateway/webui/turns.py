"""Runs as turns of their sessions: what a chat's closing event tells beside the fence, read once a run and process.

What a run was asked, and what its session said before it, does not change while anybody looks at the run: so it is kept
while the memory for it lasts, and viewers who come back cost the store nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from broker.api import Broker
from broker.errors import SessionNotFound
from broker.records import RunRecord
from broker.session_messages import read_messages
from broker.transcript import user_message
from gateway.formats.webui import Turn, WebuiFormat
from gateway.formats.webui_events import Chat

__all__ = ["Turns"]

TURNS_MAX = 2_000
TURNS_BYTES = 32 << 20
"""What is kept for runs that nobody may be looking at any more."""
MESSAGES_MAX = 200
MESSAGES_BYTES = 256 << 10
"""Of a session's earlier messages the newest so many, and so many bytes, stand in the closing event; a client loads
older ones when they are looked at. That event goes to every viewer of the run in one piece."""


class _Kept(NamedTuple):
    format: WebuiFormat
    size: int


class Turns:
    """The formats of the runs that were asked for last."""

    def __init__(self, limit_bytes: int = TURNS_BYTES) -> None:
        self._limit = limit_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._size = 0

    async def format_of(self, broker: Broker, run_id: str) -> WebuiFormat:
        """Raises ``RunNotFound``, ``InvalidId``, ``StoreUnavailable``."""
        known = self._kept.get(run_id)
        if known is None:
            known = self._keep(run_id, await _turn(broker, await broker.runs.get(run_id)))
        else:
            self._kept.move_to_end(run_id)
        return known.format

    def _keep(self, run_id: str, turn: Turn) -> _Kept:
        if (meanwhile := self._kept.get(run_id)) is not None:
            return meanwhile  # viewers of one run share their frames by the format
        kept = self._kept[run_id] = _Kept(WebuiFormat(turn), sum(len(bytes(m)) for m in turn.before))
        self._size += kept.size
        while len(self._kept) > 1 and (self._size > self._limit or len(self._kept) > TURNS_MAX):
            self._size -= self._kept.popitem(last=False)[1].size
        return kept


async def _turn(broker: Broker, record: RunRecord) -> Turn:
    asked = _encoded(user_message(record.run_id, record.request, record.created))
    given = record.request.get("input") or {}
    model: dict[str, Any] = {"model": given.get("model"), "provider": given.get("provider")}
    if record.session_id is None:
        return Turn(Chat(record.run_id), (asked,), **model)
    session = await broker.sessions.find(record.session_id)
    page = await read_messages(broker.sessions, record.session_id, limit=MESSAGES_MAX, until=record.run_id)
    kept = _newest(page.messages)
    left_out = page.offset + len(page.messages) - len(kept)
    title = session.title if session is not None else ""
    chat = Chat(record.run_id, record.session_id, await _spent(broker, record.session_id, record.run_id))
    return Turn(chat, (*kept, asked), left_out, title, **model)


async def _spent(broker: Broker, session_id: str, run_id: str) -> dict[str, float]:
    """What the session's other runs used: nothing that is 0, which may as well be unknown."""
    try:
        spent = await broker.sessions.spent_before(session_id, run_id)
    except SessionNotFound:
        return {}
    counts: dict[str, float] = {name: count for name, count in spent.usage.items() if count}
    return {**counts, "estimated_cost": float(spent.cost)} if spent.cost else counts


def _newest(messages: Sequence[dict[str, Any]]) -> list[msgspec.Raw]:
    kept: list[msgspec.Raw] = []
    room = MESSAGES_BYTES
    for message in reversed(messages):
        encoded = _encoded(message)
        room -= len(bytes(encoded))
        if room < 0:
            break
        kept.append(encoded)
    return kept[::-1]


def _encoded(message: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(message))
