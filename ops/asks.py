"""How approvals and questions look in a terminal, and what a typed line means as an answer. Pure.

Takes what an ask has in common wherever it comes from: an item's fields, or the record's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker.asks import APPROVE, REJECT
from broker.records import OpenAsk
from ops.terminal import printable

__all__ = ["TITLES", "answered_line", "fields_of", "meaning", "numbered", "shown", "what_is_allowed"]

TITLES = {"approval.requested": "approval", "question.asked": "question"}
_LONG = 2_000
_OURS = frozenset(
    {"ts", "component_id", "parent_run_id", "session_id", "name", "request_id", "choices", "free", "timeout_s"}
    | {"expires_at", "truncated_bytes"}
)
_YES, _NO = frozenset({"y", "yes", "approve"}), frozenset({"n", "no", "reject"})


def fields_of(ask: OpenAsk) -> dict[str, Any]:
    """An ask of the record, as its item has it."""
    return {**ask.payload, "choices": list(ask.choices), "free": ask.free}


def shown(fields: Mapping[str, Any]) -> list[str]:
    """What is asked, line by line: the command or the question first, then whatever else a person should see."""
    payload = {name: value for name, value in fields.items() if name not in _OURS and value not in (None, "")}
    first = [payload.pop(name) for name in ("command", "question") if name in payload]
    lines = [*first, payload.pop("description", None), *(f"{name}: {value}" for name, value in payload.items())]
    text = [_cut(printable(str(line))) for line in lines if line is not None]
    if fields.get("truncated_bytes"):
        text.append(f"({fields['truncated_bytes']} bytes more are not shown)")
    return [part for line in text for part in line.splitlines()]


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]}… ({len(text) - _LONG} characters more)"


def numbered(choices: Sequence[str], free: bool) -> str:
    """``1 once  2 deny  or any text``"""
    named = "  ".join(f"{n} {printable(choice)}" for n, choice in enumerate(choices, 1))
    return f"{named}  or any text" if named and free else named or "any text"


def what_is_allowed(choices: Sequence[str], free: bool) -> str:
    named = ", ".join(map(printable, choices))
    return f"{named}, or any text" if named and free else named or "any text"


def meaning(line: str, ask: OpenAsk) -> str | None:
    """A line that somebody typed → the answer that it is: a choice, its number, yes or no to an approval, or, where
    that is allowed, the text itself. ``None``: it is none."""
    text = line.strip()
    if text in ask.choices:
        return text
    if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= len(ask.choices):
        return ask.choices[int(text) - 1]
    folded = text.casefold()
    word = next((choice for choice in ask.choices if choice.casefold() == folded), None)
    if word is None and ask.kind == "approval":
        wanted = APPROVE if folded in _YES else REJECT if folded in _NO else ""
        word = wanted if wanted in ask.choices else None
    if word is None and ask.free and text:
        return text
    return word


def answered_line(fields: Mapping[str, Any]) -> str:
    """What became of an ask, on one line."""
    answer = " ".join(printable(str(fields.get("answer"))).split())
    answer = answer if len(answer) <= 100 else answer[:99] + "…"
    match fields.get("how"):
        case "expired":
            return f"nobody answered in time: {answer}"
        case "stopped":
            return f"no longer asked: {answer}"
        case _:
            return f"answered: {answer}"
