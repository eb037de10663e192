"""Stands in for Hermes' command."""

from __future__ import annotations

import os
import time

time.sleep(float(os.environ.get("STAND_IN_SLOW", "0")))
if os.environ.get("STAND_IN_UNIMPORTABLE"):
    raise ImportError("no module named prompt_toolkit")
if os.environ.get("STAND_IN_DIES"):
    os._exit(9)


def _has_any_provider_configured() -> bool:
    if told := os.environ.get("STAND_IN_UNCONFIGURED", ""):
        print(told)
    return not told
