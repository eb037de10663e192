"""How a run at Hermes' API server ended → the run's outcome. Pure. The codes are ``verdict``'s."""

from __future__ import annotations

from workers.hermes.api_events import ApiEvents, RunEnd
from workers.hermes.notices import MESSAGE_MAX, is_no_reply
from workers.hermes.verdict import Failure, of_provider

__all__ = ["judge_end"]

_LIMITS = ("max_iterations", "iteration_budget", "budget_exhausted")
"""How ``turn_exit_reason`` begins, of newer servers."""
_LIMIT_NOTICE = "maximum tool-iteration limit"
_NO_PROVIDER = "platform.api_server.provider_error_line"
"""What a build without its catalogs says instead."""
_NOT_SET_UP = (
    "hermes setup",
    "hermes model",
    "not configured",
    "no inference provider",
    "not connected to any ai provider",
    "no api key",
)


def judge_end(seen: ApiEvents) -> Failure | None:
    """``None``: completed. For a run whose ``end`` is known."""
    end = seen.end
    assert end is not None
    if end.status in ("cancelled", "interrupted"):
        return Failure("interrupted", end.error or "Hermes was interrupted", True)
    if end.reason.startswith(_LIMITS) or _LIMIT_NOTICE in end.notice:
        return Failure("turn_limit", "Hermes reached its turn limit before it was done; the last text closes with that")
    if end.status == "completed":
        return None if seen.answered and not is_no_reply(end.notice) else _empty(end)
    return _failed(end)


def _empty(end: RunEnd) -> Failure:
    notice = end.output.strip()[:MESSAGE_MAX]
    # A build without its catalogs has the bare keys of the notice, which tell nobody anything.
    told = notice and not notice.startswith("explainer.")
    return Failure("empty_reply", notice if told else "Hermes ended well, but the model gave no text", True)


def _failed(end: RunEnd) -> Failure:
    message = (end.error or end.output or end.reason or "the run failed")[:MESSAGE_MAX]
    if message.startswith(_NO_PROVIDER):
        return Failure("not_configured", "Hermes has no provider that it could use: see `hermes setup`")
    if any(words in message.lower() for words in _NOT_SET_UP):
        return Failure("not_configured", message)
    return of_provider(f"{end.reason}\n{message}", message) or Failure("hermes_failed", message)
