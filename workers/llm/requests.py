"""A run's request → the HTTP request of each API. Pure.

One user message, streamed. What was not said is not sent, so the provider's own defaults count; Anthropic alone
demands a limit of output tokens and gets ``ANTHROPIC_MAX_TOKENS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

from workers.llm.endpoints import PATHS, Endpoint
from workers.llm.options import Options
from workers.runner import RunnerFailed

__all__ = ["ANTHROPIC_MAX_TOKENS", "HttpCall", "build"]

ANTHROPIC_MAX_TOKENS = 8192
_ANTHROPIC_VERSION = "2023-06-01"
_NEW_LIMIT_HOSTS = ("api.openai.com", ".openai.azure.com", ".services.ai.azure.com")
"""Where ``max_completion_tokens`` is the name, and newer models refuse ``max_tokens``, which all others know."""


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A POST. ``headers`` hold the key: they are in no repr."""

    url: str
    body: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False)


Fields = dict[str, Any]


def build(endpoint: Endpoint, model: str, prompt: str, options: Options) -> HttpCall:
    """Raises ``RunnerFailed`` (``invalid_option``) for an option that the API does not have."""
    made = _BODIES[endpoint.api](endpoint, model, prompt, options)
    body = _merged({name: value for name, value in made.items() if value is not None}, options.extra)
    headers = {"content-type": "application/json", "accept": _ACCEPT.get(endpoint.api, "text/event-stream")}
    headers |= _key_headers(endpoint)
    headers |= {name.lower(): value.get_secret_value() for name, value in endpoint.headers.items()}
    return HttpCall(_url(endpoint, model), msgspec.json.encode(body), headers)


_ACCEPT = {"ollama.chat": "application/x-ndjson"}


def _url(endpoint: Endpoint, model: str) -> str:
    parts = urlsplit(endpoint.url)
    query = parts.query
    if endpoint.api == "google.generateContent":
        kind, _, name = model.partition("/")
        kind, name = (kind, name) if kind in ("models", "tunedModels") else ("models", model)
        # One segment of the path, whatever the name holds.
        path = f"/{kind}/{quote(name, safe='')}:streamGenerateContent"
        query = f"{query}&alt=sse" if query else "alt=sse"
    else:
        path = PATHS[endpoint.api]
    return urlunsplit((parts.scheme, parts.netloc, parts.path + path, query, ""))


def _key_headers(endpoint: Endpoint) -> dict[str, str]:
    key = endpoint.key.get_secret_value()
    match endpoint.api:
        case "anthropic.messages":
            version = {"anthropic-version": _ANTHROPIC_VERSION}
            return {"x-api-key": key, **version} if key else version
        case "google.generateContent":
            return {"x-goog-api-key": key} if key else {}
        case _:
            return {"authorization": f"Bearer {key}"} if key else {}


def _merged(body: Fields, extra: Any) -> Fields:
    """Objects are merged, anything else replaces."""
    out = dict(body)
    for name, value in extra.items():
        mine = out.get(name)
        out[name] = _merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return out


def _messages(prompt: str, options: Options) -> list[Fields]:
    system = [{"role": "system", "content": options.system}] if options.system else []
    return [*system, {"role": "user", "content": prompt}]


def _openai_chat(endpoint: Endpoint, model: str, prompt: str, options: Options) -> Fields:
    host = urlsplit(endpoint.url).hostname or ""
    limit = "max_completion_tokens" if host.endswith(_NEW_LIMIT_HOSTS) else "max_tokens"
    return {
        "model": model,
        "messages": _messages(prompt, options),
        "stream": True,
        "stream_options": {"include_usage": True},
        limit: options.max_output_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stop": list(options.stop) or None,
    }


def _mistral(endpoint: Endpoint, model: str, prompt: str, options: Options) -> Fields:
    # It reports usage unasked, and refuses fields that it does not know.
    return {
        name: value
        for name, value in _openai_chat(endpoint, model, prompt, options).items()
        if name != "stream_options"
    }


def _openai_responses(endpoint: Endpoint, model: str, prompt: str, options: Options) -> Fields:
    if options.stop:
        raise RunnerFailed("invalid_option", "metadata.stop: openai.responses has no stop texts")
    return {
        "model": model,
        "input": prompt,
        "instructions": options.system,
        "stream": True,
        "store": False,
        "max_output_tokens": options.max_output_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
    }


def _anthropic(endpoint: Endpoint, model: str, prompt: str, options: Options) -> Fields:
    return {
        "model": model,
        "max_tokens": options.max_output_tokens or ANTHROPIC_MAX_TOKENS,
        "system": options.system,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stop_sequences": list(options.stop) or None,
    }


def _google(endpoint: Endpoint, model: str, prompt: str, options: Options) -> Fields:
    config = {
        "maxOutputTokens": options.max_output_tokens,
        "temperature": options.temperature,
        "topP": options.top_p,
        "stopSequences": list(options.stop) or None,
    }
    return {
        "contents": [{"role": "user", "parts": [{"text": prompt}]}],
        "systemInstruction": {"parts": [{"text": options.system}]} if options.system else None,
        "generationConfig": _said(config),
    }


def _cohere(endpoint: Endpoint, model: str, prompt: str, options: Options) -> Fields:
    return {
        "model": model,
        "messages": _messages(prompt, options),
        "stream": True,
        "max_tokens": options.max_output_tokens,
        "temperature": options.temperature,
        "p": options.top_p,
        "stop_sequences": list(options.stop) or None,
    }


def _ollama(endpoint: Endpoint, model: str, prompt: str, options: Options) -> Fields:
    config = {
        "num_predict": options.max_output_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "stop": list(options.stop) or None,
    }
    return {"model": model, "messages": _messages(prompt, options), "stream": True, "options": _said(config)}


def _said(fields: Fields) -> Fields | None:
    return {name: value for name, value in fields.items() if value is not None} or None


_BODIES: dict[str, Callable[[Endpoint, str, str, Options], Fields]] = {
    "anthropic.messages": _anthropic,
    "cohere.chat": _cohere,
    "google.generateContent": _google,
    "mistral.chat": _mistral,
    "ollama.chat": _ollama,
    "openai.chat": _openai_chat,
    "openai.responses": _openai_responses,
}
