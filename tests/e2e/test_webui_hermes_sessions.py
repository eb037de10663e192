"""The watcher over the session stores that the real Hermes builds write, behind a real gateway.

``RUNCAST_TEST_HERMES`` names the newer build, ``RUNCAST_TEST_HERMES_019`` the older one. Without them these tests are
skipped; in CI they must be there.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from gateway.webui.hermes_store import read_sessions
from tests.e2e.hermes import hermes_binary, make_home
from tests.e2e.processes import Gateway, environment
from tests.fake_model import FakeModel
from tests.servers import RedisServer, die_with_parent

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="as the other tests of the real Hermes"),
    pytest.mark.timeout(180),
]
PATH = "/api/sessions/gateway/stream"
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS}
BUILDS = {"newer": "RUNCAST_TEST_HERMES", "0.19": "RUNCAST_TEST_HERMES_019"}


class Hermes:
    """One build with a home of its own."""

    def __init__(self, binary: str, home: Path) -> None:
        self.binary, self.home = binary, home

    def start(self, prompt: str, *options: str) -> subprocess.Popen[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HERMES_", "RUNCAST_"))}
        place = {"HERMES_HOME": str(self.home), "HOME": str(self.home), "HERMES_DISABLE_LAZY_INSTALLS": "1"}
        return subprocess.Popen(
            [self.binary, "chat", f"--query={prompt}", "-Q", "--yolo", *options],
            env={**kept, **place},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=die_with_parent,
        )

    def chat(self, prompt: str, *options: str) -> str:
        """Runs to its end; the session's id, which Hermes prints.

        It is the last that Hermes prints, when the turn is stored: an interpreter that crashes on its way out, below
        the threads that Hermes leaves behind, has done what it was asked (workers/hermes/verdict.py takes it so too).
        """
        process = self.start(prompt, *options)
        said, _ = process.communicate(timeout=90)
        assert process.returncode == 0 or -process.returncode in CRASHES, said
        (found,) = (line.split()[1] for line in said.splitlines() if line.startswith("session_id:"))
        return found


@pytest.fixture(scope="module", params=BUILDS)
def hermes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hermes]:
    binary = hermes_binary(BUILDS[request.param])
    with FakeModel(pace=0.01) as model:
        yield Hermes(binary, make_home(tmp_path_factory.mktemp("hermes-home"), model))


@pytest.fixture(scope="module")
def first(hermes: Hermes) -> str:
    """A session that a person had, beside one that says it is nobody's."""
    hermes.chat("PLAIN for a program", "--source", "tool")
    return hermes.chat("PLAIN for me")


@pytest.fixture
async def http(redis7: RedisServer, hermes: Hermes, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    env = environment(
        redis7.url, f"t{uuid4().hex[:12]}", data_dir=tmp_path, show_cli_sessions=1, watch_interval=0.1, heartbeat=0.5
    )
    gateway = Gateway({**env, "HERMES_HOME": str(hermes.home)}, tmp_path / "gateway.log")
    try:
        await gateway.ready()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", timeout=30) as client:
            yield client
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended() == 0
        assert "Traceback" not in gateway.output
    finally:
        gateway.kill()


async def lists(response: httpx.Response) -> AsyncIterator[list[dict[str, Any]]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))["sessions"]


async def test_what_hermes_wrote_is_listed_and_what_is_nobodys_is_not(
    http: httpx.AsyncClient, hermes: Hermes, first: str
) -> None:
    probe = await http.get(PATH, params={"probe": "1"})
    assert (probe.status_code, probe.json()["ok"], probe.json()["watcher_running"]) == (200, True, True)
    async with http.stream("GET", PATH) as response:
        (session,) = await anext(lists(response))
    assert (session["session_id"], session["message_count"], session["model"]) == (first, 2, "fake-model")
    assert (session["session_source"], session["is_cli_session"]) == ("cli", True)
    assert session["title"]
    assert session["created_at"] <= session["updated_at"] == session["last_message_at"]


async def test_a_chat_on_a_terminal_shows_while_it_runs_and_its_next_turn_too(
    http: httpx.AsyncClient, hermes: Hermes, first: str
) -> None:
    async with http.stream("GET", PATH) as response, asyncio.timeout(90):
        changes = lists(response)
        before = await anext(changes)
        new = await asyncio.to_thread(hermes.chat, "PLAIN again")
        sessions = before
        while new not in [session["session_id"] for session in sessions]:
            sessions = await anext(changes)
        while sessions[0]["message_count"] != 2:
            sessions = await anext(changes)
        assert [session["session_id"] for session in sessions] == [new, *(s["session_id"] for s in before)]
        await asyncio.to_thread(hermes.chat, "PLAIN once more", "--resume", new)
        while sessions[0]["message_count"] != 4:
            sessions = await anext(changes)
        assert sessions[0]["session_id"] == new
        assert len(sessions) == len(before) + 1


async def test_a_hermes_that_is_killed_leaves_a_store_that_can_be_read(
    http: httpx.AsyncClient, hermes: Hermes, first: str
) -> None:
    process = hermes.start("SLEEPTOOL please")
    try:
        async with http.stream("GET", PATH) as response, asyncio.timeout(90):
            changes = lists(response)
            before = {session["session_id"] for session in await anext(changes)}
            async for sessions in changes:
                if {session["session_id"] for session in sessions} - before:
                    break  # it is in the middle of its turn
        process.kill()
    finally:
        process.kill()
        process.communicate()
    probe = await http.get(PATH, params={"probe": "1"})
    assert probe.status_code == 200
    kept = read_sessions(hermes.home)
    assert {session["session_id"] for session in kept} > before
    async with http.stream("GET", PATH) as response:
        assert await anext(lists(response)) == kept


async def test_reading_leaves_hermes_store_as_it_is(hermes: Hermes, first: str) -> None:
    """``-shm`` is SQLite's own scratch memory."""

    def contents() -> dict[str, bytes]:
        return {f.name: f.read_bytes() for f in sorted(hermes.home.glob("state.db*")) if not f.name.endswith("-shm")}

    before = contents()
    assert first in [session["session_id"] for session in read_sessions(hermes.home)]
    assert contents() == before
