"""``runcast doctor``: findings for what is there, missing and wrong."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.clusters import ClusterServers
from tests.ops.conftest import Command
from tests.servers import RedisServer


@pytest.fixture(autouse=True)
def free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever runs on this machine's port 8700 is not this test's business."""
    monkeypatch.setenv("RUNCAST_PORT", "0")


def findings(runcast: Command, *arguments: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    result = runcast("doctor", "--json", *arguments)
    by_subject: dict[str, list[dict[str, Any]]] = {}
    for line in result.out.splitlines():
        finding = json.loads(line)
        by_subject.setdefault(finding["subject"], []).append(finding)
    return result.code, by_subject


def states(found: dict[str, list[dict[str, Any]]], subject: str) -> list[str]:
    return [finding["state"] for finding in found[subject]]


def test_a_healthy_embedded_store(runcast: Command) -> None:
    code, found = findings(runcast)
    assert code == 0
    for subject in ("python", "runcast", "store", "server", "persistence", "memory", "port", "data dir"):
        assert states(found, subject) == ["ok"], found[subject]
    assert set(states(found, "runner")) == {"ok"}
    assert states(found, "hermes") == ["note"]
    assert "start runcast worker" in found["queue"][0]["hint"]


def test_a_worker_is_seen(runcast: Command) -> None:
    process = runcast.start("worker")
    arguments = ("--runner", "scripted", "--metadata", "script=tokens=1")
    assert runcast("run", "x", *arguments).code == 0
    code, found = findings(runcast)
    assert code == 0
    assert found["queue"][0]["found"].endswith("1 worker")
    process.popen.kill()


@pytest.mark.parametrize(
    ("program", "told"), [("hermes-of-nobody", "is not on PATH"), ("/nowhere/hermes", "is no program")]
)
def test_a_hermes_that_is_not_there(runcast: Command, monkeypatch: pytest.MonkeyPatch, program: str, told: str) -> None:
    runcast.environment["HERMES_BIN"] = program
    monkeypatch.setenv("HERMES_BIN", program)
    code, found = findings(runcast)
    assert code == 0
    assert found["hermes"][0]["found"] == f"{program} {told}"
    assert "HERMES_BIN" in found["hermes"][0]["hint"]


def test_a_misspelt_setting_is_noticed(runcast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("RUNCAST_")]:
        monkeypatch.delenv(name)  # CI names the builds of Hermes that way
    monkeypatch.setenv("RUNCAST_RUN_TLL", "5")
    code, found = findings(runcast)
    assert code == 0
    noticed = [(f["state"], f["found"], f["hint"]) for f in found["settings"]]
    assert noticed == [("note", "RUNCAST_RUN_TLL is no setting", "RUNCAST_RUN_TTL?")]


def test_as_text(runcast: Command) -> None:
    result = runcast("doctor")
    assert result.code == 0
    assert result.out.endswith("nothing is wrong\n")


def test_an_absent_store(runcast: Command) -> None:
    code, found = findings(runcast, "--redis", "redis://:s3cret@127.0.0.1:1/0")
    assert code == 1
    assert states(found, "store") == ["wrong"]
    assert "s3cret" not in str(found)


def test_a_redis_that_may_drop_keys(runcast: Command, redis_server: RedisServer) -> None:
    redis_server.command("CONFIG", "SET", "maxmemory", "100mb")
    redis_server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    redis_server.command("CONFIG", "SET", "appendonly", "no")
    code, found = findings(runcast, "--redis", redis_server.url)
    assert code == 1
    assert states(found, "memory") == ["wrong"]
    assert "noeviction" in found["memory"][0]["hint"]
    assert states(found, "persistence") == ["note"]


def test_another_layout(runcast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runcast("runs").code == 0
    monkeypatch.setenv("RUNCAST_PARTITIONS", "7")
    code, found = findings(runcast)
    assert code == 1
    assert "RUNCAST_PARTITIONS" in found["store"][0]["hint"]


def test_a_port_in_use(runcast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("RUNCAST_PORT", str(listener.getsockname()[1]))
        code, found = findings(runcast)
    assert code == 1
    assert states(found, "port") == ["wrong"]


HERMES = """#!/bin/sh
case "$*" in
  --version) echo "Hermes Agent v9.9" ;;
  *--help*) echo "usage: hermes chat {options}" ;;
esac
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``hermes`` that is no Python script: there is no bridge to it."""
    program = tmp_path / "hermes"
    program.write_text(HERMES.replace("{options}", "--format {text,stream-json}"))
    program.chmod(0o755)
    monkeypatch.setenv("HERMES_BIN", str(program))
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    return program


@pytest.mark.parametrize(("options", "mode"), [("--format {text,stream-json}", "stream-json"), ("-Q", "text")])
def test_the_mode_of_a_hermes_without_bridge(runcast: Command, program: Path, options: str, mode: str) -> None:
    program.write_text(HERMES.replace("{options}", options))
    code, found = findings(runcast)
    assert code == 0
    told = found["hermes"][0]["found"]
    assert told.startswith(f"found Hermes 9.9, mode {mode}, because there is no bridge")
    assert told.endswith(f"at {program}")
    assert states(found, "hermes bridge") == states(found, "hermes stream") == ["note"]


def test_a_mode_that_was_named_and_is_not_there(
    runcast: Command, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_MODE", "bridge")
    code, found = findings(runcast)
    assert (code, states(found, "hermes bridge")) == (1, ["wrong"])
    program.write_text(HERMES.replace("{options}", "-Q"))
    monkeypatch.setenv("HERMES_MODE", "stream-json")
    code, found = findings(runcast)
    assert (code, states(found, "hermes stream")) == (1, ["wrong"])


def test_words_for_the_stream_make_it_a_command(
    runcast: Command, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_STREAM_ARGS", "--verbose")
    assert "mode stream-json, because HERMES_STREAM_ARGS is set" in findings(runcast)[1]["hermes"][0]["found"]


def test_a_hermes_and_its_configuration(runcast: Command, program: Path, tmp_path: Path) -> None:
    assert states(findings(runcast)[1], "hermes config") == ["note"]
    (tmp_path / "config.yaml").write_text("model: {}\n")
    assert states(findings(runcast)[1], "hermes config") == ["ok"]


def test_a_hermes_that_does_not_run(runcast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "hermes"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("HERMES_BIN", str(program))
    code, found = findings(runcast)
    assert code == 1
    assert "does not run" in found["hermes"][0]["found"]


def test_a_workspace_root_that_cannot_be_written_is_wrong(
    runcast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setenv("RUNCAST_WORKSPACES", str(tmp_path / "taken" / "workspaces"))
    result = runcast("doctor", "--json")
    (finding,) = [f for f in result.lines if f["subject"] == "workspaces"]
    assert (result.code, finding["state"]) == (1, "wrong")
    assert "RUNCAST_WORKSPACES" in finding["hint"]


def test_an_artifact_store_that_is_away_is_wrong(runcast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNCAST_ARTIFACT_STORE", f"s3://bucket?endpoint=http://127.0.0.1:{servers.free_port()}")
    monkeypatch.setenv("RUNCAST_ARTIFACT_KEY_ID", "id")
    monkeypatch.setenv("RUNCAST_ARTIFACT_SECRET_KEY", "not-to-be-shown")
    result = runcast("doctor", "--json")
    (finding,) = [f for f in result.lines if f["subject"] == "artifacts"]
    assert (result.code, finding["state"]) == (1, "wrong")
    assert "RUNCAST_ARTIFACT_STORE" in finding["hint"]
    assert "not-to-be-shown" not in result.out


def test_the_places_of_files_are_told(runcast: Command, tmp_path: Path) -> None:
    found = {f["subject"]: f for f in runcast("doctor", "--json").lines}
    assert found["workspaces"]["state"] == found["artifacts"]["state"] == "ok"
    assert found["artifacts"]["found"].startswith(str(tmp_path / "data" / "artifacts"))


def test_every_primary_of_a_cluster_is_looked_at(runcast: Command, redis7_cluster: ClusterServers) -> None:
    _, found = findings(runcast, "--redis", redis7_cluster.url)
    for subject in ("server", "persistence", "memory"):
        assert len(found[subject]) == 3, found[subject]
        shown = {finding["found"].rpartition(":")[2].rstrip(")") for finding in found[subject]}
        assert shown == {str(node.port) for node in redis7_cluster.primaries}
