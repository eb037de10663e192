"""The API server that a worker starts: shared, replaced, ended. Its Hermes is a stand-in of a few lines."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.servers import eventually
from workers.hermes.api_request import begin
from workers.hermes.api_server import ApiServer
from workers.hermes.command import Call, RefusedCall, Unavailable
from workers.hermes.process import NotStarted
from workers.hermes.settings import HermesSettings

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc"),
    pytest.mark.timeout(60),
]

_SERVER = """
import asyncio, json, os, subprocess, sys

class APIServerAdapter:
    def __init__(self, config):
        self.extra = config.extra

    async def connect(self):
        self._write_runtime_status_safe("connected", platform_state="connected")
        self.limit = self._resolve_max_concurrent_runs()
        self.server = await asyncio.start_server(self.serve, self.extra["host"], self.extra["port"])
        print("noise on standard output")
        return True

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode()
        if "/spawn" in head:
            subprocess.Popen(["sleep", "300"], start_new_session=True)
        if "/hang" in head:
            await asyncio.sleep(300)
        known = f"Bearer {self.extra['key']}" in head
        seen = {"cwd": os.environ["TERMINAL_CWD"], "ask": os.environ["HERMES_EXEC_ASK"], "limit": self.limit,
                "environ": sorted(os.environ), "key": self.extra["key"] in str(dict(os.environ)),
                "path": [os.path.basename(path) for path in sys.path]}
        body = json.dumps({"features": {"run_events_sse": True}, "seen": seen}).encode()
        status = 200 if known else 401
        head = f"HTTP/1.1 {status} x\\r\\nConnection: close\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    def _write_runtime_status_safe(self, *a, **k):
        raise AssertionError("the status of the operator's gateway was overwritten")

    @staticmethod
    def _resolve_max_concurrent_runs():
        return 10
"""
_CONFIG = """
class PlatformConfig:
    def __init__(self, enabled, extra):
        self.extra = extra
"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """What stands for Hermes' installation."""
    for name, text in {
        "aiohttp/__init__.py": "",
        "gateway/__init__.py": "",
        "gateway/run.py": "",
        "gateway/config.py": _CONFIG,
        "gateway/platforms/__init__.py": "",
        "gateway/platforms/api_server.py": _SERVER,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def settings() -> HermesSettings:
    return HermesSettings(python=sys.executable, api_start=20.0)


class Made:
    """A server of the tests, with what finds all of its processes."""

    def __init__(self, settings: HermesSettings, modules: Path, *, idle: float = 600.0) -> None:
        self.trace = uuid4().hex
        inherited = {**os.environ, "PYTHONPATH": str(modules), "RUN_TRACE": self.trace}
        self.server = ApiServer(settings, inherited=inherited, idle=idle)

    def pids(self, *words: str) -> list[int]:
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                mine = f"RUN_TRACE={self.trace}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
            except OSError:
                continue
            if mine and command and all(word in command for word in words):
                found.append(int(pid))
        return found

    @property
    def listener(self) -> int:
        [pid] = [pid for pid in self.pids("api_listener.py") if pid not in self.pids("supervisor.py")]
        return pid


@pytest.fixture
async def made(settings: HermesSettings, modules: Path) -> AsyncIterator[Made]:
    made = Made(settings, modules)
    yield made
    await made.server.aclose()
    assert made.pids() == []


async def test_calls_share_one_server(made: Made) -> None:
    leases = await asyncio.gather(*(made.server.lease() for _ in range(5)))
    assert len({lease.url for lease in leases}) == 1
    first = made.listener
    for lease in leases:
        await lease.release(ended=True)
        await lease.release(ended=True)  # once
    assert (await made.server.address())[0] == leases[0].url
    assert made.listener == first


async def test_what_the_server_is_told_and_what_is_kept_from_it(made: Made) -> None:
    lease = await made.server.lease()
    seen = (await lease.client.get("/v1/capabilities")).json()["seen"]
    assert (seen["cwd"], seen["ask"], seen["limit"]) == (os.getcwd(), "1", 0)
    assert seen["key"] is False, "the agent's tools could read it in the environment, and approve for themselves"
    assert "hermes" not in seen["path"], "modules beside the script would be taken for Hermes'"
    assert lease.cwd == os.getcwd()
    assert not [name for name in seen["environ"] if name.startswith("RUNCAST_") and "MARK" not in name]
    await lease.release(ended=True)


@pytest.mark.parametrize(
    ("module", "text", "asks"),
    [
        ("approval", "_YOLO_MODE_FROZEN = False\ndef _get_approval_mode():\n    return 'manual'\n", True),
        ("approval", "_YOLO_MODE_FROZEN = True\n", False),
        ("approval_context", "def _get_approval_mode():\n    return 'off'\n", False),
    ],
)
async def test_a_hermes_that_approves_everything_cannot_be_asked(
    made: Made, modules: Path, module: str, text: str, asks: bool
) -> None:
    (modules / "tools").mkdir()
    (modules / "tools" / f"{module}.py").write_text(text)
    lease = await made.server.lease()
    try:
        assert lease.asks is asks
        if not asks:
            with pytest.raises(RefusedCall) as refused:
                await begin(lease, Call("x", yolo=False))
            assert refused.value.code == "approvals_unavailable"
    finally:
        await lease.release(ended=True)


async def test_a_server_that_died_is_replaced(made: Made) -> None:
    lease = await made.server.lease()
    first = made.listener
    os.kill(first, signal.SIGKILL)
    assert await lease.died(10.0)
    again = await made.server.lease()
    assert made.listener != first
    await lease.release(ended=False)
    await again.release(ended=True)


async def test_a_server_is_ended_with_a_run_that_was_given_up(made: Made) -> None:
    lease = await made.server.lease()
    assert made.pids()
    await lease.release(ended=False)
    assert made.pids() == []


async def test_runs_beside_one_that_was_given_up_go_on(made: Made) -> None:
    given_up, beside = await made.server.lease(), await made.server.lease()
    first = made.listener
    await given_up.release(ended=False)
    assert (await beside.client.get("/v1/capabilities")).status_code == 200
    new = await made.server.lease()
    assert new.url != beside.url
    assert first in made.pids()
    await beside.release(ended=True)
    assert first not in made.pids()
    assert (await new.client.get("/v1/capabilities")).status_code == 200
    await new.release(ended=True)


async def test_what_a_run_left_behind_ends_the_server(made: Made) -> None:
    lease = await made.server.lease()
    await lease.client.get("/spawn")
    await eventually(lambda: made.pids("sleep"))
    await lease.release(ended=True)
    assert made.pids() == []
    await (await made.server.lease()).release(ended=True)
    assert made.listener


async def test_an_idle_server_is_ended(settings: HermesSettings, modules: Path) -> None:
    made = Made(settings, modules, idle=0.05)
    lease = await made.server.lease()
    await lease.release(ended=True)
    await eventually(lambda: made.pids() == [], 10)
    await (await made.server.lease()).release(ended=True)
    await made.server.aclose()
    assert made.pids() == []


async def test_closing_ends_it_under_its_runs(made: Made) -> None:
    lease = await made.server.lease()
    await made.server.aclose()
    assert made.pids() == []
    await lease.release(ended=False)
    with pytest.raises(NotStarted, match="stopped"):
        await made.server.lease()


async def test_a_start_that_is_cancelled_leaves_nothing(made: Made) -> None:
    starting = asyncio.create_task(made.server.lease())
    await eventually(lambda: made.pids("api_listener.py"))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await eventually(lambda: made.pids() == [], 10)


async def test_a_hermes_without_aiohttp(made: Made, modules: Path) -> None:
    (modules / "aiohttp" / "__init__.py").unlink()
    (modules / "aiohttp").rmdir()
    hidden = (
        "import importlib.util as u\nf = u.find_spec\nu.find_spec = lambda n, p=None: None if n == 'aiohttp' else f(n)"
    )
    (modules / "sitecustomize.py").write_text(hidden)  # where the tests run it may be installed
    with pytest.raises(Unavailable, match="-m pip install aiohttp"):
        await made.server.lease()
    assert made.pids() == []


async def test_a_hermes_whose_server_cannot_be_loaded(made: Made, modules: Path) -> None:
    (modules / "gateway" / "platforms" / "api_server.py").write_text("")
    with pytest.raises(Unavailable, match="APIServerAdapter"):
        await made.server.lease()


@pytest.mark.parametrize(
    ("text", "said"),
    [("import time; time.sleep(300)", "HERMES_API_START"), ("import os; os._exit(3)", "ended at its start")],
)
async def test_a_server_that_does_not_come_up(settings: HermesSettings, modules: Path, text: str, said: str) -> None:
    (modules / "gateway" / "run.py").write_text(text)
    made = Made(settings.model_copy(update={"api_start": 1.5}), modules)
    with pytest.raises(NotStarted, match=said):
        await made.server.lease()
    assert made.pids() == []
    await made.server.aclose()


async def test_a_hermes_that_is_not_there() -> None:
    server = ApiServer(HermesSettings(bin="/no/such/hermes"))
    with pytest.raises(NotStarted) as error:
        await server.lease()
    assert error.value.missing
    await server.aclose()


async def test_nothing_survives_a_worker_that_is_killed(settings: HermesSettings, modules: Path) -> None:
    trace = uuid4().hex
    code = (
        "import asyncio, sys\n"
        "from workers.hermes.api_server import ApiServer\n"
        "from workers.hermes.settings import HermesSettings\n"
        "async def main():\n"
        "    server = ApiServer(HermesSettings(python=sys.executable), inherited={**__import__('os').environ, "
        f"'PYTHONPATH': {str(modules)!r}}})\n"
        "    lease = await server.lease()\n"
        "    await lease.client.get('/spawn')\n"
        "    print(lease.url, flush=True)\n"
        "    await asyncio.sleep(300)\n"
        "asyncio.run(main())\n"
    )
    env = {**os.environ, "RUN_TRACE": trace, "PYTHONPATH": str(Path(__file__).parents[2])}
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", code, env=env, stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    assert (await asyncio.wait_for(worker.stdout.readline(), 30)).startswith(b"http://127.0.0.1:")
    made = Made(settings, modules)
    made.trace = trace
    assert made.pids("sleep")
    worker.kill()
    await worker.wait()
    await eventually(lambda: made.pids() == [], 20)
