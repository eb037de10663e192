"""In which mode a call is started: what the settings, the request and this Hermes allow together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from broker.items import Event, Item, MessageDelta
from tests.servers import eventually
from tests.workers.fake_api import KEY, FakeApi, delta
from tests.workers.installed import Installed
from workers.hermes.bridge_call import BridgeCall
from workers.hermes.calls import Ask, HermesCall
from workers.hermes.command import Call, RefusedCall, Unavailable
from workers.hermes.process import NotStarted
from workers.hermes.starter import Starter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux' subreaper and /proc")


class Starting:
    """Starts calls in one environment; what it started is ended with the test."""

    def __init__(self, hermes: Installed) -> None:
        self.hermes = hermes
        self._stack = contextlib.AsyncExitStack()

    def starter(self, **settings: Any) -> Starter:
        starter = Starter(self.hermes.settings(**settings), self.hermes.env)
        self._stack.push_async_callback(starter.aclose)
        return starter

    async def start(self, prompt: str = "say:x", *, by: Starter | None = None, **call: Any) -> tuple[HermesCall, Any]:
        """The call, and the fallback that was told (``None``: none was)."""
        began, said = await (by or self.starter()).start(Call(prompt, **call))
        self._stack.push_async_callback(began.aclose)
        return began, said[0] if said else None

    async def aclose(self) -> None:
        await self._stack.aclose()


@pytest.fixture
def hermes(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


@pytest.fixture
async def starting(hermes: Installed) -> AsyncIterator[Starting]:
    starting = Starting(hermes)
    yield starting
    await starting.aclose()
    assert hermes.left == []


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts with which the bridge was tried."""
    tried, start = list[str](), BridgeCall.start

    async def counted(settings: Any, call: Call, **more: Any) -> BridgeCall:
        tried.append(call.prompt)
        return await start(settings, call, **more)

    monkeypatch.setattr(BridgeCall, "start", counted)
    return tried


async def read_all(call: HermesCall, answer: str = "") -> list[Item | Ask]:
    items = []
    async with asyncio.timeout(30):
        while (batch := await call.read()) is not None:
            items += batch
            for ask in batch:
                if isinstance(ask, Ask):
                    await call.answer(ask.key, answer)
    return items


async def text_of(call: HermesCall, answer: str = "") -> str:
    return "".join(item.text for item in await read_all(call, answer) if isinstance(item, MessageDelta))


# auto


async def test_the_bridge_is_taken_where_it_is_there(starting: Starting, hermes: Installed) -> None:
    call, fallback = await starting.start("say:hello")
    assert (call.mode, fallback, await text_of(call)) == ("bridge", None, "hello")
    assert hermes.asked == [], "the command is not needed for anything"


@pytest.mark.parametrize(
    ("env", "settings", "mode", "because"),
    [
        ({"PYTHONPATH": ""}, {}, "stream-json", "cannot be imported"),
        ({"STAND_IN_LACKS": "stream_delta_callback"}, {}, "stream-json", "has no stream_delta_callback"),
        ({"STAND_IN_LACKS": "run_conversation", "FAKE_HERMES_OLDER": "1"}, {}, "text", "has no run_conversation"),
        ({"STAND_IN_DIES": "1"}, {}, "stream-json", "exit code 9"),
        ({"STAND_IN_SLOW": "60"}, {"bridge_handshake": 0.5}, "stream-json", "did not greet within"),
        ({}, {"python": "/nowhere/python"}, "stream-json", "could not be started"),
    ],
)
async def test_without_it_a_command_mode_is_taken_and_told(
    starting: Starting, env: dict[str, str], settings: dict[str, Any], mode: str, because: str
) -> None:
    starting.hermes.env.update(env)
    call, fallback = await starting.start("ECHO", by=starting.starter(**settings))
    assert call.mode == mode
    assert isinstance(fallback, Event)
    assert (fallback.name, fallback.payload["from"], fallback.payload["to"]) == ("fallback", "bridge", mode)
    assert because in fallback.payload["because"]
    assert json.loads(await text_of(call))["prompt"] == "ECHO"


async def test_a_callback_that_may_be_missing_is_no_reason_to_fall_back(starting: Starting) -> None:
    starting.hermes.env["STAND_IN_LACKS"] = "reasoning_callback"
    call, fallback = await starting.start()
    assert (call.mode, fallback) == ("bridge", None)
    [warning] = [item for item in await read_all(call) if isinstance(item, Event) and item.name == "warning"]
    assert "reasoning_callback" in warning.payload["message"]


async def test_a_bridge_that_failed_is_not_tried_for_every_call(starting: Starting, tries: list[str]) -> None:
    starting.hermes.env["PYTHONPATH"] = ""
    starter = starting.starter()
    told = [(await starting.start(f"ECHO {n}", by=starter))[1].payload["because"] for n in (1, 2)]
    assert told[0] == told[1], "each run says why it is as it is"
    assert tries == ["ECHO 1"]
    assert starting.hermes.asked.count("chat --help") == 1


async def test_it_is_tried_again_when_the_program_changed(starting: Starting, tries: list[str]) -> None:
    path = starting.hermes.env.pop("PYTHONPATH")
    starter = starting.starter()
    assert (await starting.start("ECHO 1", by=starter))[0].mode == "stream-json"
    starting.hermes.env["PYTHONPATH"] = path
    assert (await starting.start("ECHO 2", by=starter))[0].mode == "stream-json"
    starting.hermes.touch()
    call, fallback = await starting.start("say:3", by=starter)
    assert (call.mode, fallback) == ("bridge", None)
    assert tries == ["ECHO 1", "say:3"]


async def test_stream_args_mean_the_command(starting: Starting, tries: list[str]) -> None:
    call, fallback = await starting.start("ECHO", by=starting.starter(stream_args="--verbose 'a b'"))
    argv = json.loads(await text_of(call))["argv"]
    assert (call.mode, fallback, tries) == ("stream-json", None, [])
    assert argv[-2:] == ["--verbose", "a b"]


async def test_stream_args_of_a_hermes_that_does_not_stream(starting: Starting) -> None:
    starting.hermes.env["FAKE_HERMES_OLDER"] = "1"
    call, _ = await starting.start("ECHO", by=starting.starter(stream_args="--verbose"))
    assert call.mode == "text"
    assert json.loads(await text_of(call))["argv"][-1] == "--verbose"


# By name


@pytest.mark.parametrize("mode", ["stream-json", "text", "quiet"])
async def test_a_command_mode_that_is_named_is_taken(starting: Starting, tries: list[str], mode: str) -> None:
    call, fallback = await starting.start("ECHO", by=starting.starter(mode=mode))
    argv = json.loads(await text_of(call))["argv"]
    assert (call.mode, fallback, tries) == (mode, None, [])
    assert ("-Q" in argv, "--format=stream-json" in argv) == (mode == "quiet", mode == "stream-json")


async def test_the_bridge_named_and_not_there_is_an_error(starting: Starting) -> None:
    starting.hermes.env["PYTHONPATH"] = ""
    with pytest.raises(Unavailable, match="cannot be imported"):
        await starting.start(by=starting.starter(mode="bridge"))


async def test_the_bridge_named_is_tried_every_time(starting: Starting) -> None:
    starting.hermes.env["STAND_IN_DIES"] = "1"
    starter = starting.starter(mode="bridge")
    with pytest.raises(Unavailable):
        await starting.start(by=starter)
    del starting.hermes.env["STAND_IN_DIES"]
    assert (await starting.start(by=starter))[0].mode == "bridge"


async def test_the_quiet_contract_whatever_the_mode(starting: Starting) -> None:
    for mode in ("auto", "bridge", "text"):
        call = await starting.starter(mode=mode, stream_args="--x").quiet(Call("ECHO"))
        starting._stack.push_async_callback(call.aclose)
        argv = json.loads(await text_of(call))["argv"]
        assert ("-Q" in argv, "--x" in argv) == (True, False)


async def test_the_operators_api_server_is_shared_by_the_calls(starting: Starting) -> None:
    async with FakeApi() as api:
        api.script = [delta("hi"), {"event": "run.completed", "output": "hi"}]
        starter = starting.starter(mode="api", api_url=api.url, api_key=SecretStr(KEY))
        calls = [(await starting.start(f"prompt {n}", by=starter))[0] for n in (1, 2)]
        assert [(call.mode, await text_of(call)) for call in calls] == [("api", "hi")] * 2
        assert [run.body["input"] for run in api.runs] == ["prompt 1", "prompt 2"]
        assert calls[0]._lease._server is calls[1]._lease._server  # type: ignore[attr-defined]
        await starting.aclose()
    assert starting.hermes.asked == []


async def test_an_api_server_that_refuses_the_key_is_an_error(starting: Starting) -> None:
    async with FakeApi() as api:
        with pytest.raises(Unavailable, match="HERMES_API_KEY"):
            await starting.start(by=starting.starter(mode="api", api_url=api.url, api_key=SecretStr("another")))


# Asking


async def test_a_run_that_wants_to_be_asked_gets_the_bridge(starting: Starting) -> None:
    call, _ = await starting.start("approve:rm", yolo=False)
    assert await text_of(call, answer="session") == "session;"


@pytest.mark.parametrize(
    ("env", "settings", "why"),
    [
        ({"PYTHONPATH": ""}, {}, "cannot be imported"),
        ({}, {"stream_args": "--x"}, "HERMES_STREAM_ARGS is set"),
        ({}, {"mode": "stream-json"}, "mode stream-json"),
        ({}, {"mode": "text"}, "mode text"),
        ({}, {"mode": "quiet"}, "mode quiet"),
    ],
)
async def test_and_nothing_that_could_not_ask(
    starting: Starting, env: dict[str, str], settings: dict[str, Any], why: str
) -> None:
    starting.hermes.env.update(env)
    with pytest.raises(RefusedCall, match=why) as refused:
        await starting.start("ECHO", by=starting.starter(**settings), yolo=False)
    assert refused.value.code == "approvals_unavailable"
    assert starting.hermes.asked == [], "nothing was started"


# What is the same for all


@pytest.mark.parametrize("mode", ["auto", "bridge", "stream-json", "text", "quiet", "api"])
async def test_no_program(starting: Starting, tmp_path: Path, mode: str) -> None:
    with pytest.raises(NotStarted) as error:
        await starting.start(by=starting.starter(mode=mode, bin=str(tmp_path / "nothing")))
    assert error.value.missing


async def test_no_program_where_stream_args_are_set(starting: Starting, tmp_path: Path) -> None:
    with pytest.raises(NotStarted) as error:
        await starting.start(by=starting.starter(stream_args="--x", bin=str(tmp_path / "nothing")))
    assert error.value.missing


@pytest.mark.parametrize("mode", ["bridge", "stream-json"])
async def test_where_it_works(starting: Starting, tmp_path: Path, mode: str) -> None:
    for name in ("settings", "call"):
        (tmp_path / name).mkdir()
    starter = starting.starter(mode=mode, cwd=str(tmp_path / "settings"))
    prompt = "echo" if mode == "bridge" else "ECHO"
    places = [await starting.start(prompt, by=starter, **cwd) for cwd in ({}, {"cwd": str(tmp_path / "call")})]
    told = [Path(json.loads(await text_of(call))["cwd"]).name for call, _ in places]
    assert told == ["settings", "call"]


async def test_a_program_named_by_a_relative_path_is_found_from_anywhere(
    starting: Starting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    starter = starting.starter(mode="stream-json", bin="./hermes", cwd=str(tmp_path / "elsewhere"))
    call, _ = await starting.start("ECHO", by=starter)
    assert json.loads(await text_of(call))["cwd"] == str(tmp_path / "elsewhere")


async def test_a_start_that_is_cancelled_leaves_nothing(starting: Starting) -> None:
    starting.hermes.env["STAND_IN_SLOW"] = "60"
    beginning = asyncio.create_task(starting.start())
    await eventually(lambda: len(starting.hermes.left) >= 2)
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    assert starting.hermes.left == []
