"""Lines that Hermes prints among or instead of an answer: which are known, and what they mean. Pure.

The words are those of 0.19.0 and 0.22.2 in English. A packaged 0.22.2 without its catalogs prints the bare keys of
some of them.
"""

from __future__ import annotations

import re

from broker.items import Event, Item

__all__ = ["MESSAGE_MAX", "code_of", "is_no_reply", "item_of", "left_out", "split_no_reply", "warning"]

MESSAGE_MAX = 4_000
"""Characters of a notice that a warning keeps."""
_LOOKED_AT = 500
"""Characters that tell: a search in a line of megabytes could take the square of its length."""
_NO_REPLY = ("⚠️ No reply:", "⚠ No reply:", "explainer.no_reply_prefix")
_KNOWN: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("tirith_unavailable", re.compile(r"⚠.*\btirith\b")),
    ("approval_timeout", re.compile(r"⏱.*Timeout\b.*\bdenying\b|^cli\.approval\S*timeout")),
    ("sudo_timeout", re.compile(r"⏱.*Timeout\b.*\bsudo\b")),
    ("clarify_timeout", re.compile(r"^\(clarify timed out\b|^cli\.\S*clarify\S*timed?_?out")),
    (
        "turn_limit",
        # At the beginning: a subagent's notice has its prefix ahead, and is not ours.
        re.compile(r"^⚠\S* +(Reached maximum iterations|Iteration budget)|^cli\.chat\.iteration_budget_reached"),
    ),
    ("earlier_answer", re.compile(r"^↻ .*using earlier content as final answer")),
    ("rate_limited", re.compile(r"⏱.*Rate limited\b.*\bWaiting\b")),
    ("retry", re.compile(r"⏳.*\b[Rr]etrying\b|— retrying \(")),
    ("fallback", re.compile(r"(trying|switching to) fallback")),
    ("stream_interrupted", re.compile(r"⚠.*(Stream interrupted|Response truncated)")),
    ("empty_response", re.compile(r"⚠.*Empty response|❌.*returned no content")),
    ("interrupted", re.compile(r"⚡.*[Ii]nterrupt")),
    ("context_compressed", re.compile(r"🗜\S* +Compressed\b")),
    ("model_error", re.compile(r"❌|(⚠.*API call failed|⚠.*Attempt \d+/\d+.* failed)")),
)
_ATTEMPT = re.compile(r"\((?:attempt |cycle )?(\d{1,9})/(\d{1,9})\)")
_WAIT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s\b")


def code_of(line: str) -> str | None:
    """The code of a known notice; ``None``: no notice that is known."""
    text = line[:_LOOKED_AT].strip()
    return next((code for code, pattern in _KNOWN if pattern.search(text)), None)


def is_no_reply(text: str) -> bool:
    """Hermes' notice that the model said nothing, which is no answer though the exit code may be 0."""
    return text.lstrip().startswith(_NO_REPLY)


def split_no_reply(text: str) -> tuple[str, str]:
    """A text that Hermes printed → the model's part of it, and Hermes' notice that there is none, or no more."""
    said, _, last = text.strip().rpartition("\n\n")
    return (said, last.strip()) if is_no_reply(last) else (text, "")


def warning(code: str, message: str) -> Event:
    return Event(name="warning", payload={"code": code, "message": message[:MESSAGE_MAX]})


def left_out(size: int, limit: int) -> Event:
    return warning("line_too_long", f"a line of {size:,} bytes was left out: HERMES_LINE_MAX_BYTES allows {limit:,}")


def item_of(notice: str) -> Item:
    """One notice (its first line says which) → the event for it."""
    text = "\n".join(line.strip() for line in notice.strip().splitlines())
    code = code_of(text.partition("\n")[0]) or "notice"
    if code in ("retry", "rate_limited"):
        return Event(name="retry", payload=_retry(text))
    if code == "fallback":
        return Event(name="fallback", payload={"message": text[:MESSAGE_MAX]})
    return warning(code, text)


def _retry(text: str) -> dict[str, object]:
    """``{message, wait_s?, attempt?, of?}``: seconds until Hermes tries again, and which try of how many that is."""
    text = text[:MESSAGE_MAX]
    payload: dict[str, object] = {"message": text}
    if found := _WAIT.search(text):
        payload["wait_s"] = float(found.group(1))
    if found := _ATTEMPT.search(text):
        payload["attempt"], payload["of"] = int(found.group(1)), int(found.group(2))
    return payload
