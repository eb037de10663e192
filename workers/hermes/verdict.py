"""How a Hermes call ended → the run's outcome. Pure. The one table of failure codes of this runner.

| what was seen | code | retryable |
|---|---|---|
| ``result`` 0 with text; in a dialect without ``result``: exit code 0 with text | completed | |
| the same without text, or Hermes' notice that nothing was said | ``empty_reply`` | yes |
| HTTP 401, 403, a rejected key | ``provider_auth`` | no |
| HTTP 429, a rate limit | ``provider_rate_limit`` | yes |
| HTTP 5xx, a failed connection, any other error of a model call | ``provider_error`` | yes, but for other 4xx |
| stopped partway without an error, with Hermes' closing words, or its notice of that | ``turn_limit`` | no |
| the session to resume is unknown | ``hermes_session_not_found`` | no |
| the session is in use elsewhere, or no further one may begin now | ``hermes_session_busy`` | yes |
| Hermes lets no further session begin (bridge) | ``hermes_session_busy`` | yes |
| Hermes says that it is not set up, or could not start its agent | ``not_configured`` | no |
| this Hermes has no ``--format`` | ``hermes_too_old`` | no |
| exit 130, or SIGINT, that nobody here asked for | ``interrupted`` | yes |
| stream-json without its ``result`` line | ``no_result`` | yes |
| killed by a signal | ``hermes_died`` | yes |
| any other exit code | ``hermes_failed`` | no |

In mode ``text`` 0.19.0 ends with exit code 0 whatever happened: what it showed counts. Where Python itself falls over
while it ends, behind Hermes' closing lines, that is no failure: 0.22.2 does now and then.

A stop that we asked for is not judged here: the worker knows why it stopped the run.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from workers.hermes.seen import Seen

__all__ = ["Failure", "ended_well", "judge", "of_provider"]

_MESSAGE_MAX = 8_000
_STATUS = re.compile(r"\bHTTP (\d{3})\b|\berror code:? (\d{3})\b", re.IGNORECASE)
_AUTH = re.compile(r"rejected your API key|invalid[ _]api[ _]key|unauthori[sz]ed|authentication", re.IGNORECASE)
_RATE = re.compile(r"rate.?limit|too many requests", re.IGNORECASE)
_PROVIDER = re.compile(r"API call failed|connection (error|refused|reset)|timed? ?out|provider", re.IGNORECASE)
_NO_SESSION = re.compile(r"session not found|session_not_found|no session", re.IGNORECASE)
_BUSY = re.compile(
    r"hermes-refusal-reason: (SESSION_|MAX_CONCURRENT)|open in another Hermes|at the active session limit",
    re.IGNORECASE,
)
_CRASHES = frozenset({-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS})
_BAD_USAGE = 2
_NOT_SET_UP = re.compile(r"isn't configured|not configured|hermes setup|no api keys?|credentials", re.IGNORECASE)
_USAGE = re.compile(r"^hermes[\w ]*: error: (.+)", re.MULTILINE)
_NO_FORMAT = re.compile(r"unrecognized arguments:.*--format|invalid choice: '?stream-json", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    code: str
    message: str
    retryable: bool = False


def judge(seen: Seen, exit_code: int | None, stderr: str) -> Failure | None:
    """``None``: completed. ``exit_code`` is the process's own: negative for a signal, ``None`` if it is not known."""
    failure = _of_result(seen, stderr) if seen.result is not None else _without_result(seen, exit_code, stderr)
    if failure is None:
        return None
    return Failure(failure.code, failure.message[:_MESSAGE_MAX], failure.retryable)


def ended_well(seen: Seen, exit_code: int | None) -> bool:
    """Whether the process ended as one does that did what it was asked."""
    return exit_code == 0 or (seen.closed and exit_code in _CRASHES)


def _of_result(seen: Seen, stderr: str) -> Failure | None:
    result = seen.result
    assert result is not None
    if result.exit_code == 0:
        if seen.answered and not seen.no_reply:
            return None
        return _empty_reply(result.text.strip())
    if result.exit_code == 130:
        return Failure("interrupted", result.error or "Hermes was interrupted", True)
    if _BUSY.search(stderr):
        return _busy(_last_words(stderr))
    if _NO_SESSION.search(stderr):
        return _unknown_session(_last_words(stderr))
    message = result.text.strip() or result.error or ""
    if result.error is None and result.text.strip():
        return _turn_limit(seen)
    if result.error == "credentials or agent init failed":
        return Failure("not_configured", _last_words(stderr) or result.error)
    return of_provider(f"{result.error or ''}\n{message}", message) or Failure("hermes_failed", message or stderr)


def _without_result(seen: Seen, exit_code: int | None, stderr: str) -> Failure | None:
    if exit_code in (130, -signal.SIGINT):
        return Failure("interrupted", "Hermes was interrupted", True)
    exit_code = 0 if ended_well(seen, exit_code) else exit_code
    if exit_code is not None and exit_code < 0:
        return Failure("hermes_died", f"Hermes was killed by signal {-exit_code}. {_last_words(stderr)}".strip(), True)
    if exit_code is None or (exit_code == 0 and seen.structured):
        said = "without its result line and without an exit code" if exit_code is None else "without its result line"
        return Failure("no_result", f"Hermes ended {said}. {_last_words(stderr)}".strip(), True)
    if seen.limited:
        return _turn_limit(seen)
    if seen.no_reply:
        return _empty_reply(seen.no_reply)
    if seen.error:
        said = f"{seen.error}\n{seen.guidance}"
        return of_provider(said, seen.error) or Failure("hermes_failed", seen.error)
    if exit_code == 0 and seen.answered:
        return None
    return _of_words(seen, exit_code, stderr)


def _of_words(seen: Seen, exit_code: int, stderr: str) -> Failure:
    """There is no answer, and nothing that Hermes said in due form: what its words come to."""
    said = f"{seen.guidance}\n{_last_words(stderr)}".strip()
    if _NO_FORMAT.search(stderr):
        return Failure("hermes_too_old", "this Hermes has no `--format stream-json`: install a newer one")
    if _BUSY.search(said):
        return _busy(said)
    if exit_code == _BAD_USAGE and (found := _USAGE.search(stderr)):
        # Its help, printed ahead, names all that there is: providers, sessions, credentials.
        return Failure("hermes_failed", f"Hermes does not take its arguments (see HERMES_STREAM_ARGS): {found[1]}")
    if _NO_SESSION.search(said):
        return _unknown_session(_last_words(stderr) or seen.guidance)
    if _STATUS.search(said) and (failure := of_provider(said, seen.guidance or said)):
        return failure  # what Hermes advises beside an HTTP status may speak of its setup
    if _NOT_SET_UP.search(said):
        return Failure("not_configured", seen.guidance or _last_words(stderr))
    if exit_code == 0:
        return Failure("empty_reply", f"Hermes ended well, but printed no answer. {seen.guidance}".strip(), True)
    other = Failure("hermes_failed", f"Hermes ended with exit code {exit_code}. {said}".strip())
    return of_provider(said, said) or other


def _busy(said: str) -> Failure:
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("hermes-refusal-reason")]
    return Failure("hermes_session_busy", "\n".join(lines) or said, True)


def _unknown_session(message: str) -> Failure:
    bare = message.startswith("cli.")  # a key, of a build without its catalogs
    return Failure("hermes_session_not_found", "Hermes does not know the session to resume" if bare else message)


def _turn_limit(seen: Seen) -> Failure:
    closing = "the last text closes with that" if seen.answered else "it gave no closing text"
    return Failure("turn_limit", f"Hermes reached its turn limit before it was done; {closing}")


def _empty_reply(notice: str) -> Failure:
    # A build without its catalogs prints the bare keys of the notice, which tell nobody anything.
    told = notice and not notice.startswith("explainer.")
    return Failure("empty_reply", notice if told else "Hermes ended well, but the model gave no text", True)


def of_provider(text: str, message: str) -> Failure | None:
    """What ``text`` says about a failed model call, as a failure with ``message``; ``None``: it speaks of none.

    One mapping for all modes, so that a rejected key has one code however Hermes was read.
    """
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
