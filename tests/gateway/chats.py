"""Chats for the tests: their four addresses, what came over the wire, and a worker that the test plays."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from broker.api import Broker
from broker.sse import Decoder
from tests.gateway.conftest import Script
from tests.gateways import until

__all__ = ["PLAIN", "STREAMED", "Chat", "Events", "events_of", "made"]

PLAIN = ("/chat", "/v1/chat")
STREAMED = ("/chat/stream", "/v1/chat/stream")


class Chat(NamedTuple):
    """One event of a chat's stream. ``data`` is decoded, but for ``[DONE]``; ``id`` is the last that was sent."""

    event: str
    data: Any
    id: str


class Events(list[Chat]):
    @property
    def tokens(self) -> str:
        return "".join(chat.data["token"] for chat in self if chat.event == "token")

    @property
    def end(self) -> Chat:
        """The one ``done`` or ``error``, behind all tokens and ahead of ``[DONE]``."""
        *tokens, end, done = self
        assert {chat.event for chat in tokens} <= {"token"}, self
        assert end.event in ("done", "error"), self
        assert (done.event, done.data) == ("message", "[DONE]"), self
        return end


def events_of(wire: bytes | str) -> Events:
    """Everything that a whole response held."""
    decoder = Decoder()
    found = decoder.feed(wire.encode() if isinstance(wire, str) else wire)
    return Events(Chat(e.event, e.data if e.data == "[DONE]" else json.loads(e.data), e.id) for e in found)


async def made(broker: Broker, count: int = 1) -> Script:
    """The newest run, once there are so many, claimed by the test."""

    async def there() -> bool:
        return len((await broker.runs.list())[0]) >= count

    await until(there)
    script = Script(broker, (await broker.runs.list())[0][0])
    await script.claim()
    return script
