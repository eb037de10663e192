"""Stands in for Hermes' approvals."""

from __future__ import annotations

import contextvars
import os

interactive: contextvars.ContextVar[bool] = contextvars.ContextVar("interactive", default=False)


def is_approval_bypass_active() -> bool:
    return bool(os.environ.get("STAND_IN_APPROVES_ALL"))


if not os.environ.get("STAND_IN_NO_CONTEXT"):

    def set_hermes_interactive_context(value: bool) -> None:
        interactive.set(value)
