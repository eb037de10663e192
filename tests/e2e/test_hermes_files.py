"""The real Hermes with files: it finds what the run was given, and what its tools make is kept."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from broker.api import Broker
from broker.artifacts import InboundArtifact
from broker.requests import RunInput, RunRequest
from tests.e2e.hermes import BUILDS, NEEDS_LINUX, environ_of, hermes_binary, processes, working
from tests.fake_model import FakeModel
from workers.hermes.runner import HermesRunner
from workers.hermes.settings import HermesSettings

PACE = 0.01
pytestmark = [NEEDS_LINUX, pytest.mark.timeout(200)]
CONTENT = b"given to the run\n"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("0.19.0", "bridge"), id="0.19-bridge", marks=pytest.mark.long),
        pytest.param(("0.19.0", "text"), id="0.19-text", marks=pytest.mark.long),
        pytest.param(("0.22.2", "bridge"), id="0.22-bridge"),
        pytest.param(("0.22.2", "text"), id="0.22-text", marks=pytest.mark.long),
    ],
)
def build(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The build, and its mode."""
    version, mode = request.param
    return version, mode


@pytest.fixture(scope="module")
def hermes(build: tuple[str, str]) -> str:
    return hermes_binary(BUILDS[build[0]])


@pytest.fixture
async def runner(build: tuple[str, str], hermes: str, home: Path, broker: Broker) -> AsyncIterator[HermesRunner]:
    trace = uuid4().hex
    settings = HermesSettings(bin=hermes, mode=build[1], bridge_handshake=120.0)
    made = HermesRunner(settings, environ=environ_of(home, trace))
    async with working(broker, {"hermes": made}):
        yield made
    assert not processes(trace)


async def test_what_it_is_given_and_what_it_makes(runner: HermesRunner, broker: Broker, model: FakeModel) -> None:
    given = InboundArtifact(name="given.txt", content_base64=base64.b64encode(CONTENT).decode())
    asked = RunInput(message="COPY given.txt copied.txt", artifacts=[given])
    record, _ = await broker.runs.create(RunRequest(input=asked, session_id="s1"))
    async with asyncio.timeout(150):
        entries = [entry async for entry in broker.stream(record.run_id)]
    final = entries[-1]
    assert final.type == "final", final.fields
    left = {file["name"]: file for file in final.fields["artifacts"]}
    assert set(left) == {"copied.txt", "written.txt"}
    files = broker.artifacts
    key = files.of_run(record.run_id, left["copied.txt"]["sha256"])
    assert b"".join([piece async for piece in files.read(key, 0, len(CONTENT))]) == CONTENT
