"""The deployment files, checked with what is on this machine: real nginx, systemd, and the real command."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from broker.settings import Settings
from ops.cli import cli
from tests.conftest import missing
from tests.ops.conftest import RUN, Command, Process
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def parses(arguments: list[str]) -> click.Context:
    """``runcast`` with these arguments, parsed, not run. Raises ``UsageError`` for what it does not know."""
    context = click.Context(cli)
    command = cli.get_command(context, arguments[0])
    assert command, f"there is no command {arguments[0]}"
    return command.make_context(arguments[0], arguments[1:], parent=context)


# compose


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return loaded


def test_compose_runs_real_commands(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"redis", "gateway", "worker"}
    for name in ("gateway", "worker"):
        parses(services[name]["command"])
    check = services["worker"]["healthcheck"]["test"]
    assert check[:2] == ["CMD", "runcast"]
    parses(check[2:])
    assert "/readyz" in services["gateway"]["healthcheck"]["test"][-1]
    compile(services["gateway"]["healthcheck"]["test"][-1], "healthcheck", "exec")


def test_compose_sets_only_settings_that_exist(compose: dict[str, Any]) -> None:
    known = {f"RUNCAST_{name.upper()}" for name in Settings.model_fields}
    for service in ("gateway", "worker"):
        assert set(compose["services"][service]["environment"]) <= known


def test_compose_waits_longer_than_a_drain(compose: dict[str, Any]) -> None:
    settings = Settings.model_construct()
    for service, drain in (("gateway", settings.drain), ("worker", settings.worker_drain)):
        assert float(compose["services"][service]["stop_grace_period"].removesuffix("s")) > drain


def test_compose_never_lets_the_store_drop_keys_or_the_world_in(compose: dict[str, Any]) -> None:
    command = compose["services"]["redis"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert command[command.index("--appendonly") + 1] == "yes"
    assert "ports" not in compose["services"]["redis"]
    assert all(port.startswith("127.0.0.1:") for port in compose["services"]["gateway"]["ports"])


def test_docker_accepts_the_compose_file() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("there is no docker compose on this machine")
    done = subprocess.run([docker, "compose", "config", "--quiet"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# the image


def test_the_image_copies_what_there_is_and_runs_a_real_command() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    allowed = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    for line in re.findall(r"^COPY (.*)", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source in allowed, f".dockerignore keeps {source} out"
    entry = re.search(r"^ENTRYPOINT (.*)", text, re.MULTILINE)
    command = re.search(r"^CMD (.*)", text, re.MULTILINE)
    assert entry
    assert command
    assert json.loads(entry[1]) == ["runcast"]
    parses(json.loads(command[1]))


def test_constraints_name_every_installed_dependency_exactly() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][\w.]*", line) for line in lines)
    assert lines == list(dict.fromkeys(lines))
    wanted = re.findall(r'^    "([A-Za-z0-9-]+)[\[><=]', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert {name.lower() for name in wanted} <= {line.partition("==")[0] for line in lines}


# systemd


UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_run_real_commands_and_wait_longer_than_a_drain(unit: Path) -> None:
    text = unit.read_text()
    start = re.search(r"^ExecStart=/opt/runcast/bin/runcast (.*)", text, re.MULTILINE)
    stop = re.search(r"^TimeoutStopSec=(\d+)", text, re.MULTILINE)
    assert start
    assert stop
    parses(start[1].replace("%i", "8701").split())
    settings = Settings.model_construct()
    assert int(stop[1]) > (settings.drain if "gateway" in unit.name else settings.worker_drain)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze on this machine")
    command = shutil.which("runcast", path=str(Path(sys.executable).parent))
    assert command
    copy = tmp_path / unit.name.replace("@", "@8701")
    text = unit.read_text().replace("/opt/runcast/bin/runcast", command)
    # The account exists on deployed machines only.
    copy.write_text(text.replace("User=runcast", "User=root"))
    done = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=30)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if copy.name in line]
    assert complaints == []


# nginx


@pytest.fixture
def nginx(tmp_path: Path) -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is None:
        missing("there is no nginx on this machine (Debian: apt install nginx-light)")
    return str(found)


def configured(tmp_path: Path, port: int, upstreams: list[int]) -> Path:
    """The shipped configuration with this test's ports and files."""
    text = (DEPLOY / "nginx.conf").read_text()
    for shipped, own in zip((8701, 8702), upstreams, strict=True):
        assert text.count(f"127.0.0.1:{shipped} ") == 1
        text = text.replace(f"127.0.0.1:{shipped} ", f"127.0.0.1:{own} ")
    text = text.replace("listen 8700;", f"listen 127.0.0.1:{port};")
    text = text.replace("/run/nginx.pid", str(tmp_path / "nginx.pid")).replace("/var/log/nginx", str(tmp_path))
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"    {name}_temp_path {tmp_path / name};\n" for name in temporary)
    own = tmp_path / "nginx.conf"
    own.write_text(
        text.replace("http {\n", "http {\n" + paths, 1)
        .replace("rlimit_nofile 65536", "rlimit_nofile 1024")
        .replace("worker_connections 16384", "worker_connections 512")
    )
    return own


def test_nginx_accepts_the_configuration(nginx: str, tmp_path: Path) -> None:
    for config in (DEPLOY / "nginx.conf", configured(tmp_path, free_port(), [1, 2])):
        command = [nginx, "-t", "-q", "-c", str(config), "-g", f"error_log {tmp_path}/error.log;"]
        done = subprocess.run(command, capture_output=True, text=True)
        if config == DEPLOY / "nginx.conf" and "Permission denied" in done.stderr:
            continue  # its files belong to root
        assert done.returncode == 0, done.stderr


def test_the_proxy_and_the_gateway_agree_on_limits() -> None:
    text = (DEPLOY / "nginx.conf").read_text()
    settings = Settings.model_construct()
    body = re.search(r"client_max_body_size (\d+)m;", text)
    read = re.search(r"proxy_read_timeout (\d+)s;", text)
    assert body
    assert read
    assert int(body[1]) << 20 == settings.body_max_bytes
    assert int(read[1]) > max(2 * settings.heartbeat, settings.result_wait_max)


@pytest.fixture
def proxy(nginx: str, tmp_path: Path) -> Iterator[Callable[[list[int]], int]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(upstreams: list[int]) -> int:
        port = free_port()
        config = configured(tmp_path, port, upstreams)
        started.append(subprocess.Popen([nginx, "-c", str(config), "-g", "daemon off;"]))
        listening(port)
        return port

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def listening(port: int, timeout: float = 30.0) -> None:
    end = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < end


def gateway(runcast: Command) -> tuple[Process, int]:
    process = runcast.start("serve", "--port", "0")
    return process, int(process.until(re.compile(r"port (\d+)\n"), err=True)[1])


class Stream:
    """A viewer behind the proxy over a raw socket."""

    def __init__(self, port: int, path: str, *headers: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 20)
        always = ("Host: runcast", "Accept-Encoding: gzip", "Connection: close")
        lines = [f"GET {path} HTTP/1.1", *always, *headers, "", ""]
        self._socket.sendall("\r\n".join(lines).encode())
        self.seen = b""

    def until(self, text: bytes) -> bytes:
        while text not in self.seen:
            chunk = self._socket.recv(65536)
            assert chunk, f"it ended without {text!r}: {self.seen!r}"
            self.seen += chunk
        return self.seen

    def rest(self) -> bytes:
        while chunk := self._socket.recv(65536):
            self.seen += chunk
        self._socket.close()
        return self.seen


def test_a_stream_passes_the_proxy_unbuffered_and_goes_on_at_the_other_gateway(
    runcast: Command, proxy: Callable[[list[int]], int]
) -> None:
    (first, one), (second, two) = gateway(runcast), gateway(runcast)
    listening(one)
    listening(two)
    port = proxy([one, two])
    publisher = runcast.start("import", "--run", "r1")
    publisher.until("r1")
    lines = RUN.splitlines(keepends=True)

    stream = Stream(port, "/v1/runs/r1/stream")
    head = stream.until(b"retry:")
    assert b"text/event-stream" in head
    assert b"content-encoding" not in head.lower()
    publisher.write(lines[0])
    stream.until(b'"text":"Hello"')  # the run goes on: nothing holds it back until its end

    for process, number in ((first, one), (second, two)):
        if process_serves(number):
            process.signal(signal.SIGTERM)
            process.end()
            break
    stream.rest()
    again = Stream(port, "/v1/runs/r1/stream", "Last-Event-ID: r1:1")
    publisher.write("".join(lines[1:]))
    assert publisher.end().code == 0
    seen = again.rest()
    assert b'"text":"Hello"' not in seen
    assert re.findall(rb"\nid: r1:(\d+)", seen) == [b"2", b"3", b"4", b"5", b"6"]
    assert b"event: end" in seen


def process_serves(port: int) -> bool:
    """Whether that gateway has the viewer: its own metrics say so."""
    stream = Stream(port, "/metrics")
    found = re.search(rb"^runcast_viewers (\d+)", stream.rest(), re.MULTILINE)
    assert found
    return found[1] == b"1.0" or found[1] == b"1"
