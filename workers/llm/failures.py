"""How a model call went wrong → the run's failure. Pure. The codes that ``hermes`` has too mean the same there.

| what was seen | code | tried again | retryable |
|---|---|---|---|
| HTTP 401, 403 | ``provider_auth`` | no | no |
| HTTP 429 | ``provider_rate_limit`` | yes | yes |
| HTTP 429 because the account is out of money | ``provider_rate_limit`` | no | no |
| HTTP 408, 409, 5xx; no connection | ``provider_error`` | yes | yes |
| any other status, redirects among them | ``provider_error`` | no | no |
| an error inside the stream | by its code: as above | yes | as above |
| the stream ended without its end | ``incomplete_stream`` | yes | yes |
| two responses in one stream | ``corrupt_stream`` | no | yes |
| an event that is no JSON | ``unreadable_stream`` | yes | yes |
| no stream at all, or an event longer than ``LLM_LINE_MAX_BYTES`` | ``unreadable_stream`` | no | no |
| longer than ``LLM_RESPONSE_MAX_BYTES`` | ``response_too_big`` | no | no |
| ``LLM_FIRST_TOKEN`` or ``LLM_TIMEOUT`` is over | ``llm_timeout`` | no | yes |
| ``LLM_SILENCE`` is over | ``llm_silent`` | no | yes |
| a whole response without text, refusal or call | ``empty_reply`` | no | yes |

“Tried again” is meant before the first token, and by this run; after it nothing is. “Retryable” is what the fence says.
"""

from __future__ import annotations

import email.utils
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from workers.providers.adapter import ProviderError
from workers.runner import RunnerFailed

__all__ = ["CallFailed", "Secrets", "of_status", "of_stream", "retry_after", "unreached"]

_MESSAGE_MAX = 2_000
_REDACTED = "[redacted]"
_SECRET_MIN = 6
"""A shorter one is no key, and would be found in ordinary words."""


class CallFailed(RunnerFailed):
    """``again``: another attempt may do better. ``wait_s``: the server says when."""

    def __init__(
        self, code: str, message: str, *, retryable: bool = False, again: bool = False, wait_s: float | None = None
    ) -> None:
        super().__init__(code, message[:_MESSAGE_MAX], retryable=retryable)
        self.again, self.wait_s = again, wait_s


class Secrets:
    """Takes keys out of what a server says: some quote what they refuse."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = [secret for secret in secrets if len(secret) >= _SECRET_MIN]

    def scrub(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _REDACTED)
        return text

    def scrub_all(self, value: Any) -> Any:
        """The same in all strings of a JSON value."""
        if not self._secrets:
            return value
        if isinstance(value, str):
            return self.scrub(value)
        if isinstance(value, Mapping):
            return {self.scrub(str(name)): self.scrub_all(one) for name, one in value.items()}
        return [self.scrub_all(one) for one in value] if isinstance(value, list) else value


def unreached(where: str, why: str) -> CallFailed:
    """No connection, or one that broke before an answer came."""
    return CallFailed("provider_error", f"{where} is not reached: {why}", retryable=True, again=True)


def of_status(status: int, body: bytes, headers: Mapping[str, str], now: datetime) -> CallFailed:
    """An answer other than 200. ``now`` is what a date in ``Retry-After`` is compared with."""
    code, said = _error_of(body)
    message = f"HTTP {status}: {said}" if said else f"HTTP {status}"
    wait_s = retry_after(headers, now)
    if status in (401, 403):
        return CallFailed("provider_auth", message)
    if status == 429:
        broke = _BROKE.search(code) is not None
        return CallFailed("provider_rate_limit", message, retryable=not broke, again=not broke, wait_s=wait_s)
    if status in (408, 409) or status >= 500:
        return CallFailed("provider_error", message, retryable=True, again=True, wait_s=wait_s)
    if 300 <= status < 400:
        message += " is a redirect, which is not followed with a key: set LLM_BASE_URL to where it leads"
    return CallFailed("provider_error", message)


_BROKE = re.compile(r"insufficient_quota|billing|insufficient_balance|credit", re.IGNORECASE)
_AUTH = re.compile(r"auth|permission|forbidden|api_?key|^40[13]$", re.IGNORECASE)
_RATE = re.compile(r"rate_?limit|too_?many|exhausted|throttl|quota|^429$", re.IGNORECASE)
_REFUSED = re.compile(
    r"invalid|not_?found|validation|context_length|too_?(long|large)|unsupported|filter|safety|blocked|prompt|^4\d\d$",
    re.IGNORECASE,
)


def of_stream(error: ProviderError) -> CallFailed:
    """An error inside the stream: the provider's own code, or one that the decoder or the adapter gave."""
    code, message = error.code, error.message or error.code
    match code:
        case "incomplete_stream":
            return CallFailed(code, message, retryable=True, again=True)
        case "corrupt_stream":
            return CallFailed(code, message, retryable=True)
        case "no_stream" | "too_long":
            return CallFailed("unreadable_stream", f"the endpoint sent no stream that can be read: {message}")
        case "broken_json":
            return CallFailed("unreadable_stream", f"an event is no JSON: {message}", retryable=True, again=True)
    if code and code not in message:
        message = f"{code}: {message}"
    if _BROKE.search(code):
        return CallFailed("provider_rate_limit", message)
    if _RATE.search(code):
        return CallFailed("provider_rate_limit", message, retryable=True, again=True)
    if _AUTH.search(code):
        return CallFailed("provider_auth", message)
    refused = _REFUSED.search(code) is not None and code != "408"
    return CallFailed("provider_error", message, retryable=not refused, again=not refused)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds that the server asks for; ``None``: it does not. ``headers``' names are matched in lower case."""
    exact = headers.get("retry-after-ms", "")
    if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", exact):
        return float(exact) / 1000
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text):
        return float(text)
    try:
        at = email.utils.parsedate_to_datetime(text)
        return max(0.0, (at - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def _error_of(body: bytes) -> tuple[str, str]:
    """Code and message of an error body, whichever vendor's shape it has."""
    text = body.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "", " ".join(text.split())[:300]
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return "", text[:300]
    error = value.get("error", value)
    if not isinstance(error, dict):
        return "", str(error)
    code = " ".join(str(error[name]) for name in ("code", "type", "status") if error.get(name))
    said = error.get("message") or error.get("detail") or value.get("message") or text[:300]
    return code, said if isinstance(said, str) else json.dumps(said)[:300]
