"""What a run that has ended is charged, as its record says. Pure.

| the run | charged |
|---|---|
| was never started, or ended before a model was asked | nothing |
| was published from a recording (``runcast import``, ``replay --into``) | nothing: it was paid for elsewhere |
| is a task | nothing: its steps are runs, each of which is charged |
| tells its cost, in US dollars | that |
| tells none, or another currency | not known: what was reserved for it |
| lost a worker on the way | not known: what was reserved for it, or what it told, if that is more |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from broker.money import nano_of
from broker.records import RunRecord
from broker.task_model import TASK_RUNNER

__all__ = ["Charge", "charge_of", "label_of"]

RECORDING = "import"
"""The runner of what is published from elsewhere."""
_BEFORE_A_MODEL = frozenset(
    {
        *("approvals_unavailable", "input_unavailable", "invalid_option", "invalid_prompt", "invalid_request"),
        *("invalid_script", "not_configured", "prompt_too_long", "runner_unavailable", "unknown_provider"),
        *("unknown_runner", "unsupported_input", "unsupported_option"),
        *("hermes_mode_unavailable", "hermes_not_found", "hermes_not_started", "hermes_session_busy"),
        *("hermes_session_not_found", "hermes_too_old"),
        *("provider_auth", "provider_rate_limit"),  # no provider charges for a call that it refuses
    }
)
"""Failures that cost nothing where the run has neither tokens nor text."""
_ARTIFACTS = ("artifact_", "artifacts_", "workspace_")
_LABEL_MAX = 100


class Charge(NamedTuple):
    """``nano`` nano-dollars; ``known``: that is all, else it may have been more. ``sample``: a later run of that model
    may be expected to cost about as much."""

    nano: int
    known: bool
    sample: bool
    input_tokens: int
    output_tokens: int


def label_of(request: Mapping[str, Any]) -> str:
    """Runs of one label are expected to cost about the same: the model that is asked for, or else the runner."""
    given = request.get("input")
    model = given.get("model") if isinstance(given, Mapping) else None
    return str(model or f"runner {request.get('runner', 'hermes')}")[:_LABEL_MAX]


def charge_of(record: RunRecord) -> Charge:
    """The charge of a run that has ended."""
    fence: Mapping[str, Any] = (record.outcome or {}).get("item") or {}
    usage = fence.get("usage") or record.usage or {}
    tokens = _count(usage, "input_tokens"), _count(usage, "output_tokens")
    if record.runner in (RECORDING, TASK_RUNNER):
        return Charge(0, True, False, 0, 0)
    told = _nano(fence.get("cost") or record.cost)
    known = told is not None and fence.get("code") != "worker_lost" and not record.earlier
    nano = (told or 0) + sum(_nano(cost) or 0 for cost in record.earlier)
    if told is None and not record.earlier and not any(tokens) and _asked_no_model(record, fence):
        known = True
    return Charge(nano, known, known and told is not None, *tokens)


def _asked_no_model(record: RunRecord, fence: Mapping[str, Any]) -> bool:
    code = str(fence.get("code") or "")
    if record.started is None:
        return True
    if code == "worker_lost" or fence.get("partial"):
        return False
    if record.status in ("failed", "cancelled") and record.last <= 1:
        return True  # it has not even said that it starts
    return record.status == "failed" and (code in _BEFORE_A_MODEL or code.startswith(_ARTIFACTS))


def _nano(cost: object) -> int | None:
    if not isinstance(cost, Mapping) or cost.get("currency", "USD") != "USD":
        return None
    return nano_of(cost.get("total", cost.get("amount")))


def _count(usage: object, name: str) -> int:
    value = usage.get(name) if isinstance(usage, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 50 else 0
