"""The watcher of Hermes' sessions and its stream: what the probe says is what is so, and every change is told."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.api import Broker
from gateway.app import Gateway, create_app
from gateway.webui.settings import WebuiSettings
from gateway.webui.watcher import SessionWatcher
from tests.gateway.conftest import Serve
from tests.gateway.hermes_home import HermesHome
from tests.gateways import until
from tests.servers import eventually

INTERVAL = 0.05
PATH = "/api/sessions/gateway/stream"
SHORT = pytest.mark.parametrize("patience", [20], indirect=True)


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For how many intervals a watch that sees nothing is believed. Many, since a process that stands still sees
    nothing either; ``SHORT`` where a test waits for the end of it."""
    monkeypatch.setattr("gateway.webui.watcher._PATIENCE", getattr(request, "param", 2_000))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[HermesHome]:
    made = HermesHome(tmp_path / "hermes", write_ahead=True)
    made.session("s1", at=1000.0, title="First")
    yield made
    made.close()


def watching(broker: Broker, home: Path) -> Gateway:
    return create_app(
        broker=broker, webui=WebuiSettings(show_cli_sessions=True, hermes_home=home, watch_interval=INTERVAL)
    )


@pytest.fixture
async def address(broker: Broker, home: HermesHome, serve: Serve) -> AsyncIterator[str]:
    async with serve(watching(broker, home.path)) as served:
        yield served


class Stream:
    """The events of one response, comments counted."""

    def __init__(self, response: httpx.Response) -> None:
        self.response, self.comments = response, 0
        self._lines = response.aiter_lines()

    async def event(self, timeout: float = 30.0) -> tuple[str, Any]:
        fields: dict[str, str] = {}
        async with asyncio.timeout(timeout):
            async for line in self._lines:
                if line.startswith(":"):
                    assert line == ": keepalive"
                    assert not fields, "a comment within a frame"
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    assert name in ("event", "data", "retry"), f"no field of this stream: {line}"
                    fields[name] = value
                elif fields:
                    return fields.get("event", "retry"), json.loads(fields.get("data") or fields["retry"])
        raise EOFError

    async def sessions(self) -> list[str]:
        name, data = await self.event()
        assert (name, list(data)) == ("sessions_changed", ["sessions"])
        return [session["session_id"] for session in data["sessions"]]

    async def ended(self, timeout: float = 30.0) -> None:
        with suppress(EOFError):
            async with asyncio.timeout(timeout):
                while True:
                    await self.event()


@pytest.fixture
async def http(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, timeout=30) as client:

        async def looked() -> bool:
            return (await client.get(PATH, params={"probe": "1"})).status_code != 503

        await until(looked)  # the gateway serves before its watcher has had its first look
        yield client


# What the stream says.


async def test_the_list_comes_at_once_and_after_every_change(http: httpx.AsyncClient, home: HermesHome) -> None:
    async with http.stream("GET", PATH) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["x-accel-buffering"] == "no"
        stream = Stream(response)
        assert await stream.sessions() == ["s1"]
        home.session("s2", at=2000.0, source="telegram")
        assert await stream.sessions() == ["s2", "s1"]
        home.say("s1", at=3000.0)
        name, data = await stream.event()
        assert name == "sessions_changed"
        assert [(s["session_id"], s["message_count"], s["updated_at"]) for s in data["sessions"]] == [
            ("s1", 3, 3000.0),
            ("s2", 2, 2001.0),
        ]


async def test_every_connect_begins_with_the_list_as_it_is_now(http: httpx.AsyncClient, home: HermesHome) -> None:
    for n in range(2, 5):
        async with http.stream("GET", PATH) as response:
            stream = Stream(response)
            while len(await stream.sessions()) < n - 1:
                pass
            home.session(f"s{n}", at=1000.0 * n)
            assert len(await stream.sessions()) == n


async def test_silence_is_kept_alive_between_frames(http: httpx.AsyncClient, home: HermesHome) -> None:
    async with http.stream("GET", PATH) as response:
        stream = Stream(response)
        await stream.sessions()
        reading = asyncio.create_task(stream.event())
        await eventually(lambda: stream.comments >= 3 or reading.done())
        assert not reading.done()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_what_changed_nothing_is_no_event(http: httpx.AsyncClient, home: HermesHome) -> None:
    async with http.stream("GET", PATH) as response:
        stream = Stream(response)
        await stream.sessions()
        home.session("hidden", at=5000.0, source="tool")
        home.session("s2", at=2000.0)
        assert await stream.sessions() == ["s2", "s1"]


async def test_a_viewer_who_was_away_gets_the_newest_list_only(home: HermesHome) -> None:
    watcher = SessionWatcher(home.path, interval=0.01)
    async with watcher.watching():
        first = await watcher.after(0)
        for n in range(2, 6):
            home.session(f"s{n}", at=1000.0 * n)
            await eventually(lambda n=n: len(watcher.snapshot.sessions) == n)  # type: ignore[misc]
        newest = await watcher.after(first.version)
        assert len(newest.sessions) == 5
        assert newest.version >= first.version + 4
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watcher.after(newest.version), 0.1)


async def test_head_gets_the_headers(http: httpx.AsyncClient) -> None:
    response = await http.head(PATH)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_a_gateway_that_shuts_down_sends_its_viewers_away(broker: Broker, home: HermesHome, serve: Serve) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        async with serve(watching(broker, home.path)) as address:
            request = client.build_request("GET", address + PATH)
            response = await client.send(request, stream=True)
            stream = Stream(response)
            await stream.sessions()
        name, milliseconds = await stream.event()
        assert name == "retry"
        assert 1_000 <= milliseconds <= 3_000
        await stream.ended()


async def test_the_list_of_sessions_has_them_too_on_its_first_page(
    http: httpx.AsyncClient, home: HermesHome, broker: Broker
) -> None:
    ours = [(await http.post("/api/session/new", json={"title": f"ours {n}"})).json()["session"] for n in range(2)]
    home.session("later", at=ours[-1]["created_at"] + 100)

    async def page(**query: Any) -> dict[str, Any]:
        found: dict[str, Any] = (await http.get("/api/sessions", params=query)).json()
        return found

    async def seen() -> bool:
        return (await page())["cli_count"] == 2

    await until(seen)
    newer, older = ours[1]["session_id"], ours[0]["session_id"]
    assert [s["session_id"] for s in (await page())["sessions"]] == ["later", newer, older, "s1"]
    first = await page(limit=1)
    assert [s["session_id"] for s in first["sessions"]] == ["later", newer, "s1"]
    second = await page(limit=1, before=first["next"])
    assert ([s["session_id"] for s in second["sessions"]], second["cli_count"]) == ([older], 0)


# What the probe says.


def probe(enabled: bool, running: bool, **more: str) -> dict[str, Any]:
    return {
        "enabled": enabled,
        "ok": enabled and running,
        "watcher_running": running,
        "fallback_poll_ms": 30_000,
        **more,
        "scope": "gateway_sessions",
        "session_stream_available": True,
        "session_stream_path": "/api/session/stream",
    }


@pytest.mark.parametrize("asked", ["1", "true", "yes", "TRUE", " 1 "])
async def test_the_probe_of_a_watcher_that_runs(http: httpx.AsyncClient, asked: str) -> None:
    response = await http.get(PATH, params={"probe": asked})
    assert (response.status_code, response.json()) == (200, probe(True, True))
    assert response.headers["content-type"] == "application/json"


async def test_not_switched_on_is_404(client: httpx.AsyncClient) -> None:
    response = await client.get(PATH, params={"probe": "1"})
    assert (response.status_code, response.json()) == (404, probe(False, False, error="agent sessions not enabled"))
    response = await client.get(PATH)
    assert (response.status_code, response.json()) == (404, {"error": "agent sessions not enabled"})


async def test_probe_zero_is_no_probe(http: httpx.AsyncClient) -> None:
    async with http.stream("GET", PATH, params={"probe": "0"}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")


async def test_a_home_where_hermes_never_ran_has_no_sessions_and_is_watched(
    broker: Broker, tmp_path: Path, serve: Serve
) -> None:
    (tmp_path / "fresh").mkdir()
    async with (
        serve(watching(broker, tmp_path / "fresh")) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as http,
    ):
        assert (await http.get(PATH, params={"probe": "1"})).json() == probe(True, True)
        async with http.stream("GET", PATH) as response:
            stream = Stream(response)
            assert await stream.sessions() == []
            home = HermesHome(tmp_path / "fresh")
            home.session("s1", at=1.0)
            assert await stream.sessions() == ["s1"]
            home.close()


def break_home(home: HermesHome, how: str) -> None:
    if how == "gone":
        shutil.rmtree(home.path)
    elif how == "garbage":
        home.store.write_bytes(b"this is no database " * 400)
        home.store.with_name("state.db-wal").unlink(missing_ok=True)
        home.store.with_name("state.db-shm").unlink(missing_ok=True)
    else:
        home._db.execute("ALTER TABLE sessions RENAME TO conversations")


@SHORT
@pytest.mark.parametrize("how", ["gone", "garbage", "another schema"])
async def test_a_store_that_cannot_be_read_any_more_is_503_and_ends_the_streams(
    http: httpx.AsyncClient, home: HermesHome, how: str
) -> None:
    async with http.stream("GET", PATH) as response:
        stream = Stream(response)
        await stream.sessions()
        break_home(home, how)
        await stream.ended()

    async def refused() -> bool:
        return (await http.get(PATH, params={"probe": "1"})).status_code == 503

    await until(refused)
    response = await http.get(PATH, params={"probe": "1"})
    assert (response.status_code, response.json()) == (503, probe(True, False, error="watcher not started"))
    response = await http.get(PATH)
    assert (response.status_code, response.json()) == (503, {"error": "watcher not started"})


async def test_a_home_that_comes_back_is_watched_again(broker: Broker, tmp_path: Path, serve: Serve) -> None:
    async with (
        serve(watching(broker, tmp_path / "late")) as address,
        httpx.AsyncClient(base_url=address, timeout=30) as http,
    ):
        assert (await http.get(PATH, params={"probe": "1"})).status_code == 503
        home = HermesHome(tmp_path / "late")
        home.session("s1", at=1.0)

        async def found() -> bool:
            return (await http.get(PATH, params={"probe": "1"})).status_code == 200

        await until(found)
        async with http.stream("GET", PATH) as response:
            assert await Stream(response).sessions() == ["s1"]
        home.close()


@SHORT
async def test_a_store_that_is_locked_for_a_moment_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.webui.hermes_store._BUSY_SECONDS", 0.01)
    home = HermesHome(tmp_path / "hermes")
    home.session("s1", at=1.0)
    watcher = SessionWatcher(home.path, interval=0.1)
    async with watcher.watching():
        await watcher.after(0)
        home.locked()
        await eventually(lambda: "locked" in watcher._why)
        assert watcher.running
        assert [session["session_id"] for session in watcher.snapshot.sessions] == ["s1"]
        home.unlocked()
        home.say("s1", at=9.0)
        assert (await watcher.after(1)).sessions[0]["message_count"] == 3
        home.locked()
        await eventually(lambda: not watcher.running)  # but one that stays so is
        home.unlocked()
        await eventually(lambda: watcher.running)
    assert not watcher.running
    home.close()


async def test_an_unforeseen_error_ends_no_watch(
    home: HermesHome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = True

    def read(path: Path) -> list[dict[str, Any]]:
        if failing:
            raise RecursionError("deep")
        return [{"session_id": "found"}]

    monkeypatch.setattr("gateway.webui.watcher.read_sessions", read)
    watcher = SessionWatcher(home.path, interval=0.01)
    async with watcher.watching():
        await watcher.looked(5)
        await eventually(lambda: "RecursionError: deep" in caplog.text)
        assert not watcher.running
        failing = False
        assert (await watcher.after(0)).sessions == [{"session_id": "found"}]
        assert watcher.running


async def test_a_store_that_lies_still_is_not_read_again(home: HermesHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.webui.watcher._SETTLED", 0.05)
    reads = 0

    def read(path: Path) -> list[dict[str, Any]]:
        nonlocal reads
        reads += 1
        return []

    monkeypatch.setattr("gateway.webui.watcher.read_sessions", read)
    watcher = SessionWatcher(home.path, interval=0.01)
    async with watcher.watching():
        await eventually(lambda: watcher._seen is not None)
        before = reads
        for _ in range(5):
            assert await watcher._look()
        assert reads == before
        home.say("s1")
        await eventually(lambda: reads > before)
