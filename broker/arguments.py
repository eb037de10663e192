"""A tool call's arguments: parsed once, strictly, at the end; and what is kept where they cannot be parsed.

A call is never made to look valid. Broken text gives no value but an error that says what is wrong and where, with
a repaired candidate beside it where one can be made: whether to use that is the caller's decision.

Pure. Raises nothing, whatever the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from broker.items import scrub

__all__ = ["Arguments", "incomplete", "nameless", "parse_arguments", "too_deep"]

_MAX_DEPTH = 200
"""Deeper than any tool's schema, and far from where encoders and decoders give up."""


class Arguments(NamedTuple):
    """``error`` is None, or ``{code, message, position, repair}``; then ``value`` is None.

    ``code``: ``truncated``, ``trailing``, ``malformed``, ``too_deep``, ``no_object`` or ``nameless``. ``position``
    counts code points. ``repair`` is an object that the text may have meant, or None.
    """

    value: Any
    error: dict[str, Any] | None


_strict = msgspec.json.Decoder()
_lax = json.JSONDecoder(strict=False)
_BYTE = re.compile(r" \(byte (\d+)\)\Z")


def parse_arguments(raw: str) -> Arguments:
    """Arguments as a model wrote them → their value. Nothing but white space is ``{}``."""
    if not raw.strip():
        return Arguments({}, None)
    if too_deep(raw):
        return Arguments(None, _error("too_deep", f"nested deeper than {_MAX_DEPTH} levels", 0, None))
    try:
        value = _strict.decode(raw)
    except (ValueError, RecursionError) as error:
        return Arguments(None, _explain(raw, error))
    if isinstance(value, dict):
        return Arguments(value, None)
    return Arguments(None, _error("no_object", "the arguments are JSON, but no object", 0, _as_object(value)))


def too_deep(raw: str) -> bool:
    """JSON with more levels than anybody means, and than encoders can be trusted with. Strings do not count."""
    if len(raw) <= _MAX_DEPTH or raw.count("{") + raw.count("[") <= _MAX_DEPTH:
        return False
    depth = 0
    for token in _TOKEN.finditer(raw):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        if depth > _MAX_DEPTH:
            return True
    return False


def incomplete(raw: str) -> dict[str, Any]:
    """The error of a call whose stream ended before the call did, though its text parses."""
    return _error("truncated", "the stream ended before the call was complete", len(raw), _repair(raw))


def nameless(value: dict[str, Any]) -> dict[str, Any]:
    """The error of a call that never got the name of its tool, though its arguments parse."""
    return _error("nameless", "the call names no tool", 0, value)


def _error(code: str, message: str, position: int, repair: dict[str, Any] | None) -> dict[str, Any]:
    return {"code": code, "message": message, "position": position, "repair": repair}


def _explain(raw: str, error: Exception) -> dict[str, Any]:
    text = str(error)
    found = _BYTE.search(text)
    if found is not None:
        trailing = "trailing characters" in text
        # The parser counts bytes of UTF-8 (and stands one behind the first trailing one); a reader of the text
        # counts code points.
        position = len(raw.encode()[: int(found[1]) - trailing].decode(errors="ignore"))
        code = "trailing" if trailing else "truncated" if position >= len(raw) else "malformed"
        return _error(code, _BYTE.sub("", text), position, _repair(raw))
    if "truncated" in text:
        return _error("truncated", text, len(raw), _repair(raw))
    return _error("malformed", text, 0, _repair(raw))


def _repair(raw: str) -> dict[str, Any] | None:
    start = raw.find("{")
    if start < 0:
        return None
    for candidate in _candidates(raw[start:]):
        try:
            value, _ = _lax.raw_decode(candidate)
            value = scrub(value)  # the lax parser takes halves of characters and NaN, which JSON cannot carry
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None


def _as_object(value: Any) -> dict[str, Any] | None:
    if value is None:
        return {}
    if isinstance(value, str):  # encoded twice
        return parse_arguments(value).value if value.lstrip()[:1] == "{" else None
    return None


_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?P<end>"?)|[][{},]', re.DOTALL)
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HALF_WORD = re.compile(r"(?:t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?)\Z")
_WORDS = {"t": "true", "f": "false", "n": "null"}
_CLOSER = {"{": "}", "[": "]"}


def _candidates(text: str) -> Iterator[str]:
    """Texts to try, the one that keeps most first. Few, and each is made in one pass, however long the text."""
    yield text  # one whole object with something behind it
    closers: list[str] = []
    cut, cut_closers = 1, "}"
    in_string = False
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in _CLOSER:
            closers.append(_CLOSER[mark])
        elif mark in ("}", "]"):
            if closers and closers[-1] == mark:
                closers.pop()
        elif mark == ",":
            cut, cut_closers = token.start(), "".join(reversed(closers))
        elif not token["end"]:
            in_string = True
    tail = "".join(reversed(closers))
    yield (_close_string(text) if in_string else _close_value(text)) + tail
    yield text[:cut] + cut_closers


def _close_string(text: str) -> str:
    half = _HALF_ESCAPE.search(text)
    if half is not None:
        before = text[: half.start()]
        if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
            text = before
    elif text.endswith("\\"):
        text = text[:-1]
    return text + '"'


def _close_value(text: str) -> str:
    text = text.rstrip()
    if text.endswith(","):
        return text[:-1]
    if text.endswith(":"):
        return text + "null"
    half = _HALF_WORD.search(text)
    if half is not None:
        return text[: half.start()] + _WORDS[half[0][0]]
    return text
