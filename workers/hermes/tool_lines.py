"""The lines that Hermes prints about its tools on a screen: ``┊``, a sign, and words. Pure.

Two lines a call: one when the model begins to write it, with the tool's name, and one when it has ended, with a verb,
what it was about, and how long it took. Neither has an id. 0.22.2 prints the first only once for several calls of one
name in one round; without its catalogs it prints it without a name. ``display.tool_progress`` leaves out the second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["UNKNOWN", "Began", "Ended", "Said", "ToolLine", "is_diff", "tool_line"]

UNKNOWN = "unknown"
"""Name of a call whose line tells none."""
_LINE = re.compile(r" {2}(?:┊|[╎│┆▏]) (?P<rest>\S.*)")
_LINE_MAX = 10_000
_BEGAN = re.compile(r"(?P<sign>\S+) +preparing (?P<name>.+?)…")
_BARE_BEGAN = "cli.stream.tool_preparing"
_ENDED = re.compile(r"(?P<body>.*\S) {2,}(?P<seconds>\d+\.\d)s(?P<error> \[.*\]|\S+)?")
_BODY = re.compile(r"(?P<sign>\S+) +(?P<verb>\S+)(?: +(?P<about>\S.*))?")
_SAID = "💬 "
_DIFF = "review diff"
_DIFF_LINE = re.compile(r"@@.*|[+-].*| (?! ?[┊╎│┆▏]).*|.+ → .+|… .*")
_VERBS = {
    "$": "terminal",
    "back": "browser_back",
    "click": "browser_click",
    "create": "image_generate",
    "cron": "cronjob",
    "delegate": "delegate_task",
    "exec": "execute_code",
    "fetch": "web_extract",
    "find": "search_files",
    "grep": "search_files",
    "images": "browser_get_images",
    "navigate": "browser_navigate",
    "plan": "todo",
    "press": "browser_press",
    "proc": "process",
    "read": "read_file",
    "recall": "session_search",
    "scroll": "browser_scroll",
    "search": "web_search",
    "send": "send_message",
    "skill": "skill_view",
    "skills": "skills_list",
    "snapshot": "browser_snapshot",
    "speak": "text_to_speech",
    "type": "browser_type",
    "write": "write_file",
}
"""Verb of the closing line → tool, where they differ."""


@dataclass(frozen=True, slots=True)
class Began:
    """``name`` is ``UNKNOWN`` where the line has none."""

    name: str


@dataclass(frozen=True, slots=True)
class Ended:
    """``name`` is made of the verb; it may be cut at nine characters. ``error`` is ``None`` where it went well."""

    name: str
    about: str
    duration_ms: float
    error: str | None


@dataclass(frozen=True, slots=True)
class Said:
    """Text of the model that did not stream. ``is_diff`` lines follow a ``Said`` of ``None``: a file was changed."""

    text: str | None


ToolLine: TypeAlias = Began | Ended | Said


def tool_line(line: str) -> ToolLine | str | None:
    """What the line says about a tool; a ``str`` for a line of that kind which is not known; ``None`` for others."""
    found = _LINE.fullmatch(line) if len(line) <= _LINE_MAX else None
    if found is None:
        return None
    rest = found.group("rest")
    if rest == _BARE_BEGAN:
        return Began(UNKNOWN)
    if began := _BEGAN.fullmatch(rest):
        return Began(began.group("name"))
    if rest == _DIFF:
        return Said(None)
    if rest.startswith(_SAID):
        return Said(rest.removeprefix(_SAID))
    ended = _ENDED.fullmatch(rest)
    return rest if ended is None else _ended(ended)


def _ended(found: re.Match[str]) -> Ended | str:
    body = _BODY.fullmatch(found.group("body"))
    if body is None:
        return found.group(0)
    verb = body.group("verb").removeprefix("display.cute.verb.")
    error = found.group("error")
    return Ended(
        name=_VERBS.get(verb, verb),
        about=_told(body.group("about") or ""),
        duration_ms=round(float(found.group("seconds")) * 1000.0),
        error=None if error is None else _told(error.strip().removeprefix("[").removesuffix("]")),
    )


def _told(text: str) -> str:
    """A bare key, of a build without its catalogs, tells nobody anything."""
    return "" if text.startswith("display.") else text


def is_diff(line: str) -> bool:
    """A line of the change that is shown after ``Said(None)``."""
    return _DIFF_LINE.fullmatch(line) is not None
