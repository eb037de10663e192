"""Where the real Hermes is, a home for it, and what is left of its processes."""

from __future__ import annotations

import os
from pathlib import Path

from tests.conftest import missing
from tests.fake_model import FakeModel

__all__ = ["hermes_binary", "make_home", "pids", "processes"]


def hermes_binary(variable: str = "RUNCAST_TEST_HERMES") -> str:
    """The program that the variable names. Skips without it, and fails where ``CI=true``."""
    path = os.environ.get(variable, "")
    if not path:
        missing(f"{variable} does not name a Hermes program")
    assert Path(path).is_file(), f"{variable}={path}: there is no such file"
    return path


def make_home(home: Path, model: FakeModel) -> Path:
    (home / "config.yaml").write_text(model.config())
    return home


def processes(trace: str) -> dict[int, str]:
    """The living processes that carry ``RUN_TRACE=trace`` in their environment, with their command lines."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"RUN_TRACE={trace}".encode() not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                continue
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue  # it ended while we looked
        if command:
            found[int(pid)] = command
    return found


def pids(trace: str, *words: str, without: str = "\0") -> list[int]:
    """Of those the ones whose command line has all ``words`` and not ``without``."""
    return [p for p, c in processes(trace).items() if all(w in c for w in words) and without not in c]
