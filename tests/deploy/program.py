"""What the deployment files are compared with: the command, the settings, and both run as a file says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from broker.settings import Settings
from gateway.webui.settings import WebuiSettings
from ops.cli import cli
from tests.servers import die_with_parent

__all__ = ["DEPLOY", "ROOT", "Replaced", "answers", "launched", "parses", "settings_of", "unknown", "wait_for"]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def parses(arguments: Sequence[str]) -> click.Context:
    """``runcast`` with these arguments, parsed, not run. Raises ``UsageError`` for what it does not know."""
    context = click.Context(cli)
    command = cli.get_command(context, arguments[0])
    assert command, f"there is no command {arguments[0]}"
    return command.make_context(arguments[0], list(arguments[1:]), parent=context)


def unknown(names: Mapping[str, object] | set[str]) -> set[str]:
    """Those of these variables that look like settings and are none."""
    known = {f"RUNCAST_{name.upper()}" for name in Settings.model_fields}
    known |= {str(field.validation_alias) for field in WebuiSettings.model_fields.values()}
    return {name for name in names if name.startswith("RUNCAST_") and name not in known}


def settings_of(environment: Mapping[str, str]) -> Settings:
    """The settings of a process with these variables, and no others. Raises ``ValidationError``."""
    before = dict(os.environ)
    try:
        for name in [name for name in os.environ if name.startswith("RUNCAST_")]:
            del os.environ[name]
        os.environ.update(environment)
        return Settings()
    finally:
        os.environ.clear()
        os.environ.update(before)


class Replaced:
    """What a file says, with what is only on deployed machines (addresses, ports, directories) as it is here."""

    def __init__(self, here: Mapping[str, str | int]) -> None:
        self._here = here

    def __call__(self, text: str) -> str:
        for shipped, own in self._here.items():
            text = text.replace(shipped, str(own))
        return text

    def all(self, texts: Sequence[str]) -> list[str]:
        return [self(text) for text in texts]

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {name: self(value) for name, value in variables.items()}


@contextmanager
def launched(
    directory: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """``runcast`` as a process, with the settings given and no others. What it says is in ``directory``."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RUNCAST_")}
    with (directory / f"{arguments[0]}-{time.monotonic_ns()}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ops.cli", *arguments],
            env={**clean, **environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> int:
    """The status, or 0 where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=3) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_for(true: Callable[[], object], directory: Path, timeout: float = 40.0) -> None:
    """Wait for a state; what the processes said is told where it does not come."""
    end = time.monotonic() + timeout
    while not true():
        said = "".join(log.read_text(errors="replace")[-2000:] for log in directory.glob("*.log"))
        assert time.monotonic() < end, said
        time.sleep(0.05)
