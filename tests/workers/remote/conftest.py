"""Stages on a stand-in and on a real server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.workers.remote.stage import Stage, staged


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting and no proxy, whatever the machine's environment has."""
    for name in list(os.environ):
        if name.upper().startswith(("REMOTE_", "SSL_CERT_")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)


@pytest.fixture(params=["memory", "redis7"])
def url(request: pytest.FixtureRequest) -> str:
    return f"memory:{uuid4().hex}" if request.param == "memory" else str(request.getfixturevalue("redis7").url)


@pytest.fixture
async def stage(url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(url, tmp_path) as opened:
        yield opened
