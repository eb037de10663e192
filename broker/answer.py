"""What a run answers: its last text, and what the model says about it in a block of JSON at the end. Pure.

Source of the rules: docs/chat.md, “The answer”. One function for everybody: streamed answers, answers that were waited
for, results that are looked up later, ``HermesClient``.

Whatever the model writes is an answer: JSON that is broken, cut off or of another kind is text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from broker.items import scrub

__all__ = ["REVIEW_BELOW", "RISK_LEVELS", "Answer", "answer_of", "failure_of", "last_text", "parse_answer"]

REVIEW_BELOW = 0.5
"""An answer whose confidence is lower is to be looked at by a person, unless the worker was told otherwise."""
RISK_LEVELS = ("low", "medium", "high", "critical")
BLOCK_MAX = 256 << 10
"""Characters at the end of a text in which its block is looked for: a longer one is text."""

_KEYS = frozenset({"reply", "confidence", "risk_level", "riskLevel", "flagForReview", "flag_for_review"})
_GRAVE = frozenset({"high", "critical"})
_FENCE_END = re.compile(r"\s*(?:`{3,}|~{3,})\Z")
_FENCE_START = re.compile(r"(?:`{3,}|~{3,})[ \t]*[\w+-]*\s*\Z")
_UNCLOSED = re.compile(r"(?:`{3,}|~{3,})[ \t]*json[ \t]*\s*\Z", re.IGNORECASE)
_FENCE_HEAD_MAX = 64
_MARKS = re.compile(r'[{}"]')
_NUMBER = re.compile(r"\s*\+?([0-9]{1,12}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})\s*(%?)\s*\Z")
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_TIMED_OUT = "Hermes execution timed out"
_FAILURES = {
    "hermes_timeout": _TIMED_OUT,
    "hermes_silent": f"{_TIMED_OUT}: it gave no output for too long",
    "deadline": "The run did not end within its time limit",
    "cancelled": "The run was cancelled",
}

_object = msgspec.json.Decoder(dict[str, Any])


class Answer(msgspec.Struct, kw_only=True, frozen=True):
    """``confidence`` is in [0, 1], ``None``: not told. ``risk_level`` is one of ``RISK_LEVELS`` or ``unknown``.

    ``session_id`` is what to send to go on with the conversation.
    """

    reply: str
    confidence: float | None = None
    risk_level: str = "unknown"
    flag_for_review: bool = False
    session_id: str | None = None


class _Parts(NamedTuple):
    text: str
    block: dict[str, Any]


def answer_of(final: Mapping[str, Any], session_id: str | None) -> Answer:
    """The fields of a ``final`` item → the answer. ``session_id``: the run's, if it has one, else it is Hermes' own.

    Raises nothing, whatever the fields are.
    """
    metadata = final.get("metadata")
    below = metadata.get("review_below") if isinstance(metadata, Mapping) else None
    hermes = final.get("hermes_session_id")
    return parse_answer(
        last_text(final.get("message")),
        session_id=session_id or (str(scrub(hermes)) if isinstance(hermes, str) and hermes else None),
        review_below=below if isinstance(below, (int, float)) else REVIEW_BELOW,
    )


def parse_answer(text: str, *, session_id: str | None = None, review_below: float = REVIEW_BELOW) -> Answer:
    """A round's text → the answer: what stands before its block, and what the block says, normalised.

    Where nothing stands before it, the reply is the block's own ``reply``.
    """
    parts = _split(text.strip())
    told = parts.block
    given = told.get("reply")
    confidence = _first(_confidence, told, "confidence")
    risk = _first(_risk, told, "risk_level", "riskLevel") or "unknown"
    flag = _first(_flag, told, "flagForReview", "flag_for_review")
    if flag is None:
        flag = risk in _GRAVE or (confidence is not None and confidence < review_below)
    reply = parts.text or (given.strip() if isinstance(given, str) else "")
    return Answer(reply=reply, confidence=confidence, risk_level=risk, flag_for_review=flag, session_id=session_id)


def last_text(message: Any) -> str:
    """The text of a merged message: its blocks of text and refusal, as their deltas came."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str):
        return str(scrub(content))
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    said = [block.get("text") for block in blocks if block.get("type") in ("text", "refusal")]
    return str(scrub("".join(text for text in said if isinstance(text, str))))


def failure_of(fence: Mapping[str, Any]) -> str:
    """The fields of a ``failed`` or ``cancelled`` item → one clear sentence for whoever waits for the answer."""
    code, message = fence.get("code"), fence.get("message")
    if isinstance(code, str) and code in _FAILURES:
        return _FAILURES[code]
    said = message.strip() if isinstance(message, str) else ""
    return str(scrub(said or f"the run failed: {code or 'its worker did not say why'}"))


# The block.


def _split(text: str) -> _Parts:
    """A stripped text → what stands before its block of metadata, and the block; ``{}`` where it ends in none."""
    whole = _Parts(text, {})
    fenced = _FENCE_END.search(text, max(0, len(text) - _FENCE_HEAD_MAX)) if text.endswith(("```", "~~~")) else None
    end = fenced.start() if fenced is not None else len(text)
    start = _start_of_object(text, end)
    if start is None:
        return whole
    block = _metadata(text[start:end])
    if block is None:
        return whole
    pattern = _UNCLOSED if fenced is None else _FENCE_START
    opening = pattern.search(text, max(0, start - _FENCE_HEAD_MAX), start)
    if fenced is not None and opening is None:
        return whole  # something else stands in the fence as well
    return _Parts(text[: start if opening is None else opening.start()].rstrip(), block)


def _start_of_object(text: str, end: int) -> int | None:
    """Where the JSON object begins that ends at ``end``, if there is one: exact for valid JSON, in one pass.

    In valid JSON a quote is the edge of a string unless an odd number of backslashes stands before it, which lets it be
    read backwards; whatever else stands there is refused by the decoder.
    """
    if not text.endswith("}", 0, end):
        return None
    earliest = max(0, end - BLOCK_MAX)
    depth, in_string = 0, False
    for mark in reversed(list(_MARKS.finditer(text, earliest, end))):
        at, kind = mark.start(), mark[0]
        if kind == '"':
            in_string = in_string if _is_escaped(text, at) else not in_string
        elif not in_string:
            depth += 1 if kind == "}" else -1
            if depth == 0:
                return at
    return None


def _is_escaped(text: str, at: int) -> bool:
    before = at
    while before and text[before - 1] == "\\":
        before -= 1
    return (at - before) % 2 == 1


def _metadata(block: str) -> dict[str, Any] | None:
    try:
        found = _object.decode(block)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found if _KEYS & found.keys() else None


# Its values.


def _first(normalised: Any, told: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that has a value with a meaning."""
    found = (normalised(told[name]) for name in names if name in told)
    return next((value for value in found if value is not None), None)


def _confidence(value: Any) -> float | None:
    """A number from 0 to 1; what is greater, up to 100, is a percentage; either may be text."""
    percent = False
    if isinstance(value, str):
        found = _NUMBER.match(value)
        if found is None:
            return None
        value, percent = float(found[1]), bool(found[2])
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
        return None
    return round(value / 100, 12) if percent or value > 1 else abs(float(value))


def _risk(value: Any) -> str | None:
    word = value.strip().lower() if isinstance(value, str) else ""
    return word if word in RISK_LEVELS else None


def _flag(value: Any) -> bool | None:
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    return _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
