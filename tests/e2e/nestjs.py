"""The NestJS proxy of ``deploy/nestjs``: installed and compiled once on a machine, run as a process."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.conftest import missing
from tests.servers import die_with_parent, free_port

__all__ = ["SOURCE", "NestProxy", "built", "installed", "node"]

SOURCE = Path(__file__).parents[2] / "deploy" / "nestjs"
_NODE_MIN = 20


@cache
def node() -> str:
    """Node's version. Skips where there is none, or an old one, or no npm; fails there under ``CI=true``."""
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            missing(f"there is no {command} on this machine: the NestJS proxy needs Node {_NODE_MIN} and npm")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < _NODE_MIN:
        missing(f"Node {version} is too old: the NestJS proxy needs {_NODE_MIN}")
    return version


def installed() -> Path:
    """A directory with the proxy's ``node_modules``, which stays on this machine for as long as nothing in
    ``package.json`` changes."""
    wanted = (SOURCE / "package.json").read_bytes() + (SOURCE / ".npmrc").read_bytes() + node().encode()
    return _made(f"nestjs-{hashlib.sha256(wanted).hexdigest()[:16]}", _install)


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """That directory among those that the tests keep on this machine; ``make`` makes it where it is not there."""
    room = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runcast-tests"
    room.mkdir(parents=True, exist_ok=True)
    with (room / "nestjs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes need the same
        if not (room / name).exists():
            make(room / name)
    return room / name


def _install(place: Path) -> None:
    """In a directory beside, then renamed: what is there is whole."""
    with tempfile.TemporaryDirectory(dir=place.parent, ignore_cleanup_errors=True) as temporary:
        fresh = Path(temporary) / "fresh"
        fresh.mkdir()
        for name in ("package.json", ".npmrc"):
            shutil.copy(SOURCE / name, fresh)
        command = ["npm", "install", "--loglevel=error", "--no-progress", "--no-update-notifier"]
        done = subprocess.run(command, cwd=fresh, capture_output=True, text=True, timeout=300)
        if done.returncode:
            missing(f"npm cannot install the proxy: {done.stdout}{done.stderr}")
        fresh.rename(place)


_COMPILED = ("package.json", "tsconfig.json", "src")


def built() -> Path:
    """The compiled proxy, one for each state of its source. Returns the program."""
    whole = hashlib.sha256(installed().name.encode())
    for name in _COMPILED:
        for file in sorted([SOURCE / name, *(SOURCE / name).rglob("*")]):
            whole.update(str(file.relative_to(SOURCE)).encode() + (file.read_bytes() if file.is_file() else b""))
    node_modules = installed() / "node_modules"
    place = _made(f"nestjs-built-{whole.hexdigest()[:16]}", lambda place: _compile(place, node_modules))
    return place / "dist" / "main.js"


def _compile(place: Path, node_modules: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent, ignore_cleanup_errors=True) as temporary:
        fresh = Path(temporary) / "fresh"
        fresh.mkdir()
        for name in _COMPILED:
            (shutil.copytree if name == "src" else shutil.copy)(SOURCE / name, fresh / name)
        (fresh / "node_modules").symlink_to(node_modules)
        done = subprocess.run(["npm", "run", "--silent", "build"], cwd=fresh, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        fresh.rename(place)


class NestProxy:
    """One proxy process on a free port. ``settings``: ``drain=1`` is ``PROXY_DRAIN=1``."""

    def __init__(self, program: Path, directory: Path, upstream: int | str, **settings: object) -> None:
        self.port = free_port()
        url = upstream if isinstance(upstream, str) else f"http://127.0.0.1:{upstream}"
        given = {"upstream": url, "port": self.port, **settings}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PROXY_")}
        environment |= {name if name.isupper() else f"PROXY_{name.upper()}": str(v) for name, v in given.items()}
        self._log = directory / f"proxy-{self.port}.log"
        with self._log.open("wb") as log:
            self.popen = subprocess.Popen(
                ["node", str(program)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self, timeout: float = 30.0) -> NestProxy:
        """Once it listens."""
        end = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            assert self.popen.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL and wait; harmless when it has ended."""
        self.popen.kill()
        self.popen.wait()
