"""What the audit says: of a run that has ended, and an entry of its stream as one JSON object. No IO.

Without ``RUNCAST_AUDIT_TEXT`` no text that a person or a model wrote: not what was asked or answered, nor an error's
message, which may quote both. Secrets are taken out of everything in either case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from broker.charges import Charge
from broker.money import shown
from broker.records import RunRecord

__all__ = ["AuditEntry", "encode_audit", "parse_audit", "run_audit"]

_TEXT_MAX = 20_000
_DEEPEST = 32
_object = msgspec.json.Decoder(dict[str, Any])


class AuditEntry(NamedTuple):
    """``id`` is the entry's place in the stream; ``fields`` what stands in the line of it, ``id`` included."""

    id: str
    fields: dict[str, Any]

    def line(self) -> bytes:
        """JSON and a newline."""
        return msgspec.json.encode(self.fields) + b"\n"


def run_audit(record: RunRecord, charge: Charge, *, text: bool) -> dict[str, Any]:
    """Who (``principal``), what, when, how it ended, tokens, cost as it is known, duration. Times and durations are in
    seconds; ``null``: not known, or never."""
    given = record.request.get("input") or {}
    fence: Mapping[str, Any] = (record.outcome or {}).get("item") or {}
    said: dict[str, Any] = {
        "principal": record.principal,
        "session_id": record.session_id,
        "runner": record.runner,
        "model": given.get("model"),
        "provider": given.get("provider"),
        "toolsets": given.get("toolsets"),
        "status": record.status,
        "code": fence.get("code"),
        "attempts": record.attempt,
        "created": record.created,
        "started": record.started,
        "ended": record.ended,
        "duration_s": _between(record.started, record.ended),
        "usage": fence.get("usage") or record.usage,
        "cost": shown(charge.nano) if charge.known or charge.nano else None,
        "cost_known": charge.known,
    }
    if text:
        message = given.get("message")
        said |= {"message": _cut(message), "reply": _cut(_reply(fence)), "error": _cut(fence.get("message"))}
    return said


def encode_audit(said: Mapping[str, Any], redact: Callable[[str], str]) -> bytes:
    """``d`` of an entry, every text in it cut and redacted. What JSON cannot carry is told as Python shows it."""
    clean = {name: _redacted(value, redact) for name, value in said.items()}
    try:
        return msgspec.json.encode(clean)
    except (UnicodeEncodeError, TypeError, msgspec.MsgspecError):
        return msgspec.json.encode({name: repr(value) for name, value in clean.items()})


def parse_audit(entry_id: bytes, flat: Sequence[bytes]) -> AuditEntry:
    """An entry of the stream. One that somebody else wrote is told as far as it can be read."""
    known = dict(zip(flat[::2], flat[1::2], strict=False))
    id_ = entry_id.decode()
    fields: dict[str, Any] = {"id": id_, "ts": int(id_.partition("-")[0]) / 1000, "kind": _text(known.get(b"kind"))}
    fields["run_id"] = _text(known.get(b"run_id")) or None
    try:
        fields.update((k, v) for k, v in _object.decode(known.get(b"d", b"{}")).items() if k not in fields)
    except (msgspec.DecodeError, UnicodeDecodeError):
        fields["unreadable"] = True
    for name in ("booked", "reserved"):
        if (amount := known.get(name.encode(), b"")).isdigit():
            fields[name] = shown(int(amount))
    return AuditEntry(id_, fields)


def _redacted(value: Any, redact: Callable[[str], str], depth: int = 0) -> Any:
    """Deeper than anybody means it is left out: a worker of somebody else may have said whatever it likes."""
    if depth > _DEEPEST:
        return None
    if isinstance(value, str):
        return redact(value[:_TEXT_MAX])
    if isinstance(value, Mapping):
        return {name: _redacted(inner, redact, depth + 1) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(inner, redact, depth + 1) for inner in value]
    return value


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(max(end - begin, 0.0), 6)


def _reply(fence: Mapping[str, Any]) -> str | None:
    """The text of the message that the run ended with, whole or partial."""
    message = fence.get("partial") if "code" in fence else fence.get("message")
    if not isinstance(message, Mapping):
        return None
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(str(b.get("text", "")) for b in blocks if isinstance(b, Mapping) and b.get("type") == "text")


def _cut(text: object) -> str | None:
    return text[:_TEXT_MAX] if isinstance(text, str) else None
