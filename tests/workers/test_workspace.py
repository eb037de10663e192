"""Workspaces are where they should be, and nothing that lies in one leads out of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from broker.settings import Settings
from workers.retention import remove_unused
from workers.workspace import NameTaken, Workspace, Workspaces, WorkspaceUnusable

DAY = 86_400.0


@pytest.fixture
def workspaces(tmp_path: Path) -> Workspaces:
    return Workspaces(Settings(data_dir=tmp_path / "data"))


def put(workspace: Workspace, name: str, content: bytes) -> None:
    spooled = workspace.spool()
    try:
        spooled.write(content)
        workspace.place(spooled, name)
    finally:
        spooled.close()


def aged(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds, time.time() - seconds))


def test_a_session_has_one_and_keeps_it(workspaces: Workspaces) -> None:
    first = workspaces.open("s1", "r1")
    (first.path / "kept").write_text("x")
    first.close()
    second = workspaces.open("s1", "r2")
    assert second.path == first.path
    assert (second.path / "kept").read_text() == "x"
    assert second.path.stat().st_mode & 0o777 == 0o700
    second.close()


def test_two_runs_of_a_session_may_hold_it(workspaces: Workspaces) -> None:
    first, second = workspaces.open("s1", "r1"), workspaces.open("s1", "r2")
    first.close()
    second.close()


def test_a_run_without_a_session_has_its_own(workspaces: Workspaces) -> None:
    first, second = workspaces.open(None, "r1"), workspaces.open(None, "r2")
    assert first.path != second.path
    (first.path / "x").write_text("x")
    first.close()
    second.close()
    assert first.path.exists()
    assert not second.path.exists()  # nothing lay in it


def test_a_run_and_a_session_of_one_id_are_two(workspaces: Workspaces) -> None:
    first, second = workspaces.open("a", "r"), workspaces.open(None, "a")
    assert first.path != second.path
    first.close()
    second.close()


@pytest.mark.parametrize("name", ["..", ".", "-rf", "...", ".spool", "a..b"])
def test_ids_that_are_tricks_stay_inside(workspaces: Workspaces, name: str) -> None:
    """These are valid ids."""
    for workspace in (workspaces.open(name, "r"), workspaces.open(None, name)):
        assert workspace.path.parent == workspaces.home
        assert os.path.realpath(workspace.path) == str(workspace.path)
        workspace.close()


def test_so_do_namespaces(tmp_path: Path) -> None:
    of_dots = Workspaces(Settings(data_dir=tmp_path, namespace=".."))
    workspace = of_dots.open("s", "r")
    assert workspace.path.is_relative_to(tmp_path / "workspaces")
    workspace.close()


def test_the_setting_names_another_root(tmp_path: Path) -> None:
    workspace = Workspaces(Settings(data_dir=tmp_path / "data", workspaces=tmp_path / "own")).open("s", "r")
    assert workspace.path == tmp_path / "own" / "ns-runcast" / "session-s"
    workspace.close()


@pytest.mark.parametrize("kind", ["link", "file", "dangling"])
def test_what_took_the_place_of_a_workspace_is_not_entered(workspaces: Workspaces, tmp_path: Path, kind: str) -> None:
    workspaces.open("s", "r").close()
    path, outside = workspaces.home / "session-s", tmp_path / "outside"
    path.rmdir()
    if kind == "file":
        path.write_text("x")
    else:
        path.symlink_to(outside)
        if kind == "link":
            outside.mkdir()
    with pytest.raises(WorkspaceUnusable, match="session-s"):
        workspaces.open("s", "r")
    assert kind != "dangling" or not outside.exists()


def test_what_took_the_place_of_the_namespace_neither(workspaces: Workspaces, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    workspaces.root.mkdir(parents=True)
    workspaces.home.symlink_to(outside)
    with pytest.raises(WorkspaceUnusable):
        workspaces.open("s", "r")
    assert list(outside.iterdir()) == []


def test_a_root_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "workspaces").write_text("a file")
    with pytest.raises(WorkspaceUnusable, match="workspaces"):
        Workspaces(Settings(data_dir=tmp_path)).open("s", "r")


def test_a_file_gets_its_name_and_nothing_is_left_beside(workspaces: Workspaces) -> None:
    workspace = workspaces.open("s", "r")
    put(workspace, "a", b"first")
    put(workspace, "a", b"second")
    assert (workspace.path / "a").read_bytes() == b"second"
    assert os.listdir(workspaces.home / ".spool") == []
    workspace.close()


@pytest.mark.parametrize("target", ["file", "directory", "nothing"])
def test_a_link_is_replaced_and_never_followed(workspaces: Workspaces, tmp_path: Path, target: str) -> None:
    outside = tmp_path / "outside"
    if target == "file":
        outside.write_bytes(b"mine")
    elif target == "directory":
        outside.mkdir()
    workspace = workspaces.open("s", "r")
    (workspace.path / "a").symlink_to(outside)
    put(workspace, "a", b"new")
    assert not (workspace.path / "a").is_symlink()
    assert (workspace.path / "a").read_bytes() == b"new"
    if target == "file":
        assert outside.read_bytes() == b"mine"
    elif target == "directory":
        assert list(outside.iterdir()) == []
    else:
        assert not outside.exists()
    workspace.close()


def test_a_fifo_or_a_hard_link_is_replaced(workspaces: Workspaces, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"mine")
    workspace = workspaces.open("s", "r")
    os.mkfifo(workspace.path / "fifo")
    os.link(tmp_path / "outside", workspace.path / "linked")
    put(workspace, "fifo", b"new")
    put(workspace, "linked", b"new")
    assert (tmp_path / "outside").read_bytes() == b"mine"
    assert (workspace.path / "fifo").read_bytes() == (workspace.path / "linked").read_bytes() == b"new"
    workspace.close()


@pytest.mark.parametrize("full", [True, False])
def test_a_directory_keeps_its_name(workspaces: Workspaces, full: bool) -> None:
    workspace = workspaces.open("s", "r")
    (workspace.path / "a").mkdir()
    if full:
        (workspace.path / "a" / "b").write_text("x")
    with pytest.raises(NameTaken):
        workspace.check_free("a")
    with pytest.raises(NameTaken):
        put(workspace, "a", b"new")
    assert (workspace.path / "a").is_dir()
    workspace.close()


def test_placing_works_in_the_directory_that_was_opened(workspaces: Workspaces, tmp_path: Path) -> None:
    """An agent that still lives swaps its workspace for a link to elsewhere."""
    outside = tmp_path / "outside"
    outside.mkdir()
    workspace = workspaces.open("s", "r")
    workspace.path.rename(tmp_path / "moved")
    workspace.path.symlink_to(outside)
    put(workspace, "a", b"new")
    assert list(outside.iterdir()) == []
    assert (tmp_path / "moved" / "a").read_bytes() == b"new"
    workspace.close()


# Retention.


def test_what_was_not_used_for_long_is_removed(workspaces: Workspaces) -> None:
    for name in ("old", "new"):
        workspace = workspaces.open(name, "r")
        (workspace.path / "d").mkdir()
        (workspace.path / "d" / "f").write_text("x")
        workspace.close()
    aged(workspaces.home / "session-old", 2 * DAY)
    assert remove_unused(workspaces, DAY) == 1
    assert sorted(p.name for p in workspaces.home.iterdir()) == [".spool", "session-new"]
    assert remove_unused(workspaces, DAY) == 0


def test_using_it_counts(workspaces: Workspaces) -> None:
    workspaces.open("s", "r").close()
    aged(workspaces.home / "session-s", 2 * DAY)
    workspaces.open("s", "r").close()
    assert remove_unused(workspaces, DAY) == 0


def test_what_is_in_use_stays_however_old(workspaces: Workspaces) -> None:
    workspace = workspaces.open("s", "r")
    aged(workspace.path, 2 * DAY)
    assert remove_unused(workspaces, DAY) == 0
    assert workspace.path.is_dir()
    workspace.close()


def test_a_link_in_its_place_is_removed_and_not_followed(workspaces: Workspaces, tmp_path: Path) -> None:
    workspaces.open("s", "r").close()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine").write_text("x")
    (workspaces.home / "session-t").symlink_to(tmp_path / "outside")
    (workspaces.home / "session-s" / "link").symlink_to(tmp_path / "outside")
    aged(workspaces.home / "session-s", 2 * DAY)
    assert remove_unused(workspaces, DAY) == 2
    assert (tmp_path / "outside" / "mine").read_text() == "x"


def test_what_a_killed_worker_left_is_removed(workspaces: Workspaces) -> None:
    workspace = workspaces.open("s", "r")
    old, new = workspace.spool(), workspace.spool()
    aged(old.path, 2 * DAY)
    (workspaces.home / ".removed-ab").mkdir()
    remove_unused(workspaces, DAY)
    assert [p.name for p in (workspaces.home / ".spool").iterdir()] == [new.name]
    assert not (workspaces.home / ".removed-ab").exists()
    for spooled in (old, new):
        spooled.close()
    workspace.close()


def test_other_files_of_the_root_are_left_alone(workspaces: Workspaces) -> None:
    workspaces.open("s", "r").close()
    (workspaces.home / "notes").mkdir()
    aged(workspaces.home / "notes", 9 * DAY)
    assert remove_unused(workspaces, DAY) == 0
    assert remove_unused(Workspaces(Settings(data_dir=workspaces.root / "none")), DAY) == 0


def test_opening_what_is_being_removed_gives_a_new_one(workspaces: Workspaces) -> None:
    """The sweeper holds it; once it is gone, whoever waited gets another directory of that name."""
    workspaces.open("s", "r").close()
    path = workspaces.home / "session-s"
    (path / "old").write_text("x")
    held = os.open(path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    opened: list[Workspace] = []
    opening = threading.Thread(target=lambda: opened.append(workspaces.open("s", "r")))
    opening.start()
    path.rename(workspaces.home / ".removed-x")
    shutil.rmtree(workspaces.home / ".removed-x")
    os.close(held)
    opening.join(10)
    assert [w.path for w in opened] == [path]
    assert os.path.samestat(os.fstat(opened[0].fd), path.stat())
    assert list(path.iterdir()) == []
    opened[0].close()


def test_what_is_never_let_go_is_said(workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.workspace._PAUSE", 0.0)
    workspaces.open("s", "r").close()
    held = os.open(workspaces.home / "session-s", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(WorkspaceUnusable, match="holds it"):
        workspaces.open("s", "r")
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(held)
