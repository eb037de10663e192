"""Two messages: do they say the same? What the worker asks before it calls one of them the run's message.

Compared is what a reader gets: the texts, the reasoning, the refusals, and the calls one by one. How text is cut into
blocks, and fields that only one of the two has (a model, a finish reason, annotations), are no difference.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["differences"]

_TEXTS = ("text", "reasoning", "refusal")


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The kinds of block in which the two differ, of ``text``, ``reasoning``, ``refusal``, ``tool_call``."""
    ours, theirs = _said(one.get("content")), _said(other.get("content"))
    return [kind for kind in ours if ours[kind] != theirs[kind]]


def _said(content: Any) -> dict[str, Any]:
    texts: dict[str, list[str]] = {kind: [] for kind in _TEXTS}
    calls: list[Any] = []
    for block in content if isinstance(content, (list, tuple)) else [content or ""]:
        if not isinstance(block, Mapping):
            texts["text"].append(str(block))
        elif block.get("type") in texts:
            texts[str(block["type"])].append(str(block.get("text", "")))
        elif block.get("type") == "tool_call":
            calls.append(tuple(block.get(k) for k in ("id", "name", "arguments", "input", "raw")))
    return {**{kind: "".join(parts) for kind, parts in texts.items()}, "tool_call": calls}
