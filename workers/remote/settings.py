"""What an operator sets about the runner service: a frozen object, read once from the environment.

Durations are seconds, sizes bytes. The key shows in no repr, and no error quotes what was set.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from broker.finite import FiniteSettings
from workers.llm.settings import check_sendable

__all__ = ["RemoteSettings"]


class RemoteSettings(FiniteSettings):
    """``REMOTE_…``: one service a worker."""

    model_config = SettingsConfigDict(
        env_prefix="REMOTE_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    url: str = Field(default="", description="where the service is, without /v1; empty: the runner is not configured")
    key: SecretStr = Field(default=SecretStr(""), description="sent as a bearer token")
    poll: float = Field(default=0.1, gt=0, description="between two requests for events while events come")
    poll_max: float = Field(default=1.0, gt=0, description="the same while none come; the pause grows up to it")
    status_after: float = Field(default=3.0, ge=0, description="without an event before the run's status is asked for")
    connect: float = Field(default=10.0, gt=0, description="for a connection, TLS included")
    timeout: float = Field(
        default=60.0, gt=0, description="for the answer to a request, which may be held open so long"
    )
    outage: float = Field(default=120.0, ge=0, description="how long a service that does not answer is asked again")
    response_max_bytes: int = Field(default=32 << 20, ge=1 << 10, description="of one answer")

    @field_validator("url")
    @classmethod
    def _plain_url(cls, value: str) -> str:
        if not value:
            return value
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("REMOTE_URL is no http:// or https:// URL")
        if "@" in parts.netloc:
            raise ValueError("REMOTE_URL holds a user or a password: put the key into REMOTE_KEY")
        if parts.query or parts.fragment:
            raise ValueError("REMOTE_URL has a query or a fragment: paths are appended to it")
        _ = parts.port  # raises ValueError where it is none
        return value.rstrip("/")

    @field_validator("key")
    @classmethod
    def _sendable(cls, value: SecretStr) -> SecretStr:
        check_sendable(value)
        return value
