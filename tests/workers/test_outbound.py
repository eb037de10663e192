"""What a run leaves: its new and changed files, whole, and a word about everything that was left out."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.artifact_store import ArtifactStore
from broker.errors import ArtifactNotFound, ArtifactStoreUnavailable
from broker.settings import Settings
from workers import outbound, tree
from workers.outbound import Collected, Outbound
from workers.workspace import Workspace, Workspaces


class Stage:
    """A workspace, and what was there before."""

    def __init__(self, settings: Settings, workspace: Workspace) -> None:
        self.settings, self.workspace, self.path = settings, workspace, workspace.path
        self.store = ArtifactStore(settings)
        self.outbound = Outbound(workspace, self.store, settings, "r1")

    async def collect(self) -> Collected:
        return await self.outbound.collect()

    async def stored(self, sha256: str) -> bytes:
        key = self.store.of_run("r1", sha256)
        return b"".join([piece async for piece in self.store.read(key, 0, await self.store.size(key))])

    def write(self, name: str, content: bytes = b"x") -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@asynccontextmanager
async def staged(tmp_path: Path, **settings: Any) -> AsyncIterator[Stage]:
    made = Settings(data_dir=tmp_path / "data").model_copy(update=settings)  # no operator may set as little time
    workspace = Workspaces(made).open("s", "r1")
    try:
        yield Stage(made, workspace)
    finally:
        spool = workspace.path.parent / ".spool"
        assert list(spool.iterdir()) == []
        workspace.close()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as opened:
        yield opened


def reasons(collected: Collected) -> dict[str, str]:
    assert collected.left_out == len(collected.skipped)
    return {left["name"]: left["reason"] for left in collected.skipped}


def names(collected: Collected) -> list[str]:
    return [file["name"] for file in collected.files]


async def test_new_and_changed_files_are_kept_and_others_not(stage: Stage) -> None:
    stage.write("old", b"old")
    stage.write("changed", b"before")
    stage.write("gone", b"x")
    await stage.outbound.begin()
    stage.write("changed", b"after!")
    stage.write("out/new.png", b"png")
    (stage.path / "gone").unlink()
    collected = await stage.collect()
    digest = hashlib.sha256(b"png").hexdigest()
    assert names(collected) == ["changed", "out/new.png"]
    assert collected.files[1] == {"name": "out/new.png", "size": 3, "sha256": digest, "type": "image/png"}
    assert await stage.stored(digest) == b"png"
    assert await stage.stored(collected.files[0]["sha256"]) == b"after!"
    assert collected.fields == {"artifacts": collected.files}


async def test_a_change_that_hides_its_time_is_seen(stage: Stage) -> None:
    """The same size, and the old times put back."""
    stage.write("a", b"before")
    os.utime(stage.path / "a", ns=(1, 1))
    await stage.outbound.begin()
    stage.write("a", b"after!")
    os.utime(stage.path / "a", ns=(1, 1))
    assert names(await stage.collect()) == ["a"]


async def test_an_empty_file_and_one_content_twice(stage: Stage) -> None:
    await stage.outbound.begin()
    stage.write("empty", b"")
    stage.write("one", b"same")
    stage.write("two", b"same")
    collected = await stage.collect()
    assert names(collected) == ["empty", "one", "two"]
    assert await stage.stored(collected.files[0]["sha256"]) == b""
    assert collected.files[1]["sha256"] == collected.files[2]["sha256"]


# What an agent may leave that is none of its files.


async def test_links_are_not_followed_and_are_said(stage: Stage, tmp_path: Path) -> None:
    secret, directory = tmp_path / "secret", tmp_path / "directory"
    secret.write_bytes(b"secret")
    directory.mkdir()
    (directory / "secret").write_bytes(b"secret")
    await stage.outbound.begin()
    (stage.path / "link").symlink_to(secret)
    (stage.path / "dir").symlink_to(directory)
    (stage.path / "up").symlink_to("..")
    (stage.path / "dangling").symlink_to("/nowhere")
    (stage.path / "loop").symlink_to("loop")
    os.link(secret, stage.path / "hard")
    collected = await stage.collect()
    assert collected.files == []
    assert reasons(collected) == {
        "link": "symlink",
        "dir": "symlink",
        "up": "symlink",
        "dangling": "symlink",
        "loop": "symlink",
        "hard": "hard_link",
    }
    with pytest.raises(ArtifactNotFound):
        await stage.stored(hashlib.sha256(b"secret").hexdigest())


async def test_what_is_no_file_is_said_and_holds_nobody(stage: Stage) -> None:
    await stage.outbound.begin()
    os.mkfifo(stage.path / "fifo")
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as sock:
        os.chdir(stage.path)  # the address of a socket file is short
        try:
            sock.bind("socket")
        finally:
            os.chdir(here)
        expected = {"fifo": "fifo", "socket": "socket"}
        try:
            os.mknod(stage.path / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
            expected["null"] = "device"
        except PermissionError:
            pass  # who is not root makes none, an agent neither
        async with asyncio.timeout(10):
            collected = await stage.collect()
    assert (collected.files, reasons(collected)) == ([], expected)


async def test_names_that_cannot_be_shown_are_said_escaped(stage: Stage) -> None:
    await stage.outbound.begin()
    for name in (b"bad\xff", b"new\nline", b"back\\slash", "exe\u202egpj".encode(), b"esc\x1b[31m"):
        (stage.path / os.fsdecode(name)).write_bytes(b"x")
    collected = await stage.collect()
    assert collected.files == []
    assert reasons(collected) == dict.fromkeys(
        ["bad\\xff", "new\\nline", "back\\slash", "exe\\u202egpj", "esc\\x1b[31m"], "unusable_name"
    )


async def test_hidden_ones_and_caches_are_said_once(stage: Stage) -> None:
    await stage.outbound.begin()
    stage.write(".env")
    stage.write(".git/config")
    stage.write("src/__pycache__/a.pyc")
    stage.write("src/a.py")
    stage.write("node_modules/x/index.js")
    collected = await stage.collect()
    assert names(collected) == ["src/a.py"]
    assert reasons(collected) == {
        ".env": "hidden",
        ".git": "hidden",
        "src/__pycache__": "not_collected",
        "node_modules": "not_collected",
    }
    again = Outbound(stage.workspace, stage.store, stage.settings, "r2")
    await again.begin()
    stage.write(".git/HEAD")
    assert (await again.collect()).left_out == 0


async def test_directories_that_go_down_for_ever_end(stage: Stage) -> None:
    await stage.outbound.begin()
    stage.write("/".join("d" * 40) + "/deep")
    collected = await stage.collect()
    assert collected.files == []
    assert reasons(collected) == {"/".join("d" * 33): "too_deep"}


# Limits.


async def test_a_file_that_is_too_big_is_said_with_its_size(tmp_path: Path) -> None:
    async with staged(tmp_path, outbound_bytes=1_000) as stage:
        await stage.outbound.begin()
        stage.write("fits", b"x" * 1_000)
        stage.write("big", b"x" * 1_001)
        collected = await stage.collect()
    assert names(collected) == ["fits"]
    assert collected.skipped == [{"name": "big", "reason": "too_big", "size": 1_001}]
    assert collected.fields["artifacts_skipped"] == {"count": 1, "files": collected.skipped}


async def test_a_sparse_file_counts_by_what_would_be_read(stage: Stage) -> None:
    await stage.outbound.begin()
    with (stage.path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    async with asyncio.timeout(10):
        assert reasons(await stage.collect()) == {"sparse": "too_big"}


async def test_the_number_and_the_sum_are_bounded(tmp_path: Path) -> None:
    async with staged(tmp_path, outbound_count=2) as stage:
        await stage.outbound.begin()
        for name in "abc":
            stage.write(name)
        collected = await stage.collect()
    assert (names(collected), reasons(collected)) == (["a", "b"], {"c": "too_many"})
    async with staged(tmp_path, outbound_total_bytes=10) as stage:
        await stage.outbound.begin()
        stage.write("big", b"x" * 8)
        stage.write("c", b"x" * 3)
        stage.write("d", b"x" * 2)
        collected = await stage.collect()
    assert (names(collected), reasons(collected)) == (["big", "d"], {"c": "total_too_big"})


async def test_so_is_the_time(tmp_path: Path) -> None:
    async with staged(tmp_path, outbound_seconds=1e-9) as stage:
        await stage.outbound.begin()
        stage.write("a")
        assert reasons(await stage.collect()) == {"a": "time"}


async def test_and_what_is_told(stage: Stage) -> None:
    await stage.outbound.begin()
    for n in range(outbound.SKIPPED_SHOWN + 7):
        stage.write(f".hidden-{n}")
    collected = await stage.collect()
    assert len(collected.skipped) == outbound.SKIPPED_SHOWN
    assert collected.fields["artifacts_skipped"]["count"] == outbound.SKIPPED_SHOWN + 7


async def test_more_entries_than_are_looked_at(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ENTRIES_MAX", 3)
    for name in "bcdef":
        stage.write(name, b"old")
    await stage.outbound.begin()
    stage.write("a", b"new")  # it comes first now, and what was seen before moves out of sight
    collected = await stage.collect()
    assert names(collected) == ["a"]
    assert reasons(collected) == {"": "too_many_entries"}


async def test_what_was_out_of_sight_before_is_not_new_for_that(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcd":
        stage.write(name, b"old")
    monkeypatch.setattr(tree, "ENTRIES_MAX", 2)
    await asyncio.sleep(0.1)  # a file system's clock is coarse
    await stage.outbound.begin()
    (stage.path / "a").unlink()
    (stage.path / "b").unlink()
    assert (await stage.collect()).files == []


# What changes meanwhile.


def meddling(monkeypatch: pytest.MonkeyPatch, meddle: Callable[[], None]) -> None:
    """``meddle`` once, as soon as a file is being copied."""
    real, done = os.read, []

    def read(fd: int, size: int) -> bytes:
        block = real(fd, size)
        if not done:
            done.append(True)
            meddle()
        return block

    monkeypatch.setattr("workers.outbound.os.read", read)


async def test_a_file_that_grows_while_it_is_read_is_said(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.outbound.begin()
    stage.write("log", b"x" * 100)

    def grow() -> None:
        with (stage.path / "log").open("ab") as file:
            file.write(b"more")

    meddling(monkeypatch, grow)
    assert reasons(await stage.collect()) == {"log": "changed_while_read"}


async def test_so_is_one_that_is_written_anew(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.outbound.begin()
    stage.write("a", b"x" * 100)
    meddling(monkeypatch, lambda: stage.write("a", b"y" * 100))
    assert reasons(await stage.collect()) == {"a": "changed_while_read"}


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "gone", "other"])
async def test_a_file_that_becomes_something_else_is_not_opened_as_that(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Between the look and the copy."""
    (tmp_path / "secret").write_bytes(b"secret")
    await stage.outbound.begin()
    stage.write("d/a", b"x" * 6)
    real = outbound.walk

    def walk(fd: int) -> tree.Tree:
        seen = real(fd)
        path = stage.path / "d" / "a"
        path.unlink()
        if kind == "link":
            path.symlink_to(tmp_path / "secret")
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        elif kind == "other":
            path.write_bytes(b"y" * 6)
        return seen

    monkeypatch.setattr(outbound, "walk", walk)
    async with asyncio.timeout(10):
        collected = await stage.collect()
    assert (collected.files, reasons(collected)) == ([], {"d/a": "changed_while_read"})


async def test_nor_is_a_directory_that_becomes_a_link(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"secret")
    await stage.outbound.begin()
    stage.write("d/a", b"x" * 6)
    real = outbound.walk

    def walk(fd: int) -> tree.Tree:
        seen = real(fd)
        (stage.path / "d").rename(stage.path / "e")
        (stage.path / "d").symlink_to(outside)
        return seen

    monkeypatch.setattr(outbound, "walk", walk)
    assert reasons(await stage.collect()) == {"d/a": "changed_while_read"}


async def test_a_store_that_is_away_fails_no_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def put(*_: Any) -> None:
        raise ArtifactStoreUnavailable("away")

    await stage.outbound.begin()
    stage.write("a")
    monkeypatch.setattr(stage.store, "put", put)
    assert reasons(await stage.collect()) == {"a": "store_unavailable"}
