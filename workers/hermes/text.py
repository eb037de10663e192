"""Standard output of ``hermes chat`` as it is meant for people → items. Pure: bytes in, items out.

It begins with an echo of the prompt, which may hold anything, frames and tool lines too. The echo's lines end with LF;
the first line that ends with CR LF is Hermes' own, and the screen proper (``screen``) begins behind it.

A command that prints no screen is read as ``output`` reads it: records of stream-json or of the seed dialect where
the first line is one (``HERMES_STREAM_ARGS`` may make Hermes stream them), else plain text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.items import Item
from workers.hermes.boxes import frame_of
from workers.hermes.lines import LineSplitter, TooLong
from workers.hermes.notices import code_of, left_out
from workers.hermes.output import OutputParser, is_record
from workers.hermes.screen import Screen
from workers.hermes.seen import HermesResult

__all__ = ["TextParser"]

_ECHO_MAX = 1 << 20
"""Bytes without a CR LF after which it is no screen. A prompt has at most an eighth of them."""
_READY = "Initializing agent..."


@dataclass(slots=True)
class TextParser:
    """One run's output. ``feed`` what was read, ``close`` at its end; the attributes say what was seen so far."""

    line_max: int = 16 << 20
    _splitter: LineSplitter = field(init=False)
    _echo: list[bytes] = field(default_factory=list)
    _echo_size: int = 0
    _screen: Screen | None = None
    _other: OutputParser | None = None

    def __post_init__(self) -> None:
        self._splitter = LineSplitter(self.line_max, keep_cr=True)

    def feed(self, chunk: bytes) -> list[Item]:
        return [item for line in self._splitter.feed(chunk) for item in self._line(line, b"\n")]

    def close(self, *, succeeded: bool = True) -> list[Item]:
        items = [item for line in self._splitter.close() for item in self._line(line, b"")]
        if self._screen is None and self._other is None:
            items += self._without_cr()
        if self._screen is not None:
            return items + self._screen.close(succeeded=succeeded)
        return items + (self._other.close(succeeded=succeeded) if self._other is not None else [])

    def heard(self, stderr: str) -> list[Item]:
        """Standard error has nothing for us."""
        return []

    def _line(self, line: bytes | TooLong, end: bytes) -> list[Item]:
        if isinstance(line, TooLong):
            return [left_out(line.size, self.line_max)]
        if self._other is not None:
            return self._other.feed(line + end)
        if self._screen is not None:
            return self._screen.line(_decoded(line))
        if line.endswith(b"\r"):
            return self._begin_screen(line)
        if is_record(line) and not any(echo.strip() for echo in self._echo):
            return self._begin_other(line + end)
        self._echo.append(line + end)
        self._echo_size += len(line) + 1
        return self._begin_other(b"") if self._echo_size > _ECHO_MAX else []

    def _begin_screen(self, line: bytes) -> list[Item]:
        self._echo.clear()
        self._screen = Screen()
        text = _decoded(line)
        # It says that the agent is being made, in whatever words: unless it is something else that is known.
        known = code_of(text) is not None or frame_of(text) is not None
        return self._screen.line(text) if known else []

    def _begin_other(self, line: bytes) -> list[Item]:
        self._other = OutputParser(self.line_max)
        held = b"".join(self._echo)
        self._echo.clear()
        return self._other.feed(held + line)

    def _without_cr(self) -> list[Item]:
        """All lines ended with LF alone: a screen nevertheless, if there is a frame on it."""
        lines = [_decoded(line.removesuffix(b"\n")) for line in self._echo]
        if not any((frame := frame_of(line)) is not None and frame.kind == "answer" for line in lines):
            return self._begin_other(b"")
        start = max((place + 1 for place, line in enumerate(lines) if line == _READY), default=0)
        self._echo.clear()
        self._screen = Screen()
        return [item for line in lines[start:] for item in self._screen.line(line)]

    # What was seen.

    @property
    def _seen(self) -> Screen | OutputParser | None:
        return self._screen or self._other

    @property
    def session_id(self) -> str | None:
        return None if self._seen is None else self._seen.session_id

    @property
    def model(self) -> str | None:
        return None if self._other is None else self._other.model

    @property
    def duration_ms(self) -> float | None:
        return None if self._seen is None else self._seen.duration_ms

    @property
    def answered(self) -> bool:
        return self._seen is not None and self._seen.answered

    @property
    def structured(self) -> bool:
        return self._other is not None and self._other.structured

    @property
    def result(self) -> HermesResult | None:
        return None if self._other is None else self._other.result

    @property
    def no_reply(self) -> str:
        return "" if self._seen is None else self._seen.no_reply

    @property
    def limited(self) -> bool:
        return self._seen is not None and self._seen.limited

    @property
    def error(self) -> str:
        return "" if self._seen is None else self._seen.error

    @property
    def closed(self) -> bool:
        return self._screen is not None and self._screen.done

    @property
    def guidance(self) -> str:
        return "" if self._seen is None else self._seen.guidance


def _decoded(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
