"""What a provider sent, read without trust: each function takes any JSON value and gives one of its own type."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["as_count", "as_dict", "as_list", "as_text", "dump"]


def as_text(value: Any) -> str:
    """A string; ``""`` for what is none."""
    return value if isinstance(value, str) else ""


def as_dict(value: Any) -> dict[str, Any]:
    """An object; an empty one for what is none."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """An array; an empty one for what is none."""
    return value if isinstance(value, list) else []


def as_count(value: Any) -> int | None:
    """An index or a count, a whole number from 0; None for what is none. ``true`` is no number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def dump(arguments: Any) -> str:
    """A call's arguments as the provider gave them → their text: a string as it is, all else as JSON.

    The JSON has blanks after commas and colons: the text that the providers' Python SDKs give for the same object.
    None is ``""``: no arguments. What is nested deeper than Python can write gets a text that is no JSON, so the call
    is not taken for one without arguments.
    """
    if isinstance(arguments, str) or arguments is None:
        return arguments or ""
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (RecursionError, TypeError, ValueError):
        return "<nested too deep to be written>"
