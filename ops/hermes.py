"""The Hermes of this machine: where it is, which one, how it streams, and whether it is configured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from broker.errors import InvalidRequest
from workers.hermes import detect
from workers.hermes.detect import Found
from workers.hermes.settings import HermesSettings

__all__ = ["Hermes", "find"]


class _Home(BaseSettings):
    """Hermes' own variable."""

    model_config = SettingsConfigDict(env_prefix="HERMES_", frozen=True, extra="ignore")

    home: Path | None = None


@dataclass(frozen=True, slots=True)
class Hermes:
    settings: HermesSettings
    found: Found
    home: Path
    config: Path | None
    """Its config.yaml, where there is one."""

    @property
    def usable(self) -> bool:
        return bool(self.found.mode and self.config)


async def find() -> Hermes:
    """Look for it and ask it; takes seconds. Raises ``InvalidRequest`` for wrong ``HERMES_…`` settings."""
    try:
        settings = HermesSettings()
    except ValidationError as error:
        raise InvalidRequest(f"a setting of Hermes is wrong: {error.errors()[0]['msg']}", field="settings") from None
    home = (_Home().home or Path.home() / ".hermes").expanduser()
    config = home / "config.yaml"
    return Hermes(settings, await detect.find(settings), home, config if config.is_file() else None)
