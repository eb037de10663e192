"""Runs as lines of JSON: ``{"type", "ts"?, "component_id"?, "data": {…}}``, one item a line. Pure.

What ``runcast export`` writes and ``runcast import`` reads. ``data`` holds the item's other fields as they are stored,
those of newer versions too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from broker.errors import InvalidItem
from broker.items import Entry, Raw, from_fields

__all__ = ["LINE_MAX_BYTES", "Splitter", "item_of_line", "line_of_item"]

LINE_MAX_BYTES = 64 << 20
_FIELDS = frozenset({"type", "ts", "component_id", "data"})
_ENVELOPE = ("ts", "component_id")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def line_of_item(entry: Entry) -> bytes:
    """A stored item → its line, with the newline."""
    fields = _decode(entry.data)
    head = {name: fields.pop(name) for name in _ENVELOPE if name in fields}
    return bytes(_encode({"type": entry.type.decode(), **head, "data": fields})) + b"\n"


def item_of_line(line: bytes) -> Raw:
    """A line → the item to publish. Raises ``InvalidItem``, saying what is wrong with it."""
    try:
        value = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidItem(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidItem('an object is needed: {"type": …, "data": {…}}')
    return from_fields(_type(value), {**_data(value), **{k: value[k] for k in _ENVELOPE if value.get(k) is not None}})


def _type(value: dict[str, Any]) -> str:
    unknown = sorted(set(value) - _FIELDS)
    if unknown:
        raise InvalidItem(f"unknown field {unknown[0][:64]!r}: an item's own fields belong into data")
    if not isinstance(value.get("type"), str):
        raise InvalidItem("type is needed, a string")
    return str(value["type"])


def _data(value: dict[str, Any]) -> dict[str, Any]:
    data = value.get("data", {})
    if not isinstance(data, dict):
        raise InvalidItem("data must be an object")
    ts, component = value.get("ts"), value.get("component_id")
    if ts is not None and (isinstance(ts, bool) or not isinstance(ts, (int, float)) or ts < 0):
        raise InvalidItem("ts must be a number of seconds")
    if component is not None and not isinstance(component, str):
        raise InvalidItem("component_id must be a string")
    return data


class Splitter:
    """Bytes as they come → whole lines, without their newline, or CR LF. Bounded by ``limit`` bytes a line."""

    def __init__(self, limit: int = LINE_MAX_BYTES) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises ``InvalidItem`` for a line that is too long."""
        first, *rest = data.split(b"\n")
        self._hold(first)
        for part in rest:
            yield self._take()
            self._hold(part)

    def end(self) -> bytes | None:
        """The last line where it had no newline."""
        return self._take() if self._size else None

    def _hold(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._limit:
            raise InvalidItem(f"a line may have {self._limit} bytes at most")

    def _take(self) -> bytes:
        line = b"".join(self._parts).removesuffix(b"\r")
        self._parts, self._size = [], 0
        return line
