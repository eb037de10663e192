"""What ``runcast doctor`` finds: a subject, how it stands, and what is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "State"]


class State(Enum):
    OK = "ok"
    NOTE = "note"
    """Worth knowing; works."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """``hint`` says what to do; empty where nothing is to be done."""

    subject: str
    state: State
    found: str
    hint: str = ""
