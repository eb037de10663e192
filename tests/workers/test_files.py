"""A run with files, through a worker: fetched before its runner starts, kept after it has ended."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker import api
from broker.api import Broker, StreamEntry
from broker.artifacts import InboundArtifact, StoredContent
from broker.items import Final, MessageDelta
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from broker.staging import staged
from tests.servers import eventually
from tests.workers.bad_web import answering, serving
from tests.workers.hermes_stage import on_stage
from tests.workers.installed import Installed
from tests.workers.test_fetching import endless
from workers.runner import Outcome, RunContext, RunnerFailed
from workers.worker import Worker

Play = Callable[[RunContext], Awaitable[Any]]
LOCAL = "127.0.0.0/8"


class Working:
    """A runner with a workspace that does what a test says."""

    name = "works"
    uses_workspace = True
    stop_grace = 0.3

    def __init__(self) -> None:
        self.play: Play | None = None
        self.started = 0

    async def run(self, context: RunContext) -> Outcome:
        self.started += 1
        outcome = await self.play(context) if self.play is not None else None
        return outcome or Final()


class Stage:
    def __init__(self, broker: Broker, runner: Working, worker: Worker) -> None:
        self.broker, self.runner, self.worker = broker, runner, worker

    async def run(
        self, play: Play | None = None, *artifacts: dict[str, Any], session_id: str | None = None, **more: Any
    ) -> list[StreamEntry]:
        self.runner.play = play
        given = [InboundArtifact(**artifact) for artifact in artifacts] or None
        request = RunRequest(
            runner=more.pop("runner", "works"),
            input=RunInput(message="x", artifacts=given),
            session_id=session_id,
            **more,
        )
        record, _ = await self.broker.runs.create(request)
        return await self.follow(record.run_id)

    async def follow(self, run_id: str) -> list[StreamEntry]:
        async with asyncio.timeout(20):
            return [entry async for entry in self.broker.stream(run_id)]

    async def content(self, run_id: str, sha256: str) -> bytes:
        files = self.broker.artifacts
        key = files.of_run(run_id, sha256)
        return b"".join([piece async for piece in files.read(key, 0, await files.size(key))])


@asynccontextmanager
async def staging(tmp_path: Path, **settings: Any) -> AsyncIterator[Stage]:
    made = Settings(
        **{
            "redis_url": f"memory:{uuid4().hex}",
            "data_dir": tmp_path / "data",
            "beat": 0.1,
            "block": 1.0,
            "inbound_networks": LOCAL,
            **settings,
        }
    )
    async with api.open(settings=made) as broker:
        runner = Working()
        worker = Worker(broker, runners={"works": runner, "idle": Idle()}, sweep=False)
        task = asyncio.create_task(worker.run())
        try:
            yield Stage(broker, runner, worker)
        finally:
            worker.drain()
            worker.drain()
            await asyncio.wait_for(task, 20)
        assert list((tmp_path / "data" / "workspaces").rglob(".spool/*")) == []


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staging(tmp_path) as opened:
        yield opened


class Idle:
    """A runner that works in no workspace."""

    name = "idle"

    async def run(self, context: RunContext) -> Outcome:
        assert context.workspace is None
        return Final()


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def place(context: RunContext) -> Path:
    assert context.workspace is not None
    return context.workspace


def outside(tmp_path: Path) -> set[str]:
    """Everything below this test's directory that is in no workspace and no store."""
    inside = ("data/workspaces", "data/artifacts")
    found = (str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    return {name for name in found if name != "data" and not name.startswith(inside)}


async def test_a_run_finds_what_it_was_given_and_leaves_what_it_made(stage: Stage) -> None:
    async def play(context: RunContext) -> None:
        assert sorted(os.listdir(place(context))) == ["a.txt", "b.csv"]
        assert (place(context) / "b.csv").read_bytes() == b"1,2"
        (place(context) / "out").mkdir()
        (place(context) / "out" / "sum.txt").write_bytes(b"3")
        (place(context) / ".cache").write_text("x")

    async with serving({"/b": answering(b"1,2", Content_Type="text/csv")}) as web:
        entries = await stage.run(
            play, {"name": "a.txt", "content_base64": b64(b"hello")}, {"name": "b.csv", "url": web.url("/b")}
        )
    (received,) = [e.fields for e in entries if e.type == "event" and e.fields["name"] == "artifacts.received"]
    assert [(a["name"], a["size"], a["type"]) for a in received["artifacts"]] == [
        ("a.txt", 5, "text/plain"),
        ("b.csv", 3, "text/csv"),
    ]
    assert received["artifacts"][0]["sha256"] == hashlib.sha256(b"hello").hexdigest()
    final = entries[-1]
    digest = hashlib.sha256(b"3").hexdigest()
    assert final.type == "final"
    assert final.fields["artifacts"] == [{"name": "out/sum.txt", "size": 1, "sha256": digest, "type": "text/plain"}]
    assert final.fields["artifacts_skipped"] == {"count": 1, "files": [{"name": ".cache", "reason": "hidden"}]}
    assert await stage.content(final.run_id, digest) == b"3"


async def test_a_session_goes_on_in_its_workspace(stage: Stage) -> None:
    async def first(context: RunContext) -> None:
        (place(context) / "notes").write_text("one")

    async def second(context: RunContext) -> None:
        assert (place(context) / "notes").read_text() == "one"
        (place(context) / "more").write_text("two")

    assert [a["name"] for a in (await stage.run(first, session_id="s"))[-1].fields["artifacts"]] == ["notes"]
    assert [a["name"] for a in (await stage.run(second, session_id="s"))[-1].fields["artifacts"]] == ["more"]


async def test_content_that_a_gateway_staged(stage: Stage) -> None:
    content = os.urandom(100_000)

    async def play(context: RunContext) -> None:
        assert (place(context) / "a").read_bytes() == content

    asked = RunRequest(
        runner="works",
        input=RunInput(message="x", artifacts=[InboundArtifact(name="a", content_base64=b64(content))]),
    )
    asked = await staged(asked, stage.broker.artifacts, stage.broker.settings)
    stage.runner.play = play
    record, _ = await stage.broker.runs.create(asked)
    assert (await stage.follow(record.run_id))[-1].type == "final"


async def test_staged_content_that_is_gone_or_another(stage: Stage) -> None:
    gone = {"name": "a", "stored": StoredContent(sha256="ab" * 32, size=3)}
    assert (await stage.run(None, gone))[-1].fields["code"] == "artifact_expired"
    await stage.broker.artifacts.put(stage.broker.artifacts.of_request("ab" * 32), b"abc")
    assert (await stage.run(None, gone))[-1].fields["code"] == "artifact_store_unavailable"
    assert stage.runner.started == 0


async def test_a_failed_run_keeps_its_files_too(stage: Stage) -> None:
    async def play(context: RunContext) -> None:
        await context.emit(MessageDelta(text="half"))
        (place(context) / "half.txt").write_text("half")
        raise RunnerFailed("broke", "it broke", retryable=True)

    failed = (await stage.run(play))[-1]
    assert (failed.type, failed.fields["code"], failed.fields["retryable"]) == ("failed", "broke", True)
    assert [a["name"] for a in failed.fields["artifacts"]] == ["half.txt"]
    assert failed.fields["partial"]["content"][0]["text"] == "half"


async def test_a_runner_that_breaks_is_told_as_ever(stage: Stage) -> None:
    async def play(context: RunContext) -> None:
        raise RuntimeError("bug")

    assert (await stage.run(play))[-1].fields["code"] == "runner_error"


async def test_a_runner_without_a_workspace_makes_none_and_is_given_nothing(stage: Stage, tmp_path: Path) -> None:
    assert (await stage.run(None, runner="idle"))[-1].type == "final"
    assert not (tmp_path / "data" / "workspaces").exists()
    refused = (await stage.run(None, {"name": "a", "content_base64": ""}, runner="idle"))[-1].fields
    assert refused["code"] == "artifacts_unsupported"
    assert "docs/artifacts.md" in refused["message"]


async def test_a_runner_that_passes_files_on_has_their_content(stage: Stage, tmp_path: Path) -> None:
    class PassingOn(Working):
        name = "works"
        uses_workspace = False
        takes_artifacts = True

    content, seen = os.urandom(50_000), []

    async def play(context: RunContext) -> None:
        assert context.workspace is None
        seen.extend(context.request.input.artifacts or [])

    given = [
        InboundArtifact(name="a", content_base64=b64(content)),
        InboundArtifact(name="b", url="http://nowhere.example/"),
    ]
    asked = RunRequest(runner="works", input=RunInput(message="x", artifacts=given))
    asked = await staged(asked, stage.broker.artifacts, stage.broker.settings)
    stage.worker.runners["works"] = passing = PassingOn()
    passing.play = play
    record, _ = await stage.broker.runs.create(asked)
    assert (await stage.follow(record.run_id))[-1].type == "final"
    assert seen == given
    gone = {"name": "a", "stored": StoredContent(sha256="ab" * 32, size=3)}
    assert (await stage.run(None, gone))[-1].fields["code"] == "artifact_expired"


# Attacks: each ends the run with its code, before the runner starts, and leaves nothing anywhere.


@pytest.mark.parametrize(
    ("page", "code"),
    [
        (
            answering(status="302 Found", Location="http://169.254.169.254/latest/meta-data/"),
            "artifact_address_refused",
        ),
        (answering(status="302 Found", Location="http://10.0.0.1/"), "artifact_address_refused"),
        (answering(status="302 Found", Location="file:///etc/passwd"), "artifact_redirect_refused"),
        (endless, "artifact_too_big"),
        (answering(b"x" * 50, Content_Encoding="gzip"), "artifact_encoding_refused"),
        (answering(b"", status="404 Not Found"), "artifact_fetch_failed"),
        (answering(b"half", Content_Length="100"), "artifact_fetch_failed"),
    ],
)
async def test_what_a_url_may_lead_to(tmp_path: Path, page: Any, code: str) -> None:
    async with staging(tmp_path, inbound_bytes=100_000) as stage, serving({"/x": page}) as web:
        before = outside(tmp_path)
        fine = {"name": "fine.txt", "content_base64": b64(b"fine")}
        failed = (await stage.run(None, fine, {"name": "bad.txt", "url": web.url("/x")}, session_id="s"))[-1]
        assert (failed.type, failed.fields["code"]) == ("failed", code)
        assert "'bad.txt'" in failed.fields["message"]
        assert stage.runner.started == 0
        assert list((tmp_path / "data" / "workspaces" / "ns-runcast" / "session-s").iterdir()) == []
        assert outside(tmp_path) == before


async def test_private_addresses_are_refused_unless_they_are_allowed(tmp_path: Path) -> None:
    async with staging(tmp_path, inbound_networks="") as stage, serving({"/": answering(b"x")}) as web:
        failed = (await stage.run(None, {"name": "a", "url": web.url("/")}))[-1]
        assert failed.fields["code"] == "artifact_address_refused"
        assert web.heads == []


async def test_the_sum_counts_what_was_fetched(tmp_path: Path) -> None:
    async with staging(tmp_path, inbound_total_bytes=100) as stage, serving({"/": answering(b"x" * 60)}) as web:
        two = [{"name": name, "url": web.url("/")} for name in "ab"]
        failed = (await stage.run(None, *two))[-1]
        assert failed.fields["code"] == "artifact_too_big"
        assert "40 bytes" in failed.fields["message"]
        assert (await stage.run(None, two[0]))[-1].type == "final"


async def test_the_time_is_for_all_of_them(tmp_path: Path) -> None:
    async def silent(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with staging(tmp_path, inbound_seconds=0.3) as stage, serving({"/": silent}) as web:
        failed = (await stage.run(None, {"name": "a", "url": web.url("/")}))[-1]
    assert (failed.fields["code"], failed.fields["retryable"]) == ("artifact_timeout", True)


async def test_a_run_that_is_cancelled_waits_for_no_file(stage: Stage) -> None:
    async def silent(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with serving({"/": silent}) as web:
        given = [InboundArtifact(name="a", url=web.url("/"))]
        request = RunRequest(runner="works", input=RunInput(message="x", artifacts=given))
        record, _ = await stage.broker.runs.create(request)
        await eventually(lambda: web.heads)
        await stage.broker.runs.cancel(record.run_id)
        async with asyncio.timeout(30):
            assert (await stage.follow(record.run_id))[-1].type == "cancelled"
    assert stage.runner.started == 0


async def test_a_link_of_an_earlier_run_leads_nowhere(stage: Stage, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"mine")

    async def plant(context: RunContext) -> None:
        (place(context) / "a.txt").symlink_to(secret)

    async def look(context: RunContext) -> None:
        assert not (place(context) / "a.txt").is_symlink()

    planted = (await stage.run(plant, session_id="s"))[-1].fields
    assert planted["artifacts"] == []
    assert planted["artifacts_skipped"]["files"] == [{"name": "a.txt", "reason": "symlink"}]
    given = {"name": "a.txt", "content_base64": b64(b"new")}
    assert (await stage.run(look, given, session_id="s"))[-1].type == "final"
    assert secret.read_bytes() == b"mine"


async def test_a_directory_of_an_earlier_run_keeps_its_name(stage: Stage) -> None:
    async def plant(context: RunContext) -> None:
        (place(context) / "a").mkdir()

    await stage.run(plant, session_id="s")
    two = [{"name": name, "content_base64": b64(b"x")} for name in ("0", "a")]
    failed = (await stage.run(None, *two, session_id="s"))[-1].fields
    assert failed["code"] == "artifact_name_taken"
    assert os.listdir(stage.broker.settings.data_dir / "workspaces" / "ns-runcast" / "session-s") == ["a"]


async def test_a_workspace_that_became_a_link_is_not_entered(stage: Stage, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()

    async def plant(context: RunContext) -> None:
        place(context).rename(tmp_path / "moved")
        place(context).symlink_to(away)

    await stage.run(plant, session_id="s")
    failed = (await stage.run(None, {"name": "a", "content_base64": b64(b"x")}, session_id="s"))[-1].fields
    assert failed["code"] == "workspace_unusable"
    assert list(away.iterdir()) == []


async def test_a_request_that_nobody_checked_is_checked_by_the_worker(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run made by another program, past the checks of this one."""
    before = outside(tmp_path)
    monkeypatch.setattr("broker.runs.check_inbound", lambda *_: None)
    for name in ("../../escape", "/tmp/escape", "..", "a/b"):
        failed = (await stage.run(None, {"name": name, "content_base64": b64(b"x")}))[-1].fields
        assert (failed["code"], stage.runner.started) == ("artifact_refused", 0)
    assert outside(tmp_path) == before


# Hermes.


@pytest.mark.parametrize(("mode", "echo"), [("text", "ECHO"), ("stream-json", "ECHO"), ("bridge", "echo")])
async def test_hermes_works_in_the_workspace_of_its_session(tmp_path: Path, mode: str, echo: str) -> None:
    async with on_stage(Installed(tmp_path), tmp_path / "data", mode=mode) as stage:
        given = [InboundArtifact(name="a.txt", content_base64=b64(b"x"))]
        request = RunRequest(input=RunInput(message=echo, artifacts=given), session_id="s1")
        said = await stage.follow((await stage.broker.runs.create(request))[0].run_id)
    assert said.outcome == "final"
    assert str(tmp_path / "data" / "workspaces" / "ns-runcast" / "session-s1") in said.text
    assert said.fence["artifacts"] == []


@pytest.mark.parametrize("settings", [{"cwd": "/tmp", "mode": "text"}, {"mode": "api"}])
async def test_hermes_in_one_directory_for_all_is_given_no_files(tmp_path: Path, settings: dict[str, str]) -> None:
    async with on_stage(Installed(tmp_path), tmp_path / "data", **settings) as stage:
        said = await stage.run("ECHO", artifacts=[InboundArtifact(name="a.txt", content_base64=b64(b"x"))])
        assert said.outcome == "artifacts_unsupported"
    assert not (tmp_path / "data" / "workspaces").exists()


async def test_what_a_session_shows_next_is_what_hermes_left_before(tmp_path: Path) -> None:
    """Two runs of one session, each a Hermes of its own."""
    async with on_stage(Installed(tmp_path), tmp_path / "data", mode="text") as stage:
        for word, made in (("one", ["one"]), ("two", ["two"])):
            request = RunRequest(input=RunInput(message=f"WRITE {word}"), session_id="s1")
            said = await stage.follow((await stage.broker.runs.create(request))[0].run_id)
            assert [a["name"] for a in said.fence["artifacts"]] == made
