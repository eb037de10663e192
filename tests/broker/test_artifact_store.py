"""The artifact store: a directory and an S3-compatible server keep one contract."""

from __future__ import annotations

import os
import time
from pathlib import Path
from uuid import uuid4

import pytest

from broker.artifact_store import CHUNK, ArtifactStore
from broker.errors import ArtifactNotFound, ArtifactStoreUnavailable, InvalidRequest
from broker.settings import Settings
from tests.object_server import ObjectServer
from tests.servers import free_port

SHA = "ab" * 32


def s3(server: ObjectServer, tmp_path: Path, **more: object) -> Settings:
    given = {"artifact_store": server.url(uuid4().hex), "artifact_key_id": server.key_id}
    given |= {"artifact_secret_key": server.secret_key, "data_dir": tmp_path}
    return Settings(**{**given, **more})  # type: ignore[arg-type]


@pytest.fixture(params=["file", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    if request.param == "file":
        return ArtifactStore(Settings(data_dir=tmp_path))
    return ArtifactStore(s3(request.getfixturevalue("object_server"), tmp_path))


async def whole(files: ArtifactStore, key: str, start: int, end: int) -> bytes:
    return b"".join([piece async for piece in files.read(key, start, end)])


async def test_what_is_put_is_read(files: ArtifactStore, tmp_path: Path) -> None:
    content = os.urandom(CHUNK * 7 + 5)  # more than one part of an upload, and than one read
    (tmp_path / "file").write_bytes(content)
    key = files.of_run("run_1", SHA)
    await files.put(key, tmp_path / "file")
    assert await files.size(key) == len(content)
    assert await whole(files, key, 0, len(content)) == content
    assert await whole(files, key, CHUNK - 1, CHUNK + 2) == content[CHUNK - 1 : CHUNK + 2]
    await files.put(key, b"another")
    assert await whole(files, key, 0, 7) == b"another"


async def test_an_empty_file_is_one(files: ArtifactStore) -> None:
    await files.put(files.of_request(SHA), b"")
    assert await files.size(files.of_request(SHA)) == 0
    assert await whole(files, files.of_request(SHA), 0, 0) == b""


async def test_ids_that_are_dots_stay_inside(files: ArtifactStore) -> None:
    """``..`` is a valid run id."""
    await files.put(files.of_run("..", SHA), b"up")
    await files.put(files.of_run("a", SHA), b"a")
    assert await whole(files, files.of_run("..", SHA), 0, 2) == b"up"
    assert await whole(files, files.of_run("a", SHA), 0, 1) == b"a"


async def test_what_is_not_there_is_said(files: ArtifactStore) -> None:
    with pytest.raises(ArtifactNotFound, match="RUNCAST_ARTIFACT_TTL"):
        await whole(files, files.of_run("none", SHA), 0, 1)
    with pytest.raises(ArtifactNotFound):
        await files.size(files.of_run("none", SHA))


async def test_what_is_older_is_removed(files: ArtifactStore) -> None:
    for run in ("a", "b"):
        await files.put(files.of_run(run, SHA), b"x")
    assert await files.remove_older(3_600) == 0
    assert await files.remove_older(-60) == 2
    assert await files.remove_older(-60) == 0
    with pytest.raises(ArtifactNotFound):
        await files.size(files.of_run("a", SHA))


async def test_a_namespace_removes_its_own_only(tmp_path: Path) -> None:
    ours, theirs = (ArtifactStore(Settings(data_dir=tmp_path, namespace=name)) for name in ("ours", "theirs"))
    await ours.put(ours.of_run("r", SHA), b"x")
    await theirs.put(theirs.of_run("r", SHA), b"x")
    assert await ours.remove_older(-60) == 1
    assert await theirs.size(theirs.of_run("r", SHA)) == 1


async def test_what_was_put_again_counts_as_new(tmp_path: Path) -> None:
    files = ArtifactStore(Settings(data_dir=tmp_path))
    await files.put(files.of_request(SHA), b"x")
    (path,) = [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]
    os.utime(path, (time.time() - 100, time.time() - 100))
    await files.put(files.of_request(SHA), b"x")
    assert await files.remove_older(50) == 0


async def test_the_probe_leaves_nothing(files: ArtifactStore) -> None:
    await files.probe()
    assert await files.remove_older(-60) == 0


async def test_the_default_directory_is_of_its_user_alone(tmp_path: Path) -> None:
    files = ArtifactStore(Settings(data_dir=tmp_path))
    await files.probe()
    assert (tmp_path / "artifacts").stat().st_mode & 0o777 == 0o700
    assert files.shown == str(tmp_path / "artifacts")


async def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("a file")
    with pytest.raises(ArtifactStoreUnavailable):
        await ArtifactStore(Settings(data_dir=tmp_path)).probe()


async def test_wrong_credentials_are_said_and_not_shown(object_server: ObjectServer, tmp_path: Path) -> None:
    files = ArtifactStore(s3(object_server, tmp_path, artifact_secret_key="not-the-secret"))
    with pytest.raises(ArtifactStoreUnavailable) as caught:
        await files.probe()
    assert "not-the-secret" not in str(caught.value)
    assert "not-the-secret" not in files.shown


async def test_a_store_that_is_away_is_said(tmp_path: Path) -> None:
    url = f"s3://bucket/x?endpoint=http://127.0.0.1:{free_port()}"
    files = ArtifactStore(Settings(artifact_store=url, artifact_key_id="a", artifact_secret_key="b", data_dir=tmp_path))
    with pytest.raises(ArtifactStoreUnavailable, match="does not answer"):
        await files.size(files.of_run("r", SHA))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x/y",
        "s3://",
        "s3://user:secret@bucket",
        "file:relative",
        "file://host/x",
        "s3://b?colour=1",
        "gs://b?x=1",
    ],
)
def test_a_url_that_names_no_store_is_refused_at_start(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="RUNCAST_ARTIFACT_STORE") as caught:
        ArtifactStore(Settings(artifact_store=url, data_dir=tmp_path))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["gs://bucket/prefix", "az://container", "s3://bucket", "file:/srv/x"])
def test_the_other_stores_are_known(url: str, tmp_path: Path) -> None:
    assert ArtifactStore(Settings(artifact_store=url, data_dir=tmp_path)).shown.rstrip("/") in (url, "/srv/x")
