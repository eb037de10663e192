"""Mode ``api`` with the real Hermes, both builds, against a model server of the tests.

``RUNCAST_TEST_HERMES`` names a 0.22.2, ``RUNCAST_TEST_HERMES_019`` a 0.19.0, both with aiohttp in their environments.

What ``matrix.py``, ``kills.py`` and ``test_hermes_resume.py`` show in every mode as well is ``long`` here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from pydantic import SecretStr

from broker.items import Event, Item, MessageDelta, ToolCompleted, ToolFailed, ToolStarted, Usage
from tests.e2e.hermes import BUILDS, NEEDS_LINUX, environ_of, hermes_binary, pids, processes
from tests.e2e.processes import free_port
from tests.fake_model import AFTER_TOOL, BEFORE_TOOL, PLAIN, SLOW, FakeModel
from tests.servers import eventually
from workers.hermes.api_call import ApiCall
from workers.hermes.api_server import ApiServer
from workers.hermes.calls import Ask
from workers.hermes.command import Call, RefusedCall
from workers.hermes.settings import HermesSettings

pytestmark = [NEEDS_LINUX, pytest.mark.timeout(180)]

OLDER, NEWER = BUILDS.values()
KEY = "a-key-of-the-operator-" + uuid4().hex


@pytest.fixture(scope="module", params=[NEWER, pytest.param(OLDER, marks=pytest.mark.long)], ids=["0.22", "0.19"])
def hermes(request: pytest.FixtureRequest) -> str:
    return hermes_binary(request.param)


@pytest.fixture
def older(hermes: str) -> bool:
    return hermes == os.environ.get(OLDER)


class Api:
    """A server of a worker's kind, and calls of it."""

    def __init__(self, hermes: str, home: Path, **settings: Any) -> None:
        self.trace = uuid4().hex
        self.environ = environ_of(home, self.trace)
        self.settings = HermesSettings(bin=hermes, mode="api", **settings)
        self.server = ApiServer(self.settings, inherited=self.environ)

    async def call(self, prompt: str, **options: Any) -> Said:
        return Said(await ApiCall.start(self.server, self.settings, Call(prompt, **options)))

    async def whole(self, prompt: str, answer: str = "", **options: Any) -> Said:
        said = await self.call(prompt, **options)
        try:
            return await said.until(answer=answer)
        finally:
            await said.call.aclose(patience=10.0)

    @property
    def listener(self) -> int:
        [pid] = pids(self.trace, "api_listener.py", without="supervisor.py")
        return pid


class Said:
    """What one call gave."""

    def __init__(self, call: ApiCall) -> None:
        self.call = call
        self.items: list[Item] = []
        self.asks: list[Ask] = []

    async def until(self, reached: Callable[[Said], Any] = lambda said: False, *, answer: str = "") -> Said:
        while not reached(self) and (batch := await self.call.read()) is not None:
            for made in batch:
                if isinstance(made, Ask):
                    self.asks.append(made)
                    await self.call.answer(made.key, answer)
                else:
                    self.items.append(made)
        return self

    def of(self, type_: type[Any]) -> list[Any]:
        return [item for item in self.items if isinstance(item, type_)]

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.of(MessageDelta))

    @property
    def code(self) -> str:
        failure = self.call.verdict()
        return "" if failure is None else failure.code


@pytest.fixture
async def api(hermes: str, home: Path) -> AsyncIterator[Api]:
    made = Api(hermes, home)
    yield made
    await made.server.aclose()
    assert not processes(made.trace)


async def test_a_tool_round_and_a_second_prompt(api: Api, model: FakeModel, older: bool) -> None:
    first = await api.whole("Use a TOOL please")
    assert first.text == f"{BEFORE_TOOL}\n\n{AFTER_TOOL}"
    assert {item.round for item in first.of(MessageDelta)} == {1, 2}
    [started], [ended] = first.of(ToolStarted), first.of(ToolCompleted)
    assert (started.name, started.call_id) == ("terminal", ended.call_id)
    assert ended.duration_ms is not None
    assert ("tool-output" in str(ended.result)) is not older, "newer servers show what a tool gave"
    [usage] = first.of(Usage)
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (2_000, 80, 200)
    told = first.call.told
    assert (told.model, first.code) == ("fake-model", "")
    second = await api.whole("Second PLAIN", resume=told.session_id)
    assert second.text == PLAIN
    assert second.call.told.session_id == told.session_id
    remembered = [(message["role"], str(message["content"])) for message in model.conversations[-1]]
    assert any(role == "user" and "Use a TOOL please" in content for role, content in remembered)
    assert any(role == "assistant" and AFTER_TOOL in content for role, content in remembered)
    with pytest.raises(RefusedCall) as refused:
        await api.call("PLAIN", resume="20200101_000000_abcdef")
    assert refused.value.code == "hermes_session_not_found"


@pytest.mark.long
async def test_the_answer_comes_while_the_model_speaks(api: Api, model: FakeModel) -> None:
    said = await api.call("Say something PLAIN")
    await said.until(lambda said: len(said.of(MessageDelta)) > 2)
    assert model.replies[-1].done is None
    await said.until()
    await said.call.aclose()
    assert said.text == PLAIN


@pytest.mark.long
async def test_reasoning_is_not_told_and_is_none_of_the_text(api: Api) -> None:
    said = await api.whole("REASON")
    assert said.text == PLAIN
    [usage] = said.of(Usage)
    assert usage.output_tokens == 40


async def test_a_dangerous_command(api: Api, tmp_path: Path) -> None:
    for yolo, answer, gone in ((True, "", True), (False, "once", True), (False, "deny", False)):
        victim = tmp_path / uuid4().hex / "deep"
        victim.mkdir(parents=True)
        said = await api.whole(f"DANGER {victim.parent}", answer, yolo=yolo)
        assert (said.code, said.text.endswith(AFTER_TOOL)) == ("", True)
        assert len(said.asks) == (0 if yolo else 1)
        assert victim.exists() is not gone
        assert len(said.of(ToolCompleted if gone else ToolFailed)) == 1
        for ask in said.asks:
            assert str(victim.parent) in ask.payload["command"]
            assert ask.choices == ("once", "session", "always", "deny")


async def test_two_dangerous_commands(api: Api, tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
    said = await api.whole(f"TWODANGERS {tmp_path}", "once", yolo=False)
    assert len(said.asks) == 2
    assert os.listdir(tmp_path) == []


@pytest.mark.long
async def test_a_question_reaches_nobody(api: Api) -> None:
    """The server gives the agent no way to ask: its tool says so to the model, which goes on."""
    said = await api.whole("ASK")
    assert (said.code, said.asks) == ("", [])
    assert said.text.endswith(AFTER_TOOL)


@pytest.mark.long
@pytest.mark.parametrize(
    ("prompt", "code", "retryable"),
    [
        ("ERR401", "provider_auth", False),
        ("ERR429", "provider_rate_limit", True),
        ("ERR500", "provider_error", True),
        ("EMPTY", "empty_reply", True),
    ],
)
async def test_failures_of_the_model(api: Api, prompt: str, code: str, retryable: bool) -> None:
    said = await api.whole(prompt)
    failure = said.call.verdict()
    assert failure is not None
    assert (failure.code, failure.retryable, said.text) == (code, retryable, "")


@pytest.mark.long
async def test_an_answer_that_was_cut_is_whole_in_the_end(api: Api) -> None:
    said = await api.whole("CUT")
    assert said.code == ""
    assert said.text.endswith(PLAIN)
    assert not [item for item in said.of(Event) if item.name == "merge.mismatch"]


async def test_a_stop_ends_the_run_and_its_tool_and_no_other(api: Api) -> None:
    beside = await api.call("Say something SLOW")
    said = await api.call("Start a SLEEPTOOL")
    await said.until(lambda said: said.of(ToolStarted))
    await eventually(lambda: pids(api.trace, "sleep 60"), 20)
    listener = api.listener
    said.call.stop()
    await said.until()
    await said.call.aclose()
    assert (said.text, len(said.of(ToolFailed)), said.call.told.finished) == (BEFORE_TOOL, 1, True)
    await eventually(lambda: not pids(api.trace, "sleep 60"), 10)
    await beside.until()
    await beside.call.aclose()
    assert (beside.text, beside.code) == (SLOW, "")
    assert api.listener == listener


@pytest.mark.long
async def test_a_kill_ends_the_tool(api: Api) -> None:
    said = await api.call("Start a SLEEPTOOL")
    await said.until(lambda said: said.of(ToolStarted))
    await eventually(lambda: pids(api.trace, "sleep 60"), 20)
    said.call.kill()
    await said.until()
    await said.call.aclose()
    assert not processes(api.trace)


async def test_a_server_that_is_killed(api: Api) -> None:
    said = await api.call("Start a SLEEPTOOL")
    await said.until(lambda said: said.of(ToolStarted))
    await eventually(lambda: pids(api.trace, "sleep 60"), 20)
    os.kill(api.listener, signal.SIGKILL)
    await said.until()
    failure = said.call.verdict()
    assert failure is not None
    assert (failure.code, failure.retryable, said.text) == ("hermes_died", True, BEFORE_TOOL)
    await said.call.aclose()
    assert not pids(api.trace, "sleep 60")
    assert (await api.whole("PLAIN")).text == PLAIN


_WORKER = """
import asyncio, sys
from workers.hermes.api_call import ApiCall
from workers.hermes.api_server import ApiServer
from workers.hermes.command import Call
from workers.hermes.settings import HermesSettings

async def main():
    settings = HermesSettings(bin=sys.argv[1])
    call = await ApiCall.start(ApiServer(settings), settings, Call("Start a SLEEPTOOL"))
    while await call.read() is not None:
        pass
    raise SystemExit(f"the run ended: {call.verdict()}")

asyncio.run(main())
"""


@pytest.mark.long
async def test_nothing_survives_a_worker_that_is_killed(api: Api, hermes: str) -> None:
    env = {**api.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    worker = await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", _WORKER, hermes, env=env)
    await eventually(lambda: pids(api.trace, "sleep 60"), 60)
    worker.kill()
    await worker.wait()
    await eventually(lambda: not processes(api.trace), 20)


async def test_beside_the_gateway_of_the_operator(api: Api, hermes: str, home: Path, older: bool) -> None:
    """Both on one HERMES_HOME: neither hinders the other, and either can be what is talked to."""
    port = free_port()
    env = {**api.environ, "RUN_TRACE": "", "API_SERVER_ENABLED": "true", "API_SERVER_KEY": KEY}
    env |= {"API_SERVER_PORT": str(port), "HERMES_GATEWAY_LOCK_DIR": str(home / "locks")}
    env |= {"HERMES_DISABLE_LAZY_INSTALLS": "1"}
    assert (await api.whole("First PLAIN")).code == ""
    gateway = await asyncio.create_subprocess_exec(
        hermes, "gateway", "run", env=env, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        url = f"http://127.0.0.1:{port}"

        def up() -> bool:
            assert gateway.returncode is None
            try:
                return httpx.get(f"{url}/health", trust_env=False, timeout=5.0).status_code == 200
            except httpx.TransportError:
                return False

        await eventually(up, 60)
        state = (home / "gateway_state.json").read_text()
        assert (await api.whole("Second PLAIN")).code == ""
        os.kill(api.listener, signal.SIGKILL)
        assert (await api.whole("Third PLAIN")).code == "", "another one starts beside the gateway"
        assert str(gateway.pid) in state
        assert str(api.listener) not in (home / "gateway_state.json").read_text()
        theirs = Api(hermes, home, api_url=url, api_key=SecretStr(KEY))
        said = await theirs.whole("Fourth TOOL")
        await theirs.server.aclose()
        assert (said.code, said.text) == ("", f"{BEFORE_TOOL}\n\n{AFTER_TOOL}")
        assert not processes(theirs.trace)
        assert gateway.returncode is None
    finally:
        os.killpg(gateway.pid, signal.SIGKILL)
        await gateway.wait()
