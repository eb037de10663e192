"""A run's record: the hash that ``create`` makes and the other scripts keep, as a value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from broker.errors import StoreError

__all__ = [
    "ENDED",
    "FIRST_EPOCH",
    "STATUSES",
    "Beat",
    "OpenAsk",
    "RunRecord",
    "Settled",
    "Standing",
    "pairs",
    "parse_ask",
    "parse_record",
]

STATUSES = ("queued", "running", "completed", "failed", "cancelled")
ENDED = frozenset({"completed", "failed", "cancelled"})
FIRST_EPOCH = 1
"""What ``create`` gives a run. A higher one says that its log was cut, or taken over, at least once."""


class Beat(NamedTuple):
    """What the store says to a beat: the log's end and epoch, and whether a cancel was asked for."""

    last: int
    epoch: int
    cancel_requested: bool


class Standing(Protocol):
    """What is to be known of a run to queue it again: a record, or a part of one."""

    @property
    def run_id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def beat(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def queue_entry(self) -> str: ...


class OpenAsk(msgspec.Struct, kw_only=True, frozen=True):
    """What a run asks a person and has no answer to. ``payload`` of an approval: ``command``, ``description``; of a
    question: ``question``. ``choices`` are answers that are allowed; with ``free`` any other text is, too."""

    request_id: str
    kind: str
    payload: dict[str, Any]
    choices: tuple[str, ...]
    free: bool
    asked_at: float
    expires_at: float
    attempt: int

    @property
    def timeout_s(self) -> float:
        """What a person has from the first moment on."""
        return round(self.expires_at - self.asked_at, 3)


class Settled(msgspec.Struct, kw_only=True, frozen=True):
    """An ask with its answer. ``how``: ``answered`` (``by`` a principal), ``expired`` or ``stopped``. ``mine``: the
    call that brought this value is the one that gave the answer."""

    request_id: str
    answer: str
    how: str
    by: str = ""
    mine: bool = False


class RunRecord(msgspec.Struct, kw_only=True, frozen=True):
    """A run as it stood when it was read. Times are seconds since the epoch, by the store's clock; ``None``: not yet.

    ``beat`` is opaque: it moves while the run's owner is heard of, and a takeover compares it. ``usage`` holds the
    token counts so far, ``cost`` the ``total``, ``currency`` and ``estimated`` so far. ``outcome`` is
    ``{"type", "seq", "item"}``: the fence. ``asks``: what it waits for people to answer, oldest first.
    """

    run_id: str
    status: str
    runner: str
    owner: str
    attempt: int
    epoch: int
    rewound_to: int
    first: int
    last: int
    bytes: int
    beat: str
    cancel_requested: float | None
    created: float
    started: float | None
    ended: float | None
    session_id: str | None
    principal: str
    request: dict[str, Any]
    metadata: dict[str, str]
    on_worker_lost: str
    deadline_s: float | None
    usage: dict[str, Any] | None
    cost: dict[str, Any] | None
    outcome: dict[str, Any] | None
    queue: str
    queue_entry: str
    asks: tuple[OpenAsk, ...] = ()
    earlier: tuple[dict[str, Any], ...] = ()
    """What attempts that lost their worker told of their cost; empty where one told nothing. It is void, yet spent."""
    source: str | None = None
    """Of a run that is relayed from another service: where its worker stands there, in the runner's own words.
    ``None``: the run is not relayed, or its worker has not reached the service yet."""
    trace: str | None = None
    """Traceparent of what made it, where there are traces."""
    waits: bool = False
    """It is queued, and earlier runs of its session come first (``broker.session_turns``)."""
    lingers: bool = False
    """Its worker says when all is cleared up that it leaves behind its fence; its session's next run begins then."""

    @property
    def ended_(self) -> bool:
        """It has its fence, or lost its items since."""
        return self.status in ENDED

    is_ended = ended_


_object = msgspec.json.Decoder(dict[str, Any])


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """``[field, value, …]``, as HGETALL answers, → a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def parse_record(run_id: str, fields: Mapping[bytes, bytes]) -> RunRecord:
    """The hash's fields → the record. Raises ``StoreError`` where somebody else wrote into it."""
    try:
        return _parse(run_id, fields)
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise StoreError(f"the record of run {run_id!r} is broken: {type(error).__name__}: {error}") from error


def _parse(run_id: str, fields: Mapping[bytes, bytes]) -> RunRecord:
    request = _object.decode(fields[b"request"])
    return RunRecord(
        run_id=run_id,
        status=fields[b"status"].decode(),
        runner=request.get("runner", "hermes"),
        owner=fields[b"owner"].decode(),
        attempt=int(fields[b"attempt"]),
        epoch=int(fields[b"epoch"]),
        rewound_to=int(fields[b"rewound_to"]),
        first=int(fields[b"first"]),
        last=int(fields[b"last"]),
        bytes=int(fields[b"bytes"]),
        beat=fields[b"beat"].decode(),
        cancel_requested=_time(fields, b"cancel_requested"),
        created=float(fields[b"created"]),
        started=_time(fields, b"started"),
        ended=_time(fields, b"ended"),
        session_id=fields[b"session"].decode() or None,
        principal=fields[b"principal"].decode(),
        request=request,
        metadata=request.get("metadata", {}),
        on_worker_lost=fields[b"on_worker_lost"].decode(),
        deadline_s=request.get("deadline_s"),
        usage=_usage(_json(fields, b"usage")),
        cost=_cost(_json(fields, b"cost")),
        outcome=_json(fields, b"outcome"),
        queue=fields[b"queue"].decode(),
        queue_entry=fields[b"queue_entry"].decode(),
        asks=_asks(fields),
        earlier=_earlier(fields.get(b"earlier")),
        source=fields[b"source"].decode() if b"source" in fields else None,
        trace=fields[b"trace"].decode("ascii", "replace") if b"trace" in fields else None,
        waits=b"waits" in fields and fields[b"status"] == b"queued",
        lingers=b"lingers" in fields,
    )


def _asks(fields: Mapping[bytes, bytes]) -> tuple[OpenAsk, ...]:
    """The open ones of this attempt. A run that has ended waits for nothing, whatever its record still says."""
    if b"asks" not in fields or fields[b"status"] != b"running":
        return ()
    mark = fields[b"attempt"] + b"+"
    ids = [token[len(mark) :] for token in fields[b"asks"].split() if token.startswith(mark)]
    known = [parse_ask(id_.decode(), fields[b"ask:" + id_]) for id_ in ids if b"ask:" + id_ in fields]
    return tuple(ask for ask in known if isinstance(ask, OpenAsk))


def parse_ask(request_id: str, value: bytes) -> OpenAsk | Settled | None:
    """What the record says of an ask; ``None`` where it is nothing that this version can read."""
    try:
        known = {**json.loads(value.decode("utf-8", "replace")), "request_id": request_id}
        if "how" in known:
            return msgspec.convert(known, Settled)
        # An empty array and an empty object are one and the same in Lua: a worker may send either.
        empty = {"choices": known.get("choices") or (), "payload": known.get("payload") or {}}
        return msgspec.convert({**known, **empty}, OpenAsk)
    except (ValueError, TypeError, RecursionError, msgspec.ValidationError):
        return None


def _earlier(lines: bytes | None) -> tuple[dict[str, Any], ...]:
    costs = [_cost(_json({b"cost": line}, b"cost")) or {} for line in (lines or b"").splitlines()]
    return tuple(costs)


def _time(fields: Mapping[bytes, bytes], name: bytes) -> float | None:
    value = fields.get(name)
    return float(value) if value else None


def _json(fields: Mapping[bytes, bytes], name: bytes) -> dict[str, Any] | None:
    """What an item brought into the record. A worker in another language may have sent what the script lets through and
    msgspec does not read (bytes that are no UTF-8, ``1e999``, hundreds of levels): its run must not be unreadable for
    that."""
    value = fields.get(name)
    if not value:
        return None
    text = value.decode("utf-8", "replace")
    try:
        return _object.decode(text)
    except msgspec.MsgspecError:
        found = json.loads(text)
        return found if isinstance(found, dict) else None
    except RecursionError:  # deeper than anybody means
        return None


_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")


def _usage(item: dict[str, Any] | None) -> dict[str, Any] | None:
    """The newest ``usage`` item → the counts so far: its ``total``, or, where it has none, its own counts."""
    if item is None:
        return None
    total = item.get("total")
    return dict(total) if isinstance(total, dict) and total else {name: item.get(name) for name in _COUNTS}


def _cost(item: dict[str, Any] | None) -> dict[str, Any] | None:
    if item is None:
        return None
    return {
        "total": item.get("total", item.get("amount")),
        "currency": item.get("currency", "USD"),
        "estimated": bool(item.get("estimated", False)),
    }
