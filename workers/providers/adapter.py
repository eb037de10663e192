"""What every provider's file has in common: an ``Adapter`` turns the decoded events of one response into items.

Pure: no clock, no IO. One adapter reads one response (one round, all its choices). The rules are in docs/merging.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from broker.items import Item
from workers.providers.usage import UsageCounter

__all__ = ["Adapter", "ProviderError"]


@dataclass(frozen=True, slots=True)
class ProviderError:
    """What went wrong inside a stream: the provider's own code and message, or one of ours.

    Ours: ``incomplete_stream`` (it ended without its end), ``corrupt_stream`` (two responses in one), and those of
    ``workers.providers.decoding``.
    """

    code: str
    message: str


class Adapter(Protocol):
    """``feed`` each decoded event, ``close`` at the end of the bytes. ``usage`` counts this response's tokens."""

    api: ClassVar[str]
    error: ProviderError | None
    usage: UsageCounter

    def __init__(self, round: int = 1) -> None: ...

    def feed(self, event: str, data: Any) -> list[Item]:
        """One event → items. ``event`` is the SSE event name, or ``""``; ``data`` the decoded JSON.

        Never raises: what it does not know it keeps as ``event provider.event``, what is broken becomes ``error``.
        """

    def close(self) -> list[Item]:
        """The stream has ended: what is owed (the end of open calls, ``model.completed``, usage that came last).

        Without its terminal event before it, ``error`` becomes ``incomplete_stream`` unless one was there already,
        and ``model.completed`` says ``incomplete``.
        """
