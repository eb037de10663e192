"""What the runs of a session wait for people to answer, and the answer to one of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from broker.api import Broker
from broker.asks import Kind
from broker.errors import AlreadyAnswered, RunEnded, UnknownRequest
from broker.ids import check_id
from broker.records import OpenAsk, Settled

__all__ = ["Standing", "answer_ask", "open_asks"]


class Standing(NamedTuple):
    """An open ask and the run that waits for it."""

    run_id: str
    ask: OpenAsk


class Given(NamedTuple):
    """What became of an answer. ``settled``: the answer that counts, whose ever it was; ``None``: nothing waits, or
    waited, under that id. ``mine``: it is the one that was given now."""

    settled: Settled | None
    mine: bool


async def open_asks(broker: Broker, session_id: str, kind: Kind) -> list[Standing]:
    """Of all open runs of the session, oldest first. Raises ``InvalidId``, ``StoreUnavailable``."""
    found: list[Standing] = []
    for run_id in await _open_runs(broker, session_id):
        record = await broker.runs.find(run_id)
        if record is not None:
            found += [Standing(run_id, ask) for ask in record.asks if ask.kind == kind]
    return sorted(found, key=lambda standing: standing.ask.asked_at)


async def answer_ask(
    broker: Broker, session_id: str, kind: Kind, request_id: str, answer: str, *, principal: str
) -> Given:
    """Answer the ask of that id, ``""``: the oldest one that is open. The first answer counts.

    Raises ``InvalidRequest``, naming the choices, ``InvalidId``, ``ItemTooBig``, ``StoreUnavailable``.
    """
    standing = await open_asks(broker, session_id, kind)
    wanted = next((s for s in standing if request_id in ("", s.ask.request_id)), None)
    if wanted is None:
        return Given(await _settled(broker, session_id, request_id) if request_id else None, False)
    try:
        settled = await broker.runs.answer(wanted.run_id, wanted.ask.request_id, answer, principal=principal)
    except AlreadyAnswered as error:
        return Given(Settled(request_id=request_id, answer=error.answer or "", how=error.how), False)
    except (RunEnded, UnknownRequest):
        return Given(None, False)
    return Given(settled, True)


async def _settled(broker: Broker, session_id: str, request_id: str) -> Settled | None:
    for run_id in await _open_runs(broker, session_id):
        known = await broker.runs.asks.look(run_id, check_id(request_id, "request_id"))
        if isinstance(known, Settled):
            return known
    return None


async def _open_runs(broker: Broker, session_id: str) -> list[str]:
    key = broker.sessions.keys.session_open(check_id(session_id, "session_id"))
    ids: list[Any] = await broker.store.call(b"ZRANGE", key, 0, -1)
    return [run_id.decode() for run_id in ids]
