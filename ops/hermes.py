"""The Hermes of this machine: where it is, which one, and whether it is configured."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from broker.errors import InvalidRequest
from workers.hermes.settings import HermesSettings

__all__ = ["Hermes", "find"]

_TIMEOUT = 30.0


class _Home(BaseSettings):
    """Hermes' own variable."""

    model_config = SettingsConfigDict(env_prefix="HERMES_", frozen=True, extra="ignore")

    home: Path | None = None


@dataclass(frozen=True, slots=True)
class Hermes:
    wanted: str
    path: str | None
    home: Path
    config: Path | None
    """Its config.yaml, where there is one."""
    version: str = ""
    streams: bool = False
    """It lists ``--format``."""
    trouble: str = ""

    @property
    def usable(self) -> bool:
        return bool(self.path and self.config and self.streams)


def find() -> Hermes:
    """Look for it and ask it twice; takes seconds. Raises ``InvalidRequest`` for wrong ``HERMES_…`` settings."""
    try:
        wanted = HermesSettings().bin
    except ValidationError as error:
        raise InvalidRequest(f"a setting of Hermes is wrong: {error.errors()[0]['msg']}", field="settings") from None
    home = (_Home().home or Path.home() / ".hermes").expanduser()
    config = home / "config.yaml"
    path = shutil.which(wanted)
    known = Hermes(wanted, path, home, config if config.is_file() else None)
    if path is None:
        return known
    return _ask(known, path)


def _ask(known: Hermes, path: str) -> Hermes:
    try:
        told = _output(path, "--version").splitlines()
        streams = "--format" in _output(path, "chat", "--help")
    except (OSError, subprocess.SubprocessError) as error:
        return Hermes(known.wanted, path, known.home, known.config, trouble=str(error))
    return Hermes(known.wanted, path, known.home, known.config, told[0].strip() if told else "?", streams)


def _output(*command: str) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT,
        check=True,
    )
    return done.stdout
