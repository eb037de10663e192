"""nginx with ``deploy/nginx.conf``: as it is shipped, but for ports, addresses, files and what only root may set."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import missing
from tests.servers import Certificates, die_with_parent, free_port

__all__ = ["SHIPPED", "ShippedNginx", "configured", "nginx_binary", "unprivileged"]

SHIPPED = Path(__file__).parents[1] / "deploy" / "nginx.conf"
UPSTREAMS = ("127.0.0.1:8701", "127.0.0.1:8702")


def nginx_binary() -> str:
    """Debian's nginx. Without one the test is skipped, or fails where ``CI=true``."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        missing("there is no nginx on this machine (Debian: apt install nginx-light)")
    return str(found)


def configured(directory: Path, port: int, upstreams: Sequence[int], *, tls_port: int | None = None) -> Path:
    """The shipped configuration in ``directory``: ``port`` speaks HTTP, ``tls_port`` (default: a free one) TLS with a
    certificate made for it, for localhost and 127.0.0.1."""
    text = SHIPPED.read_text()
    own = {shipped: f"127.0.0.1:{number}" for shipped, number in zip(UPSTREAMS, upstreams, strict=True)}
    return unprivileged(directory, text, own, port, tls_port or free_port())


def unprivileged(
    directory: Path,
    text: str,
    upstreams: Mapping[str, str],
    port: int,
    tls_port: int,
    certificate: tuple[Path, Path] | None = None,
) -> Path:
    """``text`` so that whoever runs the tests may serve it. ``upstreams``: address in it → address here;
    ``certificate``: with its key, one is made unless given."""
    for shipped, address in upstreams.items():
        assert text.count(f"server {shipped} ") == 1
        text = text.replace(f"server {shipped} ", f"server {address} ")
    cert, key = certificate or _made(directory)
    replaced = {
        "listen 127.0.0.1:8700;": f"listen 127.0.0.1:{port};",
        "listen 127.0.0.1:8443 ssl": f"listen 127.0.0.1:{tls_port} ssl",
        "/etc/runcast/tls/certificate.pem": str(cert),
        "/etc/runcast/tls/key.pem": str(key),
        "/run/nginx.pid": str(directory / "nginx.pid"),
        "rlimit_nofile 65536": "rlimit_nofile 1024",
        "worker_connections 16384": "worker_connections 512",
    }
    text = re.sub("listen (?=87|84)", "listen 127.0.0.1:", text)  # in a container it listens on all that is there
    for shipped, here in replaced.items():
        assert text.count(shipped) == 1, f"{shipped} is there {text.count(shipped)} times"
        text = text.replace(shipped, here)
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"    {name}_temp_path {directory / name};\n" for name in temporary)
    written = directory / "nginx.conf"
    written.write_text(text.replace("http {\n", "http {\n" + paths, 1).replace("/var/log/nginx", str(directory)))
    return written


def _made(directory: Path) -> tuple[Path, Path]:
    certificates = Certificates.create(directory)
    return certificates.cert, certificates.key


class ShippedNginx:
    """That nginx as a process, in front of gateways on these ports. ``text``: the configuration, if not as it is in
    ``deploy/``; ``shipped``: the addresses in it that these ports are for."""

    def __init__(
        self,
        directory: Path,
        upstreams: Sequence[int],
        *,
        text: str | None = None,
        shipped: Sequence[str] = UPSTREAMS,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        self.port, self.tls_port = free_port(), free_port()
        self._directory = directory
        directory.mkdir(exist_ok=True)
        own = {address: f"127.0.0.1:{number}" for address, number in zip(shipped, upstreams, strict=True)}
        text = SHIPPED.read_text() if text is None else text
        self._config = unprivileged(directory, text, own, self.port, self.tls_port, certificate)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def authority(self) -> Path:
        """The certificate of who signed nginx'."""
        return self._directory / "ca.pem"

    @property
    def log(self) -> str:
        """The error log, and what was said before it was open."""
        files = (self._directory / "error.log", self._directory / "output")
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    @property
    def requests(self) -> list[str]:
        """The lines of the access log so far: one for each request that has ended."""
        return (self._directory / "access.log").read_text().splitlines()

    def start(self, timeout: float = 40.0) -> ShippedNginx:
        """Start it; returns once it listens."""
        command = [nginx_binary(), "-p", str(self._directory), "-c", str(self._config), "-g", "daemon off;"]
        with (self._directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, preexec_fn=die_with_parent, env=os.environ
            )
        end = time.monotonic() + timeout
        while not _listens(self.port) or not _listens(self.tls_port):
            assert self._process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """Harmless when it was not started or has ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
