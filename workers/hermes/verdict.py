"""How a Hermes call ended → the run's outcome. Pure. The one table of failure codes of this runner.

| what was seen | code | retryable |
|---|---|---|
| ``result`` 0 with text | completed | |
| ``result`` 0 without text, or Hermes' notice that nothing was said | ``empty_reply`` | yes |
| HTTP 401, 403, a rejected key | ``provider_auth`` | no |
| HTTP 429, a rate limit | ``provider_rate_limit`` | yes |
| HTTP 5xx, a failed connection, any other error of a model call | ``provider_error`` | yes, but for other 4xx |
| stopped partway without an error, with Hermes' closing words | ``turn_limit`` | no |
| the session to resume is unknown | ``hermes_session_not_found`` | no |
| Hermes says that it is not set up, or could not start its agent | ``not_configured`` | no |
| this Hermes has no ``--format`` | ``hermes_too_old`` | no |
| exit 130 that nobody here asked for | ``interrupted`` | yes |
| stream-json without its ``result`` line | ``no_result`` | yes |
| killed by a signal | ``hermes_died`` | yes |
| any other exit code | ``hermes_failed`` | no |

A stop that we asked for is not judged here: the worker knows why it stopped the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from workers.hermes.output import OutputParser, is_no_reply

__all__ = ["Failure", "judge"]

_MESSAGE_MAX = 8_000
_STATUS = re.compile(r"\bHTTP (\d{3})\b|\berror code:? (\d{3})\b", re.IGNORECASE)
_AUTH = re.compile(r"rejected your API key|invalid[ _]api[ _]key|unauthori[sz]ed|authentication", re.IGNORECASE)
_RATE = re.compile(r"rate.?limit|too many requests", re.IGNORECASE)
_PROVIDER = re.compile(r"API call failed|connection (error|refused|reset)|timed? ?out|provider", re.IGNORECASE)
_NO_SESSION = re.compile(r"session not found|session_not_found|no session", re.IGNORECASE)
_NOT_SET_UP = re.compile(r"isn't configured|not configured|hermes setup|no api keys?|credentials", re.IGNORECASE)
_NO_FORMAT = re.compile(r"unrecognized arguments:.*--format|invalid choice: '?stream-json", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    code: str
    message: str
    retryable: bool = False


def judge(seen: OutputParser, exit_code: int | None, stderr: str) -> Failure | None:
    """``None``: completed. ``exit_code`` is the process's own: negative for a signal, ``None`` if it is not known."""
    failure = _of_result(seen, stderr) if seen.result is not None else _without_result(seen, exit_code, stderr)
    if failure is None:
        return None
    return Failure(failure.code, failure.message[:_MESSAGE_MAX], failure.retryable)


def _of_result(seen: OutputParser, stderr: str) -> Failure | None:
    result = seen.result
    assert result is not None
    if result.exit_code == 0:
        if seen.answered and not is_no_reply(result):
            return None
        notice = result.text.strip()
        # A build without its catalogs prints the bare keys of the notice, which tell nobody anything.
        told = notice and not notice.startswith("explainer.")
        return Failure("empty_reply", notice if told else "Hermes ended well, but the model gave no text", True)
    if result.exit_code == 130:
        return Failure("interrupted", result.error or "Hermes was interrupted", True)
    if _NO_SESSION.search(stderr):
        return Failure("hermes_session_not_found", _last_words(stderr))
    message = result.text.strip() or result.error or ""
    if result.error is None and result.text.strip():
        return Failure("turn_limit", "Hermes reached its turn limit before it was done; the last text closes with that")
    if result.error == "credentials or agent init failed":
        return Failure("not_configured", _last_words(stderr) or result.error)
    return _of_provider(f"{result.error or ''}\n{message}", message) or Failure("hermes_failed", message or stderr)


def _without_result(seen: OutputParser, exit_code: int | None, stderr: str) -> Failure | None:
    if exit_code is not None and exit_code < 0:
        return Failure("hermes_died", f"Hermes was killed by signal {-exit_code}. {_last_words(stderr)}".strip(), True)
    if exit_code == 130:
        return Failure("interrupted", "Hermes was interrupted", True)
    if exit_code == 0 and not seen.structured:
        return None if seen.answered else Failure("empty_reply", "Hermes ended well, but printed nothing", True)
    if exit_code in (0, None):
        said = "without its result line" if exit_code == 0 else "without its result line and without an exit code"
        return Failure("no_result", f"Hermes ended {said}. {_last_words(stderr)}".strip(), True)
    said = f"{seen.guidance}\n{stderr}".strip()
    if _NO_FORMAT.search(stderr):
        return Failure("hermes_too_old", "this Hermes has no `--format stream-json`: install a newer one")
    if _NO_SESSION.search(stderr):
        return Failure("hermes_session_not_found", _last_words(stderr))
    if _NOT_SET_UP.search(said):
        return Failure("not_configured", seen.guidance or _last_words(stderr))
    other = Failure("hermes_failed", f"Hermes ended with exit code {exit_code}. {said}".strip())
    return _of_provider(said, said) or other


def _of_provider(text: str, message: str) -> Failure | None:
    found = _STATUS.search(text)
    status = int(found.group(1) or found.group(2)) if found else 0
    if status in (401, 403) or (not status and _AUTH.search(text)):
        return Failure("provider_auth", message)
    if status == 429 or (not status and _RATE.search(text)):
        return Failure("provider_rate_limit", message, True)
    if status or _PROVIDER.search(text):
        return Failure("provider_error", message, retryable=not 400 <= status < 500 or status == 408)
    return None


def _last_words(stderr: str) -> str:
    """The end of standard error, without the session line that Hermes always prints there."""
    lines = [line for line in stderr.strip().splitlines() if line.strip() and not line.startswith("session_id:")]
    return "\n".join(lines[-20:])
