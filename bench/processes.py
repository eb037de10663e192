"""Servers under measurement: each a process of its own on a free loopback port, gone when the bench is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["ROOT", "Missing", "Process", "compile_floor", "free_port", "gateway", "nginx", "redis"]

ROOT = Path(__file__).resolve().parent.parent
_TICK = os.sysconf("SC_CLK_TCK")
_NCHAN = ("/usr/lib/nginx/modules/ngx_nchan_module.so", "/usr/share/nginx/modules/ngx_nchan_module.so")


class Missing(Exception):
    """A peer that is not on this machine; the message says how to get it."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Process:
    """A server process. ``cpu`` and ``rss`` are those of the process at ``pid``, without its children."""

    def __init__(
        self, command: Sequence[str], port: int, *, env: Mapping[str, str] | None = None, log: Path, cwd: Path = ROOT
    ) -> None:
        self.port = port
        self._log = log
        with log.open("wb") as out:
            self._popen = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=_die_with_parent,
            )
        self.pid = self._popen.pid

    def ready(self, timeout: float = 20.0) -> Process:
        """Return once the port accepts connections."""
        end = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                return self
            if self._popen.poll() is not None or time.monotonic() > end:
                said = self._log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self._popen.args!r} did not start: {said}")
            time.sleep(0.02)

    def cpu(self) -> float:
        """Seconds of CPU so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def rss(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def connections_to(self, port: int) -> int:
        """How many TCP connections to that port of this machine the process holds."""
        ours = set()
        for fd in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                ours.add(os.readlink(fd))
        lines = [line.split() for line in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]]
        return sum(line[2].endswith(f":{port:04X}") and f"socket:[{line[9]}]" in ours for line in lines)

    def stop(self) -> None:
        if self._popen.poll() is None:
            self._popen.terminate()
            try:
                self._popen.wait(5)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()


def _program(name: str, package: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise Missing(f"there is no {name} on this machine (Debian: apt install {package})")
    return found


def redis(directory: Path) -> Process:
    """A redis-server that keeps nothing on disk."""
    port = free_port()
    command = [_program("redis-server", "redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
    command += ["--save", "", "--appendonly", "no", "--dir", str(directory), "--maxclients", "20000"]
    return Process(command, port, log=directory / f"redis-{port}.log").ready()


_SERVE = "from broker.settings import Settings; from gateway.server import serve; serve(Settings())"


def gateway(directory: Path, redis_port: int, namespace: str, settings: Mapping[str, object] | None = None) -> Process:
    """One gateway process. ``settings``: names of ``Settings`` → values."""
    port = free_port()
    known: dict[str, object] = {"redis_url": f"redis://127.0.0.1:{redis_port}/0", "namespace": namespace, "port": port}
    env = {f"RUNCAST_{name.upper()}": str(value) for name, value in {**known, **(settings or {})}.items()}
    command = [sys.executable, "-c", _SERVE]
    return Process(command, port, env=env, log=directory / f"gateway-{port}.log").ready()


def nginx(directory: Path, http: str, *, nchan: bool = False, package: str = "nginx-light") -> Process:
    """nginx with one worker. ``http``: the inside of the ``http`` block; ``{port}`` in it is the port it listens on.

    The process that is measured is the worker, not the master.
    """
    binary = _program("nginx", package)
    module = ""
    if nchan:
        found = next((path for path in _NCHAN if Path(path).exists()), None)
        if found is None:
            raise Missing("nginx has no Nchan module on this machine (Debian: apt install libnginx-mod-nchan)")
        module = f"load_module {found};\n"
    port = free_port()
    place = directory / f"nginx-{port}"
    place.mkdir()
    temporary = "".join(
        f"{name}_temp_path {place}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (place / "nginx.conf").write_text(
        f"{module}worker_processes 1; daemon off; master_process off; pid {place}/pid; error_log {place}/error.log;\n"
        f"worker_rlimit_nofile 20000; events {{ worker_connections 12000; }}\n"
        f"http {{ access_log off; {temporary} {http.replace('{port}', str(port))} }}\n"
    )
    command = [binary, "-p", str(place), "-c", str(place / "nginx.conf"), "-e", str(place / "error.log")]
    return Process(command, port, log=place / "out.log").ready()


def compile_floor(directory: Path) -> Path:
    """``floor.c`` → a program."""
    compiler = _program("cc", "gcc")
    program = directory / "floor"
    if not program.exists():
        subprocess.run([compiler, "-O2", "-o", str(program), str(ROOT / "bench" / "floor.c")], check=True)
    return program
