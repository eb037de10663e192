"""Which messages say the same."""

from __future__ import annotations

from typing import Any

import pytest

from broker.difference import differences

CALL = {"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}


def message(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content), **fields}


def text(value: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": value}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (message(), {}),
        (message(text("ab")), message(text("a"), text("b"))),
        (message(text("ab")), {"content": "ab"}),
        (message("ab"), message(text("ab"), text("", "reasoning"), {"type": "later", "x": 1})),
        (message(text("a"), CALL), message(CALL, text("a"))),
        (message(text("a"), model="m"), message(text("a") | {"annotations": [1]}, finish_reason="stop")),
        (message(CALL), message(CALL | {"signature": "s"})),
    ],
)
def test_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert differences(one, other) == differences(other, one) == []


@pytest.mark.parametrize(
    ("one", "other", "kinds"),
    [
        (message(text("a")), message(text("b")), ["text"]),
        (message(text("a")), message(text("a", "reasoning")), ["text", "reasoning"]),
        (message(text("a", "refusal")), message(), ["refusal"]),
        (message(CALL), message(), ["tool_call"]),
        (message(CALL), message(CALL, CALL), ["tool_call"]),
        (message(CALL), message(CALL | {"arguments": {"a": 2}}), ["tool_call"]),
        (message(CALL), message(CALL | {"id": "d"}), ["tool_call"]),
        (message(CALL), message(CALL | {"name": "g"}), ["tool_call"]),
        (message(CALL | {"input": "x"}), message(CALL | {"input": "y"}), ["tool_call"]),
        (
            message(CALL | {"arguments": None, "raw": "{"}),
            message(CALL | {"arguments": None, "raw": ""}),
            ["tool_call"],
        ),
    ],
)
def test_what_differs(one: dict[str, Any], other: dict[str, Any], kinds: list[str]) -> None:
    assert differences(one, other) == differences(other, one) == kinds
