"""The checkpoint: whole or not at all, and written by the present worker alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.errors import Fenced, InvalidId
from broker.task_model import Task
from workers.tasks.checkpoints import Checkpoints, CheckpointTooNew, CheckpointUnreadable


def task(version: int = 1) -> Task:
    return Task(task_id="t1", goal="g", created_at=1.0, version=version)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "tasks")


def test_what_is_written_is_read_by_the_next(checkpoints: Checkpoints) -> None:
    first = checkpoints.open("t1", 1)
    assert first.read() is None
    first.write(task(1))
    first.write(task(2))
    second = checkpoints.open("t1", 2)
    assert second.read() == task(2)
    kept = json.loads(checkpoints.path("t1").read_text())
    assert (kept["format"], kept["fence"], kept["task"]["version"]) == (1, 1, 2)
    assert os.stat(checkpoints.path("t1")).st_mode & 0o777 == 0o600


def test_a_worker_that_was_taken_over_writes_nothing(checkpoints: Checkpoints) -> None:
    first = checkpoints.open("t1", 1)
    first.write(task(1))
    second = checkpoints.open("t1", 2)
    with pytest.raises(Fenced):
        first.write(task(9))
    assert second.read() == task(1)
    second.write(task(2))
    with pytest.raises(Fenced):
        first.write(task(9))
    assert second.read() == task(2)


def test_one_that_froze_before_the_renaming_has_nothing_to_rename(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The narrowest place: all is written and checked, only the renaming is left."""
    first = checkpoints.open("t1", 1)
    first.write(task(1))
    rename = os.rename

    def frozen(source: Any, target: Any) -> None:
        monkeypatch.setattr(os, "rename", rename)
        checkpoints.open("t1", 2).write(task(2))
        rename(source, target)

    monkeypatch.setattr(os, "rename", frozen)
    with pytest.raises(Fenced):
        first.write(task(9))
    found = checkpoints.read("t1")
    assert found is not None
    assert (found.fence, found.task) == (2, task(2))


def test_one_that_comes_too_late_to_begin_is_refused(checkpoints: Checkpoints) -> None:
    second = checkpoints.open("t1", 2)
    with pytest.raises(Fenced, match="fence 2"):
        checkpoints.open("t1", 1)
    second.write(task(2))
    second.close()  # its folder is gone: now the file says it
    with pytest.raises(Fenced, match="fence 2"):
        checkpoints.open("t1", 1)
    assert os.listdir(checkpoints.directory / ".open") == []


def test_a_write_that_breaks_off_leaves_the_file_as_it_was(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = checkpoints.open("t1", 1)
    hold.write(task(1))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        hold.write(task(2))
    monkeypatch.undo()
    assert hold.read() == task(1)
    hold.write(task(3))
    assert hold.read() == task(3)


def test_ids_that_look_like_one_another_are_kept_apart(checkpoints: Checkpoints) -> None:
    plain, dotted = checkpoints.open("a", 3), checkpoints.open("a.1", 1)
    checkpoints.open("a", 4)
    dotted.write(task(1))
    with pytest.raises(Fenced):
        plain.write(task(1))
    with pytest.raises(InvalidId):
        checkpoints.path("../a")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"format": 1, "fence": 1}'])
def test_a_broken_file_is_said_to_be_one(checkpoints: Checkpoints, content: bytes) -> None:
    checkpoints.open("t1", 1).write(task(1))
    checkpoints.path("t1").write_bytes(content)
    with pytest.raises(CheckpointUnreadable, match=r"t1\.json"):
        checkpoints.read("t1")


def test_a_later_format_is_refused(checkpoints: Checkpoints) -> None:
    checkpoints.open("t1", 1).write(task(1))
    kept = json.loads(checkpoints.path("t1").read_text())
    for later in ({**kept, "format": 2}, {"format": 3, "other": "fields"}):
        checkpoints.path("t1").write_text(json.dumps(later))
        with pytest.raises(CheckpointTooNew, match=f"format {later['format']}"):
            checkpoints.read("t1")


def test_the_file_of_another_task_is_none_of_this(checkpoints: Checkpoints) -> None:
    checkpoints.open("t1", 1).write(task(1))
    checkpoints.path("t2").write_bytes(checkpoints.path("t1").read_bytes())
    with pytest.raises(CheckpointUnreadable, match="another task, 't1'"):
        checkpoints.read("t2")


def test_a_directory_has_one_identity(tmp_path: Path) -> None:
    here, again, there = (Checkpoints(tmp_path / name) for name in ("a", "a", "b"))
    assert here.identity() == again.identity() == here.identity()
    assert here.identity() != there.identity()
    assert [name for name in os.listdir(tmp_path / "a") if name.startswith(".identity.")] == []


def test_the_stored_form_is_that_of_yesterday() -> None:
    """A rolling deploy reads it: fields may be added, with defaults."""
    step = b'{"n":1,"title":"a","instruction":"b","risk":"low","approval":false}'
    stored = b'{"task_id":"t","goal":"g","created_at":1.0,"steps":[%b]}' % step
    read = msgspec.json.decode(stored, type=Task)
    assert (read.steps[0].state, read.version) == ("pending", 0)
