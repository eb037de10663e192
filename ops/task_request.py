"""What ``runcast task new`` asks for, checked as the body of a request is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from broker.errors import InvalidRequest
from broker.task_model import PlannedStep
from broker.task_plan import TaskRequest

__all__ = ["request_of", "steps_of"]


def request_of(given: dict[str, Any]) -> TaskRequest:
    """What the body of a request would be checked for is checked. Raises ``InvalidRequest``."""
    try:
        return msgspec.convert(given, TaskRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def steps_of(plan: Path) -> list[PlannedStep]:
    """A list of steps, or an object that has them under ``steps``."""
    try:
        found = msgspec.json.decode(plan.read_bytes())
        return msgspec.convert(found["steps"] if isinstance(found, dict) else found, list[PlannedStep])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError) as error:
        raise InvalidRequest(f"{plan} is no plan: {error}", field="plan") from error
