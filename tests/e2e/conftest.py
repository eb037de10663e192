"""What more than one of the end-to-end tests start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.nestjs import NestProxy, build


@pytest.fixture(scope="session")
def nest_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled NestJS proxy."""
    return build(tmp_path_factory.mktemp("nestjs"))


@pytest.fixture(scope="module")
def nest(nest_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., NestProxy]]:
    """Starts proxies: ``nest(upstream, drain=1)``. All are killed at the end, and none may have stumbled."""
    directory = tmp_path_factory.mktemp("proxies")
    started: list[NestProxy] = []

    def start(upstream: int | str, **settings: Any) -> NestProxy:
        started.append(NestProxy(nest_program, directory, upstream, **settings))
        return started[-1].ready()

    yield start
    for proxy in started:
        proxy.kill()
        assert "Error:" not in proxy.log, proxy.log
