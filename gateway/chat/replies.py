"""What a chat answers, as its callers know it: two forms of one object. Pure.

Source of the forms: docs/chat.md, “The answer”. ``broker.answer`` says what is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from broker.answer import Answer, answer_of

__all__ = ["STYLE_KEY", "ChatReply", "ChatReplyV1", "Style", "reply_of", "style_of"]

STYLE_KEY = "runcast.chat"
"""In the metadata of a run that a chat request made: the style of its answer, wherever that is asked for."""


class Style(Enum):
    """How a caller spells the answer's fields."""

    LEGACY = "legacy"
    V1 = "v1"


class ChatReply(msgspec.Struct, kw_only=True):
    """``confidence`` is from 0 to 1 or null, ``risk_level`` low, medium, high, critical or unknown. ``session_id`` goes
    on with the conversation."""

    reply: str
    confidence: float | None
    risk_level: str
    flag_for_review: bool = msgspec.field(name="flagForReview")
    session_id: str | None


class ChatReplyV1(msgspec.Struct, kw_only=True):
    """The same, for callers of ``/v1/chat``."""

    reply: str
    confidence: float | None
    risk_level: str
    flag_for_review: bool
    session_id: str | None


def reply_of(final: Mapping[str, Any], session_id: str | None, style: Style) -> ChatReply | ChatReplyV1:
    """The fields of a ``final`` item → the answer as that caller knows it. ``session_id`` is the run's own."""
    answer: Answer = answer_of(final, session_id)
    form = ChatReplyV1 if style is Style.V1 else ChatReply
    return form(**msgspec.structs.asdict(answer))


def style_of(metadata: Mapping[str, Any]) -> Style | None:
    """The style of a run's answer; ``None``: no chat request made it."""
    value = metadata.get(STYLE_KEY)
    return next((style for style in Style if style.value == value), None)
