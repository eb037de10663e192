"""Sessions of the real Hermes go on, begun in one mode and taken up in another; an unknown one is a clear error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker.api import Broker
from broker.merge import text_of
from broker.requests import RunInput, RunRequest
from tests.e2e.hermes import BUILDS, NEEDS_LINUX, environ_of, hermes_binary, processes, working
from tests.e2e.matrix import MODES
from tests.fake_model import PLAIN, FakeModel
from tests.servers import eventually
from workers.hermes.runner import HermesRunner
from workers.hermes.settings import HermesSettings

PACE = 0.01
pytestmark = [NEEDS_LINUX, pytest.mark.timeout(300)]
_AT_ONCE = 3
"""A start takes some seconds of a processor."""


@pytest.fixture(scope="module", params=[pytest.param("0.19.0", marks=pytest.mark.long), "0.22.2"])
def build(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def hermes(build: str) -> str:
    return hermes_binary(BUILDS[build])


class Modes:
    """A worker with a runner for each mode of one build, all in one Hermes home."""

    def __init__(self, broker: Broker, build: str, hermes: str, home: Path) -> None:
        self.names = MODES[build]
        self.trace = uuid4().hex
        self.broker = broker
        self._starting = asyncio.Semaphore(_AT_ONCE)
        environ = environ_of(home, self.trace)
        self.runners = {
            mode: HermesRunner(HermesSettings(bin=hermes, mode=mode, bridge_handshake=120.0), environ=environ)
            for mode in self.names
        }

    async def run(self, mode: str, message: str, session: str = "") -> dict[str, Any]:
        """The run's fence."""
        async with self._starting, asyncio.timeout(200):
            run_id = await self.create(mode, message, session)
            entries = [entry async for entry in self.broker.stream(run_id)]
        return {"type": entries[-1].type, **entries[-1].fields}

    async def create(self, mode: str, message: str, session: str = "") -> str:
        metadata = {"hermes_session_id": session} if session else {}
        request = RunRequest(runner=mode, input=RunInput(message=message), metadata=metadata)
        return (await self.broker.runs.create(request))[0].run_id


@pytest.fixture
async def modes(build: str, hermes: str, home: Path, broker: Broker) -> AsyncIterator[Modes]:
    modes = Modes(broker, build, hermes, home)
    async with working(broker, modes.runners, concurrency=8):
        yield modes
    assert not processes(modes.trace)


@pytest.mark.long
async def test_a_session_goes_on_in_another_mode(modes: Modes, model: FakeModel) -> None:
    """Begun in each mode and taken up in the next one: as soon as the first run has its fence, as people do."""

    async def talk(first: str, second: str) -> tuple[str, Any]:
        marker, again = uuid4().hex, uuid4().hex
        begun = await modes.run(first, f"Remember {marker} PLAIN")
        assert begun["type"] == "final", (first, begun)
        went_on = await modes.run(second, f"And now {again} PLAIN", begun["hermes_session_id"])
        assert went_on["type"] == "final", (second, went_on)
        [heard] = [messages for messages in model.conversations if again in json.dumps(messages)]
        return f"{first} → {second}", {
            "the model hears the first prompt": marker in json.dumps(heard),
            "and its own answer": any(PLAIN in str(m["content"]) for m in heard if m["role"] == "assistant"),
            "the session is the same": went_on["hermes_session_id"] == begun["hermes_session_id"],
            "the answer": text_of(went_on["message"]).strip(),
        }

    names = modes.names
    told = dict(await asyncio.gather(*(talk(a, b) for a, b in zip(names, names[1:] + names[:1], strict=True))))
    assert told == {
        pair: {
            "the model hears the first prompt": True,
            "and its own answer": True,
            "the session is the same": True,
            "the answer": PLAIN,
        }
        for pair in told
    }


async def test_runs_of_one_session_of_ours_know_of_each_other(modes: Modes, model: FakeModel) -> None:
    """Asked for at the same time, the second waits for the first, and hears what that said."""
    session_id, markers = f"s-{uuid4().hex}", [uuid4().hex for _ in range(2)]
    ids = []
    for mode, marker in zip(modes.names, markers, strict=False):
        request = RunRequest(runner=mode, input=RunInput(message=f"{marker} PLAIN"), session_id=session_id)
        ids.append((await modes.broker.runs.create(request, busy="wait"))[0].run_id)
    assert (await modes.broker.runs.get(ids[1])).waits
    async with asyncio.timeout(200):
        [first, second] = [[e async for e in modes.broker.stream(run_id)][-1].fields for run_id in ids]
    assert first["hermes_session_id"] == second["hermes_session_id"]
    [heard] = [messages for messages in model.conversations if markers[1] in json.dumps(messages)]
    assert markers[0] in json.dumps(heard)
    assert any(PLAIN in str(message["content"]) for message in heard if message["role"] == "assistant")


async def test_an_unknown_session_is_a_clear_error(modes: Modes, model: FakeModel) -> None:
    """Each mode gets an id of its own: newer builds let in one process at a time, even to what is not there."""
    marker = uuid4().hex
    wanted = {mode: f"20200101_000000_abcde{place}" for place, mode in enumerate(modes.names)}
    fences = await asyncio.gather(*(modes.run(mode, f"{marker} PLAIN", wanted[mode]) for mode in modes.names))
    told = {mode: (fence["type"], fence.get("code")) for mode, fence in zip(modes.names, fences, strict=True)}
    assert told == dict.fromkeys(modes.names, ("failed", "hermes_session_not_found"))
    for mode, fence in zip(modes.names, fences, strict=True):
        assert wanted[mode] in fence["message"], fence
        assert not fence["retryable"]
    assert not any(marker in prompt for prompt in model.prompts), "no model was asked"


async def test_a_session_that_is_in_use(modes: Modes, build: str, model: FakeModel) -> None:
    """0.22.2 lets in one at a time, whoever it is, but not by way of its API server; 0.19.0 has no such rule."""
    if build == "0.19.0":
        return
    marker = uuid4().hex
    holding = await modes.create("bridge", f"{marker} Be MUTE")
    await eventually(lambda: any(marker in prompt for prompt in model.prompts), 120, step=0.1)
    session = await _session(modes.broker, holding)
    others = [mode for mode in modes.names if mode != "api"]
    fences = await asyncio.gather(*(modes.run(mode, "PLAIN", session) for mode in others))
    await modes.broker.runs.cancel(holding)
    told = {mode: (fence.get("code"), fence.get("retryable")) for mode, fence in zip(others, fences, strict=True)}
    assert told == dict.fromkeys(others, ("hermes_session_busy", True))


async def _session(broker: Broker, run_id: str) -> str:
    async with asyncio.timeout(60):
        async for entry in broker.stream(run_id):
            if entry.type == "event" and entry.fields["name"] == "hermes.session":
                return str(entry.fields["hermes_session_id"])
    raise AssertionError("the run named no session")
