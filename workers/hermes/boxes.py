"""The frames that Hermes draws on a screen, by line. Pure.

| frame | first line | last line | what is inside |
|---|---|---|---|
| answer | ``╭─ ⚕ Hermes ─…─╮`` | ``╰─…─╯`` | text as it streams, indented by four spaces (0.22.2: not at all) |
| reasoning | ``┌─ Reasoning ─…─┐`` | ``└─…─┘`` | reasoning, never indented |
| panel | `` ─  ⚕ Hermes  ─…─ `` | `` ─…─ `` | a text that did not stream, padded to the full width |

The last line is as wide as the first, which is as wide as the screen: a smaller box inside the model's text is text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "MARGIN",
    "UNINDENTED",
    "Frame",
    "duration_of",
    "frame_of",
    "is_closing",
    "is_rule",
    "panel_text",
    "resumed_of",
]

Kind = Literal["answer", "reasoning", "panel"]
MARGIN = "    "
UNINDENTED = "☤"
"""The sign in the answer's frame of those builds that do not indent it."""
_FIRST: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("answer", re.compile(r"╭─(.{1,80}?)─{2,}╮")),
    ("reasoning", re.compile(r"┌─(.{1,80}?)─{2,}┐")),
    ("panel", re.compile(r" ─ (.{1,80}?) ─{2,} ")),
)
_LAST: dict[Kind, re.Pattern[str]] = {
    "answer": re.compile(r"╰─+╯"),
    "reasoning": re.compile(r"└─+┘"),
    "panel": re.compile(r" ─+ "),
}
_WIDTH_MIN = 32
"""No frame of Hermes is narrower."""
_PANEL_MARGIN = 5
_RESUME = re.compile(r"  hermes --resume (\S+)")
_RESUMED = re.compile(r"(?:↻ |cli\.resume\.resumed_session ).*?\b(\d{8}_\d{6}_[0-9a-f]{6,})\b")
_DURATION = re.compile(r"Duration: +(?:(\d+)h )?(?:(\d+)m )?(\d+)s")


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    label: str
    width: int
    """Characters of its first line. The label may hold wide ones: then the last line has more."""

    def ends_with(self, line: str) -> bool:
        return 0 <= len(line) - self.width <= len(self.label) and _LAST[self.kind].fullmatch(line) is not None


def frame_of(line: str) -> Frame | None:
    """The frame whose first line this is."""
    if len(line) < _WIDTH_MIN:
        return None
    for kind, pattern in _FIRST:
        if found := pattern.fullmatch(line):
            return Frame(kind, found.group(1).strip(), len(line))
    return None


def is_rule(line: str) -> bool:
    """The line of forty dashes between the prompt and what comes of it."""
    return line == "─" * 40


def panel_text(lines: list[str], label: str) -> str:
    """The inside of a panel, without the padding on its four sides."""
    filled = [line.rstrip() for line in lines]
    wide = UNINDENTED not in label and all(line.startswith(" " * _PANEL_MARGIN) for line in filled if line)
    margin = _PANEL_MARGIN if wide else 1
    return "\n".join(line[margin:] for line in filled).strip("\n")


def resumed_of(line: str) -> str | None:
    """The session that this line names: the closing hint, or the notice that an earlier one goes on."""
    found = _RESUME.fullmatch(line) or _RESUMED.match(line)
    return found.group(1) if found else None


def is_closing(line: str) -> bool:
    """The hint of how to resume: what follows it is about the session, not from it."""
    return _RESUME.fullmatch(line) is not None


def duration_of(line: str) -> float | None:
    """Milliseconds, from the line of the closing summary that tells them."""
    if found := _DURATION.fullmatch(line):
        hours, minutes, seconds = (int(group or 0) for group in found.groups())
        return (hours * 3600 + minutes * 60 + seconds) * 1000.0
    return None
