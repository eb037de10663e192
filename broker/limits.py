"""The size limit of a stored item: longer text is split, any other longer field is cut and the item marked.

Nothing is dropped in silence, and a run never ends because one of its items was long:

- A delta's text, and the fragment of a tool call's arguments, are split at code points into several deltas of the same
  block. Nothing is lost: their merge is the same.
- Everything else gets shorter, the longest parts first, until the item fits. The item keeps its type, its fields and
  their types, and says in ``truncated_bytes`` how many bytes of JSON it lost.

Pure: no clock, no IO.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from broker.items import TYPES, Encoded, Item, Raw, encode, escape

__all__ = ["Fit", "fit", "shortened"]


class Fit(NamedTuple):
    """``encoded``: the item, or the deltas that it became. ``split``: how many more than one they are."""

    encoded: list[Encoded]
    split: int = 0
    truncated_bytes: int = 0


_SPLIT = {
    "message.delta": "text",
    "reasoning.delta": "text",
    "refusal.delta": "text",
    "tool_call.delta": "arguments",
}
_ONLY_FIRST = frozenset({"name"})
_ONLY_LAST = frozenset({"signature", "redacted", "truncated_bytes", "source_id"})
_MARK = len(b',"truncated_bytes":') + 20
_DEEPEST = 32
"""Levels that are cut part by part. What lies deeper is replaced by its JSON text, cut."""
_LEAST = 16
"""Bytes that a part is left with at least, before whole parts at a container's end go."""
_LONG_NAME = 64
"""Names of fields are cut beyond that, where their object is cut. No field of ours has one."""

_decoder = msgspec.json.Decoder(dict[str, Any])


def fit(item: Item | Raw, limit: int, ts: float = 0.0) -> Fit:
    """An item → its stored form, ``limit`` bytes at most in each part (``limit`` is 512 or more).

    Raises ``InvalidItem`` where a value has no JSON form.
    """
    encoded = encode(item, ts=ts)
    if len(encoded.data) <= limit:
        return Fit([encoded])
    fields = _decoder.decode(encoded.data)
    split = _SPLIT.get(encoded.type)
    if split is not None and isinstance(fields.get(split), str):
        return _split(encoded.type, fields, split, limit)
    cut, lost = _cut_item(encoded, fields, limit)
    return Fit([cut], 0, lost)


def shortened(value: dict[str, Any], limit: int) -> dict[str, Any]:
    """An object in ``limit`` bytes of JSON, or nearly: its longest parts are cut first, and keep their types."""
    return value if _size(value) <= limit else _shrink_dict(value, limit, 0)


def _split(type_: str, fields: dict[str, Any], field: str, limit: int) -> Fit:
    text = fields[field]
    head = encode(Raw(type_, {**fields, field: ""}))
    lost = 0
    if len(head.data) > limit // 2:
        # What stands beside the text is too long itself.
        head, lost = _cut_item(head, _decoder.decode(head.data), limit // 2)
    fields = _decoder.decode(head.data)
    pieces = list(_pieces(text, limit - len(head.data)))
    encoded = [encode(Raw(type_, _part(fields, field, pieces, i))) for i in range(len(pieces))]
    return Fit(encoded, len(encoded) - 1, lost)


def _part(fields: dict[str, Any], field: str, pieces: list[str], at: int) -> dict[str, Any]:
    left_out = (_ONLY_FIRST if at else frozenset()) | (_ONLY_LAST if at < len(pieces) - 1 else frozenset())
    return {k: pieces[at] if k == field else v for k, v in fields.items() if k not in left_out}


def _pieces(text: str, room: int) -> Iterator[str]:
    """Slices of ``text``, each of ``room`` bytes of JSON at most."""
    at = 0
    while True:
        piece = _head(text[at : at + room], room)
        yield piece
        at += len(piece)
        if at >= len(text):
            return


def _head(text: str, room: int) -> str:
    """The longest beginning, or nearly, whose JSON takes ``room`` bytes at most; one code point at least."""
    text = text[:room] if room > 0 else text[:1]
    while len(text) > 1 and (size := _size(text) - 2) > room:
        text = text[: max(1, len(text) * room // size)]
    return text


def _cut_item(encoded: Encoded, fields: dict[str, Any], limit: int) -> tuple[Encoded, int]:
    known = [name for name in getattr(TYPES.get(encoded.type), "__struct_fields__", ()) if name in fields]
    # What the type needs comes first: whatever does not fit at all is dropped from the end.
    ordered = {name: fields[name] for name in (*known, *fields)}
    lost_before = ordered.pop("truncated_bytes", 0)
    kept = _shrink_dict(ordered, limit - _MARK, 0)
    lost = len(encoded.data) - len(encode(Raw(encoded.type, kept)).data)
    marked = {**kept, "truncated_bytes": lost + (lost_before if isinstance(lost_before, int) else 0)}
    return encode(Raw(encoded.type, marked)), lost


def _size(value: Any) -> int:
    return len(escape(msgspec.json.encode(value)))


def _shrink(value: Any, room: int, depth: int) -> Any:
    """``value``, of the same JSON type, in ``room`` bytes; numbers and the like stay as they are."""
    if isinstance(value, str):
        return _cut_text(value, room - 2)
    if not isinstance(value, (dict, list)) or _size(value) <= room:
        return value
    if depth >= _DEEPEST:
        return _cut_text(msgspec.json.encode(value).decode(), room - 2)
    return _shrink_dict(value, room, depth) if isinstance(value, dict) else _shrink_list(value, room, depth)


def _cut_text(text: str, room: int) -> str:
    return _head(text, room) if room >= _LEAST or _size(text) - 2 <= room else ""


def _shrink_list(value: list[Any], room: int, depth: int) -> list[Any]:
    sizes = [_size(part) + 1 for part in value]
    level = _level(sizes, room - 1)
    kept, used = [], 1
    for part, size in zip(value, sizes, strict=True):
        part = part if size <= level else _shrink(part, level - 1, depth + 1)
        used += _size(part) + 1
        if used > room:
            break
        kept.append(part)
    return kept


def _shrink_dict(value: dict[str, Any], room: int, depth: int) -> dict[str, Any]:
    sizes = {key: _size(key) + 2 + _size(part) for key, part in value.items()}
    level = _level(list(sizes.values()), room - 1)
    kept: dict[str, Any] = {}
    used = 1
    for key, part in value.items():
        name = key if len(key) <= _LONG_NAME else _cut_text(key, max(level // 2, _LONG_NAME))
        left = level - _size(name) - 2
        part = part if sizes[key] <= level else _shrink(part, left, depth + 1)
        size = _size(name) + 2 + _size(part)
        if used + size <= room:
            kept[name] = part
            used += size
    return kept


def _level(sizes: list[int], room: int) -> int:
    """The size to which all longer parts are cut, so that all parts together take ``room``."""
    for left, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
        share = room // left
        if size > share:
            return max(share, _LEAST)
        room -= size
    return max(sizes, default=_LEAST)
