"""The screen of ``hermes chat`` → items, line by line. Pure. Everything but the echo of the prompt (see ``text``).

An answer frame holds the text of one round, a reasoning frame what was thought before it. A frame that opens when its
round has text or tools already begins the next round. Hermes takes the ``\\n\\n`` by which it joins rounds off what it
shows; it is put back, so that all deltas together are the same text as in the other modes.

What is no frame, no tool line and no part of the closing summary is a notice: an event, never text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.items import Event, Item, MessageDelta, ReasoningDelta, Summary
from workers.hermes.boxes import (
    MARGIN,
    UNINDENTED,
    Frame,
    duration_of,
    frame_of,
    is_closing,
    is_rule,
    panel_text,
    resumed_of,
)
from workers.hermes.notices import MESSAGE_MAX, code_of, item_of, split_no_reply, warning
from workers.hermes.screen_tools import ScreenTools
from workers.hermes.tool_lines import Began, Ended, Said, is_diff, tool_line

__all__ = ["Screen"]

_KEPT_MAX = 8_000
_NOTICE_LINES = 40
_DIFF_LINES = 400
_WORDS = 2_000
_PANEL_MAX = 16 << 20
_WRAPPED = (
    "lines fill the width at which Hermes breaks them, so its line breaks cannot be told from the model's:"
    " the text is as it was printed"
)


@dataclass(slots=True)
class Words:
    """What was said in a round, as far as it takes to see that a panel says it again."""

    first: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, text: str) -> None:
        words = text.split()
        self.count += len(words)
        self.first += words[: _WORDS - len(self.first)]

    def are(self, text: str) -> bool:
        words = text.split()
        return len(words) == self.count and words[:_WORDS] == self.first


@dataclass(slots=True)
class Screen:
    """``line`` for every line of the screen, without its end; ``close`` when there are no more."""

    session_id: str | None = None
    duration_ms: float | None = None
    round: int = 1
    answered: bool = False
    no_reply: str = ""
    limited: bool = False
    error: str = ""
    guidance: str = ""
    done: bool = False
    """The closing summary has begun."""
    _tools: ScreenTools = field(default_factory=ScreenTools)
    _frame: Frame | None = None
    _margin: str | None = None
    """What an answer's lines are indented by; ``None`` until one tells."""
    _previous: str | None = None
    """The line before, in the same frame."""
    _spoken: Words = field(default_factory=Words)
    _used: bool = False
    """The round has text or tools."""
    _begun: bool = False
    """There is text of any round."""
    _panel: tuple[Frame, list[str]] | None = None
    _panel_size: int = 0
    _notice: list[str] = field(default_factory=list)
    _failing: bool = False
    """Hermes gave up on the model: what it shows next are its own words."""
    _diff: list[str] | None = None
    _wrapped: bool = False

    def line(self, line: str) -> list[Item]:
        if self._frame is None:
            return self._outside(line)
        if self._frame.ends_with(line):
            self._frame = None
            return []
        if self._frame.kind == "answer":
            return self._in_answer(line, self._frame)
        if self._frame.kind == "reasoning":
            return self._in_reasoning(line)
        return self._in_panel(line)

    def close(self, *, succeeded: bool = True) -> list[Item]:
        items = self._end_notice() + self._end_diff() + self._end_panel(succeeded)
        return items if self.done else items + self._tools.close("Hermes ended before this call did")

    # Inside a frame.

    def _in_answer(self, line: str, frame: Frame) -> list[Item]:
        if self._margin is None:
            self._margin = _guess_margin(line, frame)
        if self._margin is None or not line.startswith(self._margin):
            # 0.19.0 lets notices and tool lines through while a frame is open.
            return self._outside(line)
        text = line.removeprefix(self._margin)
        items = self._end_notice()
        if self._is_full(text, frame):
            self._wrapped = True
            items.append(warning("wrapped_text", _WRAPPED))
        first = self._previous is None
        self._previous = text
        return [*items, self._say(text, self._joint if first else "\n")]

    @property
    def _joint(self) -> str:
        return "\n\n" if self._begun else ""

    def _say(self, text: str, joint: str) -> Item:
        self._used = self._begun = True
        self._failing = False
        self.answered = self.answered or bool(text.strip())
        self._spoken.add(text)
        return MessageDelta(text=joint + text, round=self.round)

    def _is_full(self, following: str, frame: Frame) -> bool:
        """Whether this line's first word had no room in the line before: then the screen may have parted them."""
        if self._wrapped or self._previous is None or not self._margin:
            return False
        word = (following.split(maxsplit=1) or [""])[0]
        return len(self._previous) + 1 + len(word) >= max(40, frame.width - len(MARGIN) - 2)

    def _in_reasoning(self, line: str) -> list[Item]:
        frame = frame_of(line)
        if frame is not None and frame.kind == "answer":  # it was left open
            return self._begin_frame(frame)
        joint = "" if self._previous is None else "\n"
        self._previous = line
        return [ReasoningDelta(text=joint + line, round=self.round)]

    def _in_panel(self, line: str) -> list[Item]:
        text = line.rstrip()
        before, self._panel_size = self._panel_size, self._panel_size + len(text) + 1
        if self._panel_size <= _PANEL_MAX and self._panel is not None:
            self._panel[1].append(text)
        elif before <= _PANEL_MAX:
            return [warning("output_too_long", f"the answer is left out from character {before:,} on")]
        return []

    # Frames.

    def _begin_frame(self, frame: Frame) -> list[Item]:
        items = self._end_notice() + self._end_diff() + self._end_panel(True)
        self._frame, self._previous = frame, None
        if frame.kind == "panel":
            self._panel, self._panel_size = (frame, []), 0
        elif self._used:
            self._next_round()
        return items

    def _next_round(self) -> None:
        self.round += 1
        self._used = False
        self._spoken = Words()
        self._tools.next_round()

    def _end_panel(self, succeeded: bool) -> list[Item]:
        """A panel is an answer that did not stream, or Hermes' own words about a failure."""
        if self._panel is None:
            return []
        (frame, lines), self._panel = self._panel, None
        text, self.no_reply = split_no_reply(panel_text(lines, frame.label))
        failed = self._failing or not (succeeded or self.limited)
        if failed and not self.no_reply:
            self.error = text
        if failed or not text.strip():
            return []
        if self._spoken.are(text):  # the answer came with the last tools, and stands
            self.answered = True
            return []
        if self._used:
            self._next_round()
        return [self._say(text, self._joint)]

    # Outside of them.

    def _outside(self, line: str) -> list[Item]:
        if self._diff is not None and line and is_diff(line):
            if len(self._diff) < _DIFF_LINES:
                self._diff.append(line)
            return []
        items = self._end_diff()
        if (frame := frame_of(line)) is not None:
            return items + self._begin_frame(frame)
        if (session := resumed_of(line)) is not None:
            return items + self._resume(session, closing=is_closing(line))
        if self.done:
            self.duration_ms = duration_of(line) or self.duration_ms
            return items
        tool = tool_line(line)
        if tool is not None and not isinstance(tool, str):
            return items + self._end_notice() + self._tool(tool)
        return items if is_rule(line) else items + self._notice_line(line)

    def _tool(self, line: Began | Ended | Said) -> list[Item]:
        if isinstance(line, Said):
            if line.text is None:
                self._diff = []
                return []
            if self._used:
                self._next_round()
            return [self._say(line.text, self._joint)]
        self._used, self.answered, self.limited = True, False, False
        return self._tools.began(line) if isinstance(line, Began) else self._tools.ended(line)

    def _end_diff(self) -> list[Item]:
        lines, self._diff = self._diff, None
        return [Event(name="hermes.diff", payload={"diff": "\n".join(lines)[:MESSAGE_MAX]})] if lines else []

    def _resume(self, session: str, *, closing: bool) -> list[Item]:
        if closing:
            self.done = True
            # The line before only says what this one is.
            self._notice.clear()
        items = self._end_notice()
        if session == self.session_id:
            return items
        payload = {"hermes_session_id": session}
        if self.session_id is not None:
            payload["rotated_from"] = self.session_id
        self.session_id = session
        return [*items, Event(name="hermes.session", payload=payload)]

    # Notices: one line, and the indented ones under it.

    def _notice_line(self, line: str) -> list[Item]:
        if line.startswith("   ") and self._notice:
            if len(self._notice) < _NOTICE_LINES:
                self._notice.append(line)
            return []
        items = self._end_notice()
        if not line.strip():
            return items
        self._notice.append(line)
        code = code_of(line)
        self.limited = self.limited or code == "turn_limit"
        self.answered = self.answered or (code == "earlier_answer" and self._begun)
        self._failing = self._failing or line.startswith("❌")
        # Of those that are known, only an error has lines under it: the others need not wait for the next line.
        return items if code in (None, "model_error") else items + self._end_notice()

    def _end_notice(self) -> list[Item]:
        notice = "\n".join(self._notice)
        self._notice.clear()
        if not notice:
            return []
        self.guidance = f"{self.guidance}\n{notice}".strip()[-_KEPT_MAX:]
        # Nothing more than that it happened is shown of a compression.
        return [Summary(text=notice) if code_of(notice) == "context_compressed" else item_of(notice)]


def _guess_margin(line: str, frame: Frame) -> str | None:
    """By the frame's sign, else by its first line; ``None`` where that is none of the answer's."""
    if UNINDENTED in frame.label:
        return ""
    if line.startswith(MARGIN):
        return MARGIN
    is_other = not line.strip() or code_of(line) is not None or tool_line(line) is not None
    return None if is_other else ""
