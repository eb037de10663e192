"""Which endpoint a request goes to: the operator's own (``LLM_…``), or that of a vendor which the request names.

A key goes to the host that it was given for and to no other: ``LLM_KEY`` to ``LLM_BASE_URL``, a vendor's variable to
that vendor's host. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr

from workers.llm.settings import LlmSettings, VendorKeys, check_sendable
from workers.runner import RunnerFailed

__all__ = ["PATHS", "VENDORS", "Endpoint", "Vendor", "configured", "endpoint_of", "root", "shown"]


@dataclass(frozen=True, slots=True)
class Vendor:
    """``keys``: names in ``VendorKeys``, the first that is set counts. None at all: it needs no key."""

    api: str
    base_url: str
    keys: tuple[str, ...] = ()


VENDORS: dict[str, Vendor] = {
    "anthropic": Vendor("anthropic.messages", "https://api.anthropic.com", ("anthropic_api_key",)),
    "cohere": Vendor("cohere.chat", "https://api.cohere.com", ("co_api_key", "cohere_api_key")),
    "deepseek": Vendor("openai.chat", "https://api.deepseek.com/v1", ("deepseek_api_key",)),
    "google": Vendor(
        "google.generateContent", "https://generativelanguage.googleapis.com", ("gemini_api_key", "google_api_key")
    ),
    "groq": Vendor("openai.chat", "https://api.groq.com/openai/v1", ("groq_api_key",)),
    "mistral": Vendor("mistral.chat", "https://api.mistral.ai", ("mistral_api_key",)),
    "ollama": Vendor("ollama.chat", "http://127.0.0.1:11434"),
    "openai": Vendor("openai.chat", "https://api.openai.com/v1", ("openai_api_key",)),
    "openai-responses": Vendor("openai.responses", "https://api.openai.com/v1", ("openai_api_key",)),
    "openrouter": Vendor("openai.chat", "https://openrouter.ai/api/v1", ("openrouter_api_key",)),
    "xai": Vendor("openai.chat", "https://api.x.ai/v1", ("xai_api_key",)),
}
"""What a request may name as its ``provider``."""
_OWN = {
    "anthropic.messages": "anthropic",
    "cohere.chat": "cohere",
    "google.generateContent": "google",
    "mistral.chat": "mistral",
    "ollama.chat": "ollama",
    "openai.chat": "openai",
    "openai.responses": "openai-responses",
}
"""API → the vendor that it is of."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``url`` is the API's root, with its version. ``seller`` is whose prices count, a name or a URL."""

    api: str
    url: str
    key: SecretStr
    seller: str
    model: str = ""
    headers: dict[str, SecretStr] = field(default_factory=dict)
    needs: str = ""
    """Names the variable of the key that is missing; empty: none is."""

    def __str__(self) -> str:
        return f"{self.api} at {shown(self.url)}"


def configured(settings: LlmSettings, keys: VendorKeys) -> Endpoint:
    """The operator's own endpoint. Raises ``RunnerFailed`` (``not_configured``) for a key that cannot be sent."""
    base = settings.base_url or VENDORS[_OWN[settings.api]].base_url
    vendor = _vendor_at(base)
    key, needs = settings.key, ""
    if not key.get_secret_value() and vendor is not None:
        key, needs = _key_of(vendor, keys)
    return Endpoint(
        api=settings.api,
        url=root(settings.api, base),
        key=key,
        needs=needs,
        seller=settings.price_as or base,
        model=settings.model,
        headers=dict(settings.headers),
    )


def endpoint_of(provider: str | None, settings: LlmSettings, keys: VendorKeys) -> Endpoint:
    """Where a request that names ``provider`` goes; ``None``, or its API's name: to the operator's own endpoint.

    Raises ``RunnerFailed``: ``unknown_provider``, or ``not_configured`` where the vendor's key is not there.
    """
    own = configured(settings, keys)
    endpoint = own if provider is None or provider == settings.api else _named(provider, own, keys)
    if endpoint.needs:
        own_key = "LLM_KEY or " if endpoint is own else ""
        raise RunnerFailed("not_configured", f"{endpoint} needs a key: set {own_key}{endpoint.needs} for the worker")
    return endpoint


def _named(provider: str, own: Endpoint, keys: VendorKeys) -> Endpoint:
    if provider not in VENDORS:
        known = ", ".join(VENDORS)
        raise RunnerFailed("unknown_provider", f"no provider {provider[:64]!r} here: known are {known}")
    vendor = VENDORS[provider]
    url = root(vendor.api, vendor.base_url)
    if (own.api, own.url) == (vendor.api, url):
        return own
    key, needs = _key_of(vendor, keys)
    return Endpoint(api=vendor.api, url=url, key=key, needs=needs, seller=vendor.base_url)


def _vendor_at(url: str) -> Vendor | None:
    """By scheme as well: a key that was given for a vendor's host is not sent to it in the clear."""
    place = _place(url)
    return next((vendor for vendor in VENDORS.values() if _place(vendor.base_url) == place), None)


def _place(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _key_of(vendor: Vendor, keys: VendorKeys) -> tuple[SecretStr, str]:
    """The key, or the variable that it is missing from."""
    for name in vendor.keys:
        key: SecretStr = getattr(keys, name)
        if key.get_secret_value():
            try:
                check_sendable(key)
            except ValueError as error:
                raise RunnerFailed("not_configured", f"{name.upper()}: {error}") from None
            return key, ""
    return SecretStr(""), vendor.keys[0].upper() if vendor.keys else ""


PATHS = {
    "anthropic.messages": "/messages",
    "cohere.chat": "/chat",
    "mistral.chat": "/chat/completions",
    "ollama.chat": "/chat",
    "openai.chat": "/chat/completions",
    "openai.responses": "/responses",
}
"""API → the path of its one endpoint below its root. Gemini's names the model, so it is not here."""
_VERSION = re.compile(r"/v\d+[a-z0-9]*(/|$)", re.IGNORECASE)
_VERSIONS = {
    "anthropic.messages": "/v1",
    "cohere.chat": "/v2",
    "google.generateContent": "/v1beta",
    "mistral.chat": "/v1",
    "ollama.chat": "/api",
    "openai.chat": "/v1",
    "openai.responses": "/v1",
}


def root(api: str, base_url: str) -> str:
    """A base URL as people write it → the API's root: with its version, without the endpoint, the query kept.

    A version anywhere in the path counts as it is. A path without one is taken as it is for the two OpenAI APIs, whose
    compatibles live under all sorts of paths; the others get theirs appended, as their vendors' libraries do.
    """
    parts = urlsplit(base_url)
    path = parts.path.rstrip("/")
    tail = PATHS.get(api, "")
    whole = bool(tail) and path.endswith(tail)
    path = path.removesuffix(tail) if whole else path
    if api == "ollama.chat":
        path = _VERSION.sub("", path).rstrip("/").removesuffix("/api") + "/api"
    elif not whole and not _VERSION.search(path) and not (path and api.startswith("openai.")):
        path += _VERSIONS[api]
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def shown(url: str) -> str:
    """A URL for people: its query may hold a key."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
