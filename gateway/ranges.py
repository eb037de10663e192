"""Which bytes of a file a request wants (RFC 9110, 13 and 14). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Wanted", "wanted"]

_ONE = re.compile(r"bytes=\s*(\d{0,19})\s*-\s*(\d{0,19})\s*\Z", re.IGNORECASE | re.ASCII)


class Wanted(NamedTuple):
    """``status`` 200: all of it; 206: from ``start`` up to, not including, ``end``; 304: the client has it; 416: that
    range lies outside."""

    status: int
    start: int
    end: int


def wanted(headers: Mapping[str, str], size: int, etag: str) -> Wanted:
    """``headers`` by lower-case name. Several ranges at once, and what is no range, are answered with the whole file,
    as is a range of a file that is another one by now (``If-Range``)."""
    if _names(headers.get("if-none-match", ""), etag):
        return Wanted(304, 0, 0)
    asked = _ONE.match(headers.get("range", ""))
    same = headers.get("if-range", etag).strip() == etag
    if asked is None or not same or not any(asked.groups()):
        return Wanted(200, 0, size)
    first, last = asked.groups()
    if first and last and int(last) < int(first):
        return Wanted(200, 0, size)  # no range at all
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    return Wanted(206, start, end) if start < end else Wanted(416, 0, 0)


def _names(listed: str, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in listed.split(",")]
    return etag in tags or tags == ["*"]
