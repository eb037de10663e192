"""The bodies that this gateway answers with, as types: what is sent and what the OpenAPI document describes.

Times are ISO 8601 in UTC with milliseconds (``2025-11-29T19:41:52.345Z``), or null. Items keep the stored form's
``ts``, seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from broker.items import Entry
from broker.records import OpenAsk, RunRecord
from gateway.shortened import shortened

__all__ = [
    "Answered",
    "ArtifactEntry",
    "ArtifactPage",
    "Cancelling",
    "Capabilities",
    "CreatedRun",
    "Health",
    "ItemPage",
    "Pending",
    "PendingInput",
    "Result",
    "Run",
    "RunPage",
    "SkippedFile",
    "answer",
    "flat_outcome",
    "iso",
    "item_page",
    "view",
]

_TITLE_MAX = 120


class CreatedRun(msgspec.Struct, kw_only=True):
    run_id: str
    status: str
    cancel_token: str
    stream_url: str
    created_at: str


class PendingInput(msgspec.Struct, kw_only=True):
    """What a run waits for a person to answer. ``payload`` of an approval: ``command``, ``description``; of a question:
    ``question``; with ``truncated_bytes`` where the item in the log has more. ``choices`` are answers that are allowed;
    with ``free`` any other text is, too."""

    request_id: str
    kind: str
    payload: dict[str, Any]
    choices: tuple[str, ...]
    free: bool
    timeout_s: float
    asked_at: str
    expires_at: str


class Run(msgspec.Struct, kw_only=True):
    """A run as it stands. ``first_seq`` (the first item still kept; ``last_seq + 1`` where none is), ``input`` and
    ``pending_input`` (what it waits for people to answer, oldest first) are left out of lists. ``parent_run_id`` and
    ``component`` are there where it does a part of another run."""

    run_id: str
    status: str
    runner: str
    title: str
    session_id: str | None
    metadata: dict[str, str]
    first_seq: int | UnsetType = UNSET
    last_seq: int
    attempt: int
    cancel_requested: bool
    created_at: str
    started_at: str | None
    ended_at: str | None
    usage: dict[str, Any] | None
    cost: dict[str, Any] | None
    outcome: dict[str, Any] | None
    """The fence as an item: type, seq, ts and its fields. In lists it is without its ``steps``, and texts are cut
    (``truncated_bytes``)."""
    input: dict[str, Any] | UnsetType = UNSET
    pending_input: list[PendingInput] | UnsetType = UNSET
    waits_for_session: bool | UnsetType = UNSET
    """True: it is queued, and earlier runs of its session come first."""
    parent_run_id: str | UnsetType = UNSET
    component: str | UnsetType = UNSET


class Answered(msgspec.Struct, kw_only=True):
    """``status`` is the run's. ``answer`` is the word that counts: ``once`` where ``true`` was sent, say."""

    run_id: str
    request_id: str
    answer: str
    status: str


class RunPage(msgspec.Struct, kw_only=True):
    """``next`` is the ``before`` of the next page; null where there is none."""

    runs: list[Run]
    next: str | None


class ItemPage(msgspec.Struct, kw_only=True):
    """``next`` is the ``after`` (with order=desc the ``before``) that goes on from here, null where nothing can
    follow; ``complete`` says just that. A page may hold fewer items than its limit: pages are bounded in bytes too,
    and hidden items count for nothing. ``first_seq`` and ``last_seq`` bound what is kept."""

    items: list[dict[str, Any]]
    next: int | None
    complete: bool
    first_seq: int
    last_seq: int


class Result(msgspec.Struct, kw_only=True):
    """``answer``: of a run that a chat request made and that completed, what that request was or will be answered."""

    run_id: str
    status: str
    outcome: dict[str, Any] | None
    answer: dict[str, Any] | UnsetType = UNSET


class Pending(msgspec.Struct, kw_only=True):
    """It has not ended. Ask again, with ``wait`` if you like."""

    run_id: str
    status: str


class ArtifactEntry(msgspec.Struct, kw_only=True):
    """A file that a run left; ``size`` in bytes, ``type`` as its name says."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    type: Annotated[str, msgspec.Meta(pattern=r"^[\w.+-]+/[\w.+-]+$(?!\n)")] = "application/octet-stream"


class SkippedFile(msgspec.Struct, kw_only=True):
    """A new file that was left out, and why; ``size`` in bytes where that is told."""

    name: str
    reason: str
    size: int | None = None


class ArtifactPage(msgspec.Struct, kw_only=True):
    """``skipped`` are the first of the ``skipped_count`` files that were left out."""

    run_id: str
    status: str
    artifacts: list[ArtifactEntry]
    skipped: list[SkippedFile]
    skipped_count: int


class Cancelling(msgspec.Struct, kw_only=True):
    run_id: str
    status: str
    cancel_requested: bool


class Health(msgspec.Struct, kw_only=True):
    status: str


class Capabilities(msgspec.Struct, kw_only=True):
    """What this gateway can do. ``runners`` are those installed beside it; workers elsewhere may have others.
    ``access`` is ``password`` where the operator set one, else ``none``."""

    modes: list[str]
    formats: list[str]
    item_types: list[str]
    control_events: list[str]
    event_kinds: list[str]
    runners: list[str]
    access: str
    versions: dict[str, str]
    limits: dict[str, float | int]


def iso(seconds: float | None) -> str | None:
    """Seconds since the epoch → ISO 8601, UTC, milliseconds."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def flat_outcome(outcome: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The record's outcome ``{type, seq, item}`` → one object, as the item stands in a page of items."""
    if outcome is None:
        return None
    return {"type": outcome.get("type"), "seq": outcome.get("seq"), **(outcome.get("item") or {})}


def view(record: RunRecord, first_seq: int | None = None) -> Run:
    """A record as the API shows it; with ``first_seq`` in full, else as it stands in lists."""
    asked = record.request.get("input") or {}
    return Run(
        run_id=record.run_id,
        status=record.status,
        runner=record.runner,
        title=_title(asked.get("message"), part=bool(record.request.get("parent_run_id"))),
        session_id=record.session_id or None,
        metadata=record.metadata,
        first_seq=UNSET if first_seq is None else first_seq,
        last_seq=record.last,
        attempt=record.attempt,
        cancel_requested=bool(record.cancel_requested),
        created_at=iso(record.created) or "",
        started_at=iso(record.started),
        ended_at=iso(record.ended),
        usage=record.usage,
        cost=record.cost,
        outcome=_outcome(record, whole=first_seq is not None),
        waits_for_session=record.waits or UNSET,
        input=UNSET if first_seq is None else _without_content(asked),
        pending_input=UNSET if first_seq is None else [_pending(ask) for ask in record.asks],
        parent_run_id=record.request.get("parent_run_id") or UNSET,
        component=record.request.get("component") or UNSET,
    )


def _outcome(record: RunRecord, *, whole: bool) -> dict[str, Any] | None:
    outcome = flat_outcome(record.outcome)
    return outcome if whole or outcome is None else shortened(outcome)


def _pending(ask: OpenAsk) -> PendingInput:
    return PendingInput(
        request_id=ask.request_id,
        kind=ask.kind,
        payload=ask.payload,
        choices=ask.choices,
        free=ask.free,
        timeout_s=ask.timeout_s,
        asked_at=iso(ask.asked_at) or "",
        expires_at=iso(ask.expires_at) or "",
    )


def _without_content(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The input without the bytes of its artifacts: who looks at a run wants to know their names."""
    artifacts = asked.get("artifacts")
    if not isinstance(artifacts, list):
        return dict(asked)
    shown = [{k: v for k, v in a.items() if k != "content_base64"} if isinstance(a, dict) else a for a in artifacts]
    return {**asked, "artifacts": shown}


def _title(message: object, *, part: bool) -> str:
    """The beginning of the prompt, on one line. Of a ``part`` of another run the first line alone: what a task tells
    its steps below it is the same for all."""
    text = str(message or "").lstrip()
    words = " ".join((text.partition("\n")[0] if part else text)[: _TITLE_MAX * 4].split())
    return words if len(words) <= _TITLE_MAX else words[: _TITLE_MAX - 1].rstrip() + "…"


def item_page(
    run_id: str, entries: Sequence[Entry], *, following: int | None, complete: bool, first_seq: int, last_seq: int
) -> bytes:
    """A page of items; the stored JSON is spliced in as it is."""
    run = run_id.encode()
    items = [b'{"run_id":"%b","seq":%d,"type":"%b",%b' % (run, e.seq, e.type, e.data[1:]) for e in entries]
    # JSON is UTF-8, and so is what is stored, unless a worker in another language was careless.
    joined = b",".join(items).decode("utf-8", "replace").encode()
    return b'{"items":[%b],"next":%b,"complete":%b,"first_seq":%d,"last_seq":%d}' % (
        joined,
        b"null" if following is None else b"%d" % following,
        b"true" if complete else b"false",
        first_seq,
        last_seq,
    )


def answer(body: msgspec.Struct | bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON response. What a run looks like changes all the time: nothing of it may be cached."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Response(
        content, status, headers={"Cache-Control": "no-store", **(headers or {})}, media_type="application/json"
    )
