"""Server-sent events as bytes: an encoder, and an incremental decoder.

Source: the HTML standard, “Server-sent events”. The decoder follows it to the letter and gives the same events for
every way in which the bytes are split. Lines end at CR, LF or CRLF and nowhere else: U+2028, U+2029 and U+0085 are
text. What the stream ends without (a line without its end, a block without its blank line) is no event. A reader of
strangers' streams gives it a ``limit``, beyond which an event's data is cut and marked, never held.

Pure: no clock, no IO.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

__all__ = ["HEARTBEAT", "Decoder", "Event", "comment", "frame", "retry"]

HEARTBEAT = b": hb\n"
"""Between frames. One newline: behind a blank line, some clients dispatch an empty event."""

_EOL = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


def frame(event: str, data: bytes, id: str | None = None) -> bytes:
    """One whole frame. Data of several lines becomes several ``data`` lines, which arrive joined by LF.

    Raises ``ValueError`` where the event's name or the id has CR, LF or NUL: they would break out of their line, or
    be ignored by the reader.
    """
    head = f"id: {id}\nevent: {event}\n" if id is not None else f"event: {event}\n"
    if head.count("\n") != (1 if id is None else 2) or "\r" in head or "\0" in head:
        raise ValueError("an event's name and id are one line, without CR, LF or NUL")
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(_EOL.split(data))
    return b"%bdata: %b\n\n" % (head.encode(), data)


def comment(text: str) -> bytes:
    """A line that every reader ignores, and a blank one."""
    return b"".join(b": %b\n" % line for line in _EOL.split(text.encode())) + b"\n"


def retry(milliseconds: int) -> bytes:
    """How long a client waits before it reconnects."""
    return b"retry: %d\n\n" % milliseconds


class Event(NamedTuple):
    """``id`` is the last event id when this was dispatched, its own or an earlier one's. ``retry``: in this block.

    ``cut``: the block was longer than the decoder's limit, so some of ``data`` is missing.
    """

    event: str
    data: str
    id: str
    retry: int | None
    cut: bool = False


class Decoder:
    """Bytes as they arrive → events. One per response; ``last_event_id`` is what a reconnect sends.

    ``limit`` bounds, in bytes, a line and in characters, an event's data; none by default.
    """

    def __init__(self, last_event_id: str = "", limit: int = sys.maxsize - 1) -> None:
        self.last_event_id = last_event_id
        self._limit = limit
        self.retry: int | None = None
        """Milliseconds, as the server last said."""
        self._unfinished: list[bytes] = []
        self._held = 0
        self._after_cr = False
        self._at_start = True
        self._id = last_event_id
        self._clear()

    def _clear(self) -> None:
        self._event = ""
        self._data: list[str] = []
        self._room = self._limit
        self._cut = False
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that ``chunk`` completed, in order. Raises nothing, whatever the bytes."""
        if self._after_cr and chunk:
            # CR ended the line at once; an LF behind it belongs to it, even in another chunk.
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return []
        if b"\r" in chunk:
            lines = _EOL.split(chunk)
            self._after_cr = chunk.endswith(b"\r")
        else:
            lines = chunk.split(b"\n")  # ten times as fast as the pattern
        if self._unfinished or len(lines) == 1:
            self._hold(lines[0])
            if len(lines) == 1:
                return []
            lines[0] = b"".join(self._unfinished)
            self._unfinished, self._held = [], 0
        self._hold(lines.pop())
        return [event for line in lines if (event := self._line(line)) is not None]

    def _hold(self, part: bytes) -> None:
        if part:
            part = part[: self._limit + 1 - self._held]  # the one too many shows that the line was too long
            self._unfinished.append(part)
            self._held += len(part)

    def _line(self, line: bytes) -> Event | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        if len(line) > self._limit:
            self._overlong(line)
            return None
        # A line is decoded as a whole, so a character may lie across chunks.
        if line.startswith(b"data: "):  # nearly all are
            self._add_data(line[6:].decode("utf-8", "replace"))
            return None
        name, _, value = line.decode("utf-8", "replace").partition(":")
        self._field(name, value.removeprefix(" "))
        return None

    def _overlong(self, line: bytes) -> None:
        name, _, value = line[: self._limit].decode("utf-8", "replace").partition(":")
        self._cut = self._cut or name in ("data", "event", "id")
        self._field(name, value.removeprefix(" "))

    def _field(self, name: str, value: str) -> None:
        if name == "data":
            self._add_data(value)
        elif name == "event":
            self._event = value
        elif name == "id":
            if "\0" not in value:
                self._id = value
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) < 16:
            self.retry = self._retry = int(value)

    def _add_data(self, value: str) -> None:
        if len(value) > self._room:
            self._cut = True
            if self._room <= 0:
                return
            value = value[: self._room]
        self._data.append(value)
        self._room -= len(value) + 1  # a line costs something even where it is empty

    def _dispatch(self) -> Event | None:
        self.last_event_id = self._id
        if not self._data:
            self._clear()
            return None
        event = Event(self._event or "message", "\n".join(self._data), self._id, self._retry, self._cut)
        self._clear()
        return event
