"""How a run's items look: in a terminal, as plain text, as JSON lines. Pure but for the writing.

A renderer is fed the items of one run in order, then told the end. Control entries (``reset``, ``gap``) are fed too.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from ops.asks import TITLES, answered_line, shown, what_is_allowed
from ops.notices import notice_text
from ops.terminal import Terminal, printable

__all__ = ["JsonLines", "PlainText", "Renderer", "Shown", "Watched", "message_text", "seconds", "tokens"]

PREVIEW = 100
_CONTROL = frozenset({"reset", "gap"})


class Shown(Protocol):
    """What a renderer needs of an entry: an item with its position, or a control entry without one."""

    @property
    def seq(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def fields(self) -> dict[str, Any]: ...


class Renderer(Protocol):
    def feed(self, entry: Shown) -> None: ...
    def close(self, status: str | None) -> None:
        """``status`` of the ended run; ``None`` where the command leaves before the end."""
        ...


def message_text(message: Any) -> str:
    """The text of a merged message: its text blocks, joined."""
    if not isinstance(message, dict):
        return ""
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(str(b.get("text", "")) for b in blocks if isinstance(b, dict) and b.get("type") == "text")


def seconds(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def tokens(usage: Any) -> str:
    """``1,100 tokens in (100 cached), 34 out``, or nothing where no count is known."""
    if not isinstance(usage, dict):
        return ""
    counts = usage["total"] if isinstance(usage.get("total"), dict) and usage["total"] else usage
    taken, given, cached = (counts.get(k) for k in ("input_tokens", "output_tokens", "cache_read_tokens"))
    if taken is None and given is None:
        return ""
    note = f" ({cached:,} cached)" if isinstance(cached, int) and cached else ""
    return f"{taken or 0:,} tokens in{note}, {given or 0:,} out"


def _short(value: Any) -> str:
    """Arguments or a result on one line."""
    if value is None or value == {}:
        return ""
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value.values()))
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    line = " ".join(printable(text).split())
    return line if len(line) <= PREVIEW else line[: PREVIEW - 1] + "…"


class JsonLines:
    """One item a line: what a stream's ``data:`` holds, with the item's type."""

    def __init__(self, terminal: Terminal, run_id: str) -> None:
        self._terminal, self._run_id = terminal, run_id

    def feed(self, entry: Shown) -> None:
        head: dict[str, Any] = {"run_id": self._run_id, "seq": entry.seq, "type": entry.type}
        if entry.type in _CONTROL:
            del head["seq"]
        self._terminal.json({**head, **{k: v for k, v in entry.fields.items() if k not in head}})

    def close(self, status: str | None) -> None:
        return


class PlainText:
    """The answer and nothing else, as it comes. What is not the answer and must be known goes to stderr."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._wrote = ""

    def feed(self, entry: Shown) -> None:
        fields = entry.fields
        match entry.type:
            case "message.delta":
                self._text(fields.get("text", ""))
            case "final" if not self._wrote:  # the agent sent no deltas
                self._text(message_text(fields.get("message")))
            case "failed" | "cancelled":
                self._break()
                why = [entry.type, str(fields.get("code")), printable(str(fields.get("message", "")))]
                self._terminal.warn(": ".join(dict.fromkeys(why)))
            case "gap":
                self._terminal.warn(gap_notice(fields))
            case "reset":
                self._again(reset_notice(fields))
            case "event" if fields.get("name") == "run.restarted":
                self._again("the run was started again, what came before is void")

    def close(self, status: str | None) -> None:
        self._break()

    def _text(self, text: str) -> None:
        if text:
            self._terminal.write(text)
            self._wrote = text

    def _break(self) -> None:
        if self._wrote and not self._wrote.endswith("\n"):
            self._terminal.line()
            self._wrote = "\n"

    def _again(self, why: str) -> None:
        self._break()
        self._wrote = ""
        self._terminal.warn(why)


_RESETS = {
    "malformed": "the position is no cursor",
    "foreign": "the position is one of another run",
    "ahead": "the run has no such item yet",
    "rewound": "the store lost items that were shown",
}


def reset_notice(fields: dict[str, Any]) -> str:
    reason = str(fields.get("reason"))
    return f"{_RESETS.get(reason, reason)}: from the start again"


def gap_notice(fields: dict[str, Any]) -> str:
    first, last = int(fields.get("requested", 0)) + 1, int(fields.get("earliest", 1)) - 1
    return f"items {first} to {last} are gone: retention removed them"


class Watched:
    """For a person: text as it comes, tools as they start and end, usage and how it ended."""

    def __init__(self, terminal: Terminal, *, answer: bool = True) -> None:
        """``answer=False``: the viewer's modes hide the text, so that of the fence is not shown either."""
        self._terminal = terminal
        self._column = 0
        self._style = ""
        self._fresh = True
        self._wrote = not answer
        self._first_ts = 0.0
        self._usage: Any = None
        self._cost: Any = None

    def feed(self, entry: Shown) -> None:
        fields = entry.fields
        ts = fields.get("ts")
        if entry.seq == 1 and isinstance(ts, (int, float)):
            self._first_ts = float(ts)
        draw = getattr(self, "_on_" + entry.type.replace(".", "_"), None)
        if draw is not None:
            draw(fields)

    def close(self, status: str | None) -> None:
        self._break()

    # Text.

    def _on_message_delta(self, fields: dict[str, Any]) -> None:
        self._text(str(fields.get("text", "")), "")
        self._wrote = True

    def _on_reasoning_delta(self, fields: dict[str, Any]) -> None:
        self._text(str(fields.get("text", "")), "dim italic")

    def _on_refusal_delta(self, fields: dict[str, Any]) -> None:
        self._text(str(fields.get("text", "")), "yellow")

    def _text(self, text: str, style: str) -> None:
        text = printable(text)
        if not text:
            return
        if style != self._style:
            self._break()
            self._style, self._fresh = style, True
        if self._fresh:  # agents begin what follows a tool with blank lines
            text = text.lstrip("\n")
            if not text:
                return
        self._fresh = False
        self._terminal.out.print(text, style=style or None, end="")
        self._terminal.out.file.flush()
        self._column = 0 if text.endswith("\n") else 1

    def _break(self) -> None:
        if self._column:
            self._terminal.line()
        self._column = 0

    def _line(self, text: str, style: str) -> None:
        self._break()
        self._style, self._fresh = "", True
        self._terminal.styled(text, style)

    # Tools.

    def _on_tool_started(self, fields: dict[str, Any]) -> None:
        what = _short(fields.get("preview") or fields.get("args"))
        self._line(f"▶ {printable(str(fields.get('name')))}  {what}".rstrip(), "cyan")

    def _on_tool_completed(self, fields: dict[str, Any]) -> None:
        self._line(
            f"✓ {printable(str(fields.get('name')))}{_took(fields)}  {_short(fields.get('result'))}".rstrip(), "green"
        )

    def _on_tool_failed(self, fields: dict[str, Any]) -> None:
        self._line(
            f"✗ {printable(str(fields.get('name')))}{_took(fields)}  {_short(fields.get('error'))}".rstrip(), "red"
        )

    # What else a person wants to know.

    def _on_usage(self, fields: dict[str, Any]) -> None:
        self._usage = fields

    def _on_cost(self, fields: dict[str, Any]) -> None:
        self._cost = fields

    def _on_summary(self, fields: dict[str, Any]) -> None:
        self._line(f"the agent compressed its context: {_short(fields.get('text'))}", "dim")

    def _on_event(self, fields: dict[str, Any]) -> None:
        name = fields.get("name")
        if name == "run.restarted":
            self._line(f"── attempt {fields.get('attempt')}: what came before is void ──", "yellow")
            self._wrote = False
        elif name in TITLES:
            self._asked(TITLES[name], fields)
        elif name == "input.answered":
            self._line(f"? {answered_line(fields)}", "magenta")
        elif name in ("warning", "retry", "fallback", "limit", "log.rewound"):
            self._line(f"{name}: {notice_text(fields)}", "yellow")

    def _asked(self, title: str, fields: dict[str, Any]) -> None:
        first, *rest = shown(fields) or [""]
        self._line(f"? {title}: {first}", "bold magenta")
        answers = what_is_allowed(fields.get("choices") or (), bool(fields.get("free")))
        for line in (*rest, f"answers: {answers}"):
            self._line(f"  {line}", "magenta")

    def _on_reset(self, fields: dict[str, Any]) -> None:
        self._line(f"── {reset_notice(fields)} ──", "yellow")
        self._wrote = False

    def _on_gap(self, fields: dict[str, Any]) -> None:
        self._line(f"── {gap_notice(fields)} ──", "yellow")

    # How it ended.

    def _on_final(self, fields: dict[str, Any]) -> None:
        if not self._wrote:
            self._text(message_text(fields.get("message")), "")
        self._ended("completed", fields, "bold green")

    def _on_failed(self, fields: dict[str, Any]) -> None:
        self._ended(f"failed: {fields.get('code')}: {printable(str(fields.get('message', '')))}", fields, "bold red")

    def _on_cancelled(self, fields: dict[str, Any]) -> None:
        self._ended("cancelled", fields, "bold yellow")

    def _ended(self, how: str, fields: dict[str, Any], style: str) -> None:
        facts = [how]
        if self._first_ts and isinstance(fields.get("ts"), (int, float)):
            facts.append(seconds(max(fields["ts"] - self._first_ts, 0.0)))
        facts.append(tokens(fields.get("usage") or self._usage))
        cost = fields.get("cost") or self._cost
        if isinstance(cost, dict) and cost.get("total"):
            facts.append(f"{'about ' if cost.get('estimated') else ''}{cost['total']} {cost.get('currency', 'USD')}")
        self._line(" · ".join(f for f in facts if f), style)


def _took(fields: dict[str, Any]) -> str:
    duration = fields.get("duration_ms")
    return f" ({seconds(duration / 1000)})" if isinstance(duration, (int, float)) else ""
