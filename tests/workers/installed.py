"""A Hermes made of stand-ins, installed in a directory: the command is ``fake_hermes.py``, the modules ``stand_in``."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from workers.hermes.settings import HermesSettings

__all__ = ["Installed"]

_HERE = Path(__file__).parent
_SCRIPT = """#!{python}
import runpy, sys
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
runpy.run_path({fake!r}, run_name="__main__")
"""


class Installed:
    """``env`` is what its calls inherit: change it to change the build. ``bridge``: its Python finds its modules.

    ``streams``: its help lists ``--format``.
    """

    def __init__(self, directory: Path, *, bridge: bool = True, streams: bool = True) -> None:
        self.script = directory / "hermes"
        self._log = directory / "asked"
        self.trace = uuid4().hex
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HERMES_")}
        self.env = {**inherited, "TRACE": self.trace, "PYTHONDONTWRITEBYTECODE": "1"}
        if bridge:
            self.env["PYTHONPATH"] = str(_HERE / "stand_in")
        else:
            self.env.pop("PYTHONPATH", None)
        if not streams:
            self.env["FAKE_HERMES_OLDER"] = "1"
        self.write()

    def write(self, body: str = "") -> None:
        """Install it anew, as the program that ``body`` is."""
        made = _SCRIPT.format(python=sys.executable, log=str(self._log), fake=str(_HERE / "fake_hermes.py"))
        self.script.write_text(body or made)
        self.script.chmod(0o755)

    def touch(self) -> None:
        """As an update does."""
        now = self.script.stat().st_mtime_ns + 1_000_000_000
        os.utime(self.script, ns=(now, now))

    def copy(self, directory: Path) -> Path:
        directory.mkdir()
        return Path(shutil.copy(self.script, directory / "hermes"))

    def settings(self, **more: Any) -> HermesSettings:
        return HermesSettings(**{"bin": str(self.script), "grace": 5.0, **more})

    @property
    def asked(self) -> list[str]:
        """The arguments of every start of the command."""
        return self._log.read_text().splitlines() if self._log.exists() else []

    @property
    def left(self) -> list[str]:
        """The command lines of its living processes."""
        return list(self._processes().values())

    def kill(self, program: str) -> None:
        """SIGKILL for its processes that run the program, but not for their supervisor."""
        for pid, command in self._processes().items():
            if program in command and "supervisor.py" not in command:
                os.kill(pid, signal.SIGKILL)

    def _processes(self) -> dict[int, str]:
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if f"TRACE={self.trace}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it ended while we looked
        return found
