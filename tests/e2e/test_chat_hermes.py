"""Chats with the real Hermes of both builds: what is streamed, what is waited for, what ``HermesClient`` gives, and how
each failure is told. A build's prompts run at the same time, in every test run a part of them with each build: a start
of Hermes takes seconds of a processor."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from broker import api
from broker.api import Broker
from broker.settings import Settings
from gateway.app import create_app
from gateway.webui.settings import WebuiSettings
from tests.e2e.hermes import BUILDS, NEEDS_LINUX, environ_of, hermes_binary, make_home, pids, processes, working
from tests.fake_model import AFTER_TOOL, BEFORE_TOOL, PLAIN, RATED, FakeModel
from tests.gateway import chats as wire
from tests.gateway.chats import Events, events_of
from tests.gateway.conftest import serving
from tests.gateways import until
from tests.servers import RedisServer
from workers.hermes.client import HermesClient
from workers.hermes.runner import HermesRunner
from workers.hermes.settings import HermesSettings

PACE = 0.02
pytestmark = [NEEDS_LINUX, pytest.mark.timeout(240)]
LIMITS: dict[str, dict[str, Any]] = {
    "hermes": {},
    "timed": {"timeout": 3.0},
    "silent": {"silence": 4.0},
    "killed": {},
}
"""The runners, and what each has beside its program."""
SIMPLE = {"reply": PLAIN, "confidence": None, "risk_level": "unknown", "flag": False}
TOOL = {**SIMPLE, "reply": AFTER_TOOL}
SAFE = {"reply": "It is safe to do.", "confidence": 0.35, "risk_level": "medium", "flag": False}


OLDER, NEWER = BUILDS


@pytest.fixture(scope="module", params=BUILDS)
def build(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def hermes(build: str) -> str:
    return hermes_binary(BUILDS[build])


@pytest.fixture(scope="module")
def home(hermes: str, model: FakeModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("hermes-home"), model)


class Chats:
    """A gateway for each of the runners, all over one store, and one worker that has them all."""

    def __init__(self, broker: Broker, binary: str, home: Path) -> None:
        self.broker = broker
        self.traces = {name: uuid4().hex for name in LIMITS}
        self.runners = {
            name: HermesRunner(
                HermesSettings(bin=binary, mode="bridge", bridge_handshake=120.0, grace=5.0, **limits),
                environ=environ_of(home, self.traces[name]),
            )
            for name, limits in LIMITS.items()
        }
        self.client = HermesClient(HermesSettings(bin=binary), environ=environ_of(home, self.traces["hermes"]))
        self.of: dict[str, httpx.AsyncClient] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for name in self.runners:
                gateway = create_app(broker=self.broker, webui=WebuiSettings(chat_runner=name))
                url = await stack.enter_async_context(serving(gateway))
                self.of[name] = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=180))
            await stack.enter_async_context(working(self.broker, self.runners, concurrency=16))
            yield
        await until(lambda: not any(map(processes, self.traces.values())), 30)


def asking(prompt: str) -> dict[str, Any]:
    return {"message": f"{uuid4().hex[:8]}: {prompt}"}


# What agrees.


async def _agree(chats: Chats, prompt: str, *rounds: str, v1: str) -> tuple[dict[str, Any], str]:
    """The one answer that all ways to it give, and the session of one. ``rounds``: what the model says. ``v1``: which
    way is asked as v1."""
    client = chats.of["hermes"]
    response, waited, called = await asyncio.gather(
        client.post("/v1/chat/stream" if v1 == "streamed" else "/chat/stream", json=asking(prompt)),
        client.post("/v1/chat" if v1 == "waited" else "/chat", json=asking(prompt)),
        _called(chats.client, prompt),
    )
    stream = events_of(response.text)
    told = stream.end.data, waited.json()
    assert ["flag_for_review" in answer for answer in told] == [v1 == "streamed", v1 == "waited"]
    assert stream.tokens.split() == " ".join(rounds).split(), "the tokens are all rounds"
    assert stream.tokens.rstrip().endswith(rounds[-1]), "the last of them is what the reply is taken from"
    assert len(stream) > 4, "they came in pieces"
    assert len({answer["session_id"] for answer in told} - {None}) == 2
    assert [_plain(answer) for answer in told] == [called, called]
    return called, str(told[1]["session_id"])


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer of either style, without its session."""
    flags = [value for name, value in answer.items() if name in ("flagForReview", "flag_for_review")]
    return {**{name: answer[name] for name in ("reply", "confidence", "risk_level")}, "flag": flags[0]}


async def _called(client: HermesClient, prompt: str) -> dict[str, Any]:
    result = await client.chat(asking(prompt)["message"])
    assert result.failure is None, result
    told: dict[str, Any] = {"reply": result.reply, "confidence": result.confidence, "risk_level": result.risk_level}
    return {**told, "flag": result.flag_for_review}


async def _goes_on(chats: Chats, model: FakeModel, session_id: str) -> dict[str, Any]:
    """The answer to another chat in that session, which is Hermes' own and becomes one of ours: its model hears what
    was said there before."""
    asked = asking("And again PLAIN")
    response = await chats.of["hermes"].post("/chat", json={**asked, "session_id": session_id})
    [heard] = [said for said in model.conversations if asked["message"] in str(said[-1]["content"])]
    assert any("It is RATED" in str(message["content"]) for message in heard[:-1])
    assert response.json()["session_id"] == session_id
    return _plain(response.json())


# Leaving.


async def _first_token(pieces: AsyncIterator[bytes]) -> bytes:
    """What came up to there."""
    came = b""
    while b"event: token" not in came:
        came += await anext(pieces)
    return came


# What fails.


async def _failed(chats: Chats, runner: str, path: str, prompt: str) -> tuple[int, str, str, str]:
    """One run: status and reason of what waited for it, and the last frame of its stream, with the same words."""
    client = chats.of[runner]
    response = await client.post(path, json=asking(prompt))
    assert response.headers["content-type"] == "application/problem+json", response.text
    watched = await client.get(f"/v1/runs/{response.headers['x-run-id']}/stream?format=chat")
    problem, end = response.json(), events_of(watched.text).end
    assert problem["error"] == end.data["error"] == problem["detail"]
    return response.status_code, problem["reason"], end.event, end.data["error"]


async def _killed(chats: Chats) -> Events:
    """A stream whose Hermes is killed at its first token."""
    async with chats.of["killed"].stream("POST", "/chat/stream", json=asking("Answer and STALL")) as response:
        pieces = response.aiter_raw()
        came = await _first_token(pieces)
        trace = chats.traces["killed"]
        [pid] = {p for mark in ("--query=", "bridge.py") for p in pids(trace, mark, without="supervisor.py")}
        os.kill(pid, signal.SIGKILL)
        return events_of(came + b"".join([piece async for piece in pieces]))


async def _capped(broker: Broker, runner: HermesRunner) -> list[tuple[int, str]]:
    """How further chats are refused while one holds back all that the cap allows, and when it has ended: nobody knows
    what it cost, so what it held back is booked. Its caller left at the first token, which changes nothing."""
    refused: list[tuple[int, str]] = []

    async def ask(client: httpx.AsyncClient) -> None:
        for path in (*wire.PLAIN, *wire.STREAMED):
            response = await client.post(path, json=asking("Say something PLAIN"))
            assert response.headers["content-type"] == "application/problem+json"
            assert int(response.headers["retry-after"]) > 0
            refused.append((response.status_code, response.json()["code"]))

    async with (
        working(broker, {"hermes": runner}),
        serving(create_app(broker=broker)) as url,
        httpx.AsyncClient(base_url=url, timeout=180) as client,
    ):
        async with client.stream("POST", "/chat/stream", json=asking("Say something PLAIN")) as response:
            run_id = response.headers["x-run-id"]
            await ask(client)
            await _first_token(response.aiter_raw())
        while (result := await client.get(f"/v1/runs/{run_id}/result?wait=60")).status_code == 202:
            pass
        assert _plain(result.json()["answer"]) == SIMPLE
        await ask(client)
    return refused


async def _tools(chats: Chats) -> None:
    told, _ = await _agree(chats, "Use a TOOL", BEFORE_TOOL, AFTER_TOOL, v1="streamed")
    assert told == TOOL


async def _sessions(chats: Chats, model: FakeModel) -> None:
    told, session_id = await _agree(chats, "It is RATED", RATED, v1="waited")
    assert told == SAFE
    assert await _goes_on(chats, model, session_id) == SIMPLE


async def _kill(chats: Chats) -> None:
    killed = await _killed(chats)
    assert (killed.end.event, "signal 9" in killed.end.data["error"]) == ("error", True), killed


async def _refusals(chats: Chats) -> None:
    denied, empty = await asyncio.gather(
        _failed(chats, "hermes", "/chat", "Fail with ERR401"),
        _failed(chats, "hermes", "/v1/chat", "Say nothing: EMPTY"),
    )
    assert (denied[:3], "401" in denied[3]) == ((502, "provider_auth", "error"), True)
    assert empty[:3] == (502, "empty_reply", "error")


async def _limits(chats: Chats, redis: RedisServer) -> None:
    cap = Decimal("0.01")
    capped = Settings(redis_url=redis.url, namespace=f"t{uuid4().hex[:12]}", cost_cap=cap, cost_reservation=cap)
    async with api.open(settings=capped) as other:
        refused, timed, silent = await asyncio.gather(
            _capped(other, chats.runners["hermes"]),
            _failed(chats, "timed", "/chat", "An ENDLESS answer"),
            _failed(chats, "silent", "/v1/chat", "Be MUTE"),
        )
    assert refused == [(402, "cost_cap")] * 8
    assert timed == (504, "hermes_timeout", "error", "Hermes execution timed out")
    quiet = "Hermes execution timed out: it gave no output for too long"
    assert silent == (504, "hermes_silent", "error", quiet)


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (OLDER, {"tools", "refusals"}),
        (NEWER, {"sessions", "kill", "limits"}),
        *(pytest.param(build, {"all"}, marks=pytest.mark.long) for build in BUILDS),
    ],
    scope="module",
    indirect=["build"],
    ids=["0.19.0-some", "0.22.2-some", "0.19.0", "0.22.2"],
)
async def test_answers_and_failures_are_told_alike_everywhere(
    parts: set[str], broker: Broker, redis7: RedisServer, hermes: str, home: Path, model: FakeModel
) -> None:
    chats = Chats(broker, hermes, home)
    every: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
        "tools": lambda: _tools(chats),
        "refusals": lambda: _refusals(chats),
        "sessions": lambda: _sessions(chats, model),
        "kill": lambda: _kill(chats),
        "limits": lambda: _limits(chats, redis7),
    }
    async with chats.open():
        await asyncio.gather(*(part() for name, part in every.items() if parts & {name, "all"}))
