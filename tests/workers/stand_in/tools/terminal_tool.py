"""Stands in for Hermes' terminal tool: a callback for each thread, as there."""

from __future__ import annotations

import os
import threading
from typing import Any

from tools import approval

YOLO = os.environ.get("HERMES_YOLO_MODE", "")
_local = threading.local()


def set_approval_callback(callback: Any) -> None:
    _local.callback = callback


def get_approval_callback() -> Any:
    return getattr(_local, "callback", None)


def guard(command: str) -> str:
    """Whether ``command`` may run. Where nobody can be asked it may, as in Hermes."""
    if YOLO:
        return "yolo"
    if not approval.interactive.get() and not os.environ.get("HERMES_INTERACTIVE"):
        return "silently"
    callback = get_approval_callback()
    if callback is None:
        return "nobody"
    return str(callback(command, "dangerous", allow_permanent=command != "temporary"))
