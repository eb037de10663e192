"""What an operator sets about Hermes WebUI's front ends: one frozen object, read once from the environment.

Three names are not ours: ``HERMES_HOME`` is Hermes' own, ``HERMES_WEBUI_SSE_CHUNKED`` the WebUI's; an operator who has
set them means them. Durations are seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from broker.finite import FiniteSettings

__all__ = ["WebuiSettings"]

_TRUE = frozenset({"1", "true", "yes", "on"})


def _default_home() -> Path:
    return Path.home() / ".hermes"


class WebuiSettings(FiniteSettings):
    """An empty variable counts as one that is not set. In Python the fields are given by their names."""

    model_config = SettingsConfigDict(env_ignore_empty=True, frozen=True, extra="ignore", populate_by_name=True)

    show_cli_sessions: bool = Field(default=False, validation_alias="RUNCAST_SHOW_CLI_SESSIONS")
    watch_interval: float = Field(
        default=1.0, gt=0, validation_alias="RUNCAST_WATCH_INTERVAL", description="between two looks at Hermes' store"
    )
    chat_runner: str = Field(
        default="hermes",
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        validation_alias="RUNCAST_CHAT_RUNNER",
        description="makes the turns that a front end starts without naming a runner",
    )
    hermes_home: Path = Field(default_factory=_default_home, validation_alias="HERMES_HOME")
    password: SecretStr | None = Field(default=None, validation_alias="RUNCAST_WEBUI_PASSWORD")
    login_ttl: float = Field(default=30 * 86_400.0, ge=60, le=365 * 86_400.0, validation_alias="RUNCAST_LOGIN_TTL")
    sse_chunked: bool = Field(
        default=False,
        validation_alias="HERMES_WEBUI_SSE_CHUNKED",
        description="streams are framed in chunks whatever version of HTTP the request names",
    )

    @field_validator("show_cli_sessions", "sse_chunked", mode="before")
    @classmethod
    def _as_the_webui_reads_it(cls, value: Any) -> Any:
        """Its four words are true, everything else is false and no mistake."""
        return value.strip().lower() in _TRUE if isinstance(value, str) else value

    @field_validator("hermes_home", mode="after")
    @classmethod
    def _expanded(cls, value: Path) -> Path:
        return value.expanduser()

    @field_validator("password", mode="after")
    @classmethod
    def _no_blank(cls, value: SecretStr | None) -> SecretStr | None:
        """Blanks around it belong to the shell or the file that it came from, and blanks alone are no password."""
        stripped = value.get_secret_value().strip() if value is not None else ""
        return SecretStr(stripped) if stripped else None
