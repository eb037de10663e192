"""``deploy/systemd``: systemd takes the units, they forbid what they can, and what they start is what they say."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import missing
from tests.deploy.program import DEPLOY, Replaced, launched, parses, settings_of, unknown
from tests.servers import RedisServer, free_port

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXPOSED = {"runcast-gateway@.service": 20, "runcast-worker@.service": 50}
"""What `systemd-analyze security` may say at most, in tenths. Agents start programs, so a worker may do more."""


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("systemd-analyze")
    if found is None:
        missing("there is no systemd-analyze on this machine (Debian: apt install systemd)")
    return subprocess.run([str(found), *arguments], capture_output=True, text=True, timeout=30)


def instance(unit: Path, directory: Path, text: str | None = None) -> Path:
    """The unit of port 8701 as it can be verified here: account and program exist on deployed machines only."""
    command = shutil.which("runcast", path=str(Path(sys.executable).parent))
    assert command
    text = (text or unit.read_text()).replace("/opt/runcast/bin/runcast", command).replace("User=runcast", "User=root")
    copy = directory / unit.name.replace("@", "@8701")
    copy.write_text(text)
    return copy


def complaints(copy: Path) -> list[str]:
    done = analyze("verify", "--man=no", str(copy))
    return [line for line in (done.stdout + done.stderr).splitlines() if copy.name in line]


def values(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


def environment(unit: Path) -> dict[str, str]:
    return dict(value.split("=", 1) for value in values(unit, "Environment"))


def command(unit: Path) -> list[str]:
    (start,) = values(unit, "ExecStart")
    program, *arguments = shlex.split(start)
    assert program == "/opt/runcast/bin/runcast"
    return arguments


def test_there_is_one_for_each() -> None:
    assert {unit.name for unit in UNITS} == set(EXPOSED)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    assert complaints(instance(unit, tmp_path)) == []


def test_systemd_notices_what_is_wrong(tmp_path: Path) -> None:
    wrong = (
        UNITS[0].read_text().replace("TimeoutStopSec=", "TimeoutStopSecs=").replace("/usr/bin/curl", "/usr/bin/crul")
    )
    said = complaints(instance(UNITS[0], tmp_path, wrong))
    assert any("TimeoutStopSecs" in line for line in said)
    assert any("crul" in line for line in said)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_they_forbid_what_they_can(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name.replace("@", "@8701")
    copy.write_text(unit.read_text())
    threshold = EXPOSED[unit.name]
    done = analyze("security", "--offline=yes", "--no-pager", f"--threshold={threshold}", str(copy))
    assert done.returncode == 0, done.stdout[-400:] + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_they_run_real_commands_and_wait_longer_than_a_drain(unit: Path) -> None:
    parses(Replaced({"%i": 8701}).all(command(unit)))
    assert unknown(environment(unit)) == set()
    settings = settings_of(environment(unit))
    (stop,), (mode,) = values(unit, "TimeoutStopSec"), values(unit, "KillMode") or ["control-group"]
    worker = "worker" in unit.name
    assert int(stop) >= (settings.worker_drain if worker else settings.drain) + 10
    # Agents' processes are the worker's to end: they have until its drain is over.
    assert mode == ("mixed" if worker else "control-group")


def test_prometheus_example_looks_at_what_they_listen_on() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped}
    told = "\n".join(unit.read_text() for unit in UNITS)
    for name, addresses in targets.items():
        for address in addresses:
            assert f"{name}@{address.removeprefix('127.0.0.1:')}" in told


@pytest.mark.long
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_started_it_counts_as_started_once_it_answers(
    unit: Path, redis7: RedisServer, namespace: str, tmp_path: Path
) -> None:
    here = Replaced({"%i": free_port(), "/var/lib/runcast": str(tmp_path)})
    own = {"RUNCAST_REDIS_URL": redis7.url, "RUNCAST_NAMESPACE": namespace}
    (post,) = values(unit, "ExecStartPost")
    ready = here.all(shlex.split(post))
    assert subprocess.run([*ready[:-1], "--retry", "0", ready[-1]]).returncode != 0, "nobody answers yet"
    with launched(tmp_path, here.all(command(unit)), {**here.environment(environment(unit)), **own}):
        assert subprocess.run(ready, timeout=60).returncode == 0
