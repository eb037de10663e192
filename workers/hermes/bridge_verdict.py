"""How a call over the bridge ended → the run's outcome. Pure. The codes are those of ``verdict``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.hermes.notices import is_no_reply
from workers.hermes.verdict import Failure, of_provider

__all__ = ["exit_code_of", "of_refusal", "of_result", "without_result"]

_MESSAGE_MAX = 8_000
_REASONS = {
    "auth": "HTTP 401",
    "auth_permanent": "HTTP 401",
    "rate_limit": "HTTP 429",
    "upstream_rate_limit": "HTTP 429",
}
"""Hermes' reason of a failure → what it means, in the words that ``of_provider`` reads in all modes."""
_SIGTERM = 143
"""The bridge ends with it where Hermes heeded no interrupt."""


def exit_code_of(result: Mapping[str, Any]) -> int:
    """What ``hermes chat`` would have ended with."""
    if result.get("interrupted"):
        return 130
    return int(bool(result.get("failed") or result.get("partial") or result.get("completed") is False))


def of_refusal(failed: Failure) -> Failure:
    """The call could not begin. Credentials that the provider refused are no matter of Hermes' setup."""
    if failed.code == "not_configured" and "HTTP " in failed.message:
        return of_provider(failed.message, failed.message) or failed
    return failed


def of_result(result: Mapping[str, Any], *, streamed: str) -> Failure | None:
    """``None``: completed. ``streamed``: the text that was streamed after the last tool, stripped."""
    failure = _of_result(result, streamed)
    return failure and Failure(failure.code, failure.message[:_MESSAGE_MAX], failure.retryable)


def _of_result(result: Mapping[str, Any], streamed: str) -> Failure | None:
    final, error = str(result.get("final_response") or "").strip(), str(result.get("error") or "")
    reason = str(result.get("turn_exit_reason") or "")
    if result.get("interrupted"):
        return Failure("interrupted", "Hermes was interrupted", True)
    if result.get("failed") or (result.get("partial") and error):
        message = _spoken(final) or _spoken(error) or f"Hermes failed ({reason or 'it did not say why'})"
        meant = _REASONS.get(str(result.get("failure_reason")), "")
        return of_provider(f"{error}\n{message}\n{meant}", message) or Failure("hermes_failed", message)
    if reason.startswith("max_iterations"):
        return Failure("turn_limit", f"Hermes reached its turn limit before it was done ({reason})")
    # What the model said itself is no notice of Hermes.
    if (is_no_reply(final) and final != streamed) or not (final or streamed):
        return Failure("empty_reply", _spoken(final) or "Hermes ended well, but the model gave no text", True)
    if result.get("completed") is False:
        return Failure("hermes_failed", f"Hermes stopped before it was done ({reason or 'no reason given'})")
    return None


def _spoken(text: str) -> str:
    """A build without its catalogs gives the bare keys of its sentences, which tell nobody anything."""
    return "" if text.startswith("explainer.") else text


def without_result(exit_code: int | None, stderr: str) -> Failure:
    last = "\n".join(stderr.strip().splitlines()[-20:])
    if exit_code is not None and exit_code < 0:
        return Failure("hermes_died", f"Hermes was killed by signal {-exit_code}. {last}".strip(), True)
    if exit_code == _SIGTERM:
        return Failure("interrupted", "Hermes was interrupted and did not end by itself", True)
    said = "without an exit code" if exit_code is None else f"with exit code {exit_code}"
    return Failure("no_result", f"Hermes ended {said} before its result. {last}".strip()[:_MESSAGE_MAX], True)
