"""What an operator sets about model endpoints: frozen objects, read once from the environment.

Durations are seconds, sizes bytes. Keys are ``SecretStr``: they show in no repr, and no error quotes what was set.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from broker.finite import FiniteSettings
from workers.providers import ADAPTERS

__all__ = ["APIS", "LlmSettings", "VendorKeys", "check_sendable"]

APIS = tuple(sorted(set(ADAPTERS) - {"bedrock.converse"}))
"""Bedrock's requests are signed, and its stream is framed in binary: neither is here."""

_FIELD_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FRAMING = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection"})


class LlmSettings(FiniteSettings):
    """``LLM_…``: the endpoint of requests that name no provider, and the limits of every call."""

    model_config = SettingsConfigDict(
        env_prefix="LLM_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    api: str = Field(default="openai.chat", description="what the endpoint speaks")
    base_url: str = Field(default="", description="where it is; empty: the API's own vendor")
    key: SecretStr = Field(
        default=SecretStr(""), description="empty: the usual variable of the vendor whose host it is"
    )
    model: str = Field(default="", description="of requests that name none")
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="sent as well, a JSON object")
    price_as: str = Field(default="", description="the seller whose prices count; empty: the one at base_url")
    max_output_tokens: int = Field(default=0, ge=0, description="0: what the provider takes by default")
    connect: float = Field(default=10.0, gt=0, description="for a connection, TLS included")
    first_token: float = Field(default=120.0, ge=0, description="from the request to the first token; 0: no limit")
    silence: float = Field(default=60.0, ge=0, description="without a byte after the first token; 0: no limit")
    timeout: float = Field(default=0.0, ge=0, description="of a whole run; 0: no limit")
    retries: int = Field(default=2, ge=0, le=20, description="before the first token, after the first attempt")
    retry_wait: float = Field(default=0.5, ge=0, description="before the first retry; doubles, with jitter")
    retry_wait_max: float = Field(default=30.0, ge=0, description="a longer Retry-After is not waited for")
    line_max_bytes: int = Field(default=16 << 20, ge=1 << 10, description="of one event of the stream")
    response_max_bytes: int = Field(default=64 << 20, ge=1 << 10, description="of one response")

    @field_validator("api")
    @classmethod
    def _known_api(cls, value: str) -> str:
        if value == "bedrock.converse":
            raise ValueError("LLM_API=bedrock.converse is not spoken here: use Bedrock's OpenAI-compatible endpoint")
        if value not in APIS:
            raise ValueError(f"LLM_API={value!r}: known are {', '.join(APIS)}")
        return value

    @field_validator("base_url")
    @classmethod
    def _plain_url(cls, value: str) -> str:
        if not value:
            return value
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("LLM_BASE_URL is no http:// or https:// URL")
        if "@" in parts.netloc:
            raise ValueError("LLM_BASE_URL holds a user or a password: put the key into LLM_KEY")
        _ = parts.port  # raises ValueError where it is none
        return value

    @field_validator("key")
    @classmethod
    def _sendable(cls, value: SecretStr) -> SecretStr:
        check_sendable(value)
        return value

    @field_validator("headers")
    @classmethod
    def _header_fields(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, secret in value.items():
            if not _FIELD_NAME.fullmatch(name) or name.lower() in _FRAMING:
                raise ValueError(f"LLM_HEADERS: {name[:64]!r} cannot be set")
            check_sendable(secret)
        return value


def check_sendable(secret: SecretStr) -> None:
    """What cannot stand in a header would be quoted by the HTTP library's error. Raises ``ValueError``."""
    text = secret.get_secret_value()
    if not text.isascii() or not (text.isprintable() or not text) or text != text.strip():
        raise ValueError("a key or header has a line break, a blank at its end, or a character that is not ASCII")


class VendorKeys(FiniteSettings):
    """The vendors' usual variables: ``OPENAI_API_KEY`` and so on. Each key goes to its vendor's own host only."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True)

    anthropic_api_key: SecretStr = SecretStr("")
    co_api_key: SecretStr = SecretStr("")
    cohere_api_key: SecretStr = SecretStr("")
    deepseek_api_key: SecretStr = SecretStr("")
    gemini_api_key: SecretStr = SecretStr("")
    google_api_key: SecretStr = SecretStr("")
    groq_api_key: SecretStr = SecretStr("")
    mistral_api_key: SecretStr = SecretStr("")
    openai_api_key: SecretStr = SecretStr("")
    openrouter_api_key: SecretStr = SecretStr("")
    xai_api_key: SecretStr = SecretStr("")
