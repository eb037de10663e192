"""What an endpoint may do wrong, as plays; and how a run ended."""

from __future__ import annotations

import asyncio

from broker.api import StreamEntry
from tests.workers.llm.endpoint import Exchange, Play, stream
from tests.workers.llm.wire import pieces

__all__ = ["CHAT", "CLAUDE", "ERROR", "WORDS", "broken", "ends", "fence", "hang_up", "hold", "silent_after"]

WORDS = ["one ", "two ", "three"]
CHAT = pieces("openai.chat", WORDS)
CLAUDE = pieces("anthropic.messages", WORDS)
ERROR = {"error": {"message": "the words of the server", "type": "some_error"}}


def broken(*parts: bytes) -> Play:
    """An answer whose connection is closed in the middle, behind these pieces."""

    async def play(exchange: Exchange) -> None:
        await exchange.head(content_type="text/event-stream")
        for part in parts:
            await exchange.send(part)
        # Closed without its end, once all of it has gone out: a reset would overtake what was sent.

    return play


def ends(*parts: bytes) -> Play:
    """An answer that ends in good order, perhaps too soon."""
    return stream(*parts)


async def hang_up(exchange: Exchange) -> None:
    """A reset in place of an answer."""
    exchange.reset()


def fence(entries: list[StreamEntry]) -> tuple[str, str, bool]:
    """The last item's type, its code, and whether it is retryable."""
    last = entries[-1]
    return last.type, last.fields.get("code", ""), last.fields.get("retryable", False)


async def hold(exchange: Exchange) -> None:
    """Say nothing until the client has gone."""
    await asyncio.wait_for(exchange.gone.wait(), 20)


def silent_after(*parts: bytes) -> Play:
    """An answer that stops in the middle, with its connection open."""

    async def play(exchange: Exchange) -> None:
        await exchange.head(content_type="text/event-stream")
        for part in parts:
            await exchange.send(part)
        await hold(exchange)

    return play
