"""Reading a response: no faster than it is taken, and let go of at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.workers.llm.endpoint import Exchange, serve, stream
from tests.workers.llm.stage import Staging
from tests.workers.llm.wire import pieces
from workers.llm.failures import CallFailed
from workers.llm.requests import HttpCall
from workers.llm.runner import LlmRunner
from workers.llm.transport import Reading, Transport

_PIECE = b": " + b"x" * 65_000 + b"\n\n"


async def _endless(exchange: Exchange) -> None:
    await exchange.head(content_type="text/event-stream")
    while True:
        await exchange.send(_PIECE)


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    made = Transport(connect=5.0)
    yield made
    await made.aclose()


def _call(url: str) -> HttpCall:
    return HttpCall(f"{url}/v1", b"{}", {"content-type": "application/json"})


def _soon() -> float:
    return asyncio.get_running_loop().time() + 30


async def _stands_still(exchange: Exchange) -> int:
    """How many pieces were sent once no more are: all buffers on the way are full."""
    async with asyncio.timeout(20):
        while True:
            before = len(exchange.sent)
            await asyncio.sleep(0.5)
            if len(exchange.sent) == before:
                return before


async def test_nothing_is_read_that_nobody_asked_for(transport: Transport) -> None:
    async with serve(_endless) as endpoint, Reading(transport, _call(endpoint.url)) as reading:
        assert await reading.next(_soon())
        exchange = endpoint.exchanges[0]
        full = await _stands_still(exchange)
        taken = 0
        while len(exchange.sent) == full:
            taken += len(await reading.next(_soon()) or b"")
        assert taken > 0


async def test_a_stop_between_two_pieces_closes_the_request(transport: Transport) -> None:
    async with serve(_endless) as endpoint, Reading(transport, _call(endpoint.url)) as reading:
        assert await reading.next(_soon())
        reading.stop()
        await asyncio.wait_for(endpoint.exchanges[0].gone.wait(), 30)


async def test_a_stop_ends_whoever_waits(transport: Transport) -> None:
    async def silent(exchange: Exchange) -> None:
        await exchange.gone.wait()

    async with serve(silent) as endpoint, Reading(transport, _call(endpoint.url)) as reading:
        waiting = asyncio.create_task(reading.next(None))
        async with asyncio.timeout(30):
            while not endpoint.exchanges:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        reading.stop()
        assert await asyncio.wait_for(waiting, 30) is None
        await asyncio.wait_for(endpoint.exchanges[0].gone.wait(), 30)


async def test_a_stop_before_anything_began(transport: Transport) -> None:
    async with serve(_endless) as endpoint:
        async with Reading(transport, _call(endpoint.url)) as reading:
            reading.stop()
            assert await asyncio.wait_for(reading.next(None), 30) is None
        assert endpoint.exchanges == []


async def test_leaving_closes_the_request(transport: Transport) -> None:
    async def leave(url: str) -> None:
        async with Reading(transport, _call(url)) as reading:
            await reading.next(_soon())
            raise RuntimeError("mine")

    async with serve(_endless) as endpoint:
        with pytest.raises(RuntimeError, match="mine"):
            await leave(endpoint.url)
        await asyncio.wait_for(endpoint.exchanges[0].gone.wait(), 30)


async def test_a_time_that_is_over(transport: Transport) -> None:
    async def silent(exchange: Exchange) -> None:
        await exchange.gone.wait()

    async with serve(silent) as endpoint, Reading(transport, _call(endpoint.url)) as reading:
        with pytest.raises(TimeoutError):
            await reading.next(asyncio.get_running_loop().time() + 0.1)


async def test_a_url_that_is_none_fails_for_good(transport: Transport) -> None:
    async with Reading(transport, _call("nowhere")) as reading:
        with pytest.raises(CallFailed) as failed:
            await reading.next(_soon())
    assert (failed.value.code, failed.value.again) == ("provider_error", False)


async def test_a_client_is_made_once_for_runs_at_the_same_time(transport: Transport) -> None:
    async def whole(url: str) -> bytes:
        async with Reading(transport, _call(url)) as reading:
            parts = []
            while (part := await reading.next(_soon())) is not None:
                parts.append(part)
            return b"".join(parts)

    async with serve(stream(b"a", b"b")) as endpoint:
        assert await asyncio.gather(*(whole(endpoint.url) for _ in range(5))) == [b"ab"] * 5


async def test_a_cancel_closes_the_request_while_the_store_takes_nothing(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workers.runner import RunContext

    emit, stuck, go_on = RunContext.emit, asyncio.Event(), asyncio.Event()

    async def hanging(self: RunContext, item: Any) -> None:
        if type(item).__name__ == "MessageDelta":
            stuck.set()
            await go_on.wait()
        await emit(self, item)

    async def play(exchange: Exchange) -> None:
        await exchange.head(content_type="text/event-stream")
        for piece in pieces("openai.chat", ["one ", "two "])[:3]:
            await exchange.send(piece)
        await exchange.gone.wait()

    monkeypatch.setattr(RunContext, "emit", hanging)
    monkeypatch.setattr(LlmRunner, "stop_grace", 600.0)
    async with serve(play) as endpoint, staging(endpoint.url) as stage:
        run_id = await stage.create()
        await asyncio.wait_for(stuck.wait(), 30)
        await stage.broker.runs.cancel(run_id)
        await asyncio.wait_for(endpoint.exchanges[0].gone.wait(), 20)
        go_on.set()
        entries = await stage.follow(run_id)
    assert entries[-1].type == "cancelled"
