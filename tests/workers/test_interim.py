"""The message of a round says that another one follows, where no tool call in it does."""

from __future__ import annotations

from msgspec import UNSET

from broker.items import Final, Item, Message, MessageDelta, Raw
from broker.requests import RunInput, RunRequest
from broker.settings import Settings
from workers.runner import RunContext


async def test_a_round_that_a_later_one_closes_is_interim():
    published: list[Item | Raw] = []

    async def publish(item: Item | Raw) -> None:
        published.append(item)

    request = RunRequest(input=RunInput(message="m"))
    context = RunContext(
        run_id="r",
        attempt=1,
        request=request,
        session_id=None,
        settings=Settings(redis_url="memory:x"),
        publish=publish,
    )
    await context.emit(MessageDelta(text="first"))
    await context.emit(MessageDelta(text="second", round=2))
    await context.end_round()
    await context.emit(MessageDelta(text="third", round=3))
    await context.end(Final())
    messages = [(item.round, item.interim) for item in published if isinstance(item, Message)]
    # Of a round that the runner closes itself nobody knows yet what follows.
    assert messages == [(1, True), (2, UNSET), (3, UNSET)]
