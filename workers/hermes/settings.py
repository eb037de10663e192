"""What an operator sets about Hermes: one frozen object, read once from the environment (``HERMES_…``).

Durations are seconds. ``HERMES_HOME`` is not here: Hermes reads it itself, and the worker's environment is passed on.
"""

from __future__ import annotations

import os
import shlex
from typing import ClassVar

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from broker.answer import REVIEW_BELOW
from broker.finite import FiniteSettings

__all__ = ["MODES", "HermesSettings"]

MODES = ("auto", "bridge", "stream-json", "api", "text", "quiet")


class HermesSettings(FiniteSettings):
    model_config = SettingsConfigDict(env_prefix="HERMES_", frozen=True, extra="ignore")

    bin: str = Field(default="hermes", min_length=1, description="the program, looked up on PATH unless it is a path")
    mode: str = Field(default="auto", description="how Hermes' stream is read; auto takes the best that is there")
    cwd: str = Field(default="", description="the directory in which Hermes works; empty: the worker's")
    stream_args: str = Field(default="", description="shell words, appended to the stream command")
    python: str = Field(default="", description="Hermes' own interpreter; empty: the one that its script names")
    bridge_handshake: float = Field(default=30.0, gt=0, description="for the bridge's greeting; then it is not there")
    grace: float = Field(default=8.0, ge=5.0, description="from SIGTERM to SIGKILL; in a tool Hermes needs 4 to 5 s")
    timeout: float = Field(default=0.0, ge=0, description="of a whole run; 0: none")
    silence: float = Field(default=0.0, ge=0, description="without a byte of output before it is given up; 0: none")
    api_url: str = Field(default="", description="of an API server that runs already; empty: mode api starts one")
    api_key: SecretStr = Field(default=SecretStr(""), description="that server's API_SERVER_KEY")
    api_start: float = Field(default=60.0, gt=0, description="from the start of an API server until it listens")
    shares: ClassVar[frozenset[str]] = frozenset({"review_below"})
    review_below: float = Field(
        default=REVIEW_BELOW, ge=0, le=1, description="an answer of less confidence is flagged for review"
    )
    line_max_bytes: int = Field(default=16 << 20, ge=1 << 16, description="a longer line is left out, and said so")

    @field_validator("mode")
    @classmethod
    def _known_mode(cls, value: str) -> str:
        if value not in MODES:
            raise ValueError(f"HERMES_MODE={value!r}: the modes are {', '.join(MODES)}")
        return value

    @field_validator("bin", "python")
    @classmethod
    def _whole_path(cls, value: str) -> str:
        """A call may work in another directory than the one in which the path was given."""
        return os.path.abspath(value) if os.sep in value else value

    @field_validator("api_url")
    @classmethod
    def _http(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError(f"HERMES_API_URL={value!r}: it begins with http:// or https://")
        return value

    @field_validator("stream_args")
    @classmethod
    def _shell_words(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"HERMES_STREAM_ARGS={value!r} are no shell words: {error}") from error
        return value
