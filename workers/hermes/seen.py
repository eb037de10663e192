"""What the readers of Hermes' output know at its end, whatever the dialect. Pure.

``verdict.judge`` works from this and knows none of the readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from broker.items import Item

__all__ = ["HermesResult", "Reader", "Seen"]


@dataclass(frozen=True, slots=True)
class HermesResult:
    """The ``result`` line of stream-json. ``usage`` is in our meaning (see ``broker.items.Usage``)."""

    exit_code: int
    text: str
    session_id: str | None
    error: str | None
    duration_ms: float | None
    usage: Mapping[str, int | None] | None


class Seen(Protocol):
    """Facts about one run's output. All of them grow while it is read, and are final after ``close``."""

    @property
    def answered(self) -> bool:
        """There is text of the model after the last tool activity."""

    @property
    def structured(self) -> bool:
        """A stream-json record was seen: then a ``result`` is owed."""

    @property
    def result(self) -> HermesResult | None: ...

    @property
    def no_reply(self) -> str:
        """Hermes' notice that the model said nothing; empty where there is none."""

    @property
    def limited(self) -> bool:
        """Hermes said that it reached its turn limit."""

    @property
    def error(self) -> str:
        """Hermes' own wording of why it failed, where it may have ended with exit code 0 all the same."""

    @property
    def closed(self) -> bool:
        """Hermes printed its closing lines: it has said what it had to say."""

    @property
    def guidance(self) -> str:
        """Printed text that was no answer: what the command said instead of starting."""


class Reader(Seen, Protocol):
    """Bytes of standard output in, items out, in order; any split of the bytes gives the same items."""

    @property
    def session_id(self) -> str | None: ...

    @property
    def model(self) -> str | None: ...

    @property
    def duration_ms(self) -> float | None: ...

    def feed(self, chunk: bytes) -> list[Item]: ...

    def heard(self, stderr: str) -> list[Item]:
        """All of standard error so far (or its end). May be called at any time before ``close``."""

    def close(self, *, succeeded: bool = True) -> list[Item]:
        """The end of the output. ``succeeded``: the exit code was 0."""
