"""Files over HTTP: listed, downloaded whole and in parts, never shown as a page; and what a request may bring along."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from broker.api import Broker
from broker.artifact_store import CHUNK
from broker.errors import ArtifactStoreUnavailable
from broker.items import Encoded
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from gateway.app import create_app
from gateway.files import disposition
from tests.gateway.conftest import Play, Script, Serve, lifespan_of
from tests.object_server import ObjectServer
from tests.servers import free_port

CONTENT = os.urandom(CHUNK * 2 + 100)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def entry(name: str, content: bytes, kind: str = "application/octet-stream") -> dict[str, Any]:
    return {"name": name, "size": len(content), "sha256": digest(content), "type": kind}


async def left(broker: Broker, play: Play, files: dict[str, bytes], **more: Any) -> str:
    """A run that has ended, and what it left."""
    run = await play()
    for content in files.values():
        await broker.artifacts.put(broker.artifacts.of_run(run.id, digest(content)), content)
    await run.end(artifacts=[entry(name, content) for name, content in files.items()], **more)
    return str(run.id)


@asynccontextmanager
async def made(settings: Settings) -> AsyncIterator[tuple[httpx.AsyncClient, Broker]]:
    """A gateway with settings of its own."""
    gateway = create_app(settings)
    transport = httpx.ASGITransport(gateway, raise_app_exceptions=False)
    async with lifespan_of(gateway), httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client, gateway.connection.broker


async def ended(broker: Broker, *entries: dict[str, Any]) -> str:
    """A run that says that it left them."""
    record, _ = await broker.runs.create(RunRequest(input=RunInput(message="x"), runner="scripted"))
    run = Script(broker, record)
    await run.claim()
    await run.end(artifacts=list(entries))
    return run.id


def address(run_id: str, name: str = "") -> str:
    return f"/v1/runs/{run_id}/artifacts" + (f"/{quote(name, safe='')}" if name else "")


async def test_what_a_run_left_is_listed(client: httpx.AsyncClient, broker: Broker, play: Play) -> None:
    skipped = {
        "count": 3,
        "files": [{"name": "link", "reason": "symlink"}, {"name": "b", "reason": "too_big", "size": 9}],
    }
    run_id = await left(broker, play, {"out/a.bin": b"abc"}, artifacts_skipped=skipped)
    response = await client.get(address(run_id))
    assert response.status_code == 200
    assert response.json() == {
        "run_id": run_id,
        "status": "completed",
        "artifacts": [entry("out/a.bin", b"abc")],
        "skipped": [
            {"name": "link", "reason": "symlink", "size": None},
            {"name": "b", "reason": "too_big", "size": 9},
        ],
        "skipped_count": 3,
    }


async def test_a_run_that_goes_on_has_none_yet(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    listed = (await client.get(address(run.id))).json()
    assert (listed["status"], listed["artifacts"], listed["skipped_count"]) == ("running", [], 0)
    response = await client.get(address(run.id, "a"))
    assert (response.status_code, response.json()["code"]) == (404, "artifact_not_found")
    assert "has not ended" in response.json()["detail"]


async def test_a_run_without_a_workspace_has_none(client: httpx.AsyncClient, play: Play) -> None:
    run = await play()
    await run.end()
    assert (await client.get(address(run.id))).json()["artifacts"] == []


async def test_a_file_is_downloaded(client: httpx.AsyncClient, broker: Broker, play: Play) -> None:
    name = "out/Ergebnis “1”\u00fc.html"
    run_id = await left(broker, play, {name: CONTENT})
    response = await client.get(address(run_id, name))
    assert response.status_code == 200
    assert response.content == CONTENT
    headers = response.headers
    assert headers["content-length"] == str(len(CONTENT))
    assert headers["etag"] == f'"{digest(CONTENT)}"'
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert headers["content-disposition"].startswith(
        "attachment; filename=\"Ergebnis 1u.html\"; filename*=UTF-8''Ergebnis"
    )
    assert headers["accept-ranges"] == "bytes"
    slashed = await client.get(f"{address(run_id)}/{quote(name)}")
    assert slashed.content == CONTENT


async def test_a_range_of_it(client: httpx.AsyncClient, broker: Broker, play: Play) -> None:
    run_id = await left(broker, play, {"a": CONTENT})
    start, end = CHUNK - 5, CHUNK * 2 + 5
    response = await client.get(address(run_id, "a"), headers={"Range": f"bytes={start}-{end - 1}"})
    assert response.status_code == 206
    assert response.content == CONTENT[start:end]
    assert response.headers["content-range"] == f"bytes {start}-{end - 1}/{len(CONTENT)}"
    assert response.headers["content-length"] == str(end - start)
    beyond = await client.get(address(run_id, "a"), headers={"Range": f"bytes={len(CONTENT)}-"})
    assert (beyond.status_code, beyond.headers["content-range"], beyond.content) == (
        416,
        f"bytes */{len(CONTENT)}",
        b"",
    )
    known = await client.get(address(run_id, "a"), headers={"If-None-Match": response.headers["etag"]})
    assert (known.status_code, known.content) == (304, b"")


async def test_head_and_an_empty_file(gateway: Any, broker: Broker, play: Play, serve: Serve) -> None:
    run_id = await left(broker, play, {"a": CONTENT, "empty": b""})
    async with serve(gateway) as server, httpx.AsyncClient(base_url=server) as client:
        head = await client.head(address(run_id, "a"))
        assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(CONTENT)), b"")
        empty = await client.get(address(run_id, "empty"))
        assert (empty.status_code, empty.headers["content-length"], empty.content) == (200, "0", b"")
        assert (await client.get(address(run_id, "a"))).content == CONTENT


async def test_half_a_file_is_not_taken_for_a_whole_one(
    gateway: Any, broker: Broker, play: Play, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await left(broker, play, {"a": CONTENT})
    real = broker.artifacts.read

    def read(key: str, start: int, end: int) -> AsyncIterator[bytes]:
        if start > 0:
            raise ArtifactStoreUnavailable("away by now")
        return real(key, start, end)

    monkeypatch.setattr(broker.artifacts, "read", read)
    async with serve(gateway) as server, httpx.AsyncClient(base_url=server) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(address(run_id, "a"))


@pytest.mark.parametrize("name", ["b", "A", "../a", "a/", "/a", "a\0", "x" * 5_000, "\u202ea"])
async def test_other_names_are_not_found(client: httpx.AsyncClient, broker: Broker, play: Play, name: str) -> None:
    run_id = await left(broker, play, {"a": b"x"})
    response = await client.get(address(run_id, name))
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


async def test_a_file_of_another_run_is_not_found(client: httpx.AsyncClient, broker: Broker, play: Play) -> None:
    """The key is of the run: an outcome that names another's digest gives nothing."""
    await left(broker, play, {"a": b"secret"})
    run = await play()
    await run.end(artifacts=[entry("mine", b"secret")])
    response = await client.get(address(run.id, "mine"))
    assert (response.status_code, response.json()["code"]) == (404, "artifact_not_found")


@pytest.mark.parametrize(
    "bad",
    [
        "no list",
        [5, None, "x"],
        [{"name": "a"}],
        [{"name": "a", "size": 1, "sha256": "../../x", "type": "text/plain"}],
        [{"name": "a", "size": -1, "sha256": "ab" * 32, "type": "text/plain"}],
        [{"name": "a", "size": 1, "sha256": "ab" * 32, "type": "text/html\r\nX: y"}],
    ],
)
async def test_an_outcome_of_somebody_else_breaks_nothing(
    client: httpx.AsyncClient, broker: Broker, play: Play, bad: Any
) -> None:
    run = await play()
    fence = json.dumps({"ts": 1.0, "artifacts": bad, "artifacts_skipped": bad}).encode()
    last = (await broker.runs.get(run.id)).last
    fence = fence.replace(b'{"ts": 1.0', b'{"ts":1.0')
    await broker.log.append(run.id, run.record.owner, run.record.epoch, last + 1, [Encoded(b"final", fence)])
    listed = await client.get(address(run.id))
    assert (listed.status_code, listed.json()["artifacts"]) == (200, [])
    assert (await client.get(address(run.id, "a"))).status_code == 404


async def test_a_file_that_is_no_longer_kept_is_said(client: httpx.AsyncClient, broker: Broker, play: Play) -> None:
    run_id = await left(broker, play, {"a": b"x", "empty": b""})
    await broker.artifacts.remove_older(-60)
    for name in ("a", "empty"):
        response = await client.get(address(run_id, name))
        assert (response.status_code, response.json()["code"]) == (404, "artifact_not_found")
        assert "RUNCAST_ARTIFACT_TTL" in response.json()["detail"]


async def test_a_store_that_is_away_is_503(memory_settings: Settings) -> None:
    url = f"s3://bucket?endpoint=http://127.0.0.1:{free_port()}"
    keys = Settings(artifact_key_id="a", artifact_secret_key="b")
    away = {
        "artifact_store": url,
        "artifact_key_id": keys.artifact_key_id,
        "artifact_secret_key": keys.artifact_secret_key,
    }
    async with made(memory_settings.model_copy(update={**away, "body_max_bytes": 1_000_000})) as (client, broker):
        run_id = await ended(broker, entry("a", b"x"))
        asked = body({"name": "a", "content_base64": b64(b"x" * 50_000)})
        for response in (await client.get(address(run_id, "a")), await client.post("/v1/runs", json=asked)):
            assert (response.status_code, response.json()["code"]) == (503, "artifact_store_unavailable")
            assert response.headers["retry-after"]
        assert len((await broker.runs.list())[0]) == 1


async def test_an_unknown_run_is_404(client: httpx.AsyncClient) -> None:
    for path in (address("nobody"), address("nobody", "a")):
        response = await client.get(path)
        assert (response.status_code, response.json()["code"]) == (404, "run_not_found")


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("out/a.txt", "attachment; filename=\"a.txt\"; filename*=UTF-8''a.txt"),
        ('a";x=".txt', "attachment; filename=\"ax=.txt\"; filename*=UTF-8''a%22%3Bx%3D%22.txt"),
        ("数据.csv", "attachment; filename=\".csv\"; filename*=UTF-8''%E6%95%B0%E6%8D%AE.csv"),
        ("数据", "attachment; filename=\"file\"; filename*=UTF-8''%E6%95%B0%E6%8D%AE"),
        ("a\r\nb", "attachment; filename=\"ab\"; filename*=UTF-8''a%0D%0Ab"),
        ("100%.txt", "attachment; filename=\"100.txt\"; filename*=UTF-8''100%25.txt"),
    ],
)
def test_the_name_of_a_download(name: str, header: str) -> None:
    assert disposition(name) == header


# What a request brings.


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def body(*artifacts: dict[str, Any]) -> dict[str, Any]:
    return {"runner": "scripted", "input": {"message": "x", "artifacts": list(artifacts)}}


async def test_content_is_kept_and_not_shown(memory_settings: Settings) -> None:
    settings = memory_settings.model_copy(update={"body_max_bytes": 1_000_000})
    async with made(settings) as (client, broker):
        content = os.urandom(100_000)
        asked = body({"name": "a.bin", "content_base64": b64(content)}, {"name": "b", "content_base64": b64(b"note")})
        answers = [await client.post("/v1/runs", json=asked, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [response.status_code for response in answers] == [201, 200]
        assert answers[0].json()["run_id"] == answers[1].json()["run_id"]
        other = await client.post(
            "/v1/runs", json=body({"name": "a.bin", "content_base64": b64(b"x")}), headers={"Idempotency-Key": "k"}
        )
        assert other.status_code == 409
        run = (await client.get(f"/v1/runs/{answers[0].json()['run_id']}")).json()
        record = await broker.runs.get(run["run_id"])
    assert run["input"]["artifacts"] == [
        {"name": "a.bin", "stored": {"sha256": digest(content), "size": 100_000}},
        {"name": "b"},
    ]
    assert record.request["input"]["artifacts"][1] == {"name": "b", "content_base64": b64(b"note")}


@pytest.mark.parametrize(
    ("artifact", "field"),
    [
        ({"name": "../x", "url": "http://x/"}, "input.artifacts[0].name"),
        ({"name": "a", "url": "file:///etc/passwd"}, "input.artifacts[0].url"),
        ({"name": "a", "content_base64": "?"}, "input.artifacts[0].content_base64"),
        ({"name": "a"}, "input.artifacts[0]"),
        ({"name": "a", "stored": {"sha256": "ab" * 32, "size": 3}}, "input.artifacts[0].stored"),
    ],
)
async def test_what_cannot_be_is_422_and_nothing_is_made(
    client: httpx.AsyncClient, broker: Broker, artifact: dict[str, Any], field: str
) -> None:
    response = await client.post("/v1/runs", json=body(artifact))
    assert (response.status_code, response.json()["code"], response.json()["field"]) == (422, "invalid_request", field)
    assert await broker.runs.list() == ([], None)


async def test_files_come_through_an_s3_store(
    memory_settings: Settings, object_server: ObjectServer, tmp_path: Path
) -> None:
    """Gateways that share nothing but Redis and the object store."""
    settings = memory_settings.model_copy(
        update={
            "artifact_store": object_server.url(memory_settings.namespace),
            "artifact_key_id": Settings(artifact_key_id=object_server.key_id).artifact_key_id,
            "artifact_secret_key": Settings(artifact_secret_key=object_server.secret_key).artifact_secret_key,
        }
    )
    async with made(settings) as (client, broker):
        run_id = await ended(broker, entry("a", CONTENT))
        (tmp_path / "file").write_bytes(CONTENT)
        await broker.artifacts.put(broker.artifacts.of_run(run_id, digest(CONTENT)), tmp_path / "file")
        whole = await client.get(address(run_id, "a"))
        part = await client.get(address(run_id, "a"), headers={"Range": "bytes=-7"})
    assert (whole.status_code, whole.content) == (200, CONTENT)
    assert (part.status_code, part.content) == (206, CONTENT[-7:])
    assert not (tmp_path / "data" / "artifacts").exists()
