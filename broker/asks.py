"""What a run asks people, and what they answer: approvals and questions, kept in the run's record.

An ask is registered by the run's owner before anybody sees it, and settled by a compare-and-set: of a person's answer,
another person's, the time limit and the run's stop the first wins, and the others are told what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from broker.errors import (
    AlreadyAnswered,
    Fenced,
    InvalidItem,
    InvalidRequest,
    ItemTooBig,
    RunEnded,
    RunNotFound,
    Sealed,
    StoreError,
    TooManyAsks,
    UnknownRequest,
)
from broker.ids import check_id
from broker.items import Raw
from broker.limits import fit
from broker.records import OpenAsk, Settled, parse_ask
from broker.redis import Store
from broker.scripts import SCRIPTS

__all__ = ["APPROVE", "REJECT", "Asked", "Asks", "How", "Kind", "answer_text", "pending_payload"]

Kind: TypeAlias = Literal["approval", "question"]
How: TypeAlias = Literal["answered", "expired", "stopped"]

APPROVE, REJECT = "once", "deny"
"""What “yes” and “no” mean to an approval, in the words that its choices have."""
_WORDS = {"approve": APPROVE, "reject": REJECT}
PAYLOAD_MAX = 8 << 10
"""Bytes of a payload that the record keeps; the item in the log has it whole."""
ANSWER_MAX = 16 << 10
_CHOICE_MAX = 1_000


class Asked(NamedTuple):
    """When it was registered and when its time is over: seconds since the epoch, by the store's clock."""

    asked_at: float
    expires_at: float


class Asks:
    """The asks of one store's runs. Every method raises ``StoreUnavailable``, ``InvalidId``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys

    async def ask(
        self,
        run_id: str,
        owner: str,
        epoch: int,
        request_id: str,
        *,
        kind: Kind,
        payload: Mapping[str, Any],
        choices: Sequence[str] = (),
        free: bool = False,
        timeout: float,
    ) -> Asked:
        """Register an ask of the run's owner. Repeatable: known already, it answers the same. ``timeout``: seconds.

        A payload that is too long for the record is cut there, and says so (``truncated_bytes``).

        Raises ``RunNotFound``, ``Fenced``, ``Sealed``, ``TooManyAsks``; ``InvalidItem`` for an ask that nobody could
        answer, or whose payload has no JSON form.
        """
        _check_choices(choices)
        shown = pending_payload(payload)
        d = msgspec.json.encode({"kind": kind, "choices": list(choices), "free": free, "payload": shown})
        keys = (self._keys.run(check_id(run_id)), self._keys.bus(self._keys.partition(run_id)))
        args = (run_id, owner, epoch, check_id(request_id, "request_id"), f"{timeout:.6f}", d)
        reply = await self._store.script(SCRIPTS["ask"], keys, args)
        if reply[0] == b"OK":
            return Asked(float(reply[1]), float(reply[2]))
        raise _ask_refused(run_id, reply)

    async def settle(self, run_id: str, request_id: str, answer: str, *, how: How, by: str = "") -> Settled:
        """The compare-and-set: ``answer`` where there is none yet; → what it is now, ours or not.

        Raises ``RunNotFound``, ``UnknownRequest``, ``RunEnded``; ``AlreadyAnswered`` where an earlier attempt of the
        run asked; ``InvalidRequest``, naming the choices; ``ItemTooBig``.
        """
        keys = (
            self._keys.run(check_id(run_id)),
            self._keys.control(run_id),
            self._keys.bus(self._keys.partition(run_id)),
        )
        check_id(request_id, "request_id")
        reply = await self._store.script(SCRIPTS["answer"], keys, (run_id, request_id, answer, how, by))
        match reply[0]:
            case b"OK":
                return Settled(request_id=request_id, answer=answer, how=how, by=by, mine=True)
            case b"SETTLED":
                first, text, whom = (part.decode("utf-8", "replace") for part in reply[1:4])
                return Settled(request_id=request_id, answer=text, how=first, by=whom, mine=False)
            case _:
                raise _answer_refused(run_id, request_id, reply)

    async def look(self, run_id: str, request_id: str) -> OpenAsk | Settled | None:
        """How an ask stands; ``None`` where the record does not know it. What it costs does not depend on the run."""
        key = self._keys.run(check_id(run_id))
        value = await self._store.call(b"HGET", key, b"ask:" + check_id(request_id, "request_id").encode())
        return None if value is None else parse_ask(request_id, value)

    async def answer(self, run_id: str, request_id: str, answer: str | bool, *, principal: str = "") -> Settled:
        """A person's answer. ``True`` and ``"approve"``, ``False`` and ``"reject"`` are ``once`` and ``deny``.

        Raises what ``settle`` raises, and ``AlreadyAnswered``, carrying the answer that came first.
        """
        if isinstance(answer, bool) or answer in _WORDS:
            known = await self.look(run_id, request_id)
            answer = answer_text(answer, known if isinstance(known, OpenAsk) else None)
        settled = await self.settle(run_id, request_id, _checked(answer), how="answered", by=principal)
        if settled.mine:
            return settled
        raise AlreadyAnswered(
            f"request {request_id!r} of run {run_id!r} has its answer: {_story(settled)}",
            answer=settled.answer,
            how=settled.how,
        )


def answer_text(answer: str | bool, ask: OpenAsk | None) -> str:
    """A yes or no in the words of ``ask``: ``True`` and ``"approve"`` → ``once``, and so on; other text as it is.

    Raises ``InvalidRequest`` for a yes or no to a question that does not take one.
    """
    word = answer if isinstance(answer, str) else ("approve" if answer else "reject")
    if ask is None or word in ask.choices or word not in _WORDS:
        return word
    if ask.kind == "approval":
        return _WORDS[word]
    if isinstance(answer, bool):
        raise InvalidRequest(f"this question takes no yes or no: {_allowed(ask.choices, ask.free)}", field="answer")
    return word


def pending_payload(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A payload as the record keeps it: ``PAYLOAD_MAX`` bytes at most, longer parts cut. Raises ``InvalidItem``."""
    fitted = fit(Raw("ask", {str(name): value for name, value in payload.items()}), PAYLOAD_MAX)
    fields: dict[str, Any] = msgspec.json.decode(fitted.encoded[0].data)
    return {name: value for name, value in fields.items() if name not in ("ts", "component_id")}


def _check_choices(choices: Sequence[str]) -> None:
    for choice in choices:
        if not isinstance(choice, str) or not choice.strip() or len(choice) > _CHOICE_MAX:
            raise InvalidItem(f"a choice is 1 to {_CHOICE_MAX} characters that are not all blank", field="choices")
        try:
            choice.encode()
        except UnicodeEncodeError as error:
            raise InvalidItem(f"a choice cannot be written as UTF-8: {error}", field="choices") from error


def _checked(answer: str) -> str:
    try:
        size = len(answer.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the answer cannot be written as UTF-8: {error}", field="answer") from error
    if not answer.strip():
        raise InvalidRequest("the answer is empty", field="answer")
    if size > ANSWER_MAX:
        raise ItemTooBig(f"the answer has {size} bytes, {ANSWER_MAX} are allowed", field="answer")
    return answer


def _allowed(choices: Sequence[str], free: bool) -> str:
    named = ", ".join(choices)
    if not free:
        return f"the answers are {named}"
    return f"the answers are {named}, or any text" if named else "any text is an answer"


def _story(settled: Settled) -> str:
    match settled.how:
        case "expired":
            return f"nobody answered in time, so it was {settled.answer!r}"
        case "stopped":
            return f"the run no longer waits for it, so it was {settled.answer!r}"
        case _:
            return repr(settled.answer)


def _ask_refused(run_id: str, reply: Sequence[Any]) -> Exception:
    match reply[0]:
        case b"NOTFOUND":
            return RunNotFound(run_id)
        case b"FENCED":
            return Fenced(f"run {run_id!r} has another owner or epoch by now: it was taken over")
        case b"SEALED":
            return Sealed(f"run {run_id!r} has its fence at {reply[1]}: nothing is asked after it")
        case b"TOOMANY":
            return TooManyAsks(f"run {run_id!r} waits for {reply[1]} answers already: more are not kept")
        case b"TOOBIG":
            return InvalidItem(f"what run {run_id!r} asks has {reply[1]} bytes, {reply[2]} are allowed")
        case b"BADASK":
            return InvalidItem(f"what run {run_id!r} asks cannot be registered: {reply[1].decode()}")
        case _:
            return StoreError(f"ask answered {reply!r}, which this version does not know")


def _answer_refused(run_id: str, request_id: str, reply: Sequence[Any]) -> Exception:
    match reply[0]:
        case b"NOTFOUND":
            return RunNotFound(run_id)
        case b"UNKNOWN":
            return UnknownRequest(run_id, request_id)
        case b"ENDED":
            return RunEnded(f"run {run_id!r} has ended as {reply[1].decode()}: it waits for no answer")
        case b"VOID":
            void = f"request {request_id!r} was asked by an earlier attempt of run {run_id!r}, and is void"
            return AlreadyAnswered(void, answer=None, how="void")
        case b"TOOBIG":
            return ItemTooBig(f"the answer has {reply[1]} bytes, {reply[2]} are allowed", field="answer")
        case b"BADANSWER":
            choices = [choice.decode("utf-8", "replace") for choice in reply[2:]]
            why = f"that is no answer to this {reply[1].decode()}: {_allowed(choices, False)}"
            return InvalidRequest(why, field="answer")
        case _:
            return StoreError(f"answer answered {reply!r}, which this version does not know")
