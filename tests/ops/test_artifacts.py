"""``runcast artifacts`` and ``run --artifact``: files in and out from the command line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from broker.api import Broker
from ops.artifacts import given
from tests.ops.conftest import RUN, Command

CONTENT = b"\x00\xffnot text\n"


@pytest.fixture
def run_id(runcast: Command) -> str:
    """A run that left two files and a link."""
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    files = [{"name": name, "size": len(CONTENT), "sha256": sha256, "type": "image/png"} for name in ("out/a.png", "b")]
    skipped = {"count": 2, "files": [{"name": "link", "reason": "symlink"}]}
    final = {"rounds": 1, "artifacts": files, "artifacts_skipped": skipped}
    lines = [*RUN.splitlines()[:-1], json.dumps({"type": "final", "data": final})]

    async def put(broker: Broker) -> None:
        await broker.artifacts.put(broker.artifacts.of_run("r1", sha256), CONTENT)

    runcast.broker(put)
    return runcast.imported("r1", "\n".join(lines) + "\n")


def test_the_list_is_for_scripts_in_a_pipe(runcast: Command, run_id: str) -> None:
    result = runcast("artifacts", run_id)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    assert result.code == 0
    assert result.out.splitlines() == [
        f"out/a.png\t{len(CONTENT)}\timage/png\t{sha256}",
        f"b\t{len(CONTENT)}\timage/png\t{sha256}",
    ]
    assert "left out: link (symlink)" in result.err
    assert "and 1 more" in result.err


def test_as_json_it_is_what_the_gateway_answers(runcast: Command, run_id: str) -> None:
    (page,) = runcast("artifacts", run_id, "--json").lines
    assert [entry["name"] for entry in page["artifacts"]] == ["out/a.png", "b"]
    assert (page["run_id"], page["skipped_count"]) == ("r1", 2)


def test_a_file_comes_as_it_is(runcast: Command, run_id: str, tmp_path: Path) -> None:
    piped = runcast.start("artifacts", run_id, "out/a.png")
    out, _ = piped.popen.communicate(timeout=30)
    assert (piped.popen.returncode, out) == (0, CONTENT)
    (tmp_path / "here").write_text("before")
    assert runcast("artifacts", run_id, "b", "--output", str(tmp_path / "here")).code == 0
    assert (tmp_path / "here").read_bytes() == CONTENT
    assert not (tmp_path / "here.part").exists()


def test_what_is_not_there(runcast: Command, run_id: str, tmp_path: Path) -> None:
    absent = runcast("artifacts", run_id, "c")
    assert absent.code == 3
    assert "'out/a.png'" in absent.err
    assert runcast("artifacts", "nobody").code == 3

    async def forget(broker: Broker) -> None:
        await broker.artifacts.remove_older(-60)

    runcast.broker(forget)
    gone = runcast("artifacts", run_id, "b", "-o", str(tmp_path / "here"))
    assert gone.code == 3
    assert list(tmp_path.glob("here*")) == []


def test_files_and_urls_are_given_to_a_run(runcast: Command, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b"1,2" * 10_000)
    arguments = ["run", "x", "--runner", "scripted", "--detach", "--json"]
    for value in (str(tmp_path / "data.csv"), f"other.csv={tmp_path / 'data.csv'}", "https://example.org/a.pdf?x=1"):
        arguments += ["--artifact", value]
    (made,) = runcast(*arguments).lines
    (shown,) = runcast("show", made["run_id"], "--json").lines
    stored = {"sha256": hashlib.sha256(b"1,2" * 10_000).hexdigest(), "size": 30_000}
    assert shown["input"]["artifacts"] == [
        {"name": "data.csv", "stored": stored},
        {"name": "other.csv", "stored": stored},
        {"name": "a.pdf", "url": "https://example.org/a.pdf?x=1"},
    ]


def test_what_cannot_be_given_is_refused(runcast: Command, tmp_path: Path) -> None:
    absent = runcast("run", "x", "--artifact", str(tmp_path / "absent"))
    assert absent.code == 2
    assert "cannot be read" in absent.err
    (tmp_path / ".hidden").write_text("x")
    hidden = runcast("run", "x", "--artifact", str(tmp_path / ".hidden"))
    assert hidden.code == 2
    assert "begins with '.'" in hidden.err


def test_no_more_is_read_than_may_be_given(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    (entry,) = given([str(tmp_path / "huge")], 1_000) or []
    assert len(entry["content_base64"]) < 1_400


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_store_that_there_is_not_is_said_at_start(runcast: Command, command: str) -> None:
    ended = runcast.start(command, RUNCAST_ARTIFACT_STORE="ftp://x").end()
    assert ended.code == 2
    assert "RUNCAST_ARTIFACT_STORE" in ended.err
