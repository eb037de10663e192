"""What an operator sets about Hermes: one frozen object, read once from the environment (``HERMES_…``).

Durations are seconds. ``HERMES_HOME`` is not here: Hermes reads it itself, and the worker's environment is passed on.
"""

from __future__ import annotations

import shlex

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["HermesSettings"]

MODES = ("auto", "stream-json")


class HermesSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="HERMES_", frozen=True, extra="ignore")

    bin: str = Field(default="hermes", min_length=1, description="the program, looked up on PATH unless it is a path")
    mode: str = Field(default="auto", description="how Hermes' stream is read; auto takes the best that is there")
    stream_args: str = Field(default="", description="shell words, appended to the stream command")
    grace: float = Field(default=8.0, ge=5.0, description="from SIGTERM to SIGKILL; in a tool Hermes needs 4 to 5 s")
    timeout: float = Field(default=0.0, ge=0, description="of a whole run; 0: none")
    silence: float = Field(default=0.0, ge=0, description="without a byte of output before it is given up; 0: none")
    line_max_bytes: int = Field(default=16 << 20, ge=1 << 16, description="a longer line is left out, and said so")

    @field_validator("mode")
    @classmethod
    def _known_mode(cls, value: str) -> str:
        if value not in MODES:
            raise ValueError(f"HERMES_MODE={value!r}: the modes are {', '.join(MODES)}")
        return value

    @field_validator("stream_args")
    @classmethod
    def _shell_words(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"HERMES_STREAM_ARGS={value!r} are no shell words: {error}") from error
        return value
