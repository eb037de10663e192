"""Secrets in texts that are written down for people: log records, audit lines. Pure.

Two nets, since neither holds all: secrets that are known (settings have them) by their value, and what looks like one
by its form. A text that is redacted again stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings

__all__ = ["MARK", "Redactor", "redact", "secrets_of"]

MARK = "[redacted]"
_SHORTEST = 6
"""A known secret that is shorter would blacken innocent words."""

_NAMED = r"(?:password|passwd|passphrase|secret|token|api[_-]?key|apikey|access[_-]?key|private[_-]?key|signature)"
# Each form takes time in proportion to the text, whatever stands there: it is looked for on the event loop, in what
# strangers wrote. So a form that may begin anywhere within a word is tried once a word, not once a letter.
_WORD = r"(?<![\w-])"
_NAME = rf"{_WORD}([\w-]*{_NAMED}[\"']?\s*[=:]\s*)"
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MARK),
    # A URL's user and password. An “@” further on belongs to the password: only the last one ends it.
    (re.compile(r"(?<=://)[^\s/?#\"'<>]+(?=@)"), MARK),
    (re.compile(r"\b((?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?:[a-z]+\s+)?[^\s\"',;]+", re.I), rf"\1{MARK}"),
    (re.compile(r"\b((?:set-)?cookie[\"']?\s*[:=]\s*[\"']?)[^\"'\r\n]+", re.I), rf"\1{MARK}"),
    (re.compile(r"\b(Bearer|Basic)\s+(?!\[redacted\])[\w.~+/=-]{8,}", re.I), rf"\1 {MARK}"),
    # name=value, name: value, "name": "value", with any prefix to the name: cancel_token, LLM_API_KEY.
    (re.compile(_NAME + r"([\"'])(?:(?!\2).)+\2", re.I), rf"\1\2{MARK}\2"),
    (
        re.compile(_NAME + r"(?![\"']|\[redacted\])[^\s\"'&,;)}\]]+", re.I),
        rf"\1{MARK}",
    ),
    # Keys that are known by how they begin.
    (re.compile(r"\b(?:sk|pk|rk)[-_][\w-]{16,}|\bgh[opsur]_\w{20,}|\bgithub_pat_\w{20,}|\bxox[a-z]-[\w-]{10,}"), MARK),
    (re.compile(r"\bAIza[\w-]{30,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bhf_\w{20,}|\bglpat-[\w-]{16,}"), MARK),
)
# A JSON Web Token: three parts, of which the first begins so, maybe behind something else.
_THREE_PARTS = re.compile(_WORD + r"([\w-]{11,}+)\.(?=[\w-]{8,}+\.([\w-]*+))")
_HEAD = re.compile(r"\beyJ[\w-]{8,}")


def redact(text: str) -> str:
    """``text`` without what looks like a secret by its form."""
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return _without_tokens(text)


def _without_tokens(text: str) -> str:
    kept, at = [], 0
    for parts in _THREE_PARTS.finditer(text):
        head = _HEAD.search(parts[1]) if parts.start() >= at else None
        if head is not None:
            kept += [text[at : parts.start() + head.start()], MARK]
            at = parts.end(2)
    return "".join([*kept, text[at:]])


class Redactor:
    """``redact``, and besides the values that are ``known`` to be secret, wherever they stand."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        # The longest first: one may be a part of another.
        found = sorted({secret for secret in known if len(secret) >= _SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, found))) if found else None

    def __call__(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MARK, text)
        return redact(text)


def secrets_of(*settings: BaseSettings | type[BaseSettings]) -> list[str]:
    """The values of all settings that are secret. A class is read from the environment; where that holds what it does
    not take, whoever needs it says so, and its secrets are nobody's."""
    return [text for one in settings for value in _values(one) for text in _secrets(value)]


def _values(settings: BaseSettings | type[BaseSettings]) -> list[Any]:
    if isinstance(settings, type):
        try:
            settings = settings()
        except ValidationError:
            return []
    return [getattr(settings, name) for name in type(settings).model_fields]


def _secrets(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for part in value.values() for text in _secrets(part)]
    return [value.get_secret_value()] if isinstance(value, SecretStr) and value.get_secret_value() else []
