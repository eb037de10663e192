"""The stream items: a msgspec tagged union, each type's modes, and the stored form.

Stored form (source: docs/protocol.md, “Redis”): an entry holds ``t``, the type, and ``d``, the item's JSON
without type, ``run_id`` and ``seq``. ``d`` begins with ``{"ts":`` and has no CR or LF, so a renderer can splice
the envelope in front of it, bytes only. U+2028, U+2029 and U+0085 are escaped: readers that split lines the
Unicode way would break inside a ``data:`` line otherwise.

Pure: no clock, no IO. Whoever publishes stamps ``ts``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from broker.errors import InvalidItem, UnknownMode

__all__ = [
    "CONTROL_EVENTS",
    "FENCES",
    "STATUS_OF_FENCE",
    "TYPES",
    "Annotation",
    "Cache",
    "Cancelled",
    "Cost",
    "Encoded",
    "Entry",
    "Event",
    "Failed",
    "Final",
    "Item",
    "Message",
    "MessageDelta",
    "Mode",
    "Raw",
    "ReasoningDelta",
    "RefusalDelta",
    "StreamItem",
    "Summary",
    "ToolCallDelta",
    "ToolCompleted",
    "ToolFailed",
    "ToolProgress",
    "ToolStarted",
    "Usage",
    "check_type",
    "decode",
    "encode",
    "escape",
    "from_fields",
    "modes_of",
    "parse_modes",
    "scrub",
]


class Mode(enum.IntFlag):
    """What a viewer filters on. An item is shown where its modes and the viewer's have one in common."""

    MESSAGES = 1
    TOOLS = 2
    USAGE = 4
    COST = 8
    EVENTS = 16
    FINAL = 32


ALL = Mode(63)
CONTROL_EVENTS = frozenset({"end", "reset", "gap", "cursor", "open", "error"})
"""Names that no item may have: control frames of the wire, and ``error``, which EventSource uses itself."""


class Item(msgspec.Struct, kw_only=True, frozen=True, tag_field="type", repr_omit_defaults=True):
    """Base of all items. ``ts`` (seconds since the epoch) is 0 until the publisher stamps it."""

    MODES: ClassVar[Mode] = Mode.EVENTS

    ts: float = 0.0
    component_id: str = "agent"
    parent_run_id: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    truncated_bytes: int | UnsetType = UNSET
    """Set where a field was too long to be stored: how many bytes were cut (see ``broker.limits``)."""
    source_id: str | UnsetType | None = UNSET
    """Of a run that is relayed from another service: the id that the service gave this item, what a viewer's frame
    carries as its id. ``None``: an item of a relayed run that the service knows nothing of; its frame has no id, since
    one of ours would be no position in the service's log. Unset: a run of ours, whose ids are ``run_id:seq``."""


class _Delta(Item, kw_only=True, frozen=True):
    round: int = 1
    index: int = 0
    choice: int | UnsetType = UNSET


class MessageDelta(_Delta, kw_only=True, frozen=True, tag="message.delta"):
    """``signature``: what a provider wants back with this text (Gemini's ``thoughtSignature``)."""

    MODES: ClassVar[Mode] = Mode.MESSAGES | Mode.EVENTS
    text: str
    signature: str | UnsetType = UNSET


class ReasoningDelta(_Delta, kw_only=True, frozen=True, tag="reasoning.delta"):
    """The side channel: never mixed into the text."""

    MODES: ClassVar[Mode] = Mode.MESSAGES | Mode.EVENTS
    text: str = ""
    signature: str | UnsetType = UNSET
    redacted: Any = UNSET


class RefusalDelta(_Delta, kw_only=True, frozen=True, tag="refusal.delta"):
    MODES: ClassVar[Mode] = Mode.MESSAGES | Mode.EVENTS
    text: str


class Annotation(_Delta, kw_only=True, frozen=True, tag="annotation"):
    """A citation or annotation in its place: it belongs to the block ``index``."""

    MODES: ClassVar[Mode] = Mode.MESSAGES | Mode.EVENTS
    annotation: Any


class Message(Item, kw_only=True, frozen=True, tag="message"):
    """The merged message of one round (one choice): ``{role, content: [blocks], …}``, unknown fields kept.

    ``interim``: another round follows, though the message has no tool call in it that would say so.
    """

    MODES: ClassVar[Mode] = Mode.MESSAGES | Mode.EVENTS
    round: int = 1
    choice: int | UnsetType = UNSET
    message: dict[str, Any]
    interim: bool | UnsetType = UNSET


class ToolCallDelta(_Delta, kw_only=True, frozen=True, tag="tool_call.delta"):
    """A fragment of a call. ``kind`` is ``custom`` where the tool takes free text, no JSON; said once is enough."""

    MODES: ClassVar[Mode] = Mode.TOOLS | Mode.EVENTS
    call_id: str = ""
    name: str | UnsetType = UNSET
    arguments: str = ""
    kind: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET


class _Tool(Item, kw_only=True, frozen=True):
    MODES: ClassVar[Mode] = Mode.TOOLS | Mode.EVENTS
    call_id: str
    name: str


class ToolStarted(_Tool, kw_only=True, frozen=True, tag="tool.started"):
    args: Any = None
    preview: str | UnsetType = UNSET


class ToolProgress(_Tool, kw_only=True, frozen=True, tag="tool.progress"):
    preview: str = ""


class ToolCompleted(_Tool, kw_only=True, frozen=True, tag="tool.completed"):
    """``args`` repeats what the call was started with, shortened: who comes late has not seen its start."""

    result: Any = None
    duration_ms: float | None = None
    args: Any = UNSET


class ToolFailed(_Tool, kw_only=True, frozen=True, tag="tool.failed"):
    """``args`` as in ``ToolCompleted``."""

    error: str
    result: Any = UNSET
    duration_ms: float | None = None
    args: Any = UNSET


class Usage(Item, kw_only=True, frozen=True, tag="usage"):
    """Token counts since the last ``usage`` item; ``total`` has the same counts so far. Absent counts are null.

    ``input_tokens`` includes cached ones, ``output_tokens`` includes reasoning.
    """

    MODES: ClassVar[Mode] = Mode.USAGE | Mode.EVENTS
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    total: dict[str, int | None] = {}
    source: str = "reported"


class Cost(Item, kw_only=True, frozen=True, tag="cost"):
    """``amount`` since the last ``cost`` item and ``total`` so far, decimal strings."""

    MODES: ClassVar[Mode] = Mode.COST | Mode.EVENTS
    amount: str
    total: str
    currency: str = "USD"
    estimated: bool = False


class Cache(Item, kw_only=True, frozen=True, tag="cache"):
    status: str
    what: str = "prompt"
    tokens: int | None = None


class Summary(Item, kw_only=True, frozen=True, tag="summary"):
    """The agent compressed its context: ``text`` stands for what ``replaces`` names."""

    text: str
    replaces: Any = None


class Event(Item, kw_only=True, frozen=True, tag="event"):
    """Anything else that happened. On the wire ``payload``'s fields stand beside ``name``."""

    name: str
    payload: dict[str, Any] = {}


class Final(Item, kw_only=True, frozen=True, tag="final"):
    """The fence of a completed run. ``message`` is the last round's.

    ``artifacts``: the files that it made or changed, ``{name, size, sha256, type}`` each. ``artifacts_skipped``: what
    was left out, ``{count, files: [{name, reason, size?}]}``. Both only where the run had a workspace. ``steps``: what
    came before ``message``, see ``broker.steps``; only where anything did.
    """

    MODES: ClassVar[Mode] = ALL
    message: dict[str, Any] | None = None
    rounds: int = 0
    usage: dict[str, Any] | None = None
    cost: dict[str, Any] | None = None
    hermes_session_id: str | None = None
    metadata: dict[str, Any] = {}
    artifacts: list[dict[str, Any]] | UnsetType = UNSET
    artifacts_skipped: dict[str, Any] | UnsetType = UNSET
    steps: list[dict[str, Any]] | UnsetType = UNSET


class Failed(Item, kw_only=True, frozen=True, tag="failed"):
    """The fence of a failed run. ``partial`` is the merged message so far. Its files are told as with ``final``."""

    MODES: ClassVar[Mode] = ALL
    code: str
    message: str
    retryable: bool = False
    partial: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    cost: dict[str, Any] | None = None
    hermes_session_id: str | None = None
    artifacts: list[dict[str, Any]] | UnsetType = UNSET
    artifacts_skipped: dict[str, Any] | UnsetType = UNSET
    steps: list[dict[str, Any]] | UnsetType = UNSET


class Cancelled(Item, kw_only=True, frozen=True, tag="cancelled"):
    """The fence of a cancelled run. ``partial`` is the merged message so far."""

    MODES: ClassVar[Mode] = ALL
    code: str = "cancelled"
    message: str = "the run was cancelled"
    retryable: bool = False
    partial: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    cost: dict[str, Any] | None = None
    hermes_session_id: str | None = None
    steps: list[dict[str, Any]] | UnsetType = UNSET


StreamItem: TypeAlias = (
    MessageDelta
    | ReasoningDelta
    | RefusalDelta
    | Annotation
    | Message
    | ToolCallDelta
    | ToolStarted
    | ToolProgress
    | ToolCompleted
    | ToolFailed
    | Usage
    | Cost
    | Cache
    | Summary
    | Event
    | Final
    | Failed
    | Cancelled
)


class Raw(msgspec.Struct, frozen=True):
    """An item kept as it came: of a type that this version does not know, or passed on with its unknown fields.

    ``fields`` are all fields but type, ``run_id`` and ``seq``; ``ts`` and ``component_id`` among them if present.
    """

    type: str
    fields: dict[str, Any]


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """An item in its stored form. ``decode(*encoded)`` is its inverse."""

    type: str
    data: bytes

    def __iter__(self) -> Iterator[str | bytes]:
        return iter((self.type, self.data))


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An item as it was read from the log, still in its stored form. ``type`` is ``bytes``: nothing is decoded.

    No tuple: millions of these pass, and this is made in half the time and never looked at by the garbage collector.
    """

    seq: int
    type: bytes
    data: bytes


TYPES: dict[str, type[Item]] = {str(c.__struct_config__.tag): c for c in StreamItem.__args__}
FENCES = frozenset({"final", "failed", "cancelled"})
STATUS_OF_FENCE = {"final": "completed", "failed": "failed", "cancelled": "cancelled"}
_MODES: dict[bytes, Mode] = {name.encode(): cls.MODES for name, cls in TYPES.items()}


def modes_of(type_: bytes) -> Mode:
    """The modes of an item type. Unknown types, from a newer worker, are shown under ``events``."""
    return _MODES.get(type_, Mode.EVENTS)


def parse_modes(values: str | Iterable[str]) -> Mode:
    """``"messages,tools"``, or several such strings → modes. Nothing named means ``events``, which is everything.

    Raises ``UnknownMode``, listing the known ones.
    """
    if isinstance(values, str):
        values = (values,)
    names = [name.strip().lower() for value in values for name in value.split(",") if name.strip()]
    modes = Mode(0)
    for name in names:
        member = Mode.__members__.get(name.upper())
        if member is None:
            known = ", ".join(m.lower() for m in Mode.__members__)
            raise UnknownMode(f"unknown mode {name[:64]!r}: the modes are {known}", field="modes")
        modes |= member
    return modes or Mode.EVENTS


_encoder = msgspec.json.Encoder()
_decoders: dict[str, msgspec.json.Decoder[Any]] = {n: msgspec.json.Decoder(c) for n, c in TYPES.items() if n != "event"}
_object_decoder = msgspec.json.Decoder(dict[str, Any])
_STORED: dict[type, tuple[str, int]] = {
    c: (n, len(b'{"type":"%b",' % n.encode())) for n, c in TYPES.items() if n != "event"
}
"""Class → type, and where its encoding goes on behind the tag, which is not stored."""
_ENVELOPE = ("ts", "component_id", "parent_run_id", "session_id", "truncated_bytes", "source_id")


def escape(data: bytes) -> bytes:
    """JSON → the same JSON without the three line separators that ``str.splitlines()`` knows beyond CR and LF."""
    if data.isascii():  # ten times as fast as looking for them
        return data
    if b"\xe2\x80" in data:
        data = data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    if b"\xc2\x85" in data:
        data = data.replace(b"\xc2\x85", b"\\u0085")
    return data


def scrub(value: Any) -> Any:
    """As it will be read back: lone surrogates, which no UTF-8 can carry, become U+FFFD; NaN and infinities null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {scrub(k): scrub(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(v) for v in value]
    return value


def _dump(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except Exception as error:
        return _dump_mended(value, error)


def _dump_mended(value: Any, error: Exception) -> bytes:
    if isinstance(error, UnicodeEncodeError):
        try:
            return _encoder.encode(scrub(msgspec.to_builtins(value)))
        except Exception as second:
            error = second
    if isinstance(error, (TypeError, ValueError, OverflowError, RecursionError)):
        raise InvalidItem(f"this item has a value that JSON cannot carry: {error}") from error
    raise error


def encode(item: Item | Raw, *, ts: float = 0.0) -> Encoded:
    """An item → its stored form. ``ts`` is used where the item was not stamped.

    Raises ``InvalidItem`` where a value has no JSON form.
    """
    stored = _STORED.get(type(item))
    if stored is None:
        return _encode_loose(item, ts)
    name, start = stored
    try:
        data = _encoder.encode(item)
    except Exception as error:
        data = _dump_mended(item, error)
    if item.ts:  # type: ignore[union-attr]  # only classes of items are in the table
        return Encoded(name, escape(b"{" + data[start:]))
    # Spliced into the bytes: a stamped copy of the item would cost more than its encoding.
    return Encoded(name, escape(b'{"ts":' + _encoder.encode(ts) + data[data.index(b",", start) :]))


def _encode_loose(item: Item | Raw, ts: float) -> Encoded:
    """The types without a fixed set of fields, and subclasses that somebody made of the others."""
    if isinstance(item, Raw):
        return Encoded(item.type, _encode_fields(item.fields, ts))
    if isinstance(item, Event):
        return Encoded("event", _encode_fields(_event_fields(item), ts))
    raise InvalidItem(f"{type(item).__name__} is no item class: use one of broker.items, or Raw")


def _event_fields(item: Event) -> dict[str, Any]:
    head = {name: v for name in _ENVELOPE if (v := getattr(item, name)) is not UNSET}
    return {**head, "name": item.name, **{k: v for k, v in item.payload.items() if k not in head and k != "name"}}


def _encode_fields(fields: Mapping[str, Any], ts: float) -> bytes:
    rest = {k: v for k, v in fields.items() if k not in ("ts", "component_id", "type", "run_id", "seq")}
    head = {"ts": fields.get("ts") or ts, "component_id": fields.get("component_id") or "agent"}
    return escape(_dump({**head, **rest}))


def decode(type_: str | bytes, data: bytes) -> StreamItem | Raw:
    """Stored form → item. Types that this version does not know come back as ``Raw``.

    Raises ``InvalidItem`` where a known type lacks a field or has one of the wrong type.
    """
    name = type_.decode(errors="replace") if isinstance(type_, bytes) else type_
    try:
        if name == "event":
            return _decode_event(_object_decoder.decode(data))
        if name not in _decoders:
            return Raw(name, _object_decoder.decode(data))
        # The tag is not stored, and a decoder of one tagged type accepts an object without it.
        item: StreamItem = _decoders[name].decode(data)
        return item
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidItem(f"not a valid {name} item: {error}") from error


def _decode_event(fields: dict[str, Any]) -> Event:
    name = fields.pop("name", None)
    if not isinstance(name, str):
        raise InvalidItem("not a valid event item: it needs a name, a string")
    head = {k: fields.pop(k) for k in _ENVELOPE if k in fields}
    return msgspec.convert({"type": "event", "name": name, "payload": fields, **head}, Event)


def from_fields(type_: str, fields: Mapping[str, Any]) -> Raw:
    """Type and fields as a caller gave them → an item to publish, its unknown fields kept.

    Raises ``InvalidItem`` where the type's name is not allowed or a known type's fields are wrong.
    """
    check_type(type_)
    raw = Raw(type_, dict(fields))
    data = encode(raw, ts=1.0).data
    decode(type_, data)
    if type_ not in TYPES:
        _check_envelope(type_, data)
    return raw


class _Envelope(msgspec.Struct):
    ts: float
    component_id: str
    parent_run_id: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    source_id: str | UnsetType | None = UNSET


_envelope_decoder = msgspec.json.Decoder(_Envelope)


def _check_envelope(type_: str, data: bytes) -> None:
    """An unknown type's fields are its own, but the envelope means the same in all items."""
    try:
        _envelope_decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidItem(f"not a valid {type_} item: {error}") from error


_NAME = frozenset("abcdefghijklmnopqrstuvwxyz_.")


def check_type(type_: str) -> None:
    """Raises ``InvalidItem`` where ``type_`` is no possible item type (``[a-z_.]{1,64}``, no control name)."""
    if not 1 <= len(type_) <= 64 or not _NAME.issuperset(type_):
        raise InvalidItem(f"{type_[:80]!r} is no item type: 1 to 64 of a-z, “_” and “.” are allowed", field="type")
    if type_ in CONTROL_EVENTS:
        raise InvalidItem(f"{type_!r} is a control frame of the wire, no item type", field="type")
