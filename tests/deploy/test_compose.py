"""``compose.yaml``, as docker-compose understands it: what it says is true of the program, and runs."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
import urllib.request
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.conftest import missing
from tests.deploy.program import DEPLOY, ROOT, Replaced, launched, parses, settings_of, unknown, wait_for
from tests.servers import RedisServer, free_port
from tests.shipped_nginx import ShippedNginx

GATEWAYS, RUNCAST = ("gateway1", "gateway2"), ("gateway1", "gateway2", "worker")
CAPS = {"RUNCAST_COST_CAP": "5", "RUNCAST_COST_CAP_PRINCIPAL": "1.5", "RUNCAST_COST_RESERVATION": "0.25"}


def tool() -> list[str]:
    """Docker's own compose, or the one of Debian."""
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0:
        return [docker, "compose"]
    found = shutil.which("docker-compose")
    if found is None:
        missing("there is no docker-compose on this machine (Debian: apt install docker-compose)")
    return [str(found)]


def config(file: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*tool(), "--file", str(file), "config"]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """With cost caps in the environment."""
    done = config(ROOT / "compose.yaml", **CAPS)
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return loaded


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    """The tool can say no."""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((ROOT / "compose.yaml").read_text().replace("stop_grace_period: 45s", "stop_grace_time: 45s"))
    assert "stop_grace_time" in config(wrong).stderr


def test_commands_and_settings_exist(services: dict[str, Any]) -> None:
    assert set(services) == {"redis", *RUNCAST, "certificate", "nginx"}
    for name in RUNCAST:
        parses(services[name]["command"])
        assert unknown(services[name]["environment"]) == set()
        settings_of(services[name]["environment"])


def test_gateways_and_workers_have_the_same_settings(services: dict[str, Any]) -> None:
    """A cap that only gateways knew would be none for the steps of tasks, which workers admit."""
    one, two, worker = (dict(services[name]["environment"]) for name in RUNCAST)
    assert CAPS.items() <= one.items()
    worker.pop("RUNCAST_TASKS_DIR")
    assert one.pop("RUNCAST_WEBUI_PASSWORD") == two.pop("RUNCAST_WEBUI_PASSWORD") == ""
    assert one == two == worker


def test_a_password_in_the_environment_is_the_gateways_alone() -> None:
    """A worker's agents need not know it."""
    loaded = yaml.safe_load(config(ROOT / "compose.yaml", RUNCAST_WEBUI_PASSWORD="let me in").stdout)["services"]
    told = [name for name in loaded if "let me in" in str(loaded[name])]
    assert told == list(GATEWAYS)


@pytest.mark.long
def test_without_caps_in_the_environment_there_are_none() -> None:
    loaded = yaml.safe_load(config(ROOT / "compose.yaml", **dict.fromkeys(CAPS, "")).stdout)["services"]
    assert settings_of(loaded["worker"]["environment"]).cost_cap is None


def test_what_is_shared_lies_on_the_shared_volume(services: dict[str, Any]) -> None:
    for name in RUNCAST:
        assert services[name]["volumes"] == ["files:/var/lib/runcast:rw"]
        settings = settings_of(services[name]["environment"])
        assert settings.artifact_store.startswith("file:/var/lib/runcast/")
    assert str(settings_of(services["worker"]["environment"]).tasks_path).startswith("/var/lib/runcast/")


def test_a_stop_waits_longer_than_a_drain(services: dict[str, Any]) -> None:
    for name in RUNCAST:
        settings = settings_of(services[name]["environment"])
        drain = settings.worker_drain if name == "worker" else settings.drain
        assert float(services[name]["stop_grace_period"].removesuffix("s")) >= drain + 10


def test_health_checks_ask_what_is_served(services: dict[str, Any]) -> None:
    for name, option in zip(RUNCAST, ("port", "port", "metrics_port"), strict=True):
        port = parses(services[name]["command"]).params[option]
        assert f"http://127.0.0.1:{port}/readyz" in services[name]["healthcheck"]["test"][-1]


def test_workers_can_be_scaled(services: dict[str, Any]) -> None:
    """A name or a port of this machine would be one for all of them."""
    assert not {"container_name", "ports", "hostname"} & set(services["worker"])


def test_the_store_never_drops_keys_and_the_world_stays_out(services: dict[str, Any]) -> None:
    command = services["redis"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert command[command.index("--appendonly") + 1] == "yes"
    assert {name for name, service in services.items() if "ports" in service} == {"nginx"}
    assert services["nginx"]["ports"] == ["127.0.0.1:8700:8700/tcp", "127.0.0.1:8443:8443/tcp"]
    assert all(services["nginx"]["depends_on"][name] == {"condition": "service_healthy"} for name in GATEWAYS)


# Run


def scripted(service: dict[str, Any], here: Replaced) -> None:
    """Its entry point and command, which are a shell's."""
    done = subprocess.run(here.all([*service["entrypoint"], *service["command"]]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Here(NamedTuple):
    """A service as a process of this machine."""

    service: dict[str, Any]
    here: Replaced
    port: int

    @classmethod
    def of(cls, name: str, service: dict[str, Any], own: dict[str, str | int]) -> Here:
        port = free_port()
        return cls(service, Replaced({**own, "8790" if name == "worker" else "8700": port}), port)

    def launched(self, directory: Path, namespace: str) -> AbstractContextManager[object]:
        of_the_image = {"RUNCAST_DATA_DIR": "/var/lib/runcast", "RUNCAST_NAMESPACE": namespace}
        environment = self.here.environment({**self.service["environment"], **of_the_image})
        return launched(directory, self.here.all(self.service["command"]), environment)

    def healthy(self) -> bool:
        """What its health check says, with this Python for the image's."""
        kind, program, *rest = self.here.all(self.service["healthcheck"]["test"])
        assert (kind, program) == ("CMD", "python")
        return subprocess.run([sys.executable, *rest], capture_output=True, timeout=20).returncode == 0


def test_it_runs(services: dict[str, Any], redis7: RedisServer, namespace: str, tmp_path: Path) -> None:
    """Every command of the file but Valkey's, here instead of in containers, and a run through all of it."""
    own: dict[str, str | int] = {
        "redis://redis:6379/0": redis7.url,
        "0.0.0.0": "127.0.0.1",
        "/var/lib/runcast": str(tmp_path / "files"),
    }
    up = [Here.of(name, services[name], own) for name in RUNCAST]
    with ExitStack() as stack:
        for process in up:
            stack.enter_context(process.launched(tmp_path, namespace))
        here = {
            "/etc/runcast/nginx.conf": str(DEPLOY / "nginx.conf"),
            "/etc/nginx/nginx.conf": str(tmp_path / "composed.conf"),
            "exec nginx -g": "true",
            "/etc/runcast/tls": str(tmp_path),
        }
        scripted(services["certificate"], Replaced(here))
        scripted(services["nginx"], Replaced(here))
        for process in up:
            wait_for(process.healthy, tmp_path)
        nginx = ShippedNginx(
            tmp_path / "nginx",
            [process.port for process in up[:2]],
            text=(tmp_path / "composed.conf").read_text(),
            shipped=["gateway1:8700", "gateway2:8700"],
            certificate=(tmp_path / "certificate.pem", tmp_path / "key.pem"),
        )
        stack.callback(nginx.stop)
        nginx.start()
        assert outcome_of_a_run(nginx, tmp_path / "certificate.pem") == "completed"


def outcome_of_a_run(nginx: ShippedNginx, certificate: Path) -> str:
    trusted = ssl.create_default_context(cafile=str(certificate))

    def ask(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        sent = urllib.request.Request(
            f"https://localhost:{nginx.tls_port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(sent, timeout=30, context=trusted) as answer:
            loaded: dict[str, Any] = json.load(answer)
            return loaded

    body = {"runner": "scripted", "input": {"message": "x"}, "metadata": {"script": "tokens=3"}}
    run = ask("/v1/runs", body)["run_id"]
    return str(ask(f"/v1/runs/{run}/result?wait=20")["status"])
