"""Times that are over, and cancelling: the request is closed at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.api import StreamEntry
from tests.workers.llm.endpoint import Exchange, Play, answer, serve, stream
from tests.workers.llm.entries import named, texts
from tests.workers.llm.plays import CHAT, CLAUDE, ERROR, WORDS, fence, hold, silent_after
from tests.workers.llm.stage import Stage, Staging
from tests.workers.llm.wire import pieces, sse
from workers.llm.runner import LlmRunner


async def pinging(exchange: Exchange) -> None:
    """Never silent, and never a token."""
    await exchange.head(content_type="text/event-stream")
    await exchange.send(CLAUDE[0])
    while not exchange.gone.is_set():
        await exchange.send(sse({"type": "ping"}, "ping"))
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("play", "settings", "code", "kept"),
    [
        (hold, {"first_token": 0.8}, "llm_timeout", []),
        (silent_after(*CLAUDE[:3]), {"first_token": 0.8}, "llm_timeout", []),
        (pinging, {"first_token": 0.8}, "llm_timeout", []),
        (silent_after(*CLAUDE[:4]), {"silence": 1.0}, "llm_silent", WORDS[:1]),
        (silent_after(*CLAUDE[:4]), {"timeout": 1.5}, "llm_timeout", WORDS[:1]),
        (hold, {"timeout": 0.8, "first_token": 0}, "llm_timeout", []),
    ],
    ids=["no-head", "no-token", "pings", "silent", "total", "total-before"],
)
async def test_times_that_are_over(
    play: Play, settings: dict[str, float], code: str, kept: list[str], staging: Staging
) -> None:
    async with serve(play) as endpoint, staging(endpoint.url, api="anthropic.messages", **settings) as stage:
        for _ in range(5):
            before = len(endpoint.exchanges)
            entries = await stage.run()
            if len(endpoint.exchanges) > before and texts(entries) == kept:
                break  # else this process was held up, and the time was over before the request had come so far
        await asyncio.wait_for(endpoint.exchanges[-1].gone.wait(), 30)
    assert fence(entries) == ("failed", code, True)
    assert texts(entries) == kept
    assert len(endpoint.exchanges) == before + 1


async def test_slow_is_not_silent(staging: Staging) -> None:
    body = pieces("openai.chat", WORDS * 4)
    async with serve(stream(*body, pace=0.1)) as endpoint, staging(endpoint.url, silence=0.6) as stage:
        entries = await stage.run()
    assert fence(entries)[0] == "final"
    assert texts(entries) == WORDS * 4


async def test_the_time_of_a_runholds_for_all_attempts_together(staging: Staging) -> None:
    trouble = answer(503, ERROR, retry_after="20")
    async with serve(trouble, stream(*CHAT)) as endpoint, staging(endpoint.url, timeout=0.4) as stage:
        async with asyncio.timeout(10):
            entries = await stage.run()
    assert fence(entries) == ("failed", "llm_timeout", True)


async def test_what_a_slow_store_takes_is_no_silence(monkeypatch: pytest.MonkeyPatch, staging: Staging) -> None:
    from workers.runner import RunContext

    emit = RunContext.emit

    async def slowly(self: RunContext, item: Any) -> None:
        await asyncio.sleep(0.15)
        await emit(self, item)

    monkeypatch.setattr(RunContext, "emit", slowly)
    # All at once, so that the server is silent all the time that the items take.
    async with serve(stream(b"".join(CHAT[:-1]), CHAT[-1])) as endpoint, staging(endpoint.url, silence=0.3) as stage:
        entries = await stage.run()
    assert fence(entries)[0] == "final"


# Cancelling.


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not end by himself is not made to end while the test looks."""
    monkeypatch.setattr(LlmRunner, "stop_grace", 600.0)


async def _cancelled_at(stage: Stage, when: Callable[[StreamEntry], bool]) -> list[StreamEntry]:
    run_id = await stage.create()
    entries = []
    async with asyncio.timeout(20):
        async for entry in stage.broker.stream(run_id):
            entries.append(entry)
            if when(entry):
                await stage.broker.runs.cancel(run_id)
    return entries


def _named(name: str) -> Callable[[StreamEntry], bool]:
    return lambda entry: entry.fields.get("name") == name


@pytest.mark.usefixtures("no_grace")
async def test_a_cancel_closes_the_request(staging: Staging) -> None:
    async with serve(silent_after(*CHAT[:3])) as endpoint, staging(endpoint.url) as stage:
        entries = await _cancelled_at(stage, lambda e: e.fields.get("text") == WORDS[1])
        exchange = endpoint.exchanges[0]
        await asyncio.wait_for(exchange.gone.wait(), 20)
    assert entries[-1].type == "cancelled"
    assert entries[-1].fields["partial"]["content"] == [{"type": "text", "text": "one two "}]


@pytest.mark.usefixtures("no_grace")
async def test_a_cancel_before_the_first_byte_closes_the_request(staging: Staging) -> None:
    async with serve(hold) as endpoint, staging(endpoint.url) as stage:
        run_id = await stage.create()
        async with asyncio.timeout(10):
            while not endpoint.exchanges:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await stage.broker.runs.cancel(run_id)
        await asyncio.wait_for(endpoint.exchanges[0].gone.wait(), 20)
        entries = await stage.follow(run_id)
    assert entries[-1].type == "cancelled"
    assert named(entries, "model.failed") == named(entries, "model.completed") == named(entries, "retry") == []
    assert len(endpoint.exchanges) == 1


@pytest.mark.usefixtures("no_grace")
async def test_a_cancel_cuts_a_wait_for_another_attempt_short(staging: Staging) -> None:
    trouble = answer(429, ERROR, retry_after="25")
    async with serve(trouble, stream(*CHAT)) as endpoint, staging(endpoint.url) as stage:
        entries = await _cancelled_at(stage, _named("retry"))
    assert entries[-1].type == "cancelled"
    assert len(endpoint.exchanges) == 1


@pytest.mark.usefixtures("no_grace")
async def test_a_deadline_closes_the_request(staging: Staging) -> None:
    async with serve(silent_after(*CHAT[:3])) as endpoint, staging(endpoint.url) as stage:
        entries = await stage.run(deadline_s=2.0)
        await asyncio.wait_for(endpoint.exchanges[0].gone.wait(), 20)
    assert fence(entries)[:2] == ("failed", "deadline")
    assert texts(entries) == WORDS[:2]
