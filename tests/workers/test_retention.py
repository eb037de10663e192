"""Old files go by themselves: of the store one worker at a time, of a machine's workspaces every worker."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker
from broker.errors import ArtifactNotFound
from broker.settings import Settings
from tests.servers import RedisServer
from workers.retention import Retention
from workers.workspace import Workspaces

SHA = "ab" * 32
DAY = 86_400.0


@pytest.fixture(params=["memory", "redis7"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    server: RedisServer | None = request.getfixturevalue("redis7") if request.param == "redis7" else None
    url = server.url if server else f"memory:{uuid4().hex}"
    async with api.open(settings=settings_of(tmp_path, redis_url=url)) as opened:
        yield opened


def settings_of(tmp_path: Path, **more: Any) -> Settings:
    return Settings(**{"data_dir": tmp_path, "namespace": f"t{uuid4().hex[:12]}", **more})


def age(directory: Path, seconds: float) -> None:
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (time.time() - seconds, time.time() - seconds))


async def there(broker: Broker, run_id: str) -> bool:
    try:
        await broker.artifacts.size(broker.artifacts.of_run(run_id, SHA))
    except ArtifactNotFound:
        return False
    return True


async def test_one_look_removes_what_is_old_in_both(broker: Broker, tmp_path: Path) -> None:
    workspaces = Workspaces(broker.settings)
    workspaces.open("s", "r").close()
    await broker.artifacts.put(broker.artifacts.of_run("old", SHA), b"x")
    age(tmp_path, 8 * DAY)
    await broker.artifacts.put(broker.artifacts.of_run("new", SHA), b"x")
    workspaces.open("t", "r").close()
    await Retention(broker, workspaces).once()
    assert [p.name for p in workspaces.home.iterdir() if p.name != ".spool"] == ["session-t"]
    assert (await there(broker, "old"), await there(broker, "new")) == (False, True)


async def test_of_several_workers_one_looks_through_the_store(broker: Broker, tmp_path: Path) -> None:
    first, second = (Retention(broker, Workspaces(broker.settings)) for _ in range(2))
    await first.once()
    await broker.artifacts.put(broker.artifacts.of_run("old", SHA), b"x")
    age(tmp_path, 8 * DAY)
    await second.once()
    assert await there(broker, "old")
    await broker.store.call(b"DEL", broker.keys.artifacts_swept())
    await second.once()
    assert not await there(broker, "old")


async def test_the_turn_comes_again(broker: Broker) -> None:
    await Retention(broker, Workspaces(broker.settings)).once()
    left = int(await broker.store.call(b"PTTL", broker.keys.artifacts_swept()))
    assert 0 < left <= 3_600_000


async def test_zero_keeps_for_ever(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, redis_url=f"memory:{uuid4().hex}", workspace_ttl=0, artifact_ttl=0)
    async with api.open(settings=settings) as broker:
        workspaces = Workspaces(settings)
        workspaces.open("s", "r").close()
        await broker.artifacts.put(broker.artifacts.of_run("old", SHA), b"x")
        age(tmp_path, 9_999 * DAY)
        await Retention(broker, workspaces).once()
        assert await there(broker, "old")
        assert (workspaces.home / "session-s").is_dir()
