"""The frame of one response: it begins, and it ends or fails, each once; and the events for what no item fits.

Adapters of providers that send one message in blocks are built on it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from broker.items import Event, Item
from workers.providers.adapter import ProviderError
from workers.providers.reading import as_count
from workers.providers.usage import UsageCounter

__all__ = ["Response", "place"]

_MAX_INDEX = 2**31


def place(value: Any, otherwise: int) -> int:
    """A block's index as the provider gave it; ``otherwise`` where that is none, or none that an item can carry."""
    index = as_count(value)
    return otherwise if index is None or index >= _MAX_INDEX else index


class Response:
    """What an adapter knows of its response as a whole.

    Order of the items: ``model.started`` before all others; ``model.failed`` where the stream itself set ``error``;
    ``model.completed`` once the response is told, or at the end of the bytes.
    """

    api: ClassVar[str]

    def __init__(self, round: int = 1) -> None:
        self.error: ProviderError | None = None
        self.usage = UsageCounter()
        self.round = round
        self.model: str | None = None
        self.id: str | None = None
        self.finish_reason: str | None = None
        self.completed = False
        self._began = False
        self._calls = 0

    def began(self, model: str = "", id: str = "") -> list[Item]:
        """Call on any sign of life. The first id and the first model are the response's."""
        self.model = self.model or model or None
        self.id = self.id or id or None
        if self._began:
            return []
        self._began = True
        return [Event(name="model.started", payload={"round": self.round, **self._names()})]

    def _names(self) -> dict[str, str | None]:
        return {"model": self.model, "response_id": self.id}

    def call_id(self, given: str) -> str:
        """The id of the next call: the provider's, or one made of the call's place in the response."""
        self._calls += 1
        return given or f"call_{self.round}_{self._calls}"

    def fail(self, code: str, message: str, **facts: Any) -> list[Item]:
        """The provider gave up, or its stream makes no sense. Only the first reason counts."""
        if self.error is not None:
            return []
        self.error = ProviderError(code, message)
        payload = {"round": self.round, "code": code, "message": message, **facts}
        return [*self.began(), Event(name="model.failed", payload=payload)]

    def complete(self, unclosed: Iterable[int] = (), **facts: Any) -> list[Item]:
        """The end of a response that was told. ``unclosed``: blocks whose own end was not; ``facts`` without null."""
        if self.completed:
            return []
        if indexes := sorted(unclosed):
            facts["incomplete_blocks"] = indexes
        items = self.began()
        self.completed = True
        return [*items, self.ended(self.finish_reason, **facts)]

    def ended(self, finish_reason: str | None, choice: int = 0, **facts: Any) -> Event:
        """The end of one choice."""
        payload = {"round": self.round, **({"choice": choice} if choice else {}), "finish_reason": finish_reason}
        payload |= {name: value for name, value in facts.items() if value is not None}
        return Event(name="model.completed", payload=payload | self._names())

    def break_off(self, unclosed: Iterable[int] = ()) -> list[Item]:
        """The end of the bytes where the provider's own end was not seen."""
        self.miss_end()
        return self.complete(unclosed, incomplete=True)

    def miss_end(self) -> None:
        """An end without its announcement is an error, if there was none before."""
        self.error = self.error or ProviderError("incomplete_stream", "the stream ended without its terminal event")

    def unknown(self, event: str, data: Any) -> list[Item]:
        """Something that no item fits: kept as it came. ``event`` says what the provider calls it."""
        payload = {"round": self.round, "event": event, "data": data}
        return [*self.began(), Event(name="provider.event", payload=payload)]

    def block(self, index: int, block: Mapping[str, Any], *, closed: bool = True) -> Event:
        """A content block of the provider's own kind (a tool that it ran, a result), whole, in its place."""
        payload: dict[str, Any] = {"round": self.round, "index": index, "block": dict(block)}
        return Event(name="provider.block", payload=payload if closed else payload | {"incomplete": True})
