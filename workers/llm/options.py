"""What a request's ``metadata`` says about the model call. Pure.

| name | value |
|---|---|
| ``system`` | the system prompt |
| ``temperature`` | 0 to 2 |
| ``top_p`` | above 0, up to 1 |
| ``max_output_tokens`` | at least 1 |
| ``stop`` | a text that ends the answer, or a JSON array of several |
| ``extra`` | a JSON object: the provider's own fields, merged into the request |

Names that begin with ``x-`` are the caller's own labels. Any other name is refused: a misspelt option would be left
out without a word.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workers.runner import RunnerFailed

__all__ = ["Options", "parse_options"]

_OURS = frozenset({"model", "stream", "messages", "input", "contents"})
"""Fields that make the request what it is: ``extra`` may not replace them."""


@dataclass(frozen=True, slots=True)
class Options:
    """``None``: not said, so not sent."""

    system: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    stop: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def limited_to(self, tokens: int) -> Options:
        """With ``tokens`` as the limit of output where the request has none of its own; 0: no limit."""
        return replace(self, max_output_tokens=self.max_output_tokens or tokens or None)


def parse_options(metadata: Mapping[str, str]) -> Options:
    """Raises ``RunnerFailed`` (``invalid_option``) naming the option and what it takes."""
    values: dict[str, Any] = {}
    for name, text in metadata.items():
        if name.startswith("x-"):
            continue
        if name not in _READERS:
            near = difflib.get_close_matches(name, _READERS, 1)
            hint = f" ({near[0]}?)" if near else ""
            raise _refused(
                name, f"it is no option{hint}: known are {', '.join(_READERS)}, and labels that begin with x-"
            )
        try:
            values[name] = _READERS[name](text)
        except (ValueError, RecursionError) as error:
            raise _refused(name, f"it takes {error}") from None
    return Options(**values)


def _refused(name: str, why: str) -> RunnerFailed:
    return RunnerFailed("invalid_option", f"metadata.{name[:64]}: {why}")


def _number(low: float, high: float, *, above: bool = False) -> Callable[[str], float]:
    said = f"a number {'above' if above else 'from'} {low:g} to {high:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or (above and value == low):
            raise ValueError(said)
        return value

    return read


def _tokens(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= len(text) < 10 and int(text)):
        raise ValueError("a whole number of tokens, at least 1")
    return int(text)


def _stop(text: str) -> tuple[str, ...]:
    if not text.startswith("["):
        if not text:
            raise ValueError("a text, or a JSON array of texts")
        return (text,)
    try:
        several = json.loads(text)
    except ValueError:
        return (text,)  # a text that happens to begin so
    if not several or not all(isinstance(one, str) and one for one in several):
        raise ValueError("a text, or a JSON array of texts")
    return tuple(several)


def _extra(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ValueError("a JSON object")
    if taken := sorted(_OURS & fields.keys()):
        raise ValueError(f"a JSON object without {', '.join(taken)}")
    return fields


_READERS: dict[str, Callable[[str], Any]] = {
    "system": str,
    "temperature": _number(0, 2),
    "top_p": _number(0, 1, above=True),
    "max_output_tokens": _tokens,
    "stop": _stop,
    "extra": _extra,
}
